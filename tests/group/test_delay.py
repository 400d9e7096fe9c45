"""Scheduled rebalance delay: the units of a lost worker are delayed until a deadline in the log (S15, CN-11, L8)."""

from __future__ import annotations

import pytest

from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import on_load
from connectgroup.group.kernel.outcome import CancelTimer, SetTimer, TimerKey, TimerKind
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, InstallResponse
from connectgroup.protocol.messages.common import grouped, units_of
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.records.connect import DelayRecord, GroupRecord
from connectgroup.protocol.units import NO_UNITS, Units

from .builders import GROUP, FixedAssignor, Scene, info, names, round_robin, settings, tasks, units_at

FOO = tasks(foo=[-1, 0, 1])
BAR = tasks(bar=[-1, 0])


DELAY_MS = 60_000
ONE, TWO, THREE = tasks(foo=[-1, 0]), tasks(foo=[1, 2]), tasks(foo=[3, 4])
A = info("a")


@pytest.fixture
def rest() -> Scene:
    """m1, m2 with the instance id i2, and m3 own two units each at epoch 10; the delay is 60 s."""
    return Scene.stable(
        settings(scheduled_delay_ms=DELAY_MS),
        epoch=10,
        connectors={"foo": 5},
        members={"m1": ONE, "m2": TWO, "m3": THREE},
        instances={"m2": "i2"},
    )


def delayed_units(scene: Scene) -> Units:
    return frozenset().union(*(units_of(delay.units) for delay in scene.group.delays.values()))


def owned_at(scene: Scene, epoch: int) -> dict[str, list[str]]:
    """The units of each member after two heartbeats."""
    for _ in range(2):
        for member_id in sorted(scene.group.members):
            current = scene.current(member_id)
            scene.heartbeat(member_id, current.epoch, frozenset(current.assigned))
    assert all(scene.current(member_id).epoch == epoch for member_id in scene.group.members)
    return {member_id: names(scene.current(member_id).assigned) for member_id in sorted(scene.group.members)}


def test_s15_units_of_a_lost_worker_are_assigned_to_no_member(rest: Scene) -> None:
    rest.expire(TimerKind.SESSION, "m2")
    assert delayed_units(rest) == TWO
    epoch = rest.group.epoch
    assert rest.last is not None
    assert SetTimer(TimerKey(TimerKind.DELAY, GROUP, "m2"), DELAY_MS) in rest.last.timers
    held = owned_at(rest, epoch)
    assert {*held} == {"m1", "m3"}
    assert not {*names(TWO)} & {unit for units in held.values() for unit in units}
    [shown] = describe(rest.group, rest.now_ms + 1_000).delayed
    assert (shown.member_id, shown.instance_id, shown.left_ms) == ("m2", "i2", DELAY_MS - 1_000)
    assert units_of(shown.units) == TWO


def messages(scene: Scene) -> dict[int, str]:
    """What ``connectors status`` shows of each task of ``foo`` that runs nowhere."""
    shown = describe(
        scene.group, scene.now_ms + 1_000, request=DescribeRequest(connectors=("foo",), connectors_only=True)
    )
    return {unit.task: unit.message for unit in shown.connectors[0].units if unit.message}


def test_delayed_unit_shows_for_whom_and_how_long_it_waits(rest: Scene) -> None:
    rest.expire(TimerKind.SESSION, "m3")
    owned_at(rest, rest.group.epoch)
    assert messages(rest) == dict.fromkeys((3, 4), "delayed 59.0 s more for lost worker m3 (scheduled rebalance delay)")


def test_unit_of_a_temporarily_left_member_shows_for_whom_and_how_long_it_is_kept(rest: Scene) -> None:
    session_s = rest.settings.session_timeout_ms / 1000 - 1
    rest.leave_temporarily("m2", "i2")
    text = f"worker m2 has left temporarily; it is kept for it {session_s:.1f} s more"
    assert messages(rest) == dict.fromkeys((1, 2), text)


