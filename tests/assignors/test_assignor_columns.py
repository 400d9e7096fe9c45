"""The object view and the column view of an input and of a result are equal, and so are their bytes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from connectgroup.assign.api import ConnectAssignment, ConnectAssignorInput
from connectgroup.assign.convert import group_from_prepare, members_for_install
from connectgroup.assign.members import ConnectMember, ConnectMemberAssignment, ConnectorSpec
from connectgroup.errors import PluginError
from connectgroup.protocol.messages.assignment import (
    AssignorMetadata,
    InstalledMember,
    PreparedConnector,
    PreparedMember,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.units import Unit

from .tables import group, units


def test_columns_hold_one_entry_a_unit_in_sorted_order() -> None:
    input_group = ConnectAssignorInput(
        members=[
            ConnectMember(member_id="m2", version=3, owned=units("b b-0 a-1 gone b-1 a-2")),
            ConnectMember(member_id="m1", owned=units("b-0 gone-1")),
        ],
        connectors=[
            ConnectorSpec(name="b", num_tasks=1, weight=2, task_weights=(9,)),
            ConnectorSpec(name="a", num_tasks=2, task_weights=(5,)),
        ],
    )
    columns = input_group.columns()
    assert input_group.units == (Unit("a"), Unit("a", 0), Unit("a", 1), Unit("b"), Unit("b", 0))
    assert [columns.unit(index) for index in range(5)] == list(input_group.units)
    assert columns.member_ids == ("m1", "m2")
    assert columns.member_versions == (0, 3)
    assert columns.unit_owner.tolist() == [-1, -1, 1, 1, 0]  # b-0 is claimed twice: the first claim wins
    assert columns.unit_weight.tolist() == [0, 5, 1, 2, 9]
    assert columns.unit_owner.dtype == columns.unit_connector.dtype == columns.unit_task.dtype == np.int32
    assert input_group.columns() is columns


def test_invalid_task_index_claims_no_other_unit() -> None:
    """Tasks are consecutive in the columns: a number out of range must not reach the next connector's."""
    odd = frozenset({Unit("b", -2), Unit("a", 1), Unit("a", 2), Unit("b", -3)})
    assert group({"a": 1, "b": 1}, {"m": odd}).columns().unit_owner.tolist() == [-1] * 4
    prepared = PrepareResponse(
        members=(PreparedMember(member_id="m", member_epoch=1, unit_indices=(-2, -1, 4, 5)),),
        connectors=(PreparedConnector(connector="a", num_tasks=1), PreparedConnector(connector="b", num_tasks=1)),
    )
    assert group_from_prepare(prepared).columns().unit_owner.tolist() == [-1] * 4


CONNECTORS = (
    PreparedConnector(connector="a", num_tasks=2, task_weights=(1, 6)),
    PreparedConnector(connector="b", num_tasks=1, weight=4),
)


@pytest.mark.parametrize(
    ("connectors", "unit_indices"),
    [(CONNECTORS, {"m2": (-1, 0, 2, 5), "m1": (1, 4)}), (CONNECTORS[::-1], {"m2": (-1, 2, 4, 5), "m1": (1, 3)})],
    ids=["sorted", "not sorted"],
)
def test_prepared_group_is_equal_in_both_views(
    connectors: tuple[PreparedConnector, ...], unit_indices: dict[str, tuple[int, ...]]
) -> None:
    fields = AssignorMetadata(version=2, reason=1, metadata=b"x")
    response = PrepareResponse(
        members=(
            PreparedMember(
                member_id="m2", member_epoch=1, instance_id="i", assignor=fields, unit_indices=unit_indices["m2"]
            ),
            PreparedMember(member_id="m1", member_epoch=1, unit_indices=unit_indices["m1"]),
        ),
        connectors=connectors,
    )
    assert response.shares() == [units("a a-1"), units("b-0 a-0")]
    prepared = group_from_prepare(response)
    assert prepared.members == (
        ConnectMember(member_id="m2", instance_id="i", reason=1, version=2, metadata=b"x", owned=units("a a-1")),
        ConnectMember(member_id="m1", owned=units("b-0 a-0")),
    )
    friendly = ConnectAssignorInput(members=tuple(prepared.members), connectors=prepared.connectors).columns()
    columns = prepared.columns()
    assert columns.unit_owner.tolist() == friendly.unit_owner.tolist() == [1, 0, 1, -1, 0]
    assert columns.unit_weight.tolist() == friendly.unit_weight.tolist() == [0, 1, 6, 4, 1]
    assert (columns.member_ids, columns.member_versions) == (friendly.member_ids, friendly.member_versions)
    fewer = replace(prepared, connectors=[spec for spec in prepared.connectors if spec.name == "b"])
    assert fewer.columns().unit_owner.tolist() == [-1, 0], "unit indices refer to the connectors they came with"


