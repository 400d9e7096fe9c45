"""A group of a log that was put back from an older copy: its fencing tokens are lower than those its sinks have seen.

The owner of a task that its sink rejects reports the sink's token. If it is a token of this group, and higher than the
one that the group has issued to the owner, the log is an older copy: the group epoch is raised above the token, and the
connector's tasks are revoked and assigned again. The group epoch may have passed the token by then, because of another
connector. ``connectgroup groups recover`` does the same for all connectors before any task starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ...protocol.messages.heartbeat import TaskStatus
from ...protocol.units import Unit
from .overlay import Overlay

EPOCHS_PER_S: Final = 10
"""Group epochs that a group has used in each second since it was created, at most."""
FIRST_EPOCHS: Final = 1_000
"""Group epochs that a group may have used however young it is."""
EPOCH_BITS: Final = 32


def missing_epoch(token: int, *, owner_epoch: int, created_ms: int, now_ms: int) -> int | None:
    """Return the epoch of a fencing token that the group must have issued after the copy of its log was made.

    Args:
        token: the token that a sink has seen (``connector.fencing_token``).
        owner_epoch: that of the owner whose unit the sink has rejected.
        created_ms: when the group was created. A token of another time belongs to another group with this connector.
        now_ms: the wall clock.

    Returns:
        ``None`` if there is no such epoch, or if the group cannot have reached it in its lifetime: members must not be
        able to use up the epochs. At ``EPOCHS_PER_S``, the 31 bits of an epoch last for almost seven years.
    """
    incarnation, theirs = token >> EPOCH_BITS, token & ((1 << EPOCH_BITS) - 1)
    limit = FIRST_EPOCHS + EPOCHS_PER_S * max(0, now_ms - created_ms) // 1_000
    return theirs if incarnation == created_ms // 1_000 and owner_epoch < theirs <= limit else None


def issue_above(overlay: Overlay, rejected: Iterable[TaskStatus]) -> None:
    """Assign the tasks of connectors again, at an epoch above those of the tokens that their sinks have seen.

    Args:
        rejected: statuses of the present owners of units, each with the token for which its sink has rejected it.
    """
    group = overlay.group
    newest: dict[str, int] = {}
    for status in rejected:
        theirs = missing_epoch(
            status.fenced_by, owner_epoch=status.owner_epoch, created_ms=group.created_ms, now_ms=overlay.now_ms
        )
        # A grant before ``since_epoch`` ends anyway: its revocation is pending.
        ends = group.runnable[Unit(status.connector, status.task)] > status.owner_epoch
        if theirs is not None and not ends:
            newest[status.connector] = max(theirs, newest.get(status.connector, theirs))
    for connector, theirs in newest.items():
        overlay.bump(f"{connector}: its sink has seen owner epoch {theirs}: the log is an older copy", above=theirs)
        record = group.connectors[connector]
        tasks = tuple(replace(task, since_epoch=overlay.epoch) for task in record.tasks)
        overlay.write(replace(record, tasks=tasks))
