"""What a change of a group would move, computed by the rules of the group on a copy of its state.

Nothing is changed: no request but Describe is sent, no record is written.

The copy is made from a description (``DescribeRequest.include_assignor_input``). What a description does not have is
not needed to compute an assignment: the configurations of tasks, credentials, and a computation in progress, which the
copy starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..assign.api import ConnectAssignor
from ..assign.placement import max_tasks
from ..client.admin import Admin
from ..config.connector_file import ConnectorFile
from ..errors import NameNotFound
from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectGroupState
from ..masking import HIDDEN
from ..plugins import load_assignor
from ..protocol.messages.common import each_unit, entries, masked, units_of
from ..protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedMember, Rebalance
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
from ..protocol.units import Unit, counted, printable, show
from .model import Model, NoPlan

DEFAULT_ASSIGNOR = "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to plan; exactly one of the first four is set, or ``assignor`` alone, which may also go with another.

    Attributes:
        drain: a worker whose units move to others.
        add_workers: number of workers that join.
        remove: a worker that stops and leaves.
        connector: a connector that is created or changed.
        assignor: the assignor that all workers list from now on.
    """

    drain: str = ""
    add_workers: int = 0
    remove: str = ""
    connector: ConnectorFile | None = None
    assignor: str = ""

    def __str__(self) -> str:
        parts = [
            f"drain worker {self.drain}" if self.drain else "",
            f"add {self.add_workers} worker{'s' if self.add_workers > 1 else ''}" if self.add_workers else "",
            f"remove worker {self.remove}" if self.remove else "",
            f"put connector {self.connector.name}" if self.connector else "",
            f"assignor {self.assignor}" if self.assignor else "",
        ]
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove:
    """One unit that would move, start, restart or end.

    Attributes:
        unit: its name, ``C-3`` for task 3 of connector C.
        source: its worker before; empty if it ran nowhere.
        target: its worker after the change; empty if it would run nowhere. Equal to ``source``: it restarts there.
        round: the number of the round, from 1; 0 if it ends without an assignment.
    """

    unit: str
    source: str
    target: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenDowntime:
    """The downtime of the moves among the last 100 rebalances of the group, in milliseconds.

    For so long the units processed nothing: from the revocation, the failure or the last heartbeat of their worker
    until the next worker reported them as running.
    """

    moves: int
    median_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The outcome of a change.

    Attributes:
        epoch: the group epoch that was copied.
        assignor: the assignor that computed the last round; the group's if none was needed.
        rounds: number of rounds: of target assignments that move or start units.
        moves: all units that move, start, restart or end, by round and name.
        units_before, units_after: number of connectors and tasks by worker.
        downtime: of moves so far; ``None`` if none is known.
        notes: assumptions, and what the plan does not cover; one sentence each.
    """

    group_id: str
    epoch: int
    change: str
    assignor: str
    rounds: int
    moves: tuple[PlannedMove, ...]
    units_before: dict[str, int]
    units_after: dict[str, int]
    downtime: SeenDowntime | None
    notes: tuple[str, ...]


async def plan(admin: Admin, group_id: str, change: Change) -> Plan:
    """Describe a group and compute what the change would do to it.

    Raises:
        GroupIdNotFound: there is no such group.
        NameNotFound: the change names a worker that does not exist.
        ConfigError: its assignor or connector does not exist or is invalid.
        NoPlan: the rules of the group reject the change.
    """
    described = await admin.describe(group_id, assignor_input=True)
    return compute_plan(described, change, now_ms=time.time_ns() // 1_000_000)


def compute_plan(
    described: DescribedGroup,
    change: Change,
    *,
    now_ms: int,
    find_assignor: Callable[[str], ConnectAssignor] = load_assignor,
) -> Plan:
    """Compute what the change would do; a function of its arguments.

    Args:
        described: a description with assignor input.
        find_assignor: the assignors by name.
    """
    _check(described, change)
    group = copy_group(described, now_ms=now_ms)
    model = Model(group, copy_settings(described), now_ms=now_ms, find_assignor=find_assignor)
    notes = []
    if change.assignor:
        find_assignor(change.assignor)  # an unknown one is an error even if no worker lists it
    if described.state not in ("Stable", "Empty"):
        notes.append(f"the group is {described.state}: the plan starts where its present rebalance ends")
    model.settle(wait=False)
    model.installed.clear()
    before = dict(group.holders)
    notes += _apply(model, change)
    model.settle()
    if change.connector is not None:
        notes += _publish(model, change.connector)
    waited_ms = max((each.after_ms for each in model.installed if each.changed), default=0)
    if waited_ms:
        notes.append(f"the last round begins {waited_ms / 1000:g} s after the change: the assignor delays it")
    if described.starting:
        notes.append(f"{show(units_of(described.starting))}: starting, and not moved before they run")
    for delay in described.delayed:
        if delay.member_id:
            notes.append(f"{show(units_of(delay.units))}: delayed for lost worker {delay.member_id}, not in this plan")
    moves = tuple(sorted(_moves(model, before), key=lambda move: (move.round or 1 << 30, move.unit)))
    members = sorted({*(member_id for member_id, _ in before.values()), *group.members})
    left_out = sorted(group.runnable.keys() - group.holders.keys() - group_lost(described))
    if left_out and group.members:
        why = group.computation.error if group.computation else ""
        notes.append(f"{show(left_out)}: not assigned" + (f" ({why})" if why else ""))
    return Plan(
        group_id=described.group_id,
        epoch=described.group_epoch,
        change=str(change),
        assignor=model.installed[-1].assignor if model.installed else described.assignor_name,
        rounds=len({move.round for move in moves} - {0}),
        moves=moves,
        units_before={name: sum(owner == name for owner, _ in before.values()) for name in members},
        units_after={name: sum(owner == name for owner, _ in group.holders.values()) for name in members},
        downtime=seen_downtime(described.rebalances),
        notes=tuple(notes),
    )


def group_lost(described: DescribedGroup) -> set[Unit]:
    """The units that are delayed for lost workers."""
    return {unit for delay in described.delayed if delay.member_id for unit in units_of(delay.units)}


def seen_downtime(rebalances: tuple[Rebalance, ...]) -> SeenDowntime | None:
    """The downtime of moves between workers and of restarts so far; ``None`` if none is known."""
    moves = [move for each in rebalances for move in each.moves]
    seen = [move.downtime_ms for move in moves if move.source and move.downtime_ms >= 0]
    return SeenDowntime(moves=len(seen), median_ms=round(median(seen)), max_ms=max(seen)) if seen else None


def plan_lines(planned: Plan, *, limit: int = 200, hint: str = "plan_json lists all") -> Iterator[str]:
    """Format a plan.

    Args:
        limit: maximum number of moves that are listed.
        hint: where the others are.
    """
    moved = [move for move in planned.moves if move.source and move.target and move.source != move.target]
    restarted = sum(move.source == move.target for move in planned.moves)
    started = sum(not move.source for move in planned.moves)
    ended = sum(not move.target for move in planned.moves)
    yield f"group {planned.group_id} at epoch {planned.epoch}: {planned.change}; nothing is changed"
    rounds = counted(planned.rounds, "round")
    counts = [f"{len(moved)} would move", f"{started} start", f"{restarted} restart", f"{ended} end"]
    yield f"{', '.join(counts)}, in {rounds}, computed with {planned.assignor or 'no assignor'}"
    for move in planned.moves[:limit]:
        yield f"  {f'round {move.round}' if move.round else 'ended'}: {move.unit}: {_text(move)}"
    if len(planned.moves) > limit:
        yield f"  and {len(planned.moves) - limit} more ({hint})"
    for name in sorted(planned.units_before):
        before, after = planned.units_before[name], planned.units_after[name]
        yield f"worker {name}: {before} -> {after} connectors and tasks"
    seen = planned.downtime
    if seen is None:
        yield "downtime: none of this group is known yet"
    else:
        yield f"downtime of {counted(seen.moves, 'move')} so far: median {seen.median_ms} ms, maximum {seen.max_ms} ms"
    for note in planned.notes:
        yield f"note: {note}"


def plan_json(planned: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return asdict(planned)


def _text(move: PlannedMove) -> str:
    if not move.source:
        return f"starts on {move.target}"
    if move.source == move.target:
        return f"restarts on {move.target}"
    return f"{move.source} -> {move.target or 'no worker'}"


# ---------------------------------------------------------------------------------------------- the change


def _check(described: DescribedGroup, change: Change) -> None:
    names = [member.member_id for member in described.members]
    for field, name in (("drain", change.drain), ("remove", change.remove)):
        if name and name not in names:
            raise NameNotFound(
                field, printable(name), f"a worker of the group: {', '.join(names[:20]) or 'it has none'}"
            )


def _apply(model: Model, change: Change) -> Iterator[str]:
    """Make the change on the copy; yields what it assumes."""
    group = model.group
    if change.assignor and group.members:
        model.list_assignor(change.assignor)
    if change.drain:
        model.drain(change.drain)
    if change.remove:
        model.leave(change.remove)
    if change.add_workers:
        like = next((group.members[name] for name in sorted(group.members)), None)
        taken, number = set(group.members), 0
        for _ in range(change.add_workers):
            number = next(each for each in range(number + 1, 1 << 30) if f"new-{each}" not in taken)
            model.join(f"new-{number}", like, change.assignor or DEFAULT_ASSIGNOR)
        if like is not None:
            yield f"new workers have the assignors, labels, rack and capacity of worker {like.member_id}"
    if change.connector is not None:
        known = group.connectors.get(change.connector.name)
        hidden = {each.name for each in known.config if each.value == HIDDEN} if known is not None else set()
        config = masked(entries(change.connector.config), hidden)
        change_ = ConnectorChange(connector=change.connector.name, config=config)
        model.send(UpdateConnectorsRequest(group_id=group.group_id, changes=(change_,)))
        if config != entries(change.connector.config):
            yield "credentials are not compared: a change of them alone restarts tasks and is not in this plan"


def _publish(model: Model, connector: ConnectorFile) -> Iterator[str]:
    """Let the owner of a changed connector write its task list: ``tasks.max`` tasks."""
    group, name = model.group, connector.name
    member_id, owner_epoch = group.holders.get(Unit(name), ("", -1))
    if not member_id:
        yield f"no worker runs connector {name}, so it has no tasks"
        return
    count = max_tasks(connector.config)
    tasks = (TaskConfig(),) * count
    change = ConnectorChange(connector=name, task_configs=tasks, owner_epoch=owner_epoch)
    model.send(UpdateConnectorsRequest(group_id=group.group_id, member_id=member_id, changes=(change,)))
    model.settle()
    yield f"connector {name} is assumed to have {counted(count, 'task')} (tasks.max); its class may create fewer"


def _moves(model: Model, before: dict[Unit, tuple[str, int]]) -> Iterator[PlannedMove]:
    """Every unit whose grant changed, with the last round that changed its target."""
    after = model.group.holders
    last: dict[Unit, int] = {}
    for number, installed in enumerate(model.installed):
        last.update(dict.fromkeys((unit for unit in installed.changed if before.get(unit) != after.get(unit)), number))
    rounds = {number: place for place, number in enumerate(sorted(set(last.values())), start=1)}
    for unit in sorted(before.keys() | after.keys()):
        source, target = before.get(unit, ("", -1)), after.get(unit, ("", -1))
        if source != target:
            yield PlannedMove(
                unit=str(unit),
                source=source[0],
                target=target[0],
                round=rounds[last[unit]] if unit in last else 1 if target[0] else 0,
            )


__all__ = ["Change", "NoPlan", "Plan", "PlannedMove", "SeenDowntime", "compute_plan", "plan", "plan_json", "plan_lines"]


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