def prepared_of(*connectors: PreparedConnector, **unit_indices: tuple[int, ...]) -> PrepareResponse:
    members = [PreparedMember(member_id=name, member_epoch=1, unit_indices=its) for name, its in unit_indices.items()]
    return PrepareResponse(members=tuple(members), connectors=connectors)


def test_both_views_of_any_input_are_equal() -> None:
    """Connectors in any order, units that several members claim, places that there are not, or that come twice."""
    random = Random(5)
    for _ in range(300):
        names = random.sample("abcd", random.randint(0, 4))
        connectors = [PreparedConnector(connector=name, num_tasks=random.randint(0, 3)) for name in names]
        unit_indices = {f"m{n}": tuple(random.choices(range(-2, 18), k=random.randint(0, 6))) for n in range(3)}
        prepared = group_from_prepare(prepared_of(*connectors, **unit_indices))
        columns = prepared.columns()
        friendly = ConnectAssignorInput(members=list(prepared.members), connectors=list(prepared.connectors)).columns()
        assert columns.unit_owner.tolist() == friendly.unit_owner.tolist()
        assert columns.unit_claims.tolist() == friendly.unit_claims.tolist()


def test_two_members_of_one_name_keep_their_own_units() -> None:
    twins = (
        PreparedMember(member_id="m", member_epoch=1, unit_indices=(0,)),
        PreparedMember(member_id="m", member_epoch=1),
    )
    response = PrepareResponse(members=twins, connectors=CONNECTORS)
    assert [member.owned for member in group_from_prepare(response).members] == [units("a"), frozenset()]


@pytest.mark.parametrize("first", ["a", "c"])
def test_oversized_input_is_rejected_before_any_allocation(first: str) -> None:
    """A few bytes can name four thousand million tasks; in either order of the connectors."""
    many = [PreparedConnector(connector=name, num_tasks=2**31 - 1) for name in (first, "b")]
    with pytest.raises(PluginError, match=r"^num_tasks: got 2147483647 to 2147483647; allowed: 0 or more, 10,000,000"):
        group_from_prepare(prepared_of(*many, m=(0, 2**31)))
    with pytest.raises(PluginError, match=r"^num_tasks: got -1 to 3; allowed"):
        group_from_prepare(
            prepared_of(
                PreparedConnector(connector="a", num_tasks=3), PreparedConnector(connector="b", num_tasks=-1), m=(0,)
            )
        )


def test_input_with_a_duplicate_connector_is_rejected() -> None:
    with pytest.raises(PluginError, match=r"^connectors: got one name twice; allowed: each once$"):
        group_from_prepare(prepared_of(CONNECTORS[0], CONNECTORS[0], m=(0,)))


def test_changed_copy_has_columns_of_its_own() -> None:
    """``dataclasses.replace`` must not copy the cached columns of the original."""
    connectors = (PreparedConnector(connector="a", num_tasks=1),)
    prepared = group_from_prepare(
        PrepareResponse(members=(PreparedMember(member_id="m1", member_epoch=1),), connectors=connectors)
    )
    columns = prepared.columns()
    assert replace(prepared, members=[ConnectMember(member_id="m2")]).columns().member_ids == ("m2",)
    assert replace(prepared, connectors=()).columns().unit_task.tolist() == []
    result = ConnectAssignment.from_columns(columns, np.array([0, 0]))
    emptied = replace(result, members=[ConnectMemberAssignment(member_id="m1")])
    assert members_for_install(result) == (InstalledMember(member_id="m1", units=grouped(units("a a-0"))),)
    assert members_for_install(emptied) == (InstalledMember(member_id="m1"),)


def test_results_by_column_and_by_objects_have_equal_bytes() -> None:
    random = Random(3)
    for _ in range(50):
        connectors = {name: random.randint(0, 5) for name in "cab"[: random.randint(0, 3)]}
        input_group = group(connectors, {f"m{n}": "" for n in range(random.randint(0, 4))})
        choices = [-1, *range(len(input_group.members))]
        owner = np.array([random.choice(choices) for _ in input_group.units], dtype=np.int64)
        columns = ConnectAssignment.from_columns(input_group.columns(), owner)
        objects = ConnectAssignment(members=list(reversed(columns.members)))
        assert members_for_install(columns) == members_for_install(objects)
        whose = {unit: member.member_id for member in columns.members for unit in member.units}
        assert [whose.get(unit) for unit in input_group.units] == [f"m{n}" if n >= 0 else None for n in owner.tolist()]


def test_installed_member_has_every_field_of_the_result() -> None:
    fields = ConnectMemberAssignment(member_id="m", error=1, version=2, metadata=b"x", units=units("a-1 a-0 b"))
    assert members_for_install(ConnectAssignment(members=[fields])) == (
        InstalledMember(member_id="m", error=1, version=2, metadata=b"x", units=grouped(fields.units)),
    )
