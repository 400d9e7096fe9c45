"""The description of a group: members, connectors, and the causes of its rebalances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from ...errors import GroupIdNotFound
from ...protocol.messages.common import ConfigEntry, each_unit, grouped, masked
from ...protocol.messages.describe import (
    NOT_STARTED,
    UNKNOWN,
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
    DescribeRequest,
    Move,
    Rebalance,
)
from ...protocol.records.connect import MemberRecord, TargetState, UnitState
from ...protocol.units import CONNECTOR, Unit, printable
from ..kernel.computation import under_way
from ..kernel.reconcile import Current
from ..registry import ConnectorNumbers, GroupNumbers
from . import classic_members
from .assignment import starting_units
from .delay import described_delays
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState

EVERYTHING: Final = DescribeRequest()


def describe(
    group: ConnectGroupState,
    now_ms: int = 0,
    *,
    request: DescribeRequest = EVERYTHING,
    settings: GroupSettings | None = None,
) -> DescribedGroup:
    """The description of a group; units with a pending revocation are included (KAFKA-20431).

    Args:
        request: selects what is described; its group ids are ignored.
        settings: required if the request includes assignor input; these settings are part of it.
    """
    if not group.exists:
        return DescribedGroup(
            group_id=group.group_id,
            error_code=GroupIdNotFound.code,
            error_message=f"GroupId: got {printable(group.group_id)!r}; there is no such group",
        )
    computation, computing = group.computation, under_way(group)
    described = DescribedGroup(
        group_id=group.group_id,
        state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.target_assignor,
        computing_member=computing.member_id if computing is not None else "",
        assignor_error=computation.error if computation is not None else "",
        members=() if request.connectors_only else tuple(_members(group, now_ms)),
        connectors=tuple(
            _connectors(
                group, request, _starts(group, now_ms) | (_waits(group, now_ms) if request.connectors_only else {})
            )
        ),
        rebalances=() if request.connectors_only else tuple(_rebalances(group)),
        delayed=() if request.connectors_only else described_delays(ConnectDraft(group, now_ms)),
        incarnation=group.created_ms,
        protocol_type=classic_members.PROTOCOL_TYPE,
        classic_state=classic_members.STATES.get(group.state_name, group.state_name),
    )
    if request.include_classic:
        described = replace(described, members=tuple(_with_classic_form(each) for each in described.members))
    if settings is None or not request.include_assignor_input:
        return described
    return _with_assignor_input(described, group, settings)


def _with_classic_form(member: DescribedMember) -> DescribedMember:
    return replace(
        member,
        classic_metadata=classic_members.metadata(member.host or member.client_host),
        classic_assignment=classic_members.assignment(member.assigned, member.pending_revocation),
    )


def _with_assignor_input(
    described: DescribedGroup, group: ConnectGroupState, settings: GroupSettings
) -> DescribedGroup:
    """Add what an assignor and the rules of the group read, for a computation on a copy of the group."""
    members = tuple(
        replace(
            member,
            assignors=group.members[member.member_id].assignors,
            server_assignor=group.members[member.member_id].server_assignor,
            assignor_state=group.target(member.member_id).metadata,
        )
        for member in described.members
    )
    return replace(
        described,
        members=members,
        max_moves=settings.max_moves,
        scheduled_delay_ms=settings.scheduled_delay_ms,
        server_assignor=settings.server_assignor,
        deferred=group.deferred + group.deferred_starts,
        starting=grouped(starting_units(ConnectDraft(group, 0))),
    )


def _members(group: ConnectGroupState, now_ms: int) -> Iterable[DescribedMember]:
    for member_id, member in sorted(group.members.items()):
        current = group.current(member_id)
        yield DescribedMember(
            member_id=member_id,
            instance_id=member.instance_id,
            client_host=member.client_host,
            member_epoch=current.epoch,
            state=_member_state(member, current),
            assigned=grouped(current.assigned),
            pending_revocation=grouped(current.pending),
            target=grouped(group.target(member_id).units),
            labels=member.labels,
            rack=member.rack,
            capacity=member.capacity,
            host=member.host,
            client_id=member.client_id,
            joined_epoch=member.joined_epoch,
            kept_ms=_kept_ms(group, member_id, now_ms),
            classic=member.classic,
            restart_error=member.restart_error,
        )


def _rebalances(group: ConnectGroupState) -> Iterable[Rebalance]:
    """The last rebalances, with the downtimes of their moves."""
    for rebalance in group.rebalances.values():
        moves = tuple([_with_downtime(group, rebalance, move) for move in rebalance.moves])
        max_ms = max((move.downtime_ms for move in moves if move.source and move.downtime_ms >= 0), default=-1)
        is_same = max_ms == rebalance.max_downtime_ms and moves == rebalance.moves
        yield rebalance if is_same else replace(rebalance, moves=moves, max_downtime_ms=max_ms)


def _with_downtime(group: ConnectGroupState, rebalance: Rebalance, move: Move) -> Move:
    unit = Unit(move.connector, move.task)
    if unit in group.stops.not_started(rebalance.epoch):
        return replace(move, downtime_ms=NOT_STARTED)
    if (downtime_ms := group.stops.downtime_ms(rebalance.epoch, unit)) is not None:
        return replace(move, downtime_ms=downtime_ms)
    # After a load of a compacted log: the last status of the unit, if it is of this move.
    status, grant = group.statuses.get(unit), group.holders.get(unit)
    if grant is None:
        return move
    # A later assignment has an owner epoch above this rebalance.
    if grant[0] != move.target or grant[1] > rebalance.epoch:
        return replace(move, downtime_ms=UNKNOWN) if unit in group.stops.unknown(rebalance.epoch) else move
    if status is None or status.state != UnitState.RUNNING or (status.member_id, status.owner_epoch) != grant:
        return move
    if not 0 < move.assigned_ms <= status.at_ms:  # the report is older than this assignment
        return move
    return replace(move, downtime_ms=move.failed_ms + max(0, move.handover_ms) + status.at_ms - move.assigned_ms)


def _kept_ms(group: ConnectGroupState, member_id: str, now_ms: int) -> int:
    """The time until the session timeout of a temporarily left member; -1 for others, and after a reload."""
    until_ms = group.kept_until_ms.get(member_id)
    if until_ms is None or not group.current(member_id).temporarily_left:
        return -1
    return max(0, until_ms - now_ms)


def _member_state(member: MemberRecord, current: Current[Unit]) -> str:
    """The member's state. Drain and restart, which an operator requests, precede the reconciliation state."""
    if current.temporarily_left:
        return "AWAY"
    if member.draining or member.drain_requested:
        return "DRAINING"
    return "RESTARTING" if member.restart_requested else current.state.name


