"""Who learns a new target epoch first."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

TOLD_AT_ONCE: Final = 8
"""In a group of up to so many members, all learn a new target epoch at once."""


def may_learn_later(members: Collection[str], keeping: Iterable[str]) -> Iterable[str]:
    """The members that may learn a new target epoch after the others: those that keep what they own, of a large group.

    A change of a large group concerns few members. They revoke and start units sooner if they are told first.
    """
    return keeping if len(members) > TOLD_AT_ONCE else ()
