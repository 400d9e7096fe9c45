"""Worker restarts: the units are delayed for the member id; an operator can request a restart (PD-08)."""

from __future__ import annotations

import pytest

from connectgroup.errors import FencedMemberEpoch, GroupIdNotFound, InvalidRequest, UnknownMemberId
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.state import MAX_RESTART_REQUESTS
from connectgroup.group.kernel.outcome import SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.common import RestartRequest, RestartResponse, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.connect import MemberRecord

from .builders import GROUP, Scene, names, settings, tasks, units_at

DELAY_MS = 60_000
ONE, TWO, THREE = tasks(foo=[-1, 0]), tasks(foo=[1, 2]), tasks(foo=[3, 4])
SHARES = {"m1": ONE, "m2": TWO, "m3": THREE}


def three(*, delay_ms: int = DELAY_MS, **instances: str) -> Scene:
    """m1, m2 and m3 own two units each at epoch 10."""
    return Scene.stable(
        settings(scheduled_delay_ms=delay_ms),
        epoch=10,
        connectors={"foo": 5},
        members=SHARES,
        instances=instances,
    )


def request_restart(scene: Scene, member_id: str) -> RestartResponse:
    return scene.response_of(scene.act(RestartRequest(group_id=GROUP, member_id=member_id)), RestartResponse)


def leave_to_restart(scene: Scene, member_id: str, instance: str | None = None) -> None:
    scene.may_run[member_id] = set()
    request = HeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=-1, instance_id=instance, returns=True)
    assert scene.response_of(scene.act(request), HeartbeatResponse).error_code == 0


def heartbeat_all(scene: Scene) -> dict[str, list[str]]:
    """Send three heartbeats of every member; return what each member owns then."""
    for _ in range(3):
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            if not current.temporarily_left:
                scene.heartbeat(member_id, current.epoch, frozenset(current.assigned))
    return {member_id: names(scene.current(member_id).assigned) for member_id in sorted(scene.group.members)}


EXPECTED = {member_id: names(units) for member_id, units in SHARES.items()}


def moves(scene: Scene) -> int:
    return sum(rebalance.moved for rebalance in scene.group.rebalances.values())


def test_rolling_restart_moves_nothing() -> None:
    """Each worker in turn; the other members' units are never revoked, and the history counts no move."""
    scene = three()
    for member_id in SHARES:
        leave_to_restart(scene, member_id)
        scene.now_ms += 3_000
        heartbeat_all(scene)
        assert units_at(scene.join(member_id))[1] == names(SHARES[member_id])
        assert heartbeat_all(scene) == EXPECTED
    assert moves(scene) == 0
    last = scene.group.latest_rebalance
    assert last is not None
    assert (last.causes, last.moved, last.started, last.max_handover_ms) == (("m3 came back",), 0, 2, 3_000)


def test_leave_without_announced_return_hands_over_the_units() -> None:
    scene = three()
    scene.leave("m2")
    heartbeat_all(scene)
    assert scene.group.delays == {}
    assert sorted(unit for units in heartbeat_all(scene).values() for unit in units) == names(ONE | TWO | THREE)


def test_announced_return_is_delayed_as_long_as_a_lost_worker() -> None:
    scene = three()
    leave_to_restart(scene, "m2")
    assert scene.last is not None
    assert SetTimer(TimerKey(TimerKind.DELAY, GROUP, "m2"), DELAY_MS) in scene.last.timers
    [delayed] = describe(scene.group, scene.now_ms + 1_000).delayed
    assert (delayed.member_id, delayed.left_ms, units_of(delayed.units)) == ("m2", DELAY_MS - 1_000, TWO)
    scene.now_ms += DELAY_MS
    scene.expire(TimerKind.DELAY, "m2")
    last = scene.group.latest_rebalance
    assert last is not None
    assert last.causes == (f"m2 did not return within {DELAY_MS} ms",)
    assert sorted(unit for units in heartbeat_all(scene).values() for unit in units) == names(ONE | TWO | THREE)