MAX_MESSAGES: Final = 1 << 20
"""Upper bound on the characters of the messages of all units; later messages are omitted. A response has a limit, and
100,000 tasks may fail for one reason."""


def _starts(group: ConnectGroupState, now_ms: int) -> dict[Unit, str]:
    """What the start of a unit waits for, and for how long, if its worker has said it."""
    found: dict[Unit, str] = {}
    for unit in group.starting:
        status = group.statuses.get(unit)
        # That of a paused task stays, and says nothing of the next start.
        if status is not None and status.message and group.holders.get(unit) == (status.member_id, status.owner_epoch):
            found[unit] = f"{status.message}, {max(0, now_ms - status.at_ms) // 1000} s"
    return found


def _waits(group: ConnectGroupState, now_ms: int) -> dict[Unit, str]:
    """For whom and how long each delayed unit waits, and each unit of a temporarily left member.

    For descriptions without ``delayed`` and members. A message with a countdown in any other description would be a
    change each time, for the page and the streams of events.
    """
    found: dict[Unit, str] = {}
    for delayed in described_delays(ConnectDraft(group, now_ms)) if group.delays else ():
        if delayed.member_id:
            worker = f"for lost worker {delayed.instance_id or delayed.member_id} (scheduled rebalance delay)"
        else:
            worker = "by the assignor, which left it out"
        found |= dict.fromkeys(each_unit(delayed.units), f"delayed {delayed.left_ms / 1000:.1f} s more {worker}")
    for member_id in sorted(group.kept_until_ms):
        left_ms = _kept_ms(group, member_id, now_ms)
        if left_ms >= 0:
            kept = f"worker {member_id} has left temporarily; it is kept for it {left_ms / 1000:.1f} s more"
            found |= dict.fromkeys(group.current(member_id).assigned, kept)
    return found