def test_ic_06_delayed_units_are_assigned_once_the_delay_ends(rest: Scene) -> None:
    rest.expire(TimerKind.SESSION, "m2")
    owned_at(rest, 11)
    rest.now_ms += DELAY_MS
    rest.expire(TimerKind.DELAY, "m2")
    assert rest.group.latest_rebalance is not None
    assert rest.group.latest_rebalance.causes == (f"m2 did not return within {DELAY_MS} ms",)
    assert delayed_units(rest) == frozenset()
    held = owned_at(rest, 12)
    assert sorted(unit for units in held.values() for unit in units) == names(ONE | TWO | THREE)
    rest.expire(TimerKind.DELAY, "m2")
    assert rest.records == ()


@pytest.mark.parametrize(("member_id", "instance"), [("m2", "i2"), ("m2", None), ("m2b", "i2")])
def test_l8_worker_that_returns_gets_its_units_without_a_computation(
    rest: Scene, member_id: str, instance: str | None
) -> None:
    """IC-07: same member id or same instance id. Others keep their units; the owner epochs are later ones."""
    rest.expire(TimerKind.SESSION, "m2")
    owned_at(rest, 11)
    rest.settings.server_assignors["round-robin"] = lambda _: pytest.fail("no computation needed")  # type: ignore[index]
    assert units_at(rest.join(member_id, instance=instance)) == (12, names(TWO))
    assert rest.current(member_id).assigned == dict.fromkeys(TWO, 12)
    assert rest.group.delays == {}
    assert owned_at(rest, 12) == {"m1": names(ONE), member_id: names(TWO), "m3": names(THREE)}


def test_two_lost_workers_get_their_own_units_back(rest: Scene) -> None:
    rest.expire(TimerKind.SESSION, "m2")
    rest.expire(TimerKind.SESSION, "m3")
    assert delayed_units(rest) == TWO | THREE
    owned_at(rest, 12)
    assert units_at(rest.join("m3"))[1] == names(THREE)
    assert units_at(rest.join("m2b", instance="i2"))[1] == names(TWO)
    assert rest.group.delays == {}


def test_return_after_further_changes_is_an_ordinary_join(rest: Scene) -> None:
    """An assignor runs; its input contains the delayed units as the returning worker's own."""
    inputs = []

    def watched(prepared):  # type: ignore[no-untyped-def]
        inputs.append(prepared)
        return round_robin(prepared)

    rest.settings.server_assignors["round-robin"] = watched  # type: ignore[index]
    rest.expire(TimerKind.SESSION, "m2")
    rest.join("m4")
    assert [work.member_id for work in inputs[-1].delayed] == ["m2"]
    rest.join("m2b", instance="i2")
    assert TWO in inputs[-1].shares()
    assert inputs[-1].delayed == ()
    assert rest.group.delays == {}
    held = owned_at(rest, rest.group.epoch)
    assert sorted(unit for units in held.values() for unit in units) == names(ONE | TWO | THREE)


def test_cn_11_new_coordinator_continues_the_delay(rest: Scene) -> None:
    """The delay is neither forgotten (Connect's leader does: IC-08) nor restarted."""
    rest.expire(TimerKind.SESSION, "m2")
    rest.now_ms += DELAY_MS // 2
    rest.reload()
    key = TimerKey(TimerKind.DELAY, GROUP, "m2")
    assert SetTimer(key, DELAY_MS // 2) in on_load(rest.group, rest.now_ms, rest.settings).timers


@pytest.mark.parametrize(("jump_ms", "left_ms"), [(-3_600_000, DELAY_MS), (3_600_000, 1_000)])
def test_f14_clock_jump_neither_prolongs_nor_ends_a_delay(rest: Scene, jump_ms: int, left_ms: int) -> None:
    rest.expire(TimerKind.SESSION, "m2")
    key = TimerKey(TimerKind.DELAY, GROUP, "m2")
    assert SetTimer(key, left_ms) in on_load(rest.group, rest.now_ms + jump_ms, rest.settings).timers


def test_kafka_15693_units_are_assigned_at_once_without_a_delay() -> None:
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 3}, members={"m1": ONE, "m2": TWO})
    scene.expire(TimerKind.SESSION, "m2")
    assert scene.group.delays == {}
    assert units_at(scene.heartbeat("m1", 10)) == (11, names(ONE | TWO))


