"""Epochs, lost responses, repeated requests and expired sessions: HB-01 to HB-19 and TO-01 to TO-05.

Not here: HB-17 (a failed write) is the runtime's; HB-18 (an assignor that raises) is in test_computing.py; epoch -2
is in test_static.py.
"""

from __future__ import annotations

import pytest

from connectgroup.errors import (
    FencedMemberEpoch,
    UnknownMemberId,
)
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import on_load
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import CancelTimer, SetTimer, Timer, TimerKey, TimerKind, rebalance
from connectgroup.group.kernel.state import ANY_PROCESS, NO_PROCESS, Process
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import CurrentRecord, MemberState, held
from connectgroup.protocol.units import Unit, Units

from .builders import (
    GROUP,
    FixedAssignor,
    Scene,
    foo,
    numbered,
    response_units,
    settings,
    task_list,
    tasks,
    units_at,
)

FOO = Unit("foo")
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED


# ---- which epochs are accepted


@pytest.mark.parametrize(
    ("epoch", "owned"),
    [
        pytest.param(200, None, id="HB-01 an epoch of the future"),
        pytest.param(101, None, id="HB-01 the next epoch"),
        pytest.param(50, None, id="HB-02 an old epoch"),
        pytest.param(98, foo(1, 2), id="HB-02 the epoch before the previous one, whatever the member owns"),
        pytest.param(99, None, id="HB-03 the previous epoch, with owned null"),
        pytest.param(99, foo(1, 0), id="the previous epoch with a unit of another member"),
        pytest.param(99, tasks(foo=[1], bar=[0]), id="the previous epoch with an unknown unit"),
    ],
)
def test_member_with_a_wrong_epoch_is_fenced_and_removed(rest: Scene, epoch: int, owned: Units | None) -> None:
    """ "FENCED_MEMBER_EPOCH is returned otherwise. The member is also removed from the group." """
    response = rest.heartbeat("m1", epoch, owned)
    assert response.error_code == FencedMemberEpoch.code
    assert "m1" not in rest.group.members
    assert rest.group.epoch == 101
    assert rest.heartbeat("m1", 100).error_code == UnknownMemberId.code
    assert units_at(rest.join("m1")) == (102, ["foo-1", "foo-2", "foo-3"])  # KAFKA-19233: it can always rejoin


@pytest.mark.parametrize("owned", [foo(1, 2), foo(1, 2, 3), foo()], ids=["a part", "all", "nothing"])
def test_hb_04_lost_response_is_repeated(rest: Scene, owned: Units) -> None:
    """HB-04: the previous epoch with a subset of the assigned units: the response is repeated, and complete.

    S17 (KAFKA-16367): a response with a new epoch contains the assignment of that epoch.
    """
    response = rest.heartbeat("m1", 99, owned)
    assert units_at(response) == (100, ["foo-1", "foo-2", "foo-3"])
    assert rest.records == ()
    assert response.assignment is not None
    assert [grant.task for grant in response.assignment.grants] == sorted({1, 2, 3} - {unit.task for unit in owned})


@pytest.mark.parametrize("state", [STABLE, UNREVOKED, UNRELEASED])
def test_hb_05_epoch_zero_is_always_a_rejoin(fixed: FixedAssignor, state: MemberState) -> None:
    """HB-05, KAFKA-19233: UNREVOKED at 100 with foo-1 pending, target at 101: rejoins at 101 with its target."""
    pending = {Unit("foo", 1): 100} if state is UNREVOKED else {}
    scene = Scene.stable(
        settings(fixed), epoch=101, connectors={"foo": 2}, members={"m1": dict.fromkeys(foo(-1, 0, 1), 100)}
    )
    scene.put(
        CurrentRecord(
            group_id=GROUP,
            member_id="m1",
            epoch=100,
            previous_epoch=100,
            state=state,
            assigned=held(dict.fromkeys(foo(0) if state is UNREVOKED else foo(0, 1), 100)),
            pending=held(pending),
        )
    )
    assert units_at(scene.join("m1")) == (101, ["foo", "foo-0", "foo-1"])
    assert scene.current("m1").assigned == dict.fromkeys(foo(-1, 0, 1), 101)
    assert scene.current("m1").pending == {}


