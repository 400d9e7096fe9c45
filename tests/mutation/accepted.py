"""Generated mutants that no test can kill, because they are equivalent to the product."""

from __future__ import annotations

from dataclasses import dataclass

from .generated import Generated
from .pattern import matches_whole


@dataclass(frozen=True, slots=True)
class Accepted:
    """Mutants of one definition, by patterns of the code before and after; ``why`` they are equivalent."""

    target: str
    old: str
    new: str
    why: str


ACCEPTED: tuple[Accepted, ...] = ()


def is_accepted(mutant: Generated) -> bool:
    """Whether the mutant is on the list."""
    return any(
        each.target == mutant.target
        and matches_whole(each.old, mutant.old)
        and (matches_whole(each.new, mutant.new) if mutant.new else not each.new)
        for each in ACCEPTED
    )