def test_first_worker_back_in_an_empty_group_also_gets_the_units_without_an_owner() -> None:
    """S9: the units of former members were not assigned yet, so restoring m1's own is not enough."""
    scene = three()
    scene.leave("m2")
    scene.leave("m3")
    leave_to_restart(scene, "m1")
    scene.join("m1")
    assert heartbeat_all(scene) == {"m1": names(ONE | TWO | THREE)}


def test_announced_return_without_a_scheduled_delay_is_an_ordinary_leave() -> None:
    scene = three(delay_ms=0)
    leave_to_restart(scene, "m2")
    assert scene.group.delays == {}
    assert sorted(unit for units in heartbeat_all(scene).values() for unit in units) == names(ONE | TWO | THREE)


@pytest.mark.parametrize("order", [("m1", "m2", "m3"), ("m3", "m1", "m2"), ("m2", "m3", "m1")])
def test_restart_of_all_workers_at_the_same_time_moves_nothing(order: tuple[str, ...]) -> None:
    """Units are delayed for the last member to leave as well: the first to return gets its own units only."""
    scene = three()
    for member_id in SHARES:
        leave_to_restart(scene, member_id)
    scene.now_ms += 2_000
    for member_id in order:
        assert units_at(scene.join(member_id))[1] == names(SHARES[member_id])
    assert heartbeat_all(scene) == EXPECTED
    assert moves(scene) == 0


def test_restart_survives_a_coordinator_failover() -> None:
    scene = three()
    request_restart(scene, "m2")
    scene.reload()
    assert scene.heartbeat("m2", 10).restart
    leave_to_restart(scene, "m2")
    scene.reload()
    assert units_at(scene.join("m2"))[1] == names(TWO)
    assert not scene.heartbeat("m2", scene.current("m2").epoch).restart


def test_draining_worker_that_announces_its_return_hands_over_its_units() -> None:
    scene = three()
    scene.heartbeat("m2", 10, TWO, full=True, draining=True)
    leave_to_restart(scene, "m2")
    assert scene.group.delays == {}


def test_requested_restart_is_repeated_until_the_member_leaves() -> None:
    scene = three()
    before = scene.group.epoch
    assert request_restart(scene, "m2") == RestartResponse()
    assert [type(record) for record in scene.records] == [MemberRecord]
    assert "m2" in scene.group.members_to_wake, "the parked heartbeat of the member is answered at once"
    for _ in range(2):
        response = scene.heartbeat("m2", 10)
        assert response.restart
        assert scene.last is not None
        assert not scene.last.parks
    assert not scene.heartbeat("m1", 10).restart
    assert scene.group.epoch == before, "a request alone causes no rebalance"
    assert {member.member_id: member.state for member in describe(scene.group).members}["m2"] == "RESTARTING"
    leave_to_restart(scene, "m2")
    scene.join("m2")
    assert not scene.heartbeat("m2", scene.current("m2").epoch).restart


def test_repeated_restart_request_has_no_effect() -> None:
    scene = three()
    request_restart(scene, "m2")
    assert request_restart(scene, "m2") == RestartResponse(already_requested=True)
    assert scene.records == ()


def test_workers_may_be_requested_to_restart_at_the_same_time() -> None:
    scene = three()
    assert request_restart(scene, "m1") == request_restart(scene, "m2") == RestartResponse()
    assert scene.heartbeat("m1", 10).restart
    assert scene.heartbeat("m2", 10).restart


def test_member_that_rejoins_without_a_leave_is_asked_to_restart_again() -> None:
    """Its lease expired before it received the request, so the request stays pending."""
    scene = three()
    request_restart(scene, "m2")
    assert scene.join("m2").restart


@pytest.mark.parametrize("delay_ms", [0, DELAY_MS])
@pytest.mark.parametrize("lost", ["fenced", "expired"])
def test_restart_request_of_a_lost_member_is_repeated_when_it_rejoins(lost: str, delay_ms: int) -> None:
    """The member is lost before it receives the request; a coordinator failover follows."""
    scene = three(delay_ms=delay_ms)
    request_restart(scene, "m2")
    if lost == "fenced":
        assert scene.heartbeat("m2", 7).error_code == FencedMemberEpoch.code
    else:
        scene.expire(TimerKind.SESSION, "m2")
    scene.reload()
    heartbeat_all(scene)
    assert scene.join("m2").restart
    assert {member.member_id: member.state for member in describe(scene.group).members}["m2"] == "RESTARTING"
    leave_to_restart(scene, "m2")
    assert not scene.join("m2").restart
    assert scene.group.restart_requests == ()


