"""Kafka Connect's rebalances, round by round: scenarios H, each test named by its row.

Two rows differ in this protocol: no configuration offset can lag (IC-24), because the units are in the input and
configurations travel with grants; protocol versions (IC-25) are the assignor's versions. "The leader" is the member
that computes; each round here uses a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from connectgroup.assign.api import ConnectAssignorInput
from connectgroup.assign.members import ConnectMember, ConnectorSpec
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.incremental_cooperative import IncrementalCooperativeAssignor
from connectgroup.coordinator.compute import server_assignor
from connectgroup.group.connect.describe import describe
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import NO_UNITS, Unit, Units
from connectgroup.testing import AssignorContract
from tests.group.builders import Scene, settings

from .connect_rounds import Rounds
from .tables import counts, group, units

DELAY_MS = 300_000
TWO = {"connector1": 4, "connector2": 4}
THREE = {**TWO, "connector3": 4}


class TestIncrementalCooperativeKeepsTheContract(AssignorContract):
    assignor = IncrementalCooperativeAssignor
    revokes_duplicates = True


def rounds(connectors: Mapping[str, int] = TWO, *, delay_ms: int = DELAY_MS) -> Rounds:
    return Rounds(IncrementalCooperativeAssignor, connectors, delay_ms=delay_ms)


def two_workers(connectors: Mapping[str, int] = TWO) -> Rounds:
    """Two settled workers."""
    cluster = rounds(connectors)
    cluster.join("w1", "w2")
    return cluster


def test_ic_01_join_revokes_in_one_round_and_assigns_in_the_next() -> None:
    """IC-01, WC-01."""
    cluster = rounds()
    first = cluster.join("w1")
    assert (first.counts, first.delay_ms) == (([2], [8]), 0)
    second = cluster.join("w2")
    assert (second.counts, second.delay_ms, second.started) == (([0, 1], [0, 4]), 0, NO_UNITS)
    third = cluster.round()
    assert (third.counts, third.revoked) == (([1, 1], [4, 4]), NO_UNITS)
    last = cluster.round()
    assert (last.revoked, last.started) == (NO_UNITS, NO_UNITS)


def test_wc_01_third_worker_gets_nothing_until_tasks_are_revoked() -> None:
    """WC-01: 2 workers, 2 connectors of 4 tasks."""
    cluster = two_workers()
    joined = cluster.join("w3")
    assert cluster.running["w3"] == NO_UNITS
    assert sorted(len(its) for its in cluster.running.values()) == [0, 4, 4]
    assert len(joined.revoked) == 2


def test_ic_03_round_after_a_revocation_revokes_at_once_without_a_delay() -> None:
    """IC-03; three connectors, to match the counts of the row."""
    cluster = rounds(THREE, delay_ms=0)
    cluster.join("w1")
    cluster.join("w2")
    third = cluster.join("w3")
    assert (third.counts, third.delay_ms) == (([0, 1, 1], [3, 3, 4]), 0)
    assert cluster.round().counts == ([1, 1, 1], [4, 4, 4])


def test_ic_04_back_off_is_limited_by_the_maximum_delay() -> None:
    """IC-04: a delay of 1."""
    cluster = rounds(THREE, delay_ms=1)
    cluster.join("w1")
    cluster.join("w2")
    third = cluster.join("w3")
    assert (third.counts, third.delay_ms, third.revoked) == (([0, 1, 2], [3, 3, 6]), 1, NO_UNITS)


def test_ic_05_joins_during_the_back_off_wait_for_it() -> None:
    """IC-05."""
    cluster = rounds(THREE)
    cluster.join("w1")
    cluster.join("w2")
    third = cluster.join("w3")
    assert third.delay_ms == 40
    assert not third.revoked
    cluster.now_ms += third.delay_ms // 2
    fourth = cluster.join("w4")
    assert (fourth.counts, fourth.revoked, fourth.delay_ms) == (([0, 0, 1, 2], [0, 3, 3, 6]), NO_UNITS, 20)
    cluster.now_ms += fourth.delay_ms
    assert cluster.join("w5").counts == ([0, 0, 0, 1, 1], [0, 0, 2, 3, 3])
    assert cluster.round().counts == ([0, 0, 1, 1, 1], [2, 2, 2, 3, 3])


def test_ic_06_units_of_a_lost_worker_are_delayed_for_the_whole_delay() -> None:
    """IC-06."""
    cluster = two_workers()
    left = cluster.lose("w2")
    assert (left.delay_ms, left.revoked, left.started) == (DELAY_MS, NO_UNITS, NO_UNITS)
    cluster.now_ms += DELAY_MS // 2
    half = cluster.round()
    assert (half.delay_ms, half.revoked, half.started) == (DELAY_MS // 2, NO_UNITS, NO_UNITS)
    cluster.now_ms += DELAY_MS // 2 + 1
    over = cluster.round()
    assert (over.delay_ms, over.counts) == (0, ([2], [8]))


def test_ic_07_worker_that_returns_within_the_delay_gets_its_units_back() -> None:
    """IC-07; the units return at once, where Kafka waits for the rest of the delay."""
    cluster = two_workers()
    before = dict(cluster.running)
    cluster.lose("w2")
    cluster.now_ms += DELAY_MS * 3 // 4
    back = cluster.join("w2")
    assert (back.counts, back.delay_ms, back.revoked) == (([1, 1], [4, 4]), 0, NO_UNITS)
    assert cluster.running == before


def test_ic_07_worker_that_returns_under_another_name_waits_for_the_delay() -> None:
    """IC-07, as in Kafka: the worker is not recognized under another name."""
    cluster = two_workers()
    cluster.lose("w2")
    cluster.now_ms += DELAY_MS * 3 // 4
    back = cluster.join("w2-again")
    assert (back.delay_ms, back.revoked, back.started) == (DELAY_MS // 4, NO_UNITS, NO_UNITS)
    cluster.now_ms += DELAY_MS // 4
    over = cluster.round()
    assert (over.counts, over.delay_ms, over.revoked) == (([1, 1], [4, 4]), 0, NO_UNITS)


def test_ic_08_loss_of_the_computing_worker_keeps_the_delay() -> None:
    """IC-08: Kafka's new leader loses the delay and reassigns at once; here the delay is in the group's log."""
    cluster = rounds()
    cluster.join("w1", "w2", "w3")
    assert cluster.running.keys() == {"w1", "w2", "w3"}
    left = cluster.lose("w1")
    assert (left.delay_ms, left.started) == (DELAY_MS, NO_UNITS)
    cluster.now_ms += DELAY_MS
    assert cluster.round().counts == ([1, 1], [4, 4])


def test_ic_09_computing_worker_that_returns_gets_units_after_the_delay() -> None:
    """IC-09: after the delay, a worker of the same name is a new one."""
    cluster = rounds()
    cluster.join("w1", "w2", "w3")
    cluster.lose("w1")
    cluster.now_ms += DELAY_MS
    cluster.round()
    assert cluster.join("w1").counts == ([0, 1, 1], [0, 3, 3])
    assert cluster.round().counts == ([0, 1, 1], [2, 3, 3])


def test_ic_10_lost_first_assignment_is_repeated_without_a_delay() -> None:
    """IC-10."""
    cluster = two_workers()
    cluster.running = dict.fromkeys(cluster.running, NO_UNITS)
    cluster.forget()
    again = cluster.round()
    assert (again.counts, again.delay_ms) == (([1, 1], [4, 4]), 0)


@pytest.mark.parametrize("forgotten", [False, True])
def test_ic_11_ic_12_lost_revocation_is_repeated_after_the_back_off(forgotten: bool) -> None:
    """IC-11, and IC-12: with and without the assignor state of the round before."""
    cluster = two_workers()
    before = dict(cluster.running)
    cluster.join("w3")
    cluster.running = {**before, "w3": NO_UNITS}
    if forgotten:
        cluster.forget()
    again = cluster.round()
    assert again.delay_ms > 0
    assert again.counts == ([0, 1, 1], [0, 4, 4])
    cluster.now_ms += again.delay_ms
    assert cluster.round().counts == ([0, 1, 1], [0, 3, 3])
    assert cluster.round().counts == ([0, 1, 1], [2, 3, 3])


def test_ic_13_deleted_connector_is_revoked_and_the_rest_stays() -> None:
    """IC-13."""
    cluster = two_workers(THREE)
    assert counts(cluster.running) == ([1, 2], [6, 6])
    del cluster.connectors["connector3"]
    after = cluster.round()
    assert (after.counts, after.delay_ms, after.started) == (([1, 1], [4, 4]), 0, NO_UNITS)
    assert {unit.connector for unit in after.revoked} == {"connector3"}


def test_ic_14_new_connectors_are_assigned_to_the_least_loaded_workers() -> None:
    """IC-14, exact."""
    names = [f"connector{number}" for number in range(11)]
    held = {f"w{number}": units(f"{names[number]} {names[number + 3]}") for number in range(3)}
    connectors = dict.fromkeys([*names[:6], *names[6:]], 0)
    after = run_assignor(IncrementalCooperativeAssignor(), group(connectors, held))
    new = [sorted(unit.connector for unit in each.units - held[each.member_id]) for each in after.members]
    # "connector10" sorts before "connector6".
    assert new == [["connector10", "connector8"], ["connector6", "connector9"], ["connector7"]]


def test_ic_15_new_connectors_fill_the_emptier_workers_first() -> None:
    """IC-15: loads of 2, 3, 4, 0, and 15 more."""
    loads = {"w0": 2, "w1": 3, "w2": 4, "w3": 0}
    names = iter([f"a{number:02}" for number in range(24)])
    held = {worker: frozenset(Unit(next(names)) for _ in range(load)) for worker, load in loads.items()}
    connectors = {f"a{number:02}": 0 for number in range(24)}
    after = run_assignor(IncrementalCooperativeAssignor(), group(connectors, held))
    assert [len(each.units) for each in after.members] == [6, 6, 6, 6]
    assert not after.delayed


def six_connectors() -> Rounds:
    """The group of IC-16: three workers with two connectors and four tasks each."""
    cluster = rounds({f"c{number}": 2 for number in range(6)})
    cluster.join("w0", "w1", "w2")
    assert counts(cluster.running) == ([2, 2, 2], [4, 4, 4])
    return cluster


def test_ic_16_lost_units_are_assigned_to_the_empty_worker_that_returned() -> None:
    """IC-16: because it has the fewest units, not because it is recognized."""
    cluster = six_connectors()
    lost = cluster.running["w1"]
    gone = cluster.lose("w1")
    assert (gone.delay_ms, gone.started) == (DELAY_MS, NO_UNITS)
    cluster.now_ms += DELAY_MS // 2
    back = cluster.join("w1-again")
    assert (back.delay_ms, back.revoked, back.started) == (DELAY_MS // 2, NO_UNITS, NO_UNITS)
    cluster.now_ms += DELAY_MS // 2
    cluster.round()
    assert cluster.running["w1-again"] == lost


def test_ic_17_lost_units_are_assigned_to_the_least_loaded_workers() -> None:
    """IC-17."""
    cluster = six_connectors()
    before = dict(cluster.running)
    cluster.lose("w1")
    cluster.now_ms += DELAY_MS
    assert cluster.round().counts == ([3, 3], [6, 6])
    assert all(before[name] < its for name, its in cluster.running.items())


def test_ic_20_lost_units_are_assigned_at_once_without_a_delay() -> None:
    """IC-20."""
    cluster = rounds(delay_ms=0)
    cluster.join("w1", "w2")
    lost = cluster.lose("w2")
    assert (lost.counts, lost.delay_ms) == (([2], [8]), 0)


def test_ic_21_unit_claimed_by_two_workers_is_revoked_from_both() -> None:
    """IC-21."""
    cluster = rounds()
    cluster.join("w1")
    twice = units("connector1 connector1-0 connector1-1 connector1-2 connector1-3")
    both = cluster.join("w2", claiming=twice)
    assert both.counts == ([0, 1], [0, 4])
    assert both.revoked == twice
    after = cluster.round()
    assert (after.counts, after.revoked) == (([1, 1], [4, 4]), NO_UNITS)
    last = cluster.round()
    assert (last.revoked, last.started) == (NO_UNITS, NO_UNITS)


def test_ic_23_back_off_grows_with_consecutive_revoking_rounds() -> None:
    """IC-23: 40, 1,600, 64,000, then the maximum delay; a round without a revocation resets the count."""
    cluster = rounds({"a": 400}, delay_ms=DELAY_MS)
    cluster.join("w0")
    waits = []
    for number in range(1, 6):
        cluster.join(f"a{number}")
        put_off = cluster.join(f"b{number}")
        assert not put_off.revoked
        waits.append(put_off.delay_ms)
        cluster.now_ms += put_off.delay_ms
    assert waits == [40, 1_600, 64_000, DELAY_MS, DELAY_MS]
    cluster.round()
    cluster.round()
    cluster.round()
    cluster.join("c1")
    assert cluster.join("c2").delay_ms == 40


def test_ic_24_input_has_the_configuration_so_no_member_lags() -> None:
    """IC-24 cannot happen: the units are in the input, and the result is rejected for another epoch."""
    fields = ConnectAssignorInput.__dataclass_fields__
    assert "connectors" in fields
    assert not {name for name in fields if "offset" in name}


@pytest.mark.parametrize("version", [1, 2])
def test_ic_25_result_has_the_version_of_each_member(version: int) -> None:
    """IC-25."""

    class Later(IncrementalCooperativeAssignor):
        minimum_version, maximum_version = 1, 2

    input_group = ConnectAssignorInput(
        members=[ConnectMember(member_id="w1", version=version), ConnectMember(member_id="w2", version=1)],
        connectors=[ConnectorSpec(name="a", num_tasks=2)],
    )
    assert [each.version for each in run_assignor(Later(), input_group).members] == [version, 1]


def test_ic_26_stacked_tasks_stay_if_counts_are_even_and_are_revoked_first_otherwise() -> None:
    """IC-26, KAFKA-17049: KIP-415 balances counts only; revoked tasks are taken from the largest pile."""
    held = {"w1": "c1 c1-0 c2-0 c2-1 c4-0", "w2": "c2 c2-2 c2-3 c3-0 c4-1"}
    connectors = {"c1": 1, "c2": 4, "c3": 1, "c4": 2}
    stay = run_assignor(IncrementalCooperativeAssignor(), group({**connectors}, held))
    assert all(units(held[each.member_id]) <= each.units for each in stay.members)
    joined = run_assignor(IncrementalCooperativeAssignor(), group(connectors, {**held, "w3": ""}))
    assert {unit.connector for unit in joined.delayed if unit.task >= 0} == {"c2"}


def test_wc_02_units_of_a_lost_worker_are_spread_after_the_delay() -> None:
    """WC-02: 3 workers, 2 connectors of 4 tasks; the third worker is lost."""
    cluster = rounds()
    cluster.join("w1", "w2", "w3")
    cluster.lose("w3")
    cluster.now_ms += DELAY_MS // 2
    assert cluster.round().delay_ms == DELAY_MS // 2
    cluster.now_ms += DELAY_MS // 2
    after = cluster.round()
    assert after.counts == ([1, 1], [4, 4])
    assert {unit for unit in after.started if unit.task >= 0} == {
        unit for unit in after.started if not unit.is_connector
    }


# --------------------------------------------------------------------------------------------------
# In a whole group


def test_second_round_begins_as_soon_as_the_first_is_reached() -> None:
    """IC-01 with the group's rules: no timer has to expire between the two rounds."""
    scene = scene_of({"m1": NO_UNITS}, assignor=server_assignor("incremental-cooperative"))
    joined = scene.join("m2")
    assert joined.error_code == 0
    first = scene.heartbeat("m1", scene.current("m1").epoch)
    assert first.assignment is not None
    kept = frozenset(scene.current("m1").assigned)
    assert len(kept) == 3  # one of two connectors, half of four tasks
    assert scene.state("m1") == MemberState.UNREVOKED
    assert describe(scene.group, scene.now_ms).delayed[0].units
    scene.heartbeat("m1", scene.current("m1").epoch, kept)
    for _ in range(4):
        for member_id in ("m1", "m2"):
            owned = frozenset(scene.current(member_id).assigned)
            scene.heartbeat(member_id, scene.current(member_id).epoch, owned)
    held = {member_id: frozenset(scene.current(member_id).assigned) for member_id in ("m1", "m2")}
    assert counts(held) == ([1, 1], [2, 2])
    assert kept <= held["m1"]
    assert not describe(scene.group, scene.now_ms).delayed


def scene_of(members: Mapping[str, Units], *, assignor: object) -> Scene:
    more = settings(server_assignor="here", server_assignors={"here": assignor})
    everything = frozenset(Unit(name, task) for name in ("bar", "foo") for task in range(-1, 2))
    return Scene.stable(more, epoch=10, connectors={"foo": 2, "bar": 2}, members={**members, "m1": everything})
