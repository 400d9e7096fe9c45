"""Generated mutants that no test can kill, because the product does the same with them."""

from __future__ import annotations

from dataclasses import dataclass

from .generated import Generated
from .pattern import matches_whole


@dataclass(frozen=True, slots=True)
class Accepted:
    """Mutants of one definition whose changed code matches a pattern; ``why`` they are equivalent."""

    target: str
    old: str
    why: str


ACCEPTED: tuple[Accepted, ...] = ()


def is_accepted(mutant: Generated) -> bool:
    """Whether the mutant is on the list."""
    return any(each.target == mutant.target and matches_whole(each.old, mutant.old) for each in ACCEPTED)
