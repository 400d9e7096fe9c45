"""What a step comes to: an answer, the records that make it true, and timers as values."""

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
        response: what to answer once ``records`` are durable; ``None`` for a timer.
        records: to be appended and applied in order, all or none.
        timers: to be set or cancelled once the records are applied.
        parks: the request may be held back: there is nothing in the answer its sender does not know.
    """

    response: R
    records: tuple[Record, ...] = ()
    timers: tuple[Timer, ...] = ()
    parks: bool = False
