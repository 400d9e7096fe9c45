"""The spans of a task's batches: a sample, because a task may have thousands of batches in a minute."""

from __future__ import annotations

from collections.abc import Callable

from ..connector import Batch
from ..member.actions import Grant
from ..telemetry.spans import BATCH_COMMIT, BATCH_DEAD, BATCH_READ, BATCH_ROWS, GROUP, MEMBER, OWNER_EPOCH, UNIT, record

SAMPLE_S = 10.0
"""Minimum seconds between two sampled batches of one task that were committed."""


class BatchSpans:
    """Receives the batches of one run of a task, in any thread.

    The first batch and then at most one in ``SAMPLE_S`` becomes a span; each batch whose commit failed does.
    """

    def __init__(
        self,
        then: Callable[[Batch], None],
        grant: Grant,
        group_id: str,
        member_id: str,
        clock: Callable[[], float],
    ) -> None:
        """``then`` receives each batch first; ``clock``: seconds on a monotonic clock."""
        self._then, self._clock = then, clock
        self._attributes = {
            GROUP: group_id,
            MEMBER: member_id,
            UNIT: str(grant.unit),
            OWNER_EPOCH: grant.owner_epoch,
        }
        self._next_s = 0.0

    def __call__(self, batch: Batch) -> None:
        """Take one batch."""
        self._then(batch)
        now_s = self._clock()
        if batch.committed and now_s < self._next_s:
            return
        if batch.committed:
            self._next_s = now_s + SAMPLE_S
        attributes = {
            **self._attributes,
            BATCH_ROWS: batch.rows,
            BATCH_DEAD: batch.dead_letters,
            BATCH_COMMIT: round(batch.commit_s * 1000),
            **({} if batch.read is None else {BATCH_READ: batch.read}),
        }
        failure = "" if batch.committed else "commit failed"
        record("batch", attributes, duration_s=batch.read_s + batch.commit_s, failure=failure)
