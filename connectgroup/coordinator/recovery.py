"""Recovers the groups of a log that was put back from an older copy.

Since the copy was made, the coordinator has issued fencing tokens that the copy does not know. The sinks do, and reject
tasks with lower tokens (``group.connect.older_log`` is for groups that are in use). A recovered group begins a new
incarnation, which is the first part of each fencing token, and has no members: workers join again and are assigned
their units under new tokens. Connectors stay as they are in the copy; sinks have the positions up to which their rows
are written, so no row is lost or doubled.
"""

from __future__ import annotations

from ..errors import LogError
from ..group.connect.leave import remove_member
from ..group.connect.overlay import Overlay
from ..group.connect.settings import GroupSettings
from ..group.connect.state import replay
from ..log.base import Log
from ..protocol.records.connect import GROUP_TYPE, GroupRecord

CAUSE = "removed: the log was recovered from an older copy"


async def recover(log: Log, *, now_ms: int) -> list[str]:
    """Open a log, recover its groups of type ``connect``, and close it; return their names.

    Args:
        log: no coordinator may have it open.
        now_ms: the wall clock.

    Raises:
        LogError: the log cannot be opened, or a group cannot be read; the groups before it have been recovered.
    """
    await log.open()
    try:
        recovered = []
        for group_id, records in sorted((await log.load()).items()):
            if isinstance(records, LogError):
                raise records
            types = [record.group_type for record in records if isinstance(record, GroupRecord)]
            if types[-1:] != [GROUP_TYPE]:
                continue
            group = replay(group_id, records)
            settings, overlay = GroupSettings(), Overlay(group, now_ms)
            for member in sorted(group.members):
                remove_member(overlay, member, f"{member} {CAUSE}", settings)
            overlay.bump("the log was recovered")
            # At least a second later: fencing tokens count the seconds of the incarnation.
            created_ms = max(now_ms, group.created_ms + 1_000)
            overlay.write(
                GroupRecord(
                    group_id=group_id,
                    epoch=overlay.epoch,
                    created_ms=created_ms,
                    restart_requests=group.restart_requests,
                )
            )
            await log.append(overlay.records)
            recovered.append(group_id)
        return recovered
    finally:
        await log.close()
