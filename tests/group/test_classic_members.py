"""Members of a connect group that use the classic protocol (CN-18): the rules, one request after the other."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from connectgroup.group.connect.classic_members import assignment, metadata
from connectgroup.group.connect.group_type import ConnectGroupType
from connectgroup.group.kernel.outcome import Compute, TimerKind
from connectgroup.group.registry import NO_CLIENT
from connectgroup.protocol.messages.classic import (
    WORKER_PROTOCOL,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.common import AssignorInfo, ConnectorTasks, entries, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.units import Unit, Units
from connectgroup.wire import embedded

from .builders import GROUP, info, settings
from .effects import computed

C = frozenset({Unit("c", -1)})
D = frozenset({Unit("d", -1)})


def owned(units: Units) -> tuple[ConnectorTasks, ...]:
    return tuple(ConnectorTasks(connector=unit.connector, owns_connector=True) for unit in sorted(units))


class ClassicScene:
    """A group with the connectors ``c`` and ``d``, which the coordinator assigns round robin."""

    def __init__(self) -> None:
        self.type = ConnectGroupType(settings(), embedded)
        self.group = self.type.new(GROUP)
        changes = tuple(ConnectorChange(connector=name, config=entries({"a": "b"})) for name in "cd")
        self.send(UpdateConnectorsRequest(group_id=GROUP, changes=changes))

    def send(self, what: Any) -> Any:
        outcome = self.type.step(self.group, what, 0, NO_CLIENT)
        for effect in outcome.effects:
            if isinstance(effect, Compute):
                self.send(computed(effect, self.type.settings))
        return outcome.response

    def join(
        self, member_id: str, epoch: int = 0, units: Units = frozenset(), assignors: tuple[AssignorInfo, ...] = ()
    ) -> JoinGroupResponse:
        beat = HeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000,
            owned=owned(units),
            client_assignors=assignors or None,
        )
        offered = OfferedProtocol(name=WORKER_PROTOCOL, metadata=embedded.encode_request(beat))
        response = self.send(
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                member_id=member_id,
                protocol_type="connect",
                protocols=(offered,),
            )
        )
        assert isinstance(response, JoinGroupResponse)
        return response

    def sync(self, member_id: str, generation: int) -> HeartbeatResponse | int:
        """The response to the member's heartbeat, or the error code."""
        request = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        response = self.send(request)
        return response.error_code or embedded.decode_response(response.assignment)

    def heartbeat(self, member_id: str, generation: int) -> int:
        request = GroupHeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        code: int = self.send(request).error_code
        return code

    def assigned(self, member_id: str, epoch: int = 0, units: Units = frozenset()) -> Units:
        """The units in the response to a member's JoinGroup and SyncGroup."""
        response = self.sync(member_id, self.join(member_id, epoch, units).generation_id)
        assert isinstance(response, HeartbeatResponse)
        assert response.assignment is not None
        return units_of(response.assignment.units)

    def epoch(self, member_id: str) -> int:
        epoch: int = self.group.current(member_id).epoch
        return epoch


def test_unit_moves_to_a_member_once_the_other_has_reported_that_it_stopped() -> None:
    scene = ClassicScene()
    scene.join("a")
    assert scene.assigned("a") == C | D
    before = scene.epoch("a")
    assert scene.heartbeat("a", before) == 0
    scene.join("b")
    assert scene.heartbeat("a", before) == RebalanceInProgress.code
    assert scene.epoch("a") == before, "a Heartbeat changes nothing"
    kept = scene.assigned("a", before, C | D)
    assert len(kept) == 1
    assert scene.heartbeat("a", scene.epoch("a")) == 0, "it stops the other unit now"
    assert scene.assigned("b", scene.epoch("b")) == frozenset()
    assert scene.assigned("a", scene.epoch("a"), kept) == kept
    assert scene.heartbeat("b", scene.epoch("b")) == RebalanceInProgress.code
    assert scene.assigned("b", scene.epoch("b")) == (C | D) - kept