def test_hb_15_compacted_log_may_show_the_new_owner_first() -> None:
    """HB-15, KAFKA-19862: m1 owns foo-1 at 10, then m2 owns it at 11; the later grant counts, in both orders.

    Kafka fails the load if a third record claims an *older* grant. Here a load never fails (D2): the record is ignored.
    """
    unit = Unit("foo", 1)

    def has(member_id: str, *epochs: int) -> CurrentRecord:
        units = {unit: epochs[0]} if epochs else {}
        return CurrentRecord(group_id=GROUP, member_id=member_id, epoch=11, previous_epoch=10, assigned=held(units))

    group = ConnectGroupState(GROUP)
    for record in (has("m1", 10), has("m2", 11), has("m3", 10)):
        group.apply(record)
    assert group.holders[unit] == ("m2", 11)
    group.apply(has("m1"))
    group.apply(has("m3"))
    assert group.holders[unit] == ("m2", 11)
    group.apply(has("m2"))
    assert group.holders == {}


def test_tombstones_of_unknown_keys_have_no_effect() -> None:
    """KAFKA-17306."""
    group = ConnectGroupState(GROUP)
    for kind in Kind:
        group.apply(Tombstone(Key(kind, GROUP, {Kind.STATUS: "foo\n0", Kind.REBALANCE: "3"}.get(kind, "unknown"))))
    assert not group.exists
    assert (group.members, group.currents, group.targets, group.holders) == ({}, {}, {}, {})


# ---- several lost responses


def test_lost_responses_in_a_row_never_fence_the_member(rest: Scene, fixed: FixedAssignor) -> None:
    """S16: three responses in a row are lost while the target changes."""
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2, 3)}
    rest.join("m8")
    rest.heartbeat("m0", 100)
    rest.heartbeat("m0", 100, foo(-1))
    rest.heartbeat("m1", 100, lost=True)  # e101 with foo-0
    rest.join("m9")
    rest.heartbeat("m1", 100, foo(1, 2, 3), full=True, lost=True)  # target e102
    rest.leave("m9")
    rest.heartbeat("m1", 100, foo(1, 2, 3), full=True, lost=True)  # target e103
    response = rest.heartbeat("m1", 100, foo(1, 2, 3), full=True)
    assert units_at(response) == (101, ["foo-0", "foo-1", "foo-2", "foo-3"])  # the response is repeated
    assert rest.records == ()
    assert units_at(rest.heartbeat("m1", 101)) == (103, ["foo-0", "foo-1", "foo-2", "foo-3"])


def test_grant_in_a_lost_response_is_revoked_before_another_member_gets_it(rest: Scene, fixed: FixedAssignor) -> None:
    """S3: a unit is released only by a heartbeat of the *current* epoch whose list omits it.

    A request at the previous epoch may have been sent before the member was granted foo-0, so it cannot acknowledge
    that foo-0 has stopped; a late copy of it must not release what the member runs by now.
    """
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2, 3)}
    rest.join("m8")
    rest.heartbeat("m0", 100)
    rest.heartbeat("m0", 100, foo(-1))
    assert units_at(rest.heartbeat("m1", 100, foo(1, 2, 3), full=True)) == (
        101,
        ["foo-0", "foo-1", "foo-2", "foo-3"],
    )
    request = rest_request(rest, "m1", 100, foo(1, 2, 3))
    fixed.target = {"m0": foo(-1, 0), "m1": foo(1, 2, 3)}
    rest.join("m9")
    for _ in range(3):
        rest.act(request, duplicate=True)
        assert rest.records == ()
        assert rest.group.holders[Unit("foo", 0)] == ("m1", 101)
    assert units_at(rest.heartbeat("m1", 101)) == (101, ["foo-1", "foo-2", "foo-3"])
    assert units_at(rest.heartbeat("m0", 101)) == (102, ["foo"])
    rest.heartbeat("m1", 101, foo(1, 2, 3))
    assert units_at(rest.heartbeat("m0", 102)) == (102, ["foo", "foo-0"])


