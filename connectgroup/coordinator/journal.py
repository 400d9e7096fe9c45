"""What happens in the groups of a coordinator, in its log at level INFO: joins, removals and rebalances, one line each.

The lines are made from durable records, outside of the group rules, which stay pure. Their number is limited: members
that join in a loop must not fill the disk of the coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ..errors import CoordinatorNotAvailable
from ..group.kernel.outcome import Effect
from ..log.base import Log, LogNotWritable
from ..loggers import LINES_PER_S, LineBudget
from ..protocol.messages.describe import Rebalance
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import GroupRecord, MemberRecord, RebalanceRecord
from ..protocol.records.consumer import ConsumerMemberRecord
from ..protocol.units import printable

# --------------------------------------------------------------------------------------------------
# Whether the log takes writes, and what waits until it does.
#
# A log whose disk is full can still be read: its groups are served from the durable state, and each change is rejected
# with a retriable error. Nothing is removed meanwhile, because that is a change, too.


PROBE_S: Final = 0.5
"""Interval between two attempts to write to a log that took no writes."""


class Writability:
    """The state of the log, and the effects that are performed once it takes writes.

    Attributes:
        error: why the log takes no writes; empty if it does. Set by ``on_failed``, cleared by ``on_written``.
    """

    def __init__(
        self, log: Log, perform: Callable[[Effect], None], spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        """``perform``: performs an effect; ``spawn``: starts a background task of the shard."""
        self._log, self._perform, self._spawn = log, perform, spawn
        self.error = ""
        self._waiting: list[Effect] = []  # effects that wait until the log takes writes

    def on_failed(self, error: LogNotWritable) -> None:
        """An append has failed, and nothing was written."""
        if not self.error:
            logger.error("the log takes no writes, changes of groups are rejected until it does: %s", error)
            self._spawn(self._probe())
        self.error = str(error)

    def on_written(self) -> None:
        """An append is durable."""
        if not self.error:
            return
        self.error = ""
        logger.warning("the log takes writes again")
        waiting, self._waiting = self._waiting, []
        for effect in waiting:
            self._perform(effect)

    def refusal(self) -> CoordinatorNotAvailable:
        """The error of a change."""
        return CoordinatorNotAvailable(f"the log takes no writes: {self.error}")

    def hold(self, effects: Sequence[Effect]) -> bool:
        """Keep the effects of a group that was loaded again: their results could not be stored, and would be asked for
        at once again. Returns false if the log takes writes."""
        if not self.error:
            return False
        groups = {effect.group_id for effect in effects}
        self._waiting = [each for each in self._waiting if each.group_id not in groups] + list(effects)
        return True

    async def _probe(self) -> None:
        while self.error:
            await asyncio.sleep(PROBE_S)
            try:
                await self._log.check_writable()
            except Exception as error:
                logger.debug("the log still takes no writes: %s", error)
            else:
                self.on_written()


# --------------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

_budget = LineBudget()


def log_records(records: Sequence[Any]) -> None:
    """Log what the records of a turn say; call it when they are durable."""
    if not logger.isEnabledFor(logging.INFO):
        return
    epochs = {(each.group_id, each.epoch) for each in records if isinstance(each, GroupRecord)}
    causes = {
        each.group_id: each.rebalance.causes
        for each in records
        if isinstance(each, RebalanceRecord) and each.rebalance.finished_ms < 0
    }
    for record in records:
        match record:
            # A member's record has the epoch at which it joined: a later one changes its metadata.
            case MemberRecord() | ConsumerMemberRecord() if (record.group_id, record.joined_epoch) in epochs:
                host = f" from {printable(record.client_host)}" if record.client_host else ""
                _log(record.group_id, f"member {printable(record.member_id)} joins{host}")
            case Tombstone(key=key) if key.kind in (Kind.MEMBER, Kind.CONSUMER_MEMBER):
                why = [cause for cause in causes.get(key.group_id, ()) if key.name in cause]
                _log(key.group_id, f"member {printable(key.name)} is removed{f': {printable(why[-1])}' if why else ''}")
            case RebalanceRecord():
                _log(record.group_id, _rebalance(record.rebalance))


def _rebalance(rebalance: Rebalance) -> str:
    if rebalance.finished_ms < 0:
        return f"rebalance to epoch {rebalance.epoch}: {printable('; '.join(rebalance.causes[-1:]))}"
    return (
        f"rebalance to epoch {rebalance.epoch} is complete after {rebalance.finished_ms - rebalance.started_ms} ms: "
        f"computed by {printable(rebalance.computed_by)}; {rebalance.moved} units moved, {rebalance.started} started, "
        f"longest handover {max(0, rebalance.max_handover_ms)} ms"
    )


def _log(group_id: str, text: str) -> None:
    if not _budget.take():
        return
    if _budget.left_out:
        logger.info(
            "%d joins, removals and rebalances are not in this log: more than %d a second; describe shows the latest",
            _budget.left_out,
            LINES_PER_S,
        )
        _budget.left_out = 0
    logger.info("group %s: %s", printable(group_id), text)
