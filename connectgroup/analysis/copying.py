"""A copy of a group from its description (``DescribeRequest.include_assignor_input``).

What a description does not have is not needed to compute an assignment: the configurations of tasks, credentials, and
a computation in progress, which the copy starts again.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectGroupState
from ..protocol.messages.common import each_unit, units_of
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedMember
from ..protocol.records.connect import (
    ConnectorRecord,
    CurrentRecord,
    DelayRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    Record,
    StatusRecord,
    TargetMemberRecord,
    TargetRecord,
    TargetState,
    TaskEntry,
    UnitState,
    held,
)
from ..protocol.units import Unit


def copy_group(described: DescribedGroup, *, now_ms: int) -> ConnectGroupState:
    """Rebuild the state of a group from a description with assignor input."""
    return ConnectGroupState.replay(described.group_id, _records(described, now_ms))


def copy_settings(described: DescribedGroup) -> GroupSettings:
    """The settings of the group that a computation depends on."""
    return GroupSettings(
        max_moves=described.max_moves,
        scheduled_delay_ms=described.scheduled_delay_ms,
        server_assignor=described.server_assignor,
        # ``analysis.model`` runs server-side assignors itself, so it is enough that each is a known name.
        server_assignors=dict.fromkeys(_server_assignors(described), _not_called),
        # The limits on a group are those of the coordinator, which has accepted what is described.
        max_members=1_000_000,
        max_units=10_000_000,
    )


def _not_called(_: object) -> tuple[()]:
    raise AssertionError("a copy of a group runs server-side assignors itself")


def _server_assignors(described: DescribedGroup) -> set[str]:
    requested = {member.server_assignor for member in described.members if member.server_assignor}
    return {described.server_assignor, *requested} - {""}


def _records(described: DescribedGroup, now_ms: int) -> Iterator[Record]:
    group_id = described.group_id
    yield GroupRecord(group_id=group_id, epoch=described.group_epoch)
    owner_epochs: dict[Unit, int] = {}
    for connector in described.connectors:
        yield _connector(group_id, connector)
        owner_epochs.update({Unit(connector.connector, unit.task): unit.owner_epoch for unit in connector.units})
    for member in described.members:
        yield from _member(group_id, member, owner_epochs)
    owners = {unit: member.member_id for member in described.members for unit in each_unit(member.assigned)}
    for unit in each_unit(described.starting):
        if unit in owners:
            yield StatusRecord(
                group_id=group_id,
                connector=unit.connector,
                task=unit.task,
                member_id=owners[unit],
                owner_epoch=owner_epochs.get(unit, 0),
                state=UnitState.STARTING,
            )
    for delayed in described.delayed:
        yield DelayRecord(
            group_id=group_id,
            member_id=delayed.member_id,
            instance_id=delayed.instance_id,
            units=delayed.units,
            delay_ms=delayed.left_ms,
            deadline_ms=now_ms + delayed.left_ms,
            epoch=described.group_epoch,
        )
    yield TargetRecord(
        group_id=group_id,
        epoch=described.assignment_epoch,
        assignor=described.assignor_name,
        deferred=described.deferred,
    )


def _connector(group_id: str, connector: DescribedConnector) -> ConnectorRecord:
    return ConnectorRecord(
        group_id=group_id,
        connector=connector.connector,
        version=connector.version,
        target_state=TargetState[connector.target_state],
        config=connector.config,
        tasks=(TaskEntry(),) * (len(connector.units) - 1),
    )


def _member(group_id: str, member: DescribedMember, owner_epochs: dict[Unit, int]) -> Iterator[Record]:
    yield MemberRecord(
        group_id=group_id,
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_host=member.client_host,
        server_assignor=member.server_assignor,
        assignors=member.assignors,
        draining=member.state == "DRAINING",
        labels=member.labels,
        rack=member.rack,
        capacity=member.capacity,
        host=member.host,
        client_id=member.client_id,
        joined_epoch=member.joined_epoch,
    )
    yield TargetMemberRecord(
        group_id=group_id, member_id=member.member_id, units=member.target, metadata=member.assignor_state
    )
    assigned, pending = units_of(member.assigned), units_of(member.pending_revocation)
    state = MemberState.UNREVOKED if pending else MemberState.STABLE
    if not pending and assigned != units_of(member.target):
        state = MemberState.UNRELEASED
    yield CurrentRecord(
        group_id=group_id,
        member_id=member.member_id,
        epoch=member.member_epoch,
        previous_epoch=member.member_epoch,
        state=state,
        assigned=held({unit: owner_epochs.get(unit, 0) for unit in assigned}),
        pending=held({unit: owner_epochs.get(unit, 0) for unit in pending}),
    )
