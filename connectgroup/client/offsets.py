"""Offsets of a connector for operators: described by the coordinator, read by the connector's class.

They run in the process of the operator's tool (the REST server, the command line). Not in the coordinator, which runs
no plug-in of a connector; not on a worker, because a stopped connector has none. The tool needs the packages of the
connector's sink, and access to where the sink stores its offsets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ..config import connector_offsets
from ..config.connector_offsets import Permissions as Permissions
from ..connector import PartitionOffset, fencing_token
from ..errors import ConnectorNotFound, GroupIdNotFound, InvalidRequest
from ..protocol.messages.common import config_of
from ..protocol.messages.describe import DescribedConnector, DescribedGroup
from ..protocol.units import printable
from ..threads import off_loop
from .admin import Admin

OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs blocking code off the event loop."""


async def in_thread(function: Callable[[], Any]) -> Any:
    """Call blocking code in a daemon thread, without a time limit."""
    return await off_loop("offsets", function)


ANY_PATH: Final = Permissions()
"""The permissions of a command: it runs as the user who typed it. No secrets, because they are named one by one."""


NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified"
    " connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
)


async def offsets(
    admin: Admin, group_id: str, name: str, run: OffLoop = in_thread, *, permissions: Permissions = ANY_PATH
) -> Any:
    """Return the committed offsets of a connector as ``list[PartitionOffset]``.

    Raises:
        ConnectorNotFound: the group has no such connector.
        ConnectGroupError: the offsets cannot be read.
    """
    config = config_of((await _described(admin, group_id, name))[1].config)
    return await run(lambda: connector_offsets.read_offsets(name, config, permissions))


async def alter(
    admin: Admin,
    group_id: str,
    name: str,
    changes: Sequence[PartitionOffset] | None,
    run: OffLoop = in_thread,
    *,
    permissions: Permissions = ANY_PATH,
) -> bool:
    """Change the committed offsets of a stopped connector, all or none.

    The change carries the fencing token of the connector's version, which is the group epoch of its last change: higher
    than the token of every task granted before the stop, and lower than that of every task granted after the connector
    is resumed. So a task that runs on unnoticed is fenced, and a change that arrives after a resume is rejected.

    Args:
        changes: the partitions to change; ``None`` resets all offsets.
        permissions: what the connector's class may read in this process.

    Returns:
        False if the system that the connector uses may have further offsets, which were not changed.

    Raises:
        ConnectorNotFound: the group has no such connector.
        InvalidRequest: the connector is not stopped.
        Fenced: the connector was resumed meanwhile; nothing was changed.
        ConnectGroupError: the offsets cannot be changed.
    """
    group, connector = await _described(admin, group_id, name)
    if connector.target_state != "STOPPED":
        raise InvalidRequest(NOT_STOPPED.format(name=printable(name)))
    token = fencing_token(group.incarnation, connector.version)
    config = config_of(connector.config)
    return bool(await run(lambda: connector_offsets.alter_offsets(name, config, token, changes, permissions)))


def outcome(verb: str, *, is_complete: bool) -> str:
    """Return what Kafka Connect says after a change of offsets.

    Args:
        verb: altered or reset.
        is_complete: what ``alter`` has returned.
    """
    if is_complete:
        return f"The offsets for this connector have been {verb} successfully"
    return (
        f"The Connect framework-managed offsets for this connector have been {verb} successfully. However, if this"
        f" connector manages offsets externally, they will need to be manually {verb} in the system that the connector"
        " uses."
    )


async def _described(admin: Admin, group_id: str, name: str) -> tuple[DescribedGroup, DescribedConnector]:
    """The group, and the connector with credentials in its configuration, which must not be shown."""
    try:
        group = await admin.describe(group_id, connectors=(name,), connectors_only=True, credentials=True)
    except GroupIdNotFound as error:
        raise ConnectorNotFound(f"Connector {printable(name)} not found") from error
    if not group.connectors:
        raise ConnectorNotFound(f"Connector {printable(name)} not found")
    return group, group.connectors[0]
