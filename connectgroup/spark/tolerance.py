"""Applies the transforms of a batch so that a record that cannot be processed becomes a dead letter.

The batch is transformed as a whole. Only if that fails is it halved, again and again, until the records that fail stand
alone.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from ..dataplane.dead_letters import ERROR_COLUMN, PLACE_COLUMN, DeadLetters, dead_letter, record_of, reject
from ..dataplane.ownership import Owner
from ..dataplane.transform import RowTransform
from ..errors import ConnectGroupError
from .errors import root_cause
from .remote import frame_of
from .session import is_usable
from .transforms.chain import Chain, apply_chain, passes_on
from .transforms.rows import Filter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def apply_tolerantly(
    chain: Chain, table: pa.Table, session: SparkSession, owner: Owner
) -> tuple[pa.Table, DeadLetters]:
    """Return the rows of a batch after all transforms, and the records that a source or a transform could not process.

    Args:
        table: the rows as read, with the column of errors if the source has it.

    Raises:
        Exception: the source cannot be read, or a transform of the whole batch (``sql``) cannot be applied, or one
            beside it: then no single record is the cause.
    """
    table, letters = split_errors(table, owner)
    if not chain:
        return table, letters
    import pyarrow as pa

    whole_batch = not all(isinstance(step.transform, RowTransform | Filter) for step in chain)
    keeps_rows = all(isinstance(step.transform, RowTransform) for step in chain)
    places, bad = letters.places, list[int]()
    if places is not None and not keeps_rows and passes_on(chain):
        # Which rows a filter leaves is not known afterwards, so each row takes its place along.
        table = table.append_column(PLACE_COLUMN, places)
    parts = _applied(chain, table, 0, session, letters, bad, whole_batch)
    rows = pa.concat_tables(parts)
    if PLACE_COLUMN in rows.column_names:
        letters.places, rows = rows[PLACE_COLUMN], rows.drop_columns([PLACE_COLUMN])
    elif not keeps_rows:
        letters.places = None
    elif places is not None and bad:
        letters.places = places.take(pa.array(sorted(set(range(len(places))) - set(bad)), pa.int64()))
    return rows, letters


def split_errors(table: pa.Table, owner: Owner) -> tuple[pa.Table, DeadLetters]:
    """Return the rows of a batch as read, and the records that the source could not read."""
    import pyarrow.compute as pc

    letters = DeadLetters(owner)
    if ERROR_COLUMN in table.column_names:
        errors = table[ERROR_COLUMN]
        letters.extend(dead_letter(owner, with_text(json.loads(text))) for text in errors.drop_null().to_pylist())
        table = table.filter(pc.is_null(errors)).drop_columns([ERROR_COLUMN])
    if PLACE_COLUMN in table.column_names:
        letters.places = table[PLACE_COLUMN]
        table = table.drop_columns([PLACE_COLUMN])
    return table, letters


def check_values(rows: pa.Table, letters: DeadLetters, is_tolerant: bool) -> pa.Table:
    """Return the rows of a batch without those with a value that Spark has and not every sink: a text that is not UTF-8
    (``cast(b AS STRING)``), a time in a year that databases and Python do not have.

    Args:
        letters: those of the batch; such a row is added to them.

    Raises:
        SinkError: there is one, and errors are not tolerated.
    """
    import pyarrow as pa

    if not any(map(_fault_of, rows.columns)):
        return rows
    kept = list[int]()
    for at in range(rows.num_rows):
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            # Not a slice: those of structs and lists are validated with all rows.
            if fault := _fault_of(column.take([at])):
                reject(letters if is_tolerant else (), letters.owner.connector, rows, at, f"{name} {fault}")
                break
        else:
            kept.append(at)
    if letters.places is not None:
        letters.places = letters.places.take(pa.array(kept, pa.int64()))
    return rows.take(pa.array(kept, pa.int64()))


def _fault_of(values: pa.ChunkedArray) -> str:
    """Return what is wrong with values, and what is allowed; empty if nothing is."""
    import pyarrow as pa

    from .sources.json_values import check_years, times_in

    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return "is not UTF-8 after the transforms; allowed: UTF-8 text, or a column of type BINARY"
    try:
        for times in times_in(values):
            check_years(times)
    except OverflowError:
        return (
            "is a time outside of the years 1 to 9999; allowed: times in these years (a number of milliseconds that"
            " counts as seconds is in a later one)"
        )
    return ""


def _applied(
    chain: Chain,
    table: pa.Table,
    start: int,
    session: SparkSession,
    letters: DeadLetters,
    bad: list[int],
    whole_batch: bool,
) -> list[pa.Table]:
    """Return the rows after the transforms. A row that fails is added to ``letters``, its number to ``bad``.

    Args:
        start: the number of the first row in the batch.
    """
    try:
        return [apply_chain(chain, frame_of(session, table)).toArrow()]
    except ConnectGroupError:
        raise
    except Exception as error:
        if whole_batch or not is_usable(session) or table.num_rows == 0:
            raise
        if table.num_rows > 1:
            half = table.num_rows // 2
            return [
                *_applied(chain, table.slice(0, half), start, session, letters, bad, whole_batch),
                *_applied(chain, table.slice(half), start + half, session, letters, bad, whole_batch),
            ]
        context = {
            "stage": "transform",
            "place": "" if letters.places is None else letters.places[start].as_py() or "",
            "reason": f"{_failing(chain, table, session)}: {root_cause(error)}",
            "record": record_of(table, 0),
        }
        letters.append(dead_letter(letters.owner, context))
        bad.append(start)
        return [apply_chain(chain, frame_of(session, table.slice(0, 0))).toArrow()]


def _failing(chain: Chain, table: pa.Table, session: SparkSession) -> str:
    """Return the name of the transform that fails with a row, as in the configuration."""
    for count in range(1, len(chain)):
        try:
            apply_chain(chain[:count], frame_of(session, table)).toArrow()
        except Exception:
            return chain[count - 1].transform.place.prefix.rstrip(".")
    return chain[-1].transform.place.prefix.rstrip(".")


def with_text(error: dict[str, str]) -> dict[str, str]:
    """Return the error of a source with its record as text; bytes that are not UTF-8 are escaped."""
    if "base64" not in error:
        return error
    record = base64.b64decode(error.pop("base64")).decode(errors="backslashreplace")
    return {**error, "record": record}