@pytest.mark.parametrize("epoch", [-1, -2])
def test_units_of_a_member_that_left_are_not_delayed(rest: Scene, epoch: int) -> None:
    if epoch == -2:
        rest.leave_temporarily("m2", "i2")
        rest.expire(TimerKind.SESSION, "m2")
    else:
        rest.leave("m2")
    assert rest.group.delays == {}
    held = owned_at(rest, 11)
    assert sorted(unit for units in held.values() for unit in units) == names(ONE | TWO | THREE)


def test_units_of_the_last_worker_are_not_delayed(rest: Scene) -> None:
    """No member is left that could be spared a move back and forth."""
    for member_id in ("m1", "m3"):
        rest.leave(member_id)
        owned_at(rest, rest.group.epoch)
    rest.expire(TimerKind.SESSION, "m2")
    assert rest.group.delays == {}
    assert rest.group.target_epoch == rest.group.epoch


def test_only_units_that_the_lost_member_owned_and_was_to_keep_are_delayed(rest: Scene) -> None:
    """Pending units belong to another member; units not granted yet have no owner that could return."""
    fixed = FixedAssignor()
    scene = Scene.stable(
        settings(fixed, scheduled_delay_ms=DELAY_MS), epoch=10, connectors={"foo": 5},
        members={"m1": ONE, "m2": TWO, "m3": THREE},
    )  # fmt: skip
    fixed.target = {"m1": ONE | tasks(foo=[1]), "m2": tasks(foo=[2, 3]), "m3": tasks(foo=[4])}
    scene.heartbeat("m1", 10, assignors=())
    scene.join("m9")
    assert units_at(scene.heartbeat("m2", 10, TWO, full=True)) == (10, ["foo-2"])
    scene.expire(TimerKind.REBALANCE, "m2")
    assert delayed_units(scene) == tasks(foo=[2])


def test_removed_units_are_not_delayed(rest: Scene) -> None:
    rest.expire(TimerKind.SESSION, "m2")
    rest.update(ConnectorChange(connector="foo", delete=True))
    assert describe(rest.group).delayed[0].units == ()
    epoch = rest.group.epoch
    rest.expire(TimerKind.DELAY, "m2")
    assert (rest.group.delays, rest.group.epoch) == ({}, epoch)


def test_fenced_worker_gets_its_units_back(rest: Scene) -> None:
    assert rest.heartbeat("m2", 99).error_code != 0
    assert delayed_units(rest) == TWO
    assert units_at(rest.join("m2", instance="i2"))[1] == names(TWO)


def test_assignment_that_includes_delayed_units_is_accepted() -> None:
    """The assignor need not know of delays; the coordinator does not assign delayed units to other members."""
    scene = Scene.stable(
        settings(scheduled_delay_ms=DELAY_MS), epoch=10, connectors={"foo": 3}, members={"m1": ONE, "m2": TWO}
    )
    scene.heartbeat("m1", 10, assignors=(A,))
    scene.heartbeat("m2", 10, assignors=(A,))
    scene.prepare("m1", 10)
    scene.install("m1", 10, scene.group.epoch, {"m1": ONE, "m2": TWO})
    epoch = scene.group.epoch
    for member_id, owned in (("m1", ONE), ("m2", TWO)):
        scene.heartbeat(member_id, 10, owned)
    scene.expire(TimerKind.SESSION, "m2")
    assert scene.prepare("m1", scene.current("m1").epoch).delayed[0].member_id == "m2"
    members = [InstalledMember(member_id="m1", units=grouped(ONE | TWO))]
    for _ in range(2):  # a repeated Install is a no-op (CN-08)
        assert scene.install_members("m1", scene.current("m1").epoch, epoch + 1, *members).error_code == 0
    assert scene.records == ()
    assert scene.group.target("m1").units == ONE
    assert units_at(scene.heartbeat("m1", scene.current("m1").epoch)) == (epoch + 1, ["foo", "foo-0"])