def test_removed_unit_of_a_lost_response_is_not_awaited(rest: Scene, fixed: FixedAssignor) -> None:
    """m1 never received foo-0, so it could never acknowledge its revocation, and would be fenced."""
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2, 3)}
    rest.join("m8")
    rest.heartbeat("m0", 100)
    rest.heartbeat("m0", 100, foo(-1))
    rest.heartbeat("m1", 100, lost=True)
    rest.heartbeat("m0", 101)
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2, 3)}
    changed = [{"task": "0", "table": "other"}, *numbered(4)[1:]]
    assert rest.update(task_list("foo", changed, 100), member_id="m0").error_code == 0
    for lost in (True, True, False):
        response = rest.heartbeat("m1", 100, foo(1, 2, 3), full=True, lost=lost)
        assert units_at(response) == (102, ["foo-0", "foo-1", "foo-2", "foo-3"])
    assert rest.current("m1").assigned[Unit("foo", 0)] == 102


def test_revocation_lost_after_a_lost_grant(rest: Scene, fixed: FixedAssignor) -> None:
    """S16: two lost responses. The owned units include a pending unit: that is no reason to fence the member."""
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2, 3)}
    rest.join("m8")
    rest.heartbeat("m0", 100)
    rest.heartbeat("m0", 100, foo(-1))
    rest.heartbeat("m1", 100, lost=True)
    rest.heartbeat("m0", 101)
    fixed.target = {"m0": foo(-1, 3), "m1": foo(0, 1, 2)}
    rest.update(task_list("foo", [{"task": "0", "table": "other"}, *numbered(4)[1:]], 100), member_id="m0")
    for lost in (True, True, False):
        response = rest.heartbeat("m1", 100, foo(1, 2, 3), full=True, lost=lost)
        assert units_at(response) == (101, ["foo-1", "foo-2"])
    assert units_at(rest.heartbeat("m1", 101, foo(1, 2))) == (102, ["foo-0", "foo-1", "foo-2"])


def rest_request(scene: Scene, member_id: str, epoch: int, owned: Units) -> HeartbeatRequest:
    """The full heartbeat that a worker sends after an error."""
    return HeartbeatRequest(
        group_id=scene.group.group_id,
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        owned=grouped(owned),
    )


def test_revocation_after_a_lost_grant_comes_first(
    fixed: FixedAssignor,
) -> None:
    """CN-13: the member has not received foo-2 yet and must stop foo-1. The revocation comes first."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 3}, members={"m0": foo(-1), "m1": foo(0, 1)})
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2)}
    scene.leave("m0")
    fixed.target = {"m1": foo(-1, 0, 1, 2)}
    scene.join("m1b")
    scene.heartbeat("m1", 10, lost=True)
    assert scene.current("m1").assigned.keys() == foo(-1, 0, 1, 2)
    fixed.target = {"m1": foo(-1, 0, 2), "m1b": foo(1)}
    scene.join("m2")
    again = scene.heartbeat("m1", 10, foo(0, 1), full=True)
    assert units_at(again) == (12, ["foo", "foo-0", "foo-1", "foo-2"])
    assert units_at(scene.heartbeat("m1", 12)) == (12, ["foo", "foo-0", "foo-2"])
    assert units_at(scene.heartbeat("m1", 12, foo(-1, 0, 2))) == (13, ["foo", "foo-0", "foo-2"])


def test_revocation_after_a_lost_grant_at_the_same_epoch_comes_first(fixed: FixedAssignor) -> None:
    """CN-13: foo-2 was granted at the member's current epoch; the response was lost, and foo-1 must be revoked."""
    scene = Scene.stable(settings(fixed), epoch=10, connectors={"foo": 3}, members={"m0": foo(-1, 2), "m1": foo(0, 1)})
    fixed.target = {"m0": foo(-1), "m1": foo(0, 1, 2)}
    scene.join("m2")
    assert units_at(scene.heartbeat("m1", 10)) == (11, ["foo-0", "foo-1"])
    scene.heartbeat("m0", 10)
    scene.heartbeat("m0", 10, foo(-1))
    scene.heartbeat("m1", 11, lost=True)
    assert scene.current("m1").assigned.keys() == foo(0, 1, 2)
    fixed.target = {"m0": foo(-1), "m1": foo(0, 2), "m2": foo(1)}
    scene.join("m3")
    assert units_at(scene.heartbeat("m1", 11, foo(0, 1), full=True)) == (11, ["foo-0"])  # the revocation first
    assert units_at(scene.heartbeat("m1", 11, foo(0))) == (12, ["foo-0", "foo-2"])  # then the grant


