"""The result of a step: a response, the records that make it valid, and timers as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ...protocol.messages.api import Response
from ...protocol.records.connect import Record
from .timers import Timer

R = TypeVar("R", bound=Response | None, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """The result of one pure step.

    Attributes:
        response: sent once ``records`` are durable; ``None`` for a timer.
        records: appended and applied in order, atomically.
        timers: set or cancelled once the records are applied.
        parks: the request may be parked, since the response contains nothing new to the member.
    """

    response: R
    records: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parks: bool = False
