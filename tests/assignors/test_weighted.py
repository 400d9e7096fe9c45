"""The weighted assignor: hard constraints first, then load by capacity, then few moves."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.assign.members import ConnectMember, ConnectorSpec, DelayedWork
from connectgroup.assign.placement import WorkerTraits, labels_of, placement_of
from connectgroup.assign.sandbox import run_assignor
from connectgroup.assignors.weighted import LATER_MS, SOON_MS, WeightedAssignor
from connectgroup.protocol.units import NO_UNITS, Unit, Units
from connectgroup.testing import AssignorContract

from .tables import units


class TestWeightedKeepsTheContract(AssignorContract):
    """With equal weights and no constraints, counts are even too."""

    assignor = WeightedAssignor


def worker(text: str = "") -> WorkerTraits:
    """``"gpu=true rack:a host:h 8"``: labels, rack, host, capacity."""
    words = text.split()
    return WorkerTraits(
        capacity=sum(int(word) for word in words if word.isdigit()),
        labels=labels_of("labels", [word for word in words if "=" in word]),
        rack="".join(word[5:] for word in words if word.startswith("rack:")),
        host="".join(word[5:] for word in words if word.startswith("host:")),
    )


def connector(name: str, num_tasks: int, **constraints: str) -> ConnectorSpec:
    """``max_per_worker="1"`` is ``assignment.max.per.worker``."""
    placement = placement_of({f"assignment.{key.replace('_', '.')}": value for key, value in constraints.items()})
    return ConnectorSpec(
        name=name,
        num_tasks=num_tasks,
        weight=placement.weight,
        task_weights=placement.weights_of(num_tasks),
        placement=placement,
    )


def group_of(
    workers: dict[str, str], *connectors: ConnectorSpec, held: dict[str, Units] | dict[str, str] | None = None
) -> ConnectAssignorInput:
    members = []
    for member_id, text in workers.items():
        its = (held or {}).get(member_id, NO_UNITS)
        owned = units(its) if isinstance(its, str) else its
        traits = worker(text)
        members.append(
            ConnectMember(
                member_id=member_id,
                owned=owned,
                labels=traits.labels,
                rack=traits.rack,
                capacity=traits.capacity,
                host=traits.host,
            )
        )
    return ConnectAssignorInput(members=members, connectors=connectors)


THREE = {"m1": "", "m2": "", "m3": ""}


def validated(group: ConnectAssignorInput) -> ConnectAssignment:
    return run_assignor(WeightedAssignor(), group)


def placed(group: ConnectAssignorInput) -> dict[str, Units]:
    """Every member's tasks, without connectors."""
    result = validated(group)
    assert not result.delayed, result.message
    return {each.member_id: frozenset(unit for unit in each.units if not unit.is_connector) for each in result.members}


# --------------------------------------------------------------------------------------------------
# Load


def test_load_is_even_by_weight_and_not_by_count() -> None:
    after = placed(group_of({"m1": "", "m2": ""}, connector("big", 1, task_weight="4"), connector("small", 4)))
    assert after == {"m1": units("big-0"), "m2": units("small-0 small-1 small-2 small-3")}


def test_each_task_may_have_a_weight_of_its_own() -> None:
    after = placed(group_of({"m1": "", "m2": ""}, connector("a", 4, task_weight="3,1,1")))
    assert sorted(map(len, after.values())) == [1, 3]
    assert units("a-0") in after.values()


def test_twice_the_capacity_takes_twice_the_load() -> None:
    after = placed(group_of({"m1": "100", "m2": "200"}, connector("a", 6)))
    assert [len(after[member_id]) for member_id in ("m1", "m2")] == [2, 4]


def test_member_without_a_capacity_counts_as_average_and_is_unlimited() -> None:
    after = placed(group_of({"m1": "20", "m2": "40", "m3": ""}, connector("a", 9)))
    assert [len(after[member_id]) for member_id in ("m1", "m2", "m3")] == [2, 4, 3]


def test_no_member_exceeds_its_capacity() -> None:
    result = validated(group_of({"m1": "2", "m2": "3"}, connector("a", 6)))
    assert sorted(len([unit for unit in each.units if unit.task >= 0]) for each in result.members) == [2, 3]
    assert len(result.delayed) == 1
    assert result.message == "a-5: weighs 1; 0 of 2 workers have room for it"
    assert result.delay_ms == LATER_MS


def test_reduced_capacity_revokes_the_heaviest_units() -> None:
    held = {"m1": "a-0 b-0 b-1", "m2": ""}
    after = placed(group_of({"m1": "3", "m2": "9"}, connector("a", 1, task_weight="2"), connector("b", 2), held=held))
    assert after["m1"] < units("a-0 b-0 b-1")
    assert sum({"a": 2, "b": 1}[unit.connector] for unit in after["m1"]) <= 3


