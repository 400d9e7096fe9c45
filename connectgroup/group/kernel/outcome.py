"""The result of a step as values: responses, the records that make them valid, timers and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ...protocol.messages.api import Response
from ...protocol.records.connect import Record
from .effects import Effect
from .timers import Timer

R = TypeVar("R", bound=Response | None, covariant=True)


class ConvertedGroup(Protocol):
    """What a runtime reads of a ``registry.Converted``."""

    @property
    def group_type(self) -> str: ...
    @property
    def state(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """The result of one pure step.

    Attributes:
        response: the response to the request of this step, sent once ``records`` are durable. ``None`` for an input
            that has no sender, and for a request that is parked until a later step responds to it.
        records: appended and applied in order, atomically.
        timers: set or cancelled once the records are durable.
        parks: the request may be parked: ``response`` contains nothing new to its sender, or is ``None``.
        parked_responses: responses to parked requests, by the sender of each (``registry.RequestTraits.sender``); sent
            once ``records`` are durable. A sender without a parked request is ignored.
        effects: performed once the records are durable.
        converted: the group is of another type now, with this state (``registry.Converted``); ``records`` and
            ``timers`` include those of the conversion.
        sender: the sender under which the request is parked, if ``RequestTraits.sender`` is empty: the step chose it.
    """

    response: R
    records: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parks: bool = False
    parked_responses: Mapping[str, Response] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    converted: ConvertedGroup | None = None
    sender: str = ""


# --------------------------------------------------------------------------------------------------
# The outcome of a heartbeat that reports nothing is kept until a record changes its group.
#
# Nearly all heartbeats are of this kind: the member has reached the target assignment, and neither side has anything to
# tell. Such a heartbeat is decided by the same rules as any other; its outcome depends on the group and on the fields
# in its key, not on the time, so it is the outcome of the next one with that key as well.


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
