"""The operator of a simulated cluster: submits changes of connectors one by one, each until it is accepted.

Its messages are lost, duplicated and delayed like all others. A *conditional* change names the connector version it
expects. Any other change could undo a later one, so its copies are never delayed for long (see ``Network.send``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectgroup.errors import ConnectorAlreadyExists, ConnectorNotFound, TransportError, VersionConflict
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest

from .loop import Node

if TYPE_CHECKING:
    from .cluster import Cluster

TRY_AGAIN = (14, 15, 16, -1)


def is_version_conflict(change: ConnectorChange, code: int) -> bool:
    """Whether a change was rejected because the connector has another version than the change expects."""
    if code == ConnectorNotFound.code:
        return change.expected_version > 0
    return code in (ConnectorAlreadyExists.code, VersionConflict.code)


class Operator(Node):
    """Attributes:
    changes: what is still to be submitted, in order.
    written_epoch: the group epoch of the last change that was acknowledged.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        super().__init__("operator", cluster.seed_text)
        self.cluster, self.group_id = cluster, group_id
        self.changes: deque[ConnectorChange] = deque()
        self.written_epoch: int | None = None
        self._ordered = asyncio.Event()

    async def work(self, client: Any) -> None:
        """Submit the queued changes until there are none."""
        while True:
            if not self.changes:
                self._ordered.clear()
                await self._ordered.wait()
            try:
                accepted = await self._carry_out(client, self.changes[0])
            except TransportError:
                accepted = False
            if accepted:
                self.changes.popleft()
            else:
                await asyncio.sleep(0.5)

    async def _carry_out(self, client: Any, change: ConnectorChange) -> bool:
        if self.random.random() < 0.5:
            version = await self._version(client, change.connector)
            if version is None:
                return False
            change = replace(change, expected_version=version)
        request = UpdateConnectorsRequest(group_id=self.group_id, changes=(change,))
        response = await client.call(request, timeout_s=3.0)
        code = response.error_code
        if code in TRY_AGAIN:
            return False
        self.cluster.say("ordered", change.connector, code)
        if not code:
            self.written_epoch = max(response.group_epoch, self.written_epoch or 0)
        elif is_version_conflict(change, code):
            return False
        if change.expected_version < 0:
            # Copies of the request that are still in the network have arrived by then.
            await asyncio.sleep(0.6)
        return True

    async def _version(self, client: Any, connector: str) -> int | None:
        """The current version of a connector, or ``None`` if no coordinator responds."""
        response = await client.call(DescribeRequest(group_ids=(self.group_id,)), timeout_s=3.0)
        group = response.groups[0]
        if group.error_code in TRY_AGAIN:
            return None
        return next((known.version for known in group.connectors if known.connector == connector), 0)

    def order(self, change: ConnectorChange) -> None:
        """Queue a change of a connector."""
        self.cluster.watch.happened += 1
        self.changes.append(change)
        self._ordered.set()

    def submit_connector(self, name: str, tasks: int) -> None:
        """Queue a change that creates or reconfigures a connector with this number of tasks."""
        self.cluster.parts[name] = tasks
        config = {"connector.class": "simulated", "tasks.max": str(tasks)}
        self.order(ConnectorChange(connector=name, config=entries(config)))