def _connectors(
    group: ConnectGroupState, request: DescribeRequest, waits: Mapping[Unit, str]
) -> Iterable[DescribedConnector]:
    only = request.connectors
    left = MAX_MESSAGES
    for name in sorted(group.connectors if only is None else group.connectors.keys() & set(only)):
        connector = group.connectors[name]
        target_state = connector.target_state.name
        units = []
        for task in range(CONNECTOR, len(connector.tasks)):
            what = Unit(name, task)
            with_config = request.include_task_configs and task != CONNECTOR
            unit = _unit(
                group,
                what,
                "UNASSIGNED" if what in group.runnable else target_state,
                waits.get(what),
                masked(connector.tasks[task].config, connector.credential_names) if with_config else (),
            )
            left -= len(unit.message)
            units.append(unit if left >= 0 or not unit.message else replace(unit, message=""))
        yield DescribedConnector(
            connector=name,
            version=connector.version,
            target_state=target_state,
            config=connector.config
            if request.include_credentials
            else masked(connector.config, connector.credential_names),
            units=tuple(units),
        )


def _unit(
    group: ConnectGroupState,
    unit: Unit,
    without_owner: str,
    waits_for: str | None,
    config: tuple[ConfigEntry, ...],
) -> DescribedUnit:
    """Describe a unit. A status counts only while its sender still owns the unit at the status's owner epoch.

    Args:
        without_owner: its state while no worker has it.
        waits_for: the message of a unit that does not run yet.
    """
    member_id, owner_epoch = group.holders.get(unit, ("", -1))
    status = group.statuses.get(unit)
    fits = status is not None and (status.member_id, status.owner_epoch) == (member_id, owner_epoch)
    state = status.state.name if status is not None and fits else "STARTING" if member_id else ""
    if group.current(member_id).temporarily_left:
        state, fits = "WAITING", False
    state = state or without_owner
    if state in ("UNASSIGNED", "WAITING") or (state == "STARTING" and waits_for is not None):
        message = waits_for or ""
    else:
        message = status.message if status is not None and fits else ""
    return DescribedUnit(
        task=unit.task,
        member_id=member_id,
        owner_epoch=owner_epoch,
        state=state,
        message=message,
        config=config,
        fenced=status is not None and fits and status.fenced,
    )


# --------------------------------------------------------------------------------------------------
# The state of a group as numbers, for metrics.


def measure(group: ConnectGroupState) -> GroupNumbers:
    """Count members, tasks, delayed and unassigned units.

    May run in a thread while another one applies records: each collection is copied before it is read.
    """
    held = group.holders.copy().keys()
    runnable = group.runnable.copy().keys()
    rebalances, computation = group.rebalances.copy(), group.computation
    last = rebalances[next(reversed(rebalances))] if rebalances else None
    unassigned = Counter(unit.connector for unit in runnable if not unit.is_connector and unit not in held)
    waiting = {unit for record in group.delays.copy().values() for unit in each_unit(record.units)}
    return GroupNumbers(
        members=len(group.members),
        epoch=group.epoch,
        target_epoch=group.target_epoch,
        computed_by=group.computed_by,
        is_rebalancing=last is not None and last.finished_ms < 0,
        delayed_units=len(waiting.intersection(runnable) - held),
        computation_failures=0 if computation is None else computation.failures,
        moves_not_started=group.stops.moves_not_started,
        connectors={
            name: ConnectorNumbers(
                tasks=len(record.tasks),
                paused=len(record.tasks) if record.target_state == TargetState.PAUSED else 0,
                unassigned=unassigned[name],
            )
            for name, record in group.connectors.copy().items()
        },
    )
