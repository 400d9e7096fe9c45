"""Dead letters: records that cannot be processed, put aside with the error's context (``errors.tolerance=all``).

A source that can tell a bad record from the others (``Source.tolerant``) returns it as a row in which the column
``connectgroup_error`` is a JSON object with the fields of ``FIELDS``, and every other column is null. A sink that keeps
dead letters (``DeadLetterSink``) writes them in the transaction of the batch's rows and offsets, so that each record is
in the output or among the dead letters exactly once (X8).
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..protocol.units import printable
from .ownership import Owner, Range
from .sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

ERROR_COLUMN: Final = "connectgroup_error"
"""The column in which a tolerant source describes a bad record; null for all other rows."""

FIELDS: Final = ("connector", "task", "stage", "place", "reason", "record")
"""The fields of a dead letter: ``stage`` is source or transform, ``place`` is file and line, or topic, partition and
offset, ``record`` is the record as text."""

DeadLetter = Mapping[str, str]

MAX_LOGGED: Final = 100
"""Lines for one batch: a batch may have a hundred thousand dead letters."""

logger = logging.getLogger(__name__)


class DeadLetterSink(Sink):
    """A sink that keeps dead letters in a second table or topic."""

    @abstractmethod
    def open_dead_letters(self, name: str) -> None:
        """Prepare the table or topic of the dead letters. Called once, before the claim.

        Raises:
            ConfigError: the name cannot be used.
            SinkError: it cannot be created.
        """

    @abstractmethod
    def commit_all(
        self, owner: Owner, ranges: Sequence[Range], rows: pa.Table, dead_letters: Sequence[DeadLetter]
    ) -> bool:
        """Write rows and dead letters as ``commit`` writes rows."""

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        return self.commit_all(owner, ranges, rows, ())


def error_text(*, place: str, reason: str, record: str) -> str:
    """Return the value of ``ERROR_COLUMN`` for a record that a source cannot read."""
    return json.dumps({"stage": "source", "place": place, "reason": reason, "record": record}, ensure_ascii=False)


def log_dead_letters(unit: object, letters: Sequence[DeadLetter], *, include_messages: bool) -> None:
    """Log each dead letter of a batch as one line, at most ``MAX_LOGGED`` of them (``errors.log.enable``, KIP-298).

    Args:
        unit: the task, as it is shown in the log.
        include_messages: whether the line contains the record.
    """
    for letter in letters[:MAX_LOGGED]:
        place = letter.get("place") or "a record"
        record = f"; record: {printable(letter.get('record', ''), limit=1_000)}" if include_messages else ""
        reason = printable(letter.get("reason", ""), limit=1_000)
        logger.error("%s: %s is a dead letter (%s): %s%s", unit, place, letter.get("stage", ""), reason, record)
    if len(letters) > MAX_LOGGED:
        logger.error("%s: and %d more dead letters of this batch", unit, len(letters) - MAX_LOGGED)


def dead_letter(owner: Owner, error: Mapping[str, str]) -> DeadLetter:
    """Return a dead letter of a task."""
    return {"connector": owner.connector, "task": str(owner.task), **error}


def values_of(letter: DeadLetter) -> tuple[str | None, ...]:
    """Return the fields of a dead letter in the order of ``FIELDS``. A null character, which databases refuse, is
    escaped."""
    return tuple(None if (value := letter.get(name)) is None else value.replace("\0", "\\0") for name in FIELDS)