def test_restart_request_ends_with_a_leave() -> None:
    """A member that leaves without an announced return has ended its process, as requested."""
    scene = three()
    request_restart(scene, "m2")
    scene.leave("m2")
    assert not scene.join("m2").restart


def test_restart_requests_of_members_that_never_join_again_are_bounded() -> None:
    scene = three()
    for number in range(MAX_RESTART_REQUESTS + 1):
        scene.join(f"n{number}")
        request_restart(scene, f"n{number}")
        scene.expire(TimerKind.SESSION, f"n{number}")
    assert scene.group.restart_requests == tuple(f"n{number}" for number in range(1, MAX_RESTART_REQUESTS + 1))


def test_restart_request_ends_when_the_worker_drains() -> None:
    scene = three()
    request_restart(scene, "m2")
    assert not scene.heartbeat("m2", 10, TWO, full=True, draining=True).restart


def request_drain(scene: Scene, member_id: str) -> RestartResponse:
    request = RestartRequest(group_id=GROUP, member_id=member_id, drain=True)
    return scene.response_of(scene.act(request), RestartResponse)


def test_requested_drain_is_repeated_until_the_member_reports_that_it_drains() -> None:
    scene = three()
    assert not request_drain(scene, "m2").already_requested
    assert request_drain(scene, "m2").already_requested
    (shown,) = [member for member in describe(scene.group, scene.now_ms).members if member.member_id == "m2"]
    assert shown.state == "DRAINING"
    for _ in range(2):
        assert scene.heartbeat("m2", 10).drain
    scene.reload()
    assert scene.heartbeat("m2", 10, TWO, full=True).drain, "after a coordinator failover too"
    assert scene.join("m2").drain, "a rejoin without a leave keeps the request"
    epoch = scene.current("m2").epoch
    assert not scene.heartbeat("m2", epoch, frozenset(), full=True, draining=True).drain
    assert request_drain(scene, "m2").already_requested
    assert scene.group.members["m2"].draining


def test_requested_drain_replaces_a_requested_restart_and_not_the_other_way_round() -> None:
    scene = three()
    request_restart(scene, "m2")
    assert not request_drain(scene, "m2").already_requested
    response = scene.heartbeat("m2", 10)
    assert (response.restart, response.drain) == (False, True)
    refused = request_restart(scene, "m2")
    assert (refused.error_code, refused.error_message) == (
        InvalidRequest.code,
        "worker 'm2' is draining and leaves for good",
    )


def test_requested_drain_ends_with_the_membership() -> None:
    scene = three()
    request_drain(scene, "m2")
    scene.expire(TimerKind.SESSION, "m2")
    assert not scene.join("m2").drain
    assert request_drain(scene, "m9").error_code == UnknownMemberId.code


def test_static_member_is_restarted_by_its_instance_id() -> None:
    scene = three(m2="i2")
    assert request_restart(scene, "i2").error_code == 0
    assert scene.heartbeat("m2", 10, instance="i2").restart
    scene.leave_temporarily("m2", "i2")
    scene.now_ms += 2_800
    (shown,) = [member for member in describe(scene.group, scene.now_ms).members if member.member_id == "m2"]
    assert (shown.instance_id, shown.state, shown.kept_ms) == ("i2", "AWAY", scene.settings.session_timeout_ms - 2_800)
    scene.join("m2", instance="i2")
    assert {member.kept_ms for member in describe(scene.group, scene.now_ms).members} == {-1}


def test_static_member_restarts_by_leaving_temporarily() -> None:
    """Epoch -2: no rebalance at all; its units are kept until the session timeout (ST-01)."""
    scene = three(m2="i2")
    request_restart(scene, "m2")
    assert scene.heartbeat("m2", 10, instance="i2").restart
    scene.leave_temporarily("m2", "i2")
    assert request_restart(scene, "m2").error_code == UnknownMemberId.code
    response = scene.join("m2", instance="i2")
    assert units_at(response) == (10, names(TWO))
    assert not response.restart
    assert scene.group.epoch == 10


