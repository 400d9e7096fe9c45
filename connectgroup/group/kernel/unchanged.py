"""The outcome of a heartbeat that reports nothing is kept until a record changes its group.

Nearly all heartbeats are of this kind: the member has reached the target assignment, and neither side has anything to
tell. Such a heartbeat is decided by the same rules as any other; its outcome depends on the group and on the fields in
its key, not on the time, so it is the outcome of the next one with that key as well.
"""

from __future__ import annotations

from typing import Any, Protocol

from .outcome import Outcome

Key = tuple[str, *tuple[object, ...]]
"""The member id, and what else the outcome of a heartbeat depends on besides the state of the group."""


class SettledGroup(Protocol):
    """What the rule reads of a group."""

    @property
    def epoch(self) -> int: ...
    @property
    def target_epoch(self) -> int: ...
    @property
    def behind(self) -> set[str]: ...
    @property
    def unchanged(self) -> dict[str, tuple[Key, Outcome[Any]]]:
        """The kept outcomes, by member id; ``apply`` clears them."""


def kept(group: SettledGroup, key: Key) -> Outcome[Any] | None:
    """The outcome of an equal heartbeat since the last record, or ``None``."""
    known = group.unchanged.get(key[0])
    return known[1] if known is not None and known[0] == key else None


def keep(group: SettledGroup, key: Key, outcome: Outcome[Any]) -> None:
    """Keep the outcome of a heartbeat that reports nothing, if it will be that of the next one with this key.

    While a target assignment is missing, an outcome depends on the time; and members that are behind advance.
    """
    if (
        group.epoch == group.target_epoch
        and key[0] not in group.behind
        and not (outcome.records or outcome.effects)
        and not getattr(outcome.response, "error_code", 0)
    ):
        group.unchanged[key[0]] = key, outcome
