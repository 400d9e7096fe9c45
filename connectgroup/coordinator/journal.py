"""What happens in the groups of a coordinator, in its log at level INFO: joins, removals and rebalances, one line each.

The lines are made from durable records, outside of the group rules, which stay pure.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..protocol.messages.describe import Rebalance
from ..protocol.records.base import Kind, Tombstone
from ..protocol.records.connect import GroupRecord, MemberRecord, RebalanceRecord
from ..protocol.records.consumer import ConsumerMemberRecord
from ..protocol.units import printable

logger = logging.getLogger(__name__)


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
        f"maximum downtime {max(0, rebalance.max_downtime_ms)} ms"
    )


def _log(group_id: str, text: str) -> None:
    logger.info("group %s: %s", printable(group_id), text)
