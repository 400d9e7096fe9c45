"""Bugs of other group coordinators in their rules: owners, owner epochs, revocations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from connectgroup.errors import PluginError, StaleGroupEpoch
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState, TargetState
from connectgroup.protocol.units import Unit, Units
from tests.group.builders import (
    FIXED,
    ROUND_ROBIN,
    FixedAssignor,
    Scene,
    info,
    names,
    settings,
    tasks,
    units_at,
)
from tests.model.driver import Driver, acts
from tests.worker.builders import Spread, World, server_spread, settings as world_settings

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED


def foo(*numbers: int) -> Units:
    return tasks(foo=numbers)


def wanted(connector: str, state: TargetState) -> ConnectorChange:
    return ConnectorChange(connector=connector, target_state=state)


@pytest.fixture
def fixed() -> FixedAssignor:
    return FixedAssignor()


# --------------------------------------------------------------------------------------------------
# KAFKA-19974


class OwnersByEpoch:
    """The owner of each unit at each member epoch; pending revocations count."""

    def __init__(self) -> None:
        self.owner: dict[tuple[Unit, int], str] = {}

    def observe(self, group: ConnectGroupState) -> None:
        temporarily_left = {member_id for member_id, current in group.currents.items() if current.temporarily_left}
        # The one exception: the units of a temporarily left member may be granted under the same epochs (CN-12).
        self.owner = {key: member_id for key, member_id in self.owner.items() if member_id not in temporarily_left}
        for member_id, current in sorted(group.currents.items()):
            for unit in sorted(current.held if member_id not in temporarily_left else ()):
                first = self.owner.setdefault((unit, current.epoch), member_id)
                assert first == member_id, f"{unit} at epoch {current.epoch}: first {first}'s, then {member_id}'s"


def test_member_with_a_further_revocation_keeps_its_epoch(fixed: FixedAssignor) -> None:
    """KAFKA-19974: the member epoch advanced between two revocations in a row, so a unit was owned by two members at
    one epoch; here the epoch waits until nothing is left to revoke, also if a connector is paused in between.
    """
    scene = Scene.stable(
        settings(fixed), epoch=10, connectors={"foo": 4, "bar": 1}, members={"A": foo(-1, 0, 1, 2, 3) | tasks(bar=[0])}
    )
    owners = OwnersByEpoch()
    owners.observe(scene.group)
    others = {Unit("bar")}
    fixed.target = {"A": foo(-1, 0, 1, 2) | tasks(bar=[0]), "B": foo(3) | others}
    scene.join("B")
    owners.observe(scene.group)
    assert units_at(scene.heartbeat("A", 10)) == (10, ["bar-0", "foo", "foo-0", "foo-1", "foo-2"])

    # A still has to stop foo-3 when bar-0 must stop as well (paused, CA-19) and the target takes foo-2 from A.
    fixed.target = {"A": foo(-1, 0, 1), "B": foo(2, 3) | others}
    scene.update(wanted("bar", TargetState.PAUSED))
    assert units_at(scene.heartbeat("A", 10)) == (10, ["foo", "foo-0", "foo-1", "foo-2"])
    assert units_at(scene.heartbeat("A", 10, foo(-1, 0, 1, 2) | tasks(bar=[0]))) == (10, None)
    assert (scene.state("A"), scene.current("A").epoch) == (UNREVOKED, 10)
    owners.observe(scene.group)
    assert units_at(scene.heartbeat("B", 11)) == (12, ["bar"])
    owners.observe(scene.group)

    # bar runs again before A has acknowledged the revocation of bar-0.
    fixed.target = {"A": foo(-1, 0, 1) | tasks(bar=[0]), "B": foo(2, 3) | others}
    scene.update(wanted("bar", TargetState.RUNNING))
    assert units_at(scene.heartbeat("A", 10, foo(-1, 0, 1, 2))) == (10, ["foo", "foo-0", "foo-1"])
    owners.observe(scene.group)
    assert units_at(scene.heartbeat("A", 10, foo(-1, 0, 1))) == (13, ["bar-0", "foo", "foo-0", "foo-1"])
    owners.observe(scene.group)
    assert units_at(scene.heartbeat("B", 12)) == (13, ["bar", "foo-2", "foo-3"])
    owners.observe(scene.group)
    assert scene.current("B").assigned[Unit("foo", 2)] == 13


def test_no_unit_has_two_owners_at_one_epoch_in_random_runs() -> None:
    """KAFKA-19974: whatever is sent, with lost responses, pauses and restarts, a unit has one owner per epoch."""
    owner_changes = 0
    for seed in range(10, 50):
        driver, owners = Driver.drawn(seed), OwnersByEpoch()
        for act in acts(seed, 100):
            driver.play([act])
            owners.observe(driver.group)
        owner_changes += len({(unit, owner) for (unit, _), owner in owners.owner.items()})
        owner_changes -= len({unit for unit, _ in owners.owner})
    assert owner_changes > 50, "the test requires units that change their owner"


# --------------------------------------------------------------------------------------------------
# KAFKA-19431


def test_unit_that_may_not_run_is_not_granted_by_a_stale_target(fixed: FixedAssignor) -> None:
    """KAFKA-19431: a member that unsubscribed from a topic during a revocation was still assigned it; here a unit that
    is paused during a revocation is granted to no member, although the former target contains it.
    """
    scene = Scene.stable(
        settings(fixed), epoch=10, connectors={"foo": 2, "bar": 2}, members={"A": tasks(foo=[-1, 0, 1], bar=[-1, 0, 1])}
    )
    fixed.target = {"A": tasks(foo=[-1, 0], bar=[-1, 1]), "B": tasks(foo=[1], bar=[0])}
    scene.join("B")
    assert units_at(scene.heartbeat("A", 10)) == (10, ["bar", "bar-1", "foo", "foo-0"])

    fixed.error = PluginError("not available")  # so the target still has bar-0 for B and bar-1 for A
    scene.update(wanted("bar", TargetState.PAUSED))
    assert names(scene.group.target("B").units) == ["bar-0", "foo-1"]
    left = tasks(foo=[-1, 0], bar=[-1, 1])
    assert units_at(scene.heartbeat("A", 10, left, full=True)) == (10, ["bar", "foo", "foo-0"]), "bar-1 is revoked"
    assert units_at(scene.heartbeat("B", 11)) == (11, ["foo-1"])
    assert units_at(scene.heartbeat("A", 10, tasks(foo=[-1, 0], bar=[-1]))) == (11, ["bar", "foo", "foo-0"])
    assert units_at(scene.heartbeat("B", 11, foo(1), full=True)) == (11, ["foo-1"])

    scene.update(wanted("bar", TargetState.STOPPED))
    assert units_at(scene.heartbeat("A", 11)) == (11, ["foo", "foo-0"])


# --------------------------------------------------------------------------------------------------
# KAFKA-16367


@pytest.mark.parametrize("state", [STABLE, UNREVOKED, UNRELEASED])
def test_full_request_gets_the_whole_assignment_in_every_state(fixed: FixedAssignor, state: MemberState) -> None:
    """KAFKA-16367: a full request got a partial response, and the client lost its assignment; here a full request gets
    the whole assignment, in each state and at each retry; an incremental request gets only changes.
    """
    scene = Scene.stable(
        settings(fixed), epoch=20, connectors={"foo": 4}, members={"m0": foo(-1, 3), "m1": foo(0, 1, 2)}
    )
    shares = {STABLE: foo(0, 1, 2), UNREVOKED: foo(0, 1), UNRELEASED: foo(0, 1, 2, 3)}
    fixed.target = {"m0": foo(-1, 0, 1, 2, 3) - shares[state], "m1": shares[state]}
    scene.join("m9")
    epoch, _ = units_at(scene.heartbeat("m1", 20))
    assert scene.state("m1") is state
    for _ in range(2):
        keeps = shares[state] - foo(3)
        assert units_at(scene.heartbeat("m1", epoch, foo(0, 1, 2), full=True)) == (epoch, names(keeps))
        assert units_at(scene.heartbeat("m1", epoch)) == (epoch, None)


# --------------------------------------------------------------------------------------------------
# KAFKA-20434


def test_assignor_change_by_all_members_leads_to_a_new_target(fixed: FixedAssignor) -> None:
    """KAFKA-20434: all members rejoined with another assignor and the old target stayed; here the assignor that all
    members list computes a new target.
    """
    scene = Scene.stable(
        settings(fixed),
        epoch=10,
        connectors={"foo": 3},
        members={"m1": foo(-1, 0, 1, 2), "m2": (), "m3": ()},
    )
    fixed.target = {"m1": foo(-1, 0, 1, 2)}
    for member_id in ("m1", "m2", "m3"):
        scene.join(member_id, server_assignor=FIXED)
    for member_id in ("m1", "m2", "m3"):
        assert scene.group.target_assignor == FIXED
        epoch = scene.group.epoch
        scene.join(member_id, server_assignor=ROUND_ROBIN)
        assert scene.group.epoch > epoch
    assert (scene.group.target_assignor, scene.group.target_epoch) == (ROUND_ROBIN, scene.group.epoch)
    assert sorted(len(target.units) for target in scene.group.targets.values()) == [1, 1, 2]


# --------------------------------------------------------------------------------------------------
# KAFKA-20273


def test_lagging_target_is_not_kept_when_the_kind_of_assignor_changes(fixed: FixedAssignor) -> None:
    """KAFKA-20273: a group was downgraded while its target was stale, and the stale one stayed; here the change
    from client-side to server-side computes for the newest epoch, although a member had been chosen already.
    """
    scene = Scene(settings=settings(fixed))
    scene.join("m1", info("a"))
    scene.install("m1", 0, scene.prepare("m1", 0).group_epoch, {})
    scene.join("m2", info("a"))
    question = scene.prepare("m1", 0)
    assert scene.group.epoch > scene.group.target_epoch, "m1 has not installed yet"
    scene.join("m2", server_assignor=FIXED)
    assert (scene.group.target_assignor, scene.group.target_epoch) == (FIXED, scene.group.epoch)
    assert scene.install("m1", 0, question.group_epoch, {}).error_code == StaleGroupEpoch.code
    assert scene.group.target_assignor == FIXED


@pytest.mark.parametrize("computes", ["a member", "the coordinator"])
async def test_new_coordinator_detects_an_outdated_target(tmp_path: Path, computes: str) -> None:
    """KAFKA-20273: the same after a failover: a computation that was in progress, or had failed, is not forgotten, so
    the group does not stay on the stale target.
    """
    async with World(tmp_path) as world:
        gate, hangs = world.gate(), Spread()
        await world.add("c", 3)
        if computes == "a member":
            world.start("a", assignors=[hangs], rebalance_timeout_ms=5_000)
            await world.settled()
            hangs.before = lambda question: gate.wait()
        else:
            world.start("a")
            await world.settled()
            world.group = world_settings(server_assignors={})
            await world.restart()
        world.start("b", assignors=[Spread()] if computes == "a member" else [], rebalance_timeout_ms=5_000)
        await asyncio.sleep(3)
        group = await world.describe()
        assert group.group_epoch > group.assignment_epoch
        world.group = replace(world.group, server_assignors={"even": server_spread}, server_assignor="even")
        await world.restart()
        await world.settled(within=20)
