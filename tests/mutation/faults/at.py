"""The form of the lists of faults: the address once, then its changes."""

from __future__ import annotations

from dataclasses import dataclass

from ..fault import Fault


@dataclass(frozen=True, slots=True)
class C:
    """A change at the address: see ``Fault``; ``tests`` if others than those of the address must detect it."""

    name: str
    old: str
    new: str = ""
    nth: int | None = None
    tests: str = ""
    simulator: str = ""
    seed: int = 1
    model: bool = False


def at(target: str, tests: str, *changes: C) -> tuple[Fault, ...]:
    """The faults at one address.

    Args:
        target: module below the repository and qualified name, with a colon between.
        tests: paths or ids of pytest below ``tests/``, separated by blanks.
    """
    return tuple(
        Fault(
            name=change.name,
            target=target,
            old=change.old,
            new=change.new,
            nth=change.nth,
            tests=" ".join(f"tests/{part}" for part in (change.tests or tests).split()),
            simulator=change.simulator,
            seed=change.seed,
            model=change.model,
        )
        for change in changes
    )
