"""The size of a group's connectors in the largest messages and log batches, and its limit.

Any member may come to own every unit: when it is the last one, one heartbeat response assigns it all connectors and
tasks with their configurations. So the limit applies to the group and is checked when connectors and task lists are
written; a group that was accepted always fits. The size is an upper bound of what one unit takes in each of:

- the grants of a heartbeat response: connector name, task number, owner epoch, configuration;
- the ``ConnectorRecord`` and the request that publishes the task list: configuration;
- the batch that deletes or reconfigures a connector: the key of each task's status and its entry in a target
assignment.

A Prepare response has no task configurations, and a Describe response may be as long as the responses that
``TcpClient`` accepts (64 MiB): both are within their limits for any group that is within this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..assign.placement import max_tasks
from ..errors import ConfigError, InvalidRequest
from ..protocol.messages.common import ConfigEntry, config_of
from ..protocol.records.connect import ConnectorRecord
from ..protocol.units import printable

MAX_GROUP_BYTES: Final = 7_500_000
"""Upper bound for all connectors and tasks of a group, as ``connector_bytes`` counts them. Frames and log batches are
8 MiB; the rest is for headers, a member's metadata and the names of members."""

_UNIT: Final = 20
"""Bytes of a unit besides names and configuration: numbers, lengths, tags."""


def connector_bytes(connector: ConnectorRecord) -> int:
    """Upper bound on the bytes of a connector and its tasks in one message or one batch."""
    name = _bytes(connector.connector)
    least = _bytes(connector.group_id) + name
    tasks = sum([max(_config_bytes(task.config), least) for task in connector.tasks])
    return 2 * _UNIT + least + _config_bytes(connector.config) + len(connector.tasks) * (name + _UNIT) + tasks


def check(group_id: str, sizes: Mapping[str, int], before: ConnectorRecord | None, after: ConnectorRecord) -> None:
    """Reject a change after which the group would exceed its message limits.

    Args:
        sizes: ``connector_bytes`` of the other connectors, by name.
        before: the connector before the change; ``None`` for a new one. A change that does not grow is never rejected.
        after: the connector after the change.

    Raises:
        InvalidRequest: with ``TaskConfigs`` or ``tasks.max``, the value and the limit.
    """
    left = MAX_GROUP_BYTES - sum(sizes.values())
    of_all = f"of the {MAX_GROUP_BYTES} bytes for all connectors and tasks of a group"
    taken = connector_bytes(after)
    if taken > left and (before is None or taken > connector_bytes(before)):
        what = f"{len(after.tasks)} tasks" if after.tasks else "a configuration"
        field = "TaskConfigs" if after.tasks else "Config"
        raise InvalidRequest(
            f"connector {printable(after.connector)}: {field}: got {what} of {taken} bytes; "
            f"allowed: at most {max(left, 0)}, {of_all}"
        )
    wanted = tasks_max(after)
    if before is not None and wanted <= tasks_max(before):
        return
    # The configurations of the tasks are not known yet: assume tasks with empty configurations.
    name = _bytes(after.connector)
    each = 2 * name + _bytes(group_id) + _UNIT
    fixed = 2 * _UNIT + name + _bytes(group_id) + _config_bytes(after.config)
    if fixed + wanted * each > left:
        raise InvalidRequest(
            f"connector {printable(after.connector)}: tasks.max: got {wanted}; allowed: at most "
            f"{max((left - fixed) // each, 0)}, as a task takes {each} bytes or more {of_all}"
        )


def tasks_max(connector: ConnectorRecord) -> int:
    """``tasks.max`` of a connector; 0 if other software stored an unreadable value."""
    try:
        return max_tasks(config_of(connector.config))
    except ConfigError:
        return 0


def _config_bytes(config: Iterable[ConfigEntry]) -> int:
    """Size of an encoded configuration: two lengths and the tags besides each name and value."""
    return sum([_bytes(entry.name) + _bytes(entry.value) + (3 if len(entry.value) < 42 else 6) for entry in config])


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
