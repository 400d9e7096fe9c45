"""The operator of a simulated cluster: one change of a connector after another, each repeated until somebody takes it.

Its messages are lost, doubled and delayed like all others. A *careful* change names the version it was made against;
one that is not means something else a minute later, so it is never on its way for long (see ``Network.send``).
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


class Desk(Node):
    """Attributes:
    orders: what is still to be done, the first one first.
    written_epoch: the group epoch of the last change that was acknowledged.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        super().__init__("operator", cluster.seed_text)
        self.cluster, self.group_id = cluster, group_id
        self.orders: deque[ConnectorChange] = deque()
        self.written_epoch: int | None = None
        self._ordered = asyncio.Event()

    async def work(self, client: Any) -> None:
        """Carry the orders out."""
        while True:
            if not self.orders:
                self._ordered.clear()
                await self._ordered.wait()
            try:
                done = await self._carry_out(client, self.orders[0])
            except TransportError:
                done = False
            if done:
                self.orders.popleft()
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
            # Whatever the network still has of it has arrived by then.
            await asyncio.sleep(0.6)
        return True

    async def _version(self, client: Any, connector: str) -> int | None:
        """The version that a connector has now, or ``None`` if nobody says."""
        response = await client.call(DescribeRequest(group_ids=(self.group_id,)), timeout_s=3.0)
        group = response.groups[0]
        if group.error_code in TRY_AGAIN:
            return None
        return next((known.version for known in group.connectors if known.connector == connector), 0)

    def order(self, change: ConnectorChange) -> None:
        """Have a connector changed."""
        self.cluster.watch.happened += 1
        self.orders.append(change)
        self._ordered.set()

    def order_connector(self, name: str, tasks: int) -> None:
        """Create or reconfigure a connector so that it has so many tasks."""
        self.cluster.parts[name] = tasks
        config = {"connector.class": "simulated", "tasks.max": str(tasks)}
        self.order(ConnectorChange(connector=name, config=entries(config)))