def test_unit_of_a_lost_grant_is_granted_after_a_revocation_that_grows(fixed: FixedAssignor) -> None:
    """The grant of foo-2 was lost; the member stops foo-1, and reports nothing while bar is deleted (CA-19).

    The response to that heartbeat lists all that the member is to keep, foo-2 as well, without a grant: the member
    accepts no unit while it revokes (PD-02). The grant comes with the response to its acknowledgement.
    """
    runs = foo(0, 1) | {Unit("bar")}
    scene = Scene.stable(
        settings(fixed), epoch=10, connectors={"foo": 3, "bar": 0}, members={"m0": foo(-1, 2), "m1": runs}
    )
    fixed.target = {"m0": foo(-1), "m1": runs | foo(2)}
    scene.join("m2")
    scene.heartbeat("m1", 10)
    scene.heartbeat("m0", 10)
    scene.heartbeat("m0", 10, foo(-1))
    scene.heartbeat("m1", 11, lost=True)
    fixed.target = {"m0": foo(-1), "m1": foo(0, 2) | {Unit("bar")}, "m2": foo(1)}
    scene.join("m3")
    assert units_at(scene.heartbeat("m1", 11, runs, full=True)) == (11, ["bar", "foo-0"])
    fixed.target = {"m0": foo(-1), "m1": foo(0, 2), "m2": foo(1)}
    scene.update(ConnectorChange(connector="bar", delete=True))
    grown = scene.heartbeat("m1", 11)
    assert units_at(grown) == (11, ["foo-0", "foo-2"])
    assert grown.assignment is not None
    assert not grown.assignment.grants
    assert units_at(scene.heartbeat("m1", 11, runs, full=True)) == (11, ["foo-0"]), "a report withholds foo-2 (CN-13)"
    granted = scene.heartbeat("m1", 11, foo(0)).assignment
    assert granted is not None
    (grant,) = granted.grants
    assert (grant.connector, grant.task, grant.owner_epoch) == ("foo", 2, 11)


def test_lost_revocation_is_repeated(rest: Scene, fixed: FixedAssignor) -> None:
    """UNREVOKED without a change of epoch: the full heartbeat after the error is answered with the units to keep."""
    fixed.target = {"m0": foo(-1, 0, 3), "m1": foo(1, 2)}
    rest.join("m9")
    rest.heartbeat("m1", 100, lost=True)
    assert units_at(rest.heartbeat("m1", 100, foo(1, 2, 3), full=True)) == (100, ["foo-1", "foo-2"])
    assert rest.state("m1") is UNREVOKED


# ---- timers


@pytest.mark.parametrize("kind", [TimerKind.SESSION, TimerKind.REBALANCE])
def test_kafka_8896_timer_of_a_removed_member_does_nothing(rest: Scene, kind: TimerKind) -> None:
    """KAFKA-8896: an expiry that fires after the removal crashed the coordinator."""
    rest.leave("m1")
    outcome = rest.expire(kind, "m1")
    assert (outcome.records, outcome.timers) == ((), ())
    assert Scene(settings=rest.settings).expire(kind, "m1").records == ()
    assert Scene(settings=rest.settings).expire(TimerKind.COMPUTE).records == ()


def rebalance_timers(scene: Scene) -> list[Timer]:
    """What the last step did to rebalance timers."""
    assert scene.last is not None
    return [timer for timer in scene.last.timers if timer.key.kind is TimerKind.REBALANCE]


def test_second_revocation_has_its_own_deadline(rest: Scene, fixed: FixedAssignor) -> None:
    """From one revocation directly to the next (CA-08): the timer is re-armed for the new revocation."""
    fixed.target = {"m0": foo(-1, 0, 3), "m1": foo(1, 2)}
    rest.join("m8")
    rest.heartbeat("m1", 100)
    fixed.target = {"m0": foo(-1, 0, 3, 2), "m1": foo(1)}
    rest.join("m9")
    rest.heartbeat("m1", 100, foo(1, 2))
    assert rest.state("m1") is UNREVOKED
    assert rebalance_timers(rest) == [rebalance(GROUP, "m1", rest.current("m1"), 10_000)]


