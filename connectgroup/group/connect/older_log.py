"""A group of a log that was put back from an older copy: its fencing tokens are lower than those its sinks have seen.

The owner of a task that its sink rejects reports the sink's token. If it is a token of this group that the group has
not issued yet, the log is an older copy: the group epoch is raised above the token, and the connector's tasks are
revoked and assigned again. ``connectgroup groups recover`` does the same for all connectors before any task starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .overlay import Overlay

EPOCHS_PER_S: Final = 10
"""Group epochs that a group has used in each second since it was created, at most."""
FIRST_EPOCHS: Final = 1_000
"""Group epochs that a group may have used however young it is."""
EPOCH_BITS: Final = 32


def missing_epoch(token: int, *, epoch: int, created_ms: int, now_ms: int) -> int | None:
    """Return the owner epoch of a fencing token that the group must have issued after the copy of its log was made.

    Args:
        token: the token that a sink has seen (``connector.fencing_token``).
        epoch: the group epoch.
        created_ms: when the group was created. A token of another time belongs to another group with this connector.
        now_ms: the wall clock.

    Returns:
        ``None`` if there is no such epoch, or if the group cannot have reached it in its lifetime: members must not be
        able to use up the epochs. At ``EPOCHS_PER_S``, the 31 bits of an epoch last for almost seven years.
    """
    incarnation, theirs = token >> EPOCH_BITS, token & ((1 << EPOCH_BITS) - 1)
    limit = FIRST_EPOCHS + EPOCHS_PER_S * max(0, now_ms - created_ms) // 1_000
    return theirs if incarnation == created_ms // 1_000 and epoch < theirs <= limit else None


def issue_above(overlay: Overlay, connector: str, token: int) -> None:
    """Assign the tasks of a connector again, at an epoch above that of a token that a sink has seen, if it is ours."""
    group = overlay.group
    theirs = missing_epoch(token, epoch=overlay.epoch, created_ms=group.created_ms, now_ms=overlay.now_ms)
    record = group.connectors.get(connector)
    if theirs is None or record is None:
        return
    overlay.bump(f"{connector}: its sink has seen owner epoch {theirs}: the log is an older copy", above=theirs)
    tasks = tuple(replace(task, since_epoch=overlay.epoch) for task in record.tasks)
    overlay.write(replace(record, tasks=tasks))
