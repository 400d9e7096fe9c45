"""The result of a step as values: responses, the records that make them valid, timers and effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...protocol.messages.api import Response
from ...protocol.records.connect import Record
from .effects import Effect
from .timers import Timer

R = TypeVar("R", bound=Response | None, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A group with members that has become a group of another type.

    Attributes:
        group_type: the name of its type now.
        state: its state now, with ``records`` applied.
        records: the records that remove the former group's state and create the new one.
        timers, parked_responses: as in ``Outcome``.
    """

    group_type: str
    state: Any
    records: tuple[Record, ...]
    timers: tuple[Timer, ...] = ()
    parked_responses: Mapping[str, Response] = field(default_factory=dict)


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
        converted: the group is of another type now, with this state; ``records`` and ``timers`` include those of the
            conversion.
        sender: the sender under which the request is parked, if ``RequestTraits.sender`` is empty: the step chose it.
    """

    response: R
    records: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parks: bool = False
    parked_responses: Mapping[str, Response] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    converted: Converted | None = None
    sender: str = ""
