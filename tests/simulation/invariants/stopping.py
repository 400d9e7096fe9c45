"""Units that must not run any more are revoked at once: S10, CA-19."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import CurrentRecord
from connectgroup.protocol.units import Unit, show
from tests.coordinator.builders import served

from .base import Invariant

if TYPE_CHECKING:
    from ..base import CoordinatorNode
    from .watch import Watch


class RevokedAtOnce(Invariant):
    """S10, CA-19: a unit that is stopped, paused, deleted or reconfigured is revoked in its member's next heartbeat.

    Also while an earlier revocation of the member is pending. A parked heartbeat is woken in the turn of the
    change, so the member does not wait for its heartbeat interval. From then on S14 bounds the time of the stop.
    """

    ids = "S10"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._changed: list[ConnectGroupState] = []

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        response = outcome.response
        if isinstance(what, UpdateConnectorsRequest) and outcome.records:
            self._changed.append(group)
        elif isinstance(what, HeartbeatRequest) and isinstance(response, HeartbeatResponse) and not response.error_code:
            written = [record.member_id for record in outcome.records if isinstance(record, CurrentRecord)]
            # Otherwise a member at its previous epoch gets the lost response again, unchanged.
            if what.member_id in written or response.member_epoch == what.member_epoch:
                self._check(group, what.member_id, "after its heartbeat")

    def on_turn(self, peer: CoordinatorNode) -> None:
        changed, self._changed = self._changed, []
        if peer.coordinator is None:
            return
        for group in changed:
            # Not a group that was unloaded because its append failed.
            if served(peer.coordinator, group.group_id) is group:
                for group_id, member_id in peer.coordinator.shard.parking.parked:
                    if group_id == group.group_id:
                        self._check(group, member_id, "while its heartbeat is parked")

    def _check(self, group: ConnectGroupState, member_id: str, when: str) -> None:
        current = group.current(member_id)
        stale = [] if current.temporarily_left else _must_not_run(group, current)
        if stale:
            self.broken(f"{member_id} still has {show(stale)} {when}, which must not run")


def _must_not_run(group: ConnectGroupState, current: Current[Unit]) -> list[Unit]:
    """Assigned units whose grant has no runnable configuration."""
    runnable = group.runnable
    return [unit for unit, epoch in current.assigned.items() if runnable.get(unit, epoch + 1) > epoch]
