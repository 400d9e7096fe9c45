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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..protocol.units import printable
from .columns import Column, Columns, as_objects, json_encoder
from .errors import SinkError
from .ownership import Owner, Range
from .sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

ERROR_COLUMN: Final = "connectgroup_error"
"""The column in which a tolerant source describes a bad record; null for all other rows."""

PLACE_COLUMN: Final = "connectgroup_place"
"""The column in which a tolerant source may name the place of each row: for dead letters of transforms and sinks
(``Source.with_places``)."""

HAS_VALUE_COLUMN: Final = "connectgroup_has_value"
"""The column in which a source of Kafka may say that a record has a value, true or null. The row of a value without
fields and that of no value (a tombstone) are alike (``Source.with_marks``)."""

_HIDDEN: Final = (ERROR_COLUMN, PLACE_COLUMN, HAS_VALUE_COLUMN)

FIELDS: Final = ("connector", "task", "stage", "place", "reason", "record")
"""The fields of a dead letter: ``stage`` is source, transform or sink, ``place`` is file and line or byte, table
and key, or topic, partition and offset, ``record`` is the record as text."""

DeadLetter = Mapping[str, str]


class DeadLetters(list[DeadLetter]):
    """The dead letters of one batch. A sink adds those of rows that it cannot write (``reject``).

    Attributes:
        owner: the task.
        places: the place of each row of the batch; ``None``: unknown.
    """

    def __init__(self, owner: Owner, places: pa.ChunkedArray | None = None) -> None:
        """Store the arguments."""
        super().__init__()
        self.owner, self.places = owner, places


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
        """Write rows and dead letters as ``commit`` writes rows.

        A row that cannot be written is an error, or, if ``dead_letters`` are ``DeadLetters``, one more of them
        (``reject``).
        """

    def report_late(self, late: Callable[[Sequence[DeadLetter]], None]) -> None:
        """Receive what a sink calls with dead letters of former batches that it has written without one. Called before
        ``claim``.
        """

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        return self.commit_all(owner, ranges, rows, ())


def reject(letters: Sequence[DeadLetter], where: str, rows: pa.Table, at: int, reason: str) -> None:
    """Add a dead letter for a row that a sink cannot write.

    Args:
        letters: the dead letters of the batch.
        where: the sink, for the error.
        at: the row's number in ``rows``, all rows of the batch.
        reason: the violation and what is allowed.

    Raises:
        SinkError: errors are not tolerated.
    """
    record = record_of(rows, at)
    if not isinstance(letters, DeadLetters):
        raise SinkError(f"{where}: {reason}; row: {printable(record, limit=200)}")
    place = "" if letters.places is None else letters.places[at].as_py() or ""
    letters.append(dead_letter(letters.owner, {"stage": "sink", "place": place, "reason": reason, "record": record}))


def write_rows(
    count: int,
    write: Callable[[int, int], None],
    savepoint: Callable[[], AbstractContextManager[Any]],
    faults: tuple[type[Exception], ...],
    rejected: Callable[[int, Exception], None],
) -> None:
    """Write the rows of a batch in order. If that fails, halve them, again and again, until the rows that fail stand
    alone.

    Args:
        count: the number of rows.
        write: writes the rows from a number to another one.
        savepoint: what undoes the writes in it if it ends with an error.
        faults: the errors of rows; any other error is raised.
        rejected: called with each row that fails.
    """

    def attempt(start: int, end: int) -> None:
        try:
            with savepoint():
                write(start, end)
        except faults as error:
            if end - start == 1:
                rejected(start, error)
                return
            middle = (start + end) // 2
            attempt(start, middle)
            attempt(middle, end)

    if count:
        attempt(0, count)


def record_of(rows: pa.Table, at: int) -> str:
    """Return a row as JSON."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if name in _HIDDEN:
            continue
        try:
            (columns[name],) = as_objects([column[at].as_py()], column.type)
        except UnicodeDecodeError:
            value = column[at]
            data = value.as_buffer().to_pybytes() if hasattr(value, "as_buffer") else b"a text that is not UTF-8"
            columns[name] = data.decode(errors="backslashreplace")
        except (ValueError, OverflowError):
            # A time in a year that Python does not have; inside of a list or a struct, as Arrow shows it.
            value = column[at]
            shown = f"{value.value} ({value.type})" if hasattr(value, "value") else column.slice(at, 1).to_string()
            columns[name] = " ".join(shown.split())
    return _RECORD(columns)


def read_columns(columns: Columns, *, is_tolerant: bool, has_places: bool) -> Columns:
    """Return the columns that a source reads: those of its rows and, if bad records are tolerated, place and error."""
    names = [PLACE_COLUMN] * has_places + [ERROR_COLUMN] * is_tolerant
    return (*columns, *(Column(name, "STRING") for name in names))


def check_reserved(columns: Columns, *, is_tolerant: bool = False, stage: str = "source") -> None:
    """Check that no column has the name of the mark of records with a value or, of a source whose errors are tolerated,
    that of places or of errors.

    Args:
        stage: what makes the columns, for the error: the source or the transforms.

    Raises:
        ConfigError: one has.
    """
    for column in columns:
        allowed, name = "", column.name.lower()
        if name == HAS_VALUE_COLUMN:
            allowed = f"names other than {HAS_VALUE_COLUMN}"
        elif is_tolerant and name in (ERROR_COLUMN, PLACE_COLUMN):
            allowed = f"names other than {ERROR_COLUMN} and {PLACE_COLUMN} with errors.tolerance=all"
        if allowed:
            raise ConfigError(f"{stage}: a column", column.name, allowed)


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


def place_and_reason(letter: DeadLetter) -> str:
    """Where the record of a dead letter came from and why it is one, without the record, which may be confidential."""
    return f"{letter.get('place') or 'a record'}: {letter.get('reason', '')}"


def dead_letter(owner: Owner, error: Mapping[str, str]) -> DeadLetter:
    """Return a dead letter of a task."""
    return {"connector": owner.connector, "task": str(owner.task), **error}


def values_of(letter: DeadLetter) -> tuple[str | None, ...]:
    """Return the fields of a dead letter in the order of ``FIELDS``. A null character, which databases refuse, is
    escaped."""
    return tuple(None if (value := letter.get(name)) is None else value.replace("\0", "\\0") for name in FIELDS)


_RECORD: Final = json_encoder(compact=False)