def test_units_above_the_capacity_are_revoked_although_no_other_worker_can_take_them() -> None:
    held = {"m1": "a-0 a-1", "m2": "b-0"}
    specs = connector("a", 2, task_weight="2"), connector("b", 1, task_weight="9")
    result = validated(group_of({"m1": "3", "m2": "9"}, *specs, held=held))
    assert result.delayed == units("a-0")
    assert result.message == "a-0: weighs 2; 0 of 2 workers have room for it"


def test_heavy_and_constrained_units_are_placed_first() -> None:
    heavy = connector("a", 2), connector("z", 1, task_weight="2")
    assert placed(group_of({"m1": "2", "m2": "2"}, *heavy)) == {"m1": units("z-0"), "m2": units("a-0 a-1")}
    picky = connector("a", 1), connector("z", 1, labels="gpu=true")
    assert placed(group_of({"m1": "1 gpu=true", "m2": "1"}, *picky)) == {"m1": units("z-0"), "m2": units("a-0")}


def test_running_units_are_balanced_by_capacity() -> None:
    held = {"m1": frozenset(Unit("a", task) for task in range(8))}
    after = placed(group_of({"m1": "100", "m2": "300"}, connector("a", 8), held=held))
    assert [len(its) for its in after.values()] == [2, 6]


def test_connectors_without_weight_are_counted() -> None:
    result = validated(group_of({"m1": "", "m2": "", "m3": ""}, *(connector(name, 0) for name in "abcdef")))
    assert [len(each.units) for each in result.members] == [2, 2, 2]


def test_tasks_of_a_connector_are_spread_over_racks_then_workers() -> None:
    workers = {"m1": "rack:a", "m2": "rack:a", "m3": "rack:b", "m4": "rack:b"}
    two = placed(group_of(workers, connector("a", 2)))
    assert sorted(member_id for member_id, its in two.items() if its) in (["m1", "m3"], ["m1", "m4"])
    assert all(len(its) == 1 for its in placed(group_of(workers, connector("a", 4))).values())


# --------------------------------------------------------------------------------------------------
# Rules


def test_requested_label_is_on_every_worker_of_the_connector() -> None:
    workers = {"m1": "gpu=true", "m2": "", "m3": "gpu=true zone=a"}
    after = placed(group_of(workers, connector("a", 4, labels="gpu=true")))
    assert [len(after[member_id]) for member_id in ("m1", "m2", "m3")] == [2, 0, 2]
    after = placed(group_of(workers, connector("a", 4, labels="gpu=true,zone=a")))
    assert len(after["m3"]) == 4


def test_missing_label_is_reported_on_one_line() -> None:
    workers = {f"m{number}": "" for number in range(5)}
    result = validated(group_of(workers, connector("orders", 2, labels="gpu=true"), connector("b", 5)))
    assert result.message == "orders, orders-0, orders-1: needs label gpu=true; 0 of 5 workers have it"
    assert result.delayed == units("orders orders-0 orders-1")
    assert sum(len(each.units) for each in result.members) == 6


def test_each_unsatisfied_constraint_is_reported() -> None:
    workers = {"m1": "gpu=true rack:a", "m2": "gpu=true rack:b", "m3": ""}
    spec = connector("o", 3, labels="gpu=true", max_per_worker="1")
    assert validated(group_of(workers, spec)).message == (
        "o-2: needs label gpu=true; 2 of 3 workers have it; at most 1 tasks of o on a worker; 0 of 2 workers have fewer"
    )


def test_new_constraint_moves_units_that_violate_it() -> None:
    workers = {"m1": "gpu=true", "m2": ""}
    held = {"m1": "b b-0", "m2": "a a-0"}
    after = placed(group_of(workers, connector("a", 1, labels="gpu=true"), connector("b", 1), held=held))
    assert units("a-0") <= after["m1"]


def test_no_worker_and_no_rack_has_more_of_a_connector_than_it_may() -> None:
    workers = {"m1": "rack:a", "m2": "rack:a", "m3": "rack:b", "m4": "rack:b"}
    held = {"m1": "a-0 a-1 a-2 a-3", "m2": "b-0", "m3": "b-1", "m4": "b-2"}
    busy = connector("b", 3, task_weight="9")
    assert len(placed(group_of(workers, connector("a", 4), busy, held=held))["m1"]) == 4
    after = placed(group_of(workers, connector("a", 4, max_per_worker="2"), busy, held=held))
    assert [len(after[member_id]) for member_id in workers] == [2, 1, 2, 2]  # the other rack first
    full = {"m3": "b-1", "m4": "b-2"}
    spec = connector("a", 4, max_per_rack="2")
    for held in ({"m1": "a-0 a-1 a-2 a-3", **full}, {"m1": "a-0 a-1 a-2", "m2": "a-3 b-0", **full}):
        after = placed(group_of(workers, spec, busy, held=held))
        assert sum(unit.connector == "a" for unit in after["m1"] | after["m2"]) == 2
    result = validated(group_of(workers, connector("a", 4, max_per_rack="1")))
    assert len(result.delayed) == 2
    assert "at most 1 tasks of a in a rack; 0 of 4 workers are in one with fewer" in result.message