def test_rebalance_timer_of_a_former_revocation_does_nothing(rest: Scene, fixed: FixedAssignor) -> None:
    """CA-08: the member epoch is the same in both revocations; the first one's timer does not end the second."""
    fixed.target = {"m0": foo(-1, 0, 3), "m1": foo(1, 2)}
    rest.join("m8")
    rest.heartbeat("m1", 100)
    [first] = rebalance_timers(rest)
    fixed.target = {"m0": foo(-1, 0, 3, 2), "m1": foo(1)}
    rest.join("m9")
    rest.heartbeat("m1", 100, foo(1, 2))
    [second] = rebalance_timers(rest)
    stale = rest.act(first.key)
    assert (stale.records, stale.timers) == ((), ())
    assert rest.state("m1") is UNREVOKED
    rest.act(second.key)
    assert "m1" not in rest.group.members


def test_every_answered_heartbeat_restarts_the_session(rest: Scene) -> None:
    rest.heartbeat("m1", 100)
    assert rest.last is not None
    assert SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m1"), 10_000) in rest.last.timers
    rest.join("m1")
    assert rest.last is not None
    assert SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m1"), 10_000) in rest.last.timers


def test_to_05_timers_after_a_load(rest: Scene, fixed: FixedAssignor) -> None:
    """TO-05, D5: a session timer for each member; a rebalance timer for UNREVOKED only."""
    fixed.target = {"m0": foo(-1, 0, 3), "m1": foo(1, 2)}
    rest.join("m9")
    rest.heartbeat("m0", 100)
    rest.heartbeat("m1", 100)
    assert [rest.state(member_id) for member_id in ("m0", "m1", "m9")] == [UNRELEASED, UNREVOKED, STABLE]
    assert on_load(rest.group, rest.now_ms, rest.settings).timers == (
        SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m0"), 10_000),
        SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m1"), 10_000),
        rebalance(GROUP, "m1", rest.current("m1"), 10_000),
        SetTimer(TimerKey(TimerKind.SESSION, GROUP, "m9"), 10_000),
    )


def test_units_of_an_expired_member_are_free(rest: Scene, fixed: FixedAssignor) -> None:
    """S3(c): expiry releases the units by a durable record; other members get them at their next heartbeat."""
    fixed.target = {"m0": foo(-1, 0, 1, 2, 3)}
    rest.expire(TimerKind.SESSION, "m1")
    assert units_at(rest.heartbeat("m0", 100)) == (101, ["foo", "foo-0", "foo-1", "foo-2", "foo-3"])
    assert response_units(rest.heartbeat("m0", 101, foo(-1, 0, 1, 2, 3))) is None


def test_timers_of_a_member_that_leaves_are_cancelled() -> None:
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1), "m2": ()})
    scene.leave("m1")
    assert scene.last is not None
    for kind in (TimerKind.SESSION, TimerKind.REBALANCE):
        assert CancelTimer(TimerKey(kind, GROUP, "m1")) in scene.last.timers


def test_group_is_described_as_empty_after_the_last_member_leaves() -> None:
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": foo(-1, 0, 1)})
    scene.leave("m1")
    assert describe(scene.group).state == "Empty"


# --------------------------------------------------------------------------------------------------
# Which senders the process of a member accepts (PD-15).


ALICE = Process(7, "alice")
OPEN = Process(7, "")


@pytest.mark.parametrize(
    ("member", "sender", "accepted"),
    [
        (ALICE, ALICE, True),
        (ALICE, Process(8, "alice"), False),
        (ALICE, Process(-1, "alice"), False),
        (ALICE, Process(7, "bob"), False),
        (ALICE, OPEN, False),
        (OPEN, OPEN, True),
        (OPEN, ALICE, False),
        (Process(-1, "alice"), ALICE, True),
        (Process(-1, "alice"), Process(7, "bob"), False),
        (Process(7, None), ALICE, True),
        (Process(7, None), Process(8, "alice"), False),
        (ALICE, Process(7, None), True),
        (ALICE, Process(8, None), False),
        (ANY_PROCESS, ALICE, True),
        (ANY_PROCESS, NO_PROCESS, True),
    ],
)
def test_member_accepts_its_process_on_connections_of_its_principal(
    member: Process, sender: Process, accepted: bool
) -> None:
    assert member.accepts(sender) == accepted