class TestAnAssignorsOwnDelay:
    """An assignor delays units for a time that it chooses."""

    def installed(self, scene: Scene, epoch: int, group_epoch: int, delay_ms: int, held: Units) -> InstallResponse:
        scene.prepare("m1", epoch)
        request = InstallRequest(
            group_id=GROUP,
            member_id="m1",
            member_epoch=epoch,
            group_epoch=group_epoch,
            members=(InstalledMember(member_id="m1", units=grouped(ONE | TWO - held)),),
            delayed=grouped(held),
            delay_ms=delay_ms,
        )
        return scene.response_of(scene.act(request), InstallResponse)

    @pytest.fixture
    def computing(self) -> Scene:
        """m1 is the only member, owns foo with three tasks, and is asked to compute for epoch 11."""
        scene = Scene.stable(settings(), epoch=10, connectors={"foo": 3}, members={"m1": ONE | TWO})
        scene.heartbeat("m1", 10, assignors=(A,))
        return scene

    def test_delay_of_an_assignor_is_stored_described_and_ends(self, computing: Scene) -> None:
        assert self.installed(computing, 10, 11, 5_000, TWO).error_code == 0
        [record] = [record for record in computing.records if isinstance(record, DelayRecord)]
        assert (record.member_id, record.delay_ms, record.deadline_ms) == ("", 5_000, computing.now_ms + 5_000)
        assert describe(computing.group, computing.now_ms).delayed[0].left_ms == 5_000
        computing.now_ms += 5_000
        computing.expire(TimerKind.DELAY)
        assert computing.group.epoch == 12
        assert self.installed(computing, 10, 12, 0, frozenset()).error_code == 0
        assert computing.group.delays == {}

    def test_same_delayed_units_keep_their_deadline(self, computing: Scene) -> None:
        self.installed(computing, 10, 11, 5_000, TWO)
        computing.now_ms += 3_000
        computing.heartbeat("m1", 10, assignors=(info("a", reason=1),))
        self.installed(computing, 10, 12, 5_000, tasks(foo=[1]))
        assert computing.group.delays[""].left_ms(computing.now_ms) == 2_000
        computing.heartbeat("m1", 10, assignors=(info("a", reason=2),))
        self.installed(computing, 10, 13, 5_000, tasks(foo=[0, 1]) - ONE | TWO)
        assert computing.group.delays[""].left_ms(computing.now_ms) == 5_000

    def test_delayed_units_exist_and_are_not_assigned(self, computing: Scene) -> None:
        response = self.installed(computing, 10, 11, 5_000, tasks(bar=[0]))
        assert response.error_message is not None
        assert "bar-0, delayed, does not exist" in response.error_message

    def test_delay_of_an_assignor_is_an_hour_at_most(self, computing: Scene) -> None:
        """A failure like any other: it is recorded, so that the next member is asked."""
        response = self.installed(computing, 10, 11, 3_600_001, frozenset())
        assert response.error_message is not None
        assert "a delay of 3600001 ms; allowed: 0 to 3600000" in response.error_message
        assert computing.group.computation is not None
        assert computing.group.computation.failures == 1
        assert self.installed(computing, 10, 11, 3_600_000, frozenset()).error_code == 0

    def test_delay_without_units_requests_another_computation(self, computing: Scene) -> None:
        """A back-off: no unit is delayed, but the assignor requests another computation (IC-23)."""
        self.installed(computing, 10, 11, 40, frozenset())
        computing.expire(TimerKind.DELAY)
        assert any(isinstance(record, GroupRecord) for record in computing.records)
        last = computing.group.latest_rebalance
        assert last is not None
        assert last.causes == ("the delay requested by the assignor has elapsed",)


