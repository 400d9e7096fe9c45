"""Applies the transforms of a batch so that a record that cannot be processed becomes a dead letter.

The batch is transformed as a whole. Only if that fails is it halved, again and again, until the records that fail stand
alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..dataplane.dead_letters import ERROR_COLUMN, DeadLetter, dead_letter
from ..dataplane.ownership import Owner
from ..dataplane.transform import RowTransform
from ..errors import ConnectGroupError
from .errors import root_cause
from .remote import frame_of
from .session import is_usable
from .transforms.chain import Chain, apply_chain

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def apply_tolerantly(
    chain: Chain, table: pa.Table, session: SparkSession, owner: Owner
) -> tuple[pa.Table, list[DeadLetter]]:
    """Return the rows of a batch after all transforms, and the records that a source or a transform could not process.

    Args:
        table: the rows as read, with the column of errors if the source has it.

    Raises:
        Exception: the source cannot be read, or a transform of the whole batch (``sql``, ``Filter`` by a condition that
            fails) cannot be applied: then no single record is at fault.
    """
    import pyarrow.compute as pc

    letters: list[DeadLetter] = []
    if ERROR_COLUMN in table.column_names:
        errors = table[ERROR_COLUMN]
        letters = [dead_letter(owner, json.loads(text)) for text in errors.drop_null().to_pylist()]
        table = table.filter(pc.is_null(errors)).drop_columns([ERROR_COLUMN])
    if not chain:
        return table, letters
    whole_batch = not all(isinstance(step.transform, RowTransform) for step in chain)
    parts = _applied(chain, table, session, owner, whole_batch)
    import pyarrow as pa

    return pa.concat_tables([rows for rows, _ in parts]), letters + [letter for _, found in parts for letter in found]


def _applied(
    chain: Chain, table: pa.Table, session: SparkSession, owner: Owner, whole_batch: bool
) -> list[tuple[pa.Table, list[DeadLetter]]]:
    try:
        return [(apply_chain(chain, frame_of(session, table)).toArrow(), [])]
    except ConnectGroupError:
        raise
    except Exception as error:
        if whole_batch or not is_usable(session) or table.num_rows == 0:
            raise
        if table.num_rows > 1:
            half = table.num_rows // 2
            return [
                *_applied(chain, table.slice(0, half), session, owner, whole_batch),
                *_applied(chain, table.slice(half), session, owner, whole_batch),
            ]
        record = json.dumps(table.to_pylist()[0], default=str, ensure_ascii=False)
        context = {"stage": "transform", "place": "", "reason": str(root_cause(error)), "record": record}
        nothing = apply_chain(chain, frame_of(session, table.slice(0, 0))).toArrow()
        return [(nothing, [dead_letter(owner, context)])]