def test_mg_12_requests_of_another_generation_or_another_member() -> None:
    scene = ClassicScene()
    generation = scene.join("a").generation_id
    assert scene.heartbeat("a", generation + 7) == IllegalGeneration.code
    assert scene.sync("a", generation + 7) == RebalanceInProgress.code
    assert scene.heartbeat("unknown", generation) == UnknownMemberId.code
    assert scene.sync("unknown", generation) == UnknownMemberId.code
    fenced = scene.join("a", 99)
    assert fenced.error_code == FencedMemberEpoch.code
    assert fenced.error_message
    assert "a" not in scene.group.members


@pytest.mark.parametrize("late", [False, True])
def test_rejected_sync_group_keeps_no_member_alive(late: bool) -> None:
    """S14: it may be a late one of a dead process, whose session would last longer."""
    scene = ClassicScene()
    generation = scene.join("a").generation_id - late
    request = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id="a")
    outcome = scene.type.step(scene.group, request, 0, NO_CLIENT)
    assert (getattr(outcome.response, "error_code", None) == RebalanceInProgress.code) == late
    assert [timer.key.kind for timer in outcome.timers] == ([] if late else [TimerKind.SESSION])


def test_heartbeat_keeps_a_member_alive_also_while_the_group_rebalances() -> None:
    scene = ClassicScene()
    scene.join("a")
    scene.assigned("a")
    request = GroupHeartbeatRequest(group_id=GROUP, generation_id=scene.epoch("a"), member_id="a")
    for code in (0, RebalanceInProgress.code):
        outcome = scene.type.step(scene.group, request, 0, NO_CLIENT)
        assert getattr(outcome.response, "error_code", None) == code
        assert [timer.key.kind for timer in outcome.timers] == [TimerKind.SESSION]
        scene.join("b")


def test_leader_is_the_member_that_is_asked_to_compute() -> None:
    scene = ClassicScene()
    joined = scene.join("a", assignors=(info("mine"),))
    assert (joined.leader, joined.generation_id) == ("a", 0), "there is no target assignment yet"
    response = scene.sync("a", 0)
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == ComputeAssignment.code
    assert scene.heartbeat("a", 0) == RebalanceInProgress.code, "a member at epoch 0 joins"


def test_worker_of_another_implementation_is_rejected() -> None:
    scene = ClassicScene()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=10_000,
        member_id="",
        protocol_type="connect",
        protocols=(OfferedProtocol(name="sessioned", metadata=b""),),
    )
    assert scene.send(request).error_code == InconsistentGroupProtocol.code
    assert scene.type.traits(request).sender == ""
    consumer = replace(request, protocol_type="consumer")
    assert scene.send(consumer).error_code == InconsistentGroupProtocol.code


def test_operator_removes_members() -> None:
    scene = ClassicScene()
    scene.join("a")
    for member_id, code in (("a", 0), ("a", UnknownMemberId.code)):
        assert scene.send(LeaveGroupRequest(group_id=GROUP, member_id=member_id)).error_code == code
    scene.join("b")
    removed = scene.send(LeaveGroupRequest(group_id=GROUP, members=(LeavingMember(member_id="b"),)))
    assert [each.error_code for each in removed.members] == [0]
    assert not scene.group.members


# --------------------------------------------------------------------------------------------------
# A connect group in the form of a classic group.


def test_structures_of_kafka_connect() -> None:
    assert metadata("u") == struct.pack(">hh", 1, 1) + b"u" + struct.pack(">qi", -1, -1)
    assigned = (ConnectorTasks(connector="c", owns_connector=True, tasks=(0, 2)),)
    head = struct.pack(">hhhhq", 1, 0, 0, 0, -1)
    units = struct.pack(">ih", 1, 1) + b"c" + struct.pack(">iiii", 3, -1, 0, 2)
    assert assignment(assigned, ()) == head + units + struct.pack(">ii", 0, 0)