def test_assignment_without_a_delay_ends_the_delay_of_the_one_before() -> None:
    """An assignment replaces the delayed units of the previous one."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    for reason, held, delay_ms in ((1, tasks(foo=[1]), 5_000), (2, NO_UNITS, 0)):
        scene.heartbeat("m1", 10, assignors=(info(reason=reason),))
        scene.prepare("m1", 10)
        request = InstallRequest(
            group_id=GROUP,
            member_id="m1",
            member_epoch=10,
            group_epoch=scene.group.epoch,
            members=(InstalledMember(member_id="m1", units=grouped(FOO - held)),),
            delayed=grouped(held),
            delay_ms=delay_ms,
        )
        assert scene.response_of(scene.act(request), InstallResponse).error_code == 0
        assert list(scene.group.delays) == ([""] if held else [])
    assert scene.last is not None
    assert CancelTimer(TimerKey(TimerKind.DELAY, GROUP)) in scene.last.timers


@pytest.mark.parametrize(("jump_ms", "left_ms"), [(0, 60_000), (-3_600_000, 60_000), (3_600_000, 0)])
def test_described_delay_is_within_zero_and_the_whole_delay_after_a_clock_jump(jump_ms: int, left_ms: int) -> None:
    """F14: operators and assignors decide by it."""
    shares = {"m1": FOO, "m2": BAR}
    scene = Scene.stable(settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members=shares)
    scene.expire(TimerKind.SESSION, "m2")
    assert [work.left_ms for work in describe(scene.group, scene.now_ms + jump_ms).delayed] == [left_ms]


def test_delay_requested_by_an_assignor_is_at_least_one_second() -> None:
    """L2: an assignor that always requests the shortest delay would keep the group busy."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 2}, members={"m1": FOO})
    scene.heartbeat("m1", 10, assignors=(info(),))
    scene.prepare("m1", 10)
    request = InstallRequest(
        group_id=GROUP,
        member_id="m1",
        member_epoch=10,
        group_epoch=11,
        members=(InstalledMember(member_id="m1", units=grouped(FOO)),),
        delay_ms=1,
    )
    assert scene.response_of(scene.act(request), InstallResponse).error_code == 0
    assert scene.last is not None
    assert SetTimer(TimerKey(TimerKind.DELAY, GROUP), 1_000) in scene.last.timers


def test_units_of_a_draining_member_that_expires_are_not_delayed() -> None:
    """Its target assignment still contains units only because of the limit of moves per round."""
    scene = Scene.stable(
        settings(scheduled_delay_ms=60_000, max_moves=1),
        epoch=10,
        connectors={"foo": 2},
        members={"m1": FOO, "m2": ()},
    )
    scene.heartbeat("m1", 10, FOO, full=True, draining=True)
    scene.expire(TimerKind.SESSION, "m1")
    assert scene.group.delays == {}


def test_units_delayed_for_a_lost_member_are_not_delayed_again_by_an_assignor() -> None:
    """They are described once, and their delay ends with that of the lost member."""
    scene = Scene.stable(
        settings(scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 2, "bar": 1}, members={"m1": FOO, "m2": BAR}
    )
    for member_id, owned in (("m1", FOO), ("m2", BAR)):
        scene.heartbeat(member_id, 10, owned, full=True, assignors=(info(),))
    scene.prepare("m1", 10)
    scene.install("m1", 10, scene.group.epoch, {"m1": FOO, "m2": BAR})
    for member_id, owned in (("m1", FOO), ("m2", BAR)):
        scene.heartbeat(member_id, 10, owned)
    scene.expire(TimerKind.SESSION, "m2")
    epoch = scene.current("m1").epoch
    delayed = tasks(foo=[1]) | BAR
    scene.prepare("m1", epoch)
    request = InstallRequest(
        group_id=GROUP,
        member_id="m1",
        member_epoch=epoch,
        group_epoch=scene.group.epoch,
        members=(InstalledMember(member_id="m1", units=grouped(FOO - delayed)),),
        delayed=grouped(delayed),
        delay_ms=600_000,
    )
    assert scene.response_of(scene.act(request), InstallResponse).error_code == 0
    shown = {work.member_id: units_of(work.units) for work in describe(scene.group, scene.now_ms).delayed}
    assert shown == {"": tasks(foo=[1]), "m2": BAR}
