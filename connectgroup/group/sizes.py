"""How many bytes a group's connectors take in the largest messages and log batches, and the most they may take.

Any member may come to own everything: when it is the last one, one heartbeat response grants it all connectors and
tasks with their configurations. So the bound is on the group, is checked where connectors and task lists are written,
and a group that was accepted always fits. Counted is an upper bound of what one unit takes in each of:

- the grants of a heartbeat response: connector name, task number, owner epoch, configuration;
- the ``ConnectorRecord`` and the request that publishes the task list: configuration;
- the batch that deletes or reconfigures a connector: the key of each task's status and its place in a target.

A Prepare response has no task configurations, and a Describe response may be as long as ``TcpClient`` accepts answers
(64 MiB): both are shorter than their limits for any group that is within this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..assign.placement import most_tasks
from ..errors import ConfigError, InvalidRequest
from ..protocol.messages.common import ConfigEntry, config_of
from ..protocol.records.connect import ConnectorRecord
from ..protocol.units import printable

MAX_GROUP_BYTES: Final = 7_500_000
"""Of all connectors and tasks of a group, as ``connector_bytes`` counts them. Frames and log batches are 8 MiB; the
rest is for headers, a member's metadata and the names of members."""

_UNIT: Final = 20
"""Bytes of a unit beside names and configuration: numbers, lengths, tags."""


def connector_bytes(connector: ConnectorRecord) -> int:
    """The most bytes that a connector and its tasks take in one message or one batch."""
    name = _bytes(connector.connector)
    least = _bytes(connector.group_id) + name
    tasks = sum([max(_config_bytes(task.config), least) for task in connector.tasks])
    return 2 * _UNIT + least + _config_bytes(connector.config) + len(connector.tasks) * (name + _UNIT) + tasks


def check(group_id: str, sizes: Mapping[str, int], before: ConnectorRecord | None, after: ConnectorRecord) -> None:
    """Refuse a change with which the group would no longer fit its messages.

    Args:
        sizes: ``connector_bytes`` of the other connectors, by name.
        before: the connector that is changed; null for a new one. What does not grow is never refused.
        after: the connector as it would be.

    Raises:
        InvalidRequest: names ``TaskConfigs`` or ``tasks.max``, what came and what is allowed.
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
    wanted = _tasks_max(after)
    if before is not None and wanted <= _tasks_max(before):
        return
    # The configurations of the tasks are not known yet: what tasks without any would take.
    name = _bytes(after.connector)
    each = 2 * name + _bytes(group_id) + _UNIT
    fixed = 2 * _UNIT + name + _bytes(group_id) + _config_bytes(after.config)
    if fixed + wanted * each > left:
        raise InvalidRequest(
            f"connector {printable(after.connector)}: tasks.max: got {wanted}; allowed: at most "
            f"{max((left - fixed) // each, 0)}, as a task takes {each} bytes or more {of_all}"
        )


def _tasks_max(connector: ConnectorRecord) -> int:
    """``tasks.max``; 0 where other software has stored what cannot be read."""
    try:
        return most_tasks(config_of(connector.config))
    except ConfigError:
        return 0


def _config_bytes(config: Iterable[ConfigEntry]) -> int:
    """Of a configuration as it travels: two lengths and the tags beside each name and value."""
    return sum([_bytes(entry.name) + _bytes(entry.value) + (3 if len(entry.value) < 42 else 6) for entry in config])


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