def test_exclusive_host_resource_is_used_by_one_task_of_all_workers_on_it() -> None:
    workers = {"m1": "host:h1", "m2": "host:h1", "m3": "host:h2", "m4": ""}
    specs = connector("a", 2, exclusive="port:80"), connector("b", 1, exclusive="port:80,port:81")
    after = placed(group_of(workers, *specs))
    on = {"m1": "h1", "m2": "h1", "m3": "h2", "m4": "m4"}
    assert len({on[member_id] for member_id, its in after.items() for _ in its}) == 3
    result = validated(group_of(workers, *specs, connector("c", 1, exclusive="port:81")))
    assert not result.delayed
    result = validated(group_of(workers, *specs, connector("c", 1, exclusive="port:80")))
    assert result.message == "c-0: needs port:80 of a host for itself; 0 of 4 workers are where it is free"


def test_workers_without_a_host_have_hosts_of_their_own() -> None:
    spec = connector("a", 3, exclusive="port:80")
    assert [len(its) for its in placed(group_of(THREE, spec)).values()] == [1, 1, 1]


def test_units_that_share_an_exclusive_port_are_separated_and_the_first_stays() -> None:
    workers = {"m1": "host:h1", "m2": "host:h2"}
    held = {"m1": "a-0 b-0"}
    specs = connector("a", 1, exclusive="port:80"), connector("b", 1, exclusive="port:80")
    assert placed(group_of(workers, *specs, held=held)) == {"m1": units("a-0"), "m2": units("b-0")}


def test_unit_being_revoked_still_holds_its_port() -> None:
    """A target is reached step by step: the next task that needs the port starts when the first has been revoked."""
    workers = {"m1": "host:h1", "m2": "host:h2 gpu=true"}
    specs = connector("a", 1, exclusive="port:80", labels="gpu=true"), connector("b", 1, exclusive="port:80")
    first = validated(group_of(workers, *specs, held={"m1": "a-0"}))
    assert (first.delayed, first.delay_ms, first.message) == (units("b-0"), SOON_MS, "")
    held = {each.member_id: each.units for each in first.members}
    assert placed(group_of(workers, *specs, held=held)) == {"m1": units("b-0"), "m2": units("a-0")}


@pytest.mark.parametrize("held", [{}, {"m1": "a-0 b-0"}, {"m1": "b-0", "m2": "b-1 a-0 a-1"}])
def test_anti_affine_connectors_share_no_worker(held: dict[str, str]) -> None:
    """Set on one of the connectors, it applies to both, and to units that run already."""
    workers = {"m1": "", "m2": "", "m3": ""}
    after = placed(group_of(workers, connector("a", 2), connector("b", 2, anti_affinity="a"), held=held))
    assert all(len({unit.connector for unit in its}) <= 1 for its in after.values())


def test_affine_connectors_are_placed_together_while_load_is_even() -> None:
    held = {"m2": "a-0"}
    together = placed(group_of(THREE, connector("a", 1), connector("c", 2, affinity="a"), connector("d", 3), held=held))
    assert [len(together[member_id]) for member_id in THREE] == [2, 2, 2]
    assert together["m2"] == units("a-0 c-0")
    anywhere = placed(group_of(THREE, connector("a", 1), connector("c", 2), connector("d", 3), held=held))
    assert units("c-0") <= anywhere["m1"]


# --------------------------------------------------------------------------------------------------
# Moves


def test_balanced_units_do_not_move() -> None:
    """A move must lower the maximum of the two: 5 and 4 cannot be improved by moving a 2."""
    specs = connector("a", 2, task_weight="3,2"), connector("b", 2, task_weight="2,2")
    held = {"m1": units("a a-0 a-1"), "m2": units("b b-0 b-1")}
    assert placed(group_of({"m1": "", "m2": ""}, *specs, held=held)) == {"m1": units("a-0 a-1"), "m2": units("b-0 b-1")}


def test_new_worker_takes_only_what_balances_the_load() -> None:
    held = {"m1": units("a-0 a-1 a-2"), "m2": units("a-3 a-4 a-5"), "m3": NO_UNITS}
    after = placed(group_of(dict.fromkeys(held, ""), connector("a", 6), held=held))
    assert [len(its) for its in after.values()] == [2, 2, 2]
    assert all(after[member_id] < held[member_id] for member_id in ("m1", "m2"))