@pytest.mark.parametrize(
    ("member_id", "code", "message"),
    [
        ("m9", UnknownMemberId.code, "worker: got 'm9'; allowed: m1, m2, m3, m5"),
        (
            "m4",
            UnknownMemberId.code,
            "worker 'm4' is not in the group: it restarts or is lost, and its units are delayed for it for 50.0 s more",
        ),
        (
            "m3",
            UnknownMemberId.code,
            "worker 'm3' has temporarily left; its units are kept for its group.instance.id 'i3'",
        ),
        ("m2", InvalidRequest.code, "worker 'm2' is draining and leaves for good"),
        ("", InvalidRequest.code, "MemberId: got ''; allowed: a non-empty name"),
    ],
    ids=["unknown", "lost", "temporarily_left", "draining", "empty"],
)
def test_restart_of_an_unsuitable_worker_is_rejected_with_one_line(member_id: str, code: int, message: str) -> None:
    scene = Scene.stable(
        settings(scheduled_delay_ms=DELAY_MS),
        epoch=10,
        connectors={"foo": 6},
        members={"m1": ONE, "m2": TWO, "m3": THREE, "m4": tasks(foo=[5]), "m5": ()},
        instances={"m3": "i3"},
    )
    scene.expire(TimerKind.SESSION, "m4")
    scene.leave_temporarily("m3", "i3")
    scene.heartbeat("m2", 10, TWO, full=True, draining=True)
    scene.now_ms += 10_000
    response = request_restart(scene, member_id)
    assert (response.error_code, response.error_message) == (code, message)
    assert scene.records == ()


def test_restart_in_an_unknown_or_empty_group_is_rejected() -> None:
    scene = Scene(settings=settings())
    assert request_restart(scene, "m1").error_code == GroupIdNotFound.code
    scene = three()
    for member_id in SHARES:
        scene.leave(member_id)
    assert request_restart(scene, "m1").error_message == "worker: got 'm1'; allowed: none, the group is empty"


def test_return_of_a_restarted_worker_needs_no_computation() -> None:
    scene = three()
    leave_to_restart(scene, "m2")
    heartbeat_all(scene)
    scene.settings.server_assignors["round-robin"] = lambda _: pytest.fail("asked")  # type: ignore[index]
    scene.join("m2")
    assert heartbeat_all(scene) == EXPECTED


class TestRestartError:
    """A member whose replacement does not start says why, and the request ends."""

    def beat(self, scene: Scene, member_id: str, restart_error: str = "") -> HeartbeatResponse:
        epoch = scene.current(member_id).epoch
        request = HeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, restart_error=restart_error, max_wait_ms=0
        )
        return scene.response_of(scene.act(request), HeartbeatResponse)

    def shown(self, scene: Scene, member_id: str) -> tuple[str, str]:
        member = next(each for each in describe(scene.group).members if each.member_id == member_id)
        return member.state, member.restart_error

    def test_reason_is_described_until_the_next_request(self) -> None:
        scene = three()
        request_restart(scene, "m1")
        assert self.beat(scene, "m1").restart
        assert not self.beat(scene, "m1", "no such\nfile").restart
        assert self.shown(scene, "m1") == ("STABLE", "no such\\nfile")
        scene.reload()
        assert self.shown(scene, "m1") == ("STABLE", "no such\\nfile")
        assert not request_restart(scene, "m1").already_requested
        assert self.shown(scene, "m1") == ("RESTARTING", "")
        assert self.beat(scene, "m1").restart

    def test_reason_without_a_request_is_ignored(self) -> None:
        """An operator has sent a signal to the process, or the response to the report was lost."""
        scene = three()
        self.beat(scene, "m1", "down")
        assert self.shown(scene, "m1") == ("STABLE", "")
        assert scene.group.epoch == 10

    def test_reason_ends_with_the_membership(self) -> None:
        scene = three()
        request_restart(scene, "m1")
        self.beat(scene, "m1", "down")
        leave_to_restart(scene, "m1")
        scene.join("m1")
        assert self.shown(scene, "m1")[1] == ""