def test_one_result_moves_a_part_and_requests_another_computation() -> None:
    everything = frozenset(Unit("a", task) for task in range(1000))
    held = {"m1": everything, "m2": NO_UNITS}
    rounds = 0
    while True:
        result = validated(group_of(dict.fromkeys(held, ""), connector("a", 1000), held=held))
        after = {each.member_id: frozenset(unit for unit in each.units if unit.task >= 0) for each in result.members}
        assert len(held["m1"] - after["m1"]) <= 100
        if after == held:
            break
        held, rounds = after, rounds + 1
    assert [len(its) for its in held.values()] == [500, 500]
    assert rounds == 5
    assert result.delay_ms == 0


def test_units_delayed_for_a_lost_worker_are_not_assigned() -> None:
    waiting = DelayedWork(member_id="m3", left_ms=5, units=units("a a-2"))
    result = validated(replace(group_of({"m1": "", "m2": ""}, connector("a", 3)), delayed=[waiting]))
    assert frozenset().union(*(each.units for each in result.members)) == units("a-0 a-1")
    assert not result.delayed


# --------------------------------------------------------------------------------------------------
# Stability of its own result


def any_group(random: Random) -> ConnectAssignorInput:
    """A few workers and connectors with constraints of every kind, mostly of hosts, and scattered owners."""
    workers = {
        f"m{number}": " ".join(
            word
            for word, odds in (
                (f"host:h{random.randint(1, 3)}", 0.5),
                (f"rack:{random.choice('ab')}", 0.3),
                ("gpu=true", 0.3),
                (str(random.randint(2, 12)), 0.3),
            )
            if random.random() < odds
        )
        for number in range(random.randint(1, 6))
    }
    names = "abcdef"[: random.randint(1, 5)]
    specs = []
    for name in names:
        constraints = {
            key: value
            for key, value, odds in (
                ("exclusive", random.choice(["port:1", "port:2", "port:1,port:2"]), 0.5),
                ("labels", "gpu=true", 0.2),
                ("max_per_worker", str(random.randint(1, 3)), 0.2),
                ("max_per_rack", str(random.randint(1, 3)), 0.1),
                ("anti_affinity", random.choice(names), 0.15),
                ("affinity", random.choice(names), 0.15),
                ("task_weight", ",".join(str(random.randint(0, 5)) for _ in range(random.randint(1, 4))), 0.4),
                ("weight", str(random.randint(0, 3)), 0.2),
            )
            if random.random() < odds
        }
        specs.append(connector(name, random.randint(0, 4), **constraints))
    held: dict[str, set[Unit]] = {member_id: set() for member_id in workers}
    for unit in ConnectAssignorInput(connectors=specs).units:
        if random.random() < 0.8:
            held[random.choice(list(workers))].add(unit)
    return group_of(workers, *specs, held={member_id: frozenset(its) for member_id, its in held.items()})


def owning(group: ConnectAssignorInput, result: ConnectAssignment) -> ConnectAssignorInput:
    """The same group after every member has reached the result."""
    given = {each.member_id: each.units for each in result.members}
    return replace(group, members=[replace(each, owned=given[each.member_id]) for each in group.members])


@pytest.mark.parametrize("first_seed", range(0, 1000, 100))
def test_own_result_is_stable_under_any_constraints(first_seed: int) -> None:
    """Only a result that leaves tasks out until others have stopped has a next step."""
    for seed in range(first_seed, first_seed + 100):
        group = any_group(Random(seed))
        result = validated(group)
        for _ in range(10):
            if not (result.delayed and result.delay_ms == SOON_MS):
                break
            group = owning(group, result)
            result = validated(group)
        again = validated(owning(group, result))
        assert (result.members, result.delayed) == (again.members, again.delayed), f"seed {seed}"


def test_task_waits_for_the_host_port_of_a_stopping_task() -> None:
    for seed in range(300):
        group = any_group(Random(seed))
        needs = {spec.name: set(spec.placement.exclusive) for spec in group.connectors}
        host = {each.member_id: each.host or each.member_id for each in group.members}
        before = {unit: host[each.member_id] for each in group.members for unit in each.owned if unit.task >= 0}
        for each in validated(group).members:
            for unit in (unit for unit in each.units - group_holds(group, each.member_id) if unit.task >= 0):
                there = [other for other, at in before.items() if at == host[each.member_id] and other != unit]
                assert not any(needs[unit.connector] & needs[other.connector] for other in there), f"seed {seed}"


def group_holds(group: ConnectAssignorInput, member_id: str) -> Units:
    """The units that a member owns in the input."""
    return next(each.owned for each in group.members if each.member_id == member_id)
