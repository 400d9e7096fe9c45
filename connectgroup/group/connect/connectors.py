"""Updates of connectors: configurations, task lists and wanted states are records in the group's log.

Every change carries the version it is based on (compare and set), so that two operators cannot overwrite each other
unnoticed. A task list carries the owner epoch under which the sender owns the connector, so that neither a former owner
nor an owner that still runs a former configuration can write one. A unit whose configuration changes keeps its name,
but its owner epoch must be newer than the change (``since_epoch``): it is revoked where it runs and assigned again.
Units that did not change keep running.

Source: PD-07; "Connect on the new protocol", causes 5 and 6 of a new group epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...assign.placement import PREFIX
from ...errors import (
    ConnectorAlreadyExists,
    ConnectorNotFound,
    GroupError,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    VersionConflict,
)
from ...protocol.messages.common import ConfigEntry, RestartRequest, RestartResponse, config_of, entries
from ...protocol.messages.connectors import (
    THOSE_THERE,
    ChangedConnector,
    ConfigPatch,
    ConnectorChange,
    RestartedUnit,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ...protocol.messages.describe import DeletedGroup, DeleteResponse
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import ConnectorRecord, GroupRecord, Record, TargetState, TaskEntry
from ...protocol.units import CONNECTOR, NO_UNITS, Unit, Units, counted, printable
from ..kernel.members import check_deletable, check_exists
from ..kernel.outcome import Outcome, cancel_compute
from ..kernel.validate import check_group_id
from ..registry import ClientInfo
from . import state, validate
from .delay import cancel_delay
from .members import check_process, sender_of
from .settings import GroupSettings
from .state import ConnectDraft, ConnectGroupState, runnable_units


@dataclass(frozen=True, slots=True)
class _Change:
    """A connector before and after a change, and the rebalance cause, empty if no unit is concerned; ``after`` is
    ``None`` if it is deleted.
    """

    before: ConnectorRecord | None
    after: ConnectorRecord | None
    cause: str


def update_connectors(
    draft: ConnectDraft, request: UpdateConnectorsRequest, settings: GroupSettings, client: ClientInfo
) -> Outcome[UpdateConnectorsResponse]:
    """Apply all changes or none.

    Returns:
        The new versions. If a change is rejected, the response has its error at the top level and in its own result.

    Raises:
        InvalidRequest: the request violates a rule that depends on the request alone.
        FencedInstanceId: the member that sends the request belongs to another process.
    """
    group = draft.group
    validate.update_connectors(request)
    if request.member_id is not None:
        check_process(group, request.member_id, sender_of(request, client))
    epoch = group.epoch + 1
    changes: list[_Change] = []
    for wanted in request.changes:
        try:
            changes.append(_change(group, request.member_id, wanted, epoch))
        except GroupError as error:
            return _refused(group, request, wanted, error)
    # Paused and stopped connectors count too: they may be resumed.
    units_before = sum(map(_size, group.connectors.values()))
    units = units_before + sum(_size(change.after) - _size(change.before) for change in changes)
    if units > max(settings.max_units, units_before):
        limit = InvalidRequest(
            f"Changes: got {units} connectors and tasks; allowed: at most {settings.max_units} a group"
        )
        return _refused(group, request, request.changes[-1], limit)
    taken = sum(group.connector_bytes.values())  # by all connectors, after the changes up to here
    for wanted, change in zip(request.changes, changes, strict=True):
        taken -= group.connector_bytes.get(wanted.connector, 0)
        if change.after is None:
            continue
        try:
            _check_tasks_max(change.before, change.after, units, settings.max_units)
            taken += state.check(group.group_id, taken, change.before, change.after)
        except InvalidRequest as error:
            return _refused(group, request, wanted, error)

    for change in changes:
        if change.after == change.before:
            continue
        if change.cause:
            draft.bump(change.cause)
        if change.after is not None:
            draft.write(change.after)
        elif change.before is not None:
            draft.forget(Kind.CONNECTOR, change.before.connector)
        # Explicit tombstones: in a compacted log no other record shows that these units were deleted. The status of a
        # unit that is only paused or stopped stays: it has the numbers of the task (``StatusRecord.progress``).
        for unit in sorted(_units(change.before) - _units(change.after)):
            if unit in group.statuses:
                draft.write(Tombstone(group.statuses[unit].key))
    results = tuple(
        ChangedConnector(connector=wanted.connector, version=change.after.version if change.after else 0)
        for wanted, change in zip(request.changes, changes, strict=True)
    )
    # ``request_computation`` runs after these records are applied: the input of an assignor must include the new units.
    return draft.outcome(UpdateConnectorsResponse(group_epoch=draft.epoch, results=results))


def _size(connector: ConnectorRecord | None) -> int:
    return 1 + len(connector.tasks) if connector else 0


def _check_tasks_max(before: ConnectorRecord | None, after: ConnectorRecord, units: int, max_units: int) -> None:
    """Reject a ``tasks.max`` that the group has no room for. Its tasks are published later, when no client waits.

    Args:
        units: connectors and tasks of the group after the change.

    Raises:
        InvalidRequest: with ``tasks.max``, its value and the limit.
    """
    wanted, room = state.tasks_max(after), max_units - (units - len(after.tasks))
    if wanted > room and (before is None or wanted > state.tasks_max(before)):
        raise InvalidRequest(
            f"connector {printable(after.connector)}: tasks.max: got {wanted}; allowed: at most {max(room, 0)}, "
            f"as a group may have {max_units} connectors and tasks (max_units)"
        )


def _units(connector: ConnectorRecord | None) -> Units:
    """All units of a connector, also those that should not run now."""
    if connector is None:
        return NO_UNITS
    return frozenset(Unit(connector.connector, task) for task in range(CONNECTOR, len(connector.tasks)))


def _runnable(connector: ConnectorRecord | None) -> Units:
    return frozenset(unit for unit, _ in runnable_units(connector)) if connector else NO_UNITS


def _refused(
    group: ConnectGroupState, request: UpdateConnectorsRequest, offending_change: ConnectorChange, error: GroupError
) -> Outcome[UpdateConnectorsResponse]:
    results = tuple(
        ChangedConnector(
            connector=wanted.connector,
            error_code=error.code if wanted is offending_change else 0,
            error_message=str(error) if wanted is offending_change else None,
            version=group.connectors[wanted.connector].version if wanted.connector in group.connectors else 0,
        )
        for wanted in request.changes
    )
    response = UpdateConnectorsResponse(
        error_code=error.code, error_message=str(error), group_epoch=group.epoch, results=results
    )
    return Outcome(response=response)


def _change(group: ConnectGroupState, member_id: str | None, wanted: ConnectorChange, epoch: int) -> _Change:
    """The result of one change of a connector.

    Raises:
        GroupError: the change is rejected.
    """
    name = printable(wanted.connector)
    before = group.connectors.get(wanted.connector)
    version = before.version if before else 0
    if before is None and (wanted.config is None or wanted.expected_version > 0):
        if not group.exists:
            raise ConnectorNotFound(f"connector {name} does not exist: there is no group {printable(group.group_id)!r}")
        known = printable(", ".join(sorted(group.connectors)), limit=300)
        raise ConnectorNotFound(f"connector {name} does not exist{THOSE_THERE}{known or 'none'}")
    if before is not None and wanted.expected_version == 0:
        raise ConnectorAlreadyExists(f"connector {name} already exists, with version {version}")
    if wanted.expected_version not in (-1, version):
        raise VersionConflict(f"connector {name}: got version {wanted.expected_version}; the connector has {version}")
    if wanted.task_configs is not None or wanted.credential_names is not None:
        _check_owner(group, member_id, wanted, before.since_epoch if before else epoch)
    if wanted.delete:
        return _Change(before, None, f"connector {name} removed")

    after = before or ConnectorRecord(group_id=group.group_id, connector=wanted.connector, version=0, since_epoch=epoch)
    causes = []
    config = wanted.config if wanted.config_patch is None else _patched(after, wanted.config_patch)
    if config is not None and (before is None or config != before.config):
        # A task belongs to the configuration that its task list was created for: it must not keep running under another
        # one, nor move to a worker that would run it under another one (KAFKA-9228). Settings that only limit the
        # number of tasks, or their placement, do not affect the single task.
        tasks = after.tasks if _without_limit(config) == _without_limit(after.config) else ()
        after = replace(after, config=config, since_epoch=epoch, tasks=tasks)
        causes.append("added" if before is None else "reconfigured")
    if wanted.target_state and wanted.target_state != after.target_state:
        after = _switched(after, TargetState(wanted.target_state), epoch)
        causes.append(after.target_state.name.lower())
    if wanted.task_configs is not None:
        tasks = _tasks(after, wanted, epoch)
        if tasks != after.tasks:
            causes.append(f"has {counted(len(tasks), 'task')} (had {len(after.tasks)})")
            after = replace(after, tasks=tasks)
    if wanted.restart:
        restarted = _restarted(group, after, wanted.restart, epoch)
        if restarted != after:
            causes.append("restarted")
            after = restarted
    if after != before:
        # The version is the epoch, not a counter: a counter would restart if the connector is deleted and created
        # again, and a late copy of a request based on the former connector would match the new one.
        after = replace(after, version=epoch)
    if wanted.credential_names is not None:
        after = replace(after, credential_names=tuple(sorted(set(wanted.credential_names))))
    return _Change(before, after, f"connector {name} {', '.join(causes)}" if causes else "")


def _patched(connector: ConnectorRecord, patch: Iterable[ConfigPatch]) -> tuple[ConfigEntry, ...]:
    """The configuration with the changed settings; ``None`` removes a setting (KIP-477).

    Raises:
        InvalidRequest: the result has an invalid ``tasks.max`` or placement constraint.
    """
    values: dict[str, str | None] = {**config_of(connector.config)}
    values.update({setting.name: setting.value for setting in patch})
    config = entries({name: value for name, value in values.items() if value is not None})
    validate.connector_config(connector.connector, config)
    return config


def _restarted(
    group: ConnectGroupState, connector: ConnectorRecord, units: Iterable[RestartedUnit], epoch: int
) -> ConnectorRecord:
    """The connector with ``since_epoch`` raised for each of these units whose grant is still the named one.

    The unit is then revoked where it runs and assigned again at a later owner epoch. A unit without an owner, and one
    that has been granted again since the request was made, are not restarted.
    """
    grants = {unit.task: unit.owner_epoch for unit in units}

    def since(task: int, since_epoch: int) -> int:
        _, granted = group.holders.get(Unit(connector.connector, task), ("", -1))
        # A grant before ``since_epoch`` ends anyway: its revocation is pending.
        return epoch if since_epoch <= granted == grants.get(task, -1) else since_epoch

    return replace(
        connector,
        since_epoch=since(CONNECTOR, connector.since_epoch),
        tasks=tuple(
            replace(task, since_epoch=since(number, task.since_epoch)) for number, task in enumerate(connector.tasks)
        ),
    )


def _without_limit(config: Iterable[ConfigEntry]) -> set[ConfigEntry]:
    return {entry for entry in config if entry.name not in ("tasks.max", "name") and not entry.name.startswith(PREFIX)}


def _switched(connector: ConnectorRecord, state: TargetState, epoch: int) -> ConnectorRecord:
    """The connector in another wanted state.

    Units that are resumed count as new: their owner may have acknowledged the revocation in the meantime, and would
    otherwise be assigned them a second time at the same owner epoch if no target assignment was computed in between
    (reliability S6).
    """
    ran = _runnable(connector)
    connector = replace(connector, target_state=state)
    on = _runnable(connector) - ran
    return replace(
        connector,
        since_epoch=epoch if Unit(connector.connector) in on else connector.since_epoch,
        tasks=tuple(
            replace(task, since_epoch=epoch) if Unit(connector.connector, number) in on else task
            for number, task in enumerate(connector.tasks)
        ),
    )


def _check_owner(group: ConnectGroupState, member_id: str | None, wanted: ConnectorChange, since_epoch: int) -> None:
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")
    granted = group.current(str(member_id)).assigned.get(Unit(wanted.connector))
    if granted is None or granted != wanted.owner_epoch:
        raise StaleMemberEpoch(
            f"connector {printable(wanted.connector)}: {member_id} does not own it at epoch {wanted.owner_epoch}"
        )
    if granted < since_epoch:
        raise StaleMemberEpoch(
            f"connector {printable(wanted.connector)}: {member_id} owns it under a configuration that has been replaced"
        )


def _tasks(connector: ConnectorRecord, wanted: ConnectorChange, epoch: int) -> tuple[TaskEntry, ...]:
    """The new task list; a task whose configuration does not change keeps its ``since_epoch``."""
    old = connector.tasks
    return tuple(
        old[number]
        if number < len(old) and old[number].config == task.config
        else TaskEntry(config=task.config, since_epoch=epoch)
        for number, task in enumerate(wanted.task_configs or ())
    )


# --------------------------------------------------------------------------------------------------
# Deletion of a group: a tombstone for every key but one; one small record stays.
#
# That record keeps the creation time of the group. A group created again under the same id has a later creation time,
# so its fencing tokens are higher than all tokens that sinks have seen of the deleted group.
#
# Source: Kafka's DeleteGroups (a group with members is not deleted); KAFKA-19163.


def delete(group: ConnectGroupState) -> Outcome[DeleteResponse]:
    """Delete the group with its connectors.

    Raises:
        InvalidGroupId: the group id is invalid.
        GroupIdNotFound: the group does not exist.
        NonEmptyGroup: the group has members.
    """
    check_group_id(group.group_id)
    check_deletable(group)
    records: list[Record] = [Tombstone(key) for key in _keys(group)]
    # Written last, so that a batch that is only partly read still describes a group.
    records.append(GroupRecord(group_id=group.group_id, epoch=0, created_ms=group.created_ms))
    timers = (
        cancel_compute(group.group_id),
        *(cancel_delay(group.group_id, member_id) for member_id in sorted(group.delays)),
    )
    response = DeleteResponse(results=(DeletedGroup(group_id=group.group_id),))
    return Outcome(response=response, records=tuple(records), timers=timers)


def _keys(group: ConnectGroupState) -> Iterable[Key]:
    """Every key of the group except the group's own."""
    group_id = group.group_id
    for kind, names in (
        (Kind.CURRENT, group.currents),
        (Kind.TARGET_MEMBER, group.targets),
        (Kind.CONNECTOR, group.connectors),
        (Kind.DELAY, group.delays),
    ):
        for name in sorted(names):
            yield Key(kind, group_id, name)
    for _, status in sorted(group.statuses.items()):
        yield status.key
    for epoch in group.rebalances:
        yield Key(Kind.REBALANCE, group_id, str(epoch))
    for kind in (Kind.COMPUTATION, Kind.TARGET):
        yield Key(kind, group_id)


# --------------------------------------------------------------------------------------------------
# Restart or drain of a worker by an operator.
#
# Restart: the member stops its units, leaves, and joins again under the same member id.
#
# The request is part of the member's record, so that it survives a coordinator failover, and is repeated in every
# heartbeat response until the member leaves. If the member is lost instead (fenced, or its session expired), it may not
# have received the request: the group's record keeps the request until a member of that id joins again. The leave
# announces that the member returns, so its units are delayed for it (``members``, ``delay``): each stops and starts
# once, on the same worker. A member that cannot be restarted, because its replacement does not start, says why
# (``restart_error``): the request ends, and the reason stays until the next request.
#
# Drain: the request is repeated until the member reports that it drains; from then on the rules of draining apply. It
# ends with the membership: a lost member that joins again is not asked to drain.


def restart_member(draft: ConnectDraft, request: RestartRequest) -> Outcome[RestartResponse]:
    """Ask one member to restart or to drain, by its member id or its group instance id.

    Several members may restart at the same time; a repeated request changes nothing.

    Raises:
        GroupIdNotFound: there is no such group.
        UnknownMemberId: the member is not in the group: unknown, left, lost, or temporarily left.
        InvalidRequest: a restart of a member that is draining, so it leaves permanently.
    """
    group = draft.group
    validate.restart(request)
    check_exists(group)
    # An operator knows a static member by its group instance id: the member id may change at every start.
    member_id = request.member_id
    if member_id not in group.members:
        member_id = group.instances.get(member_id, member_id)
    member = group.members.get(member_id)
    if member is None:
        delay = group.delays.get(member_id)
        if delay is not None:
            left_s = delay.left_ms(draft.now_ms) / 1000
            raise UnknownMemberId(
                f"worker {printable(member_id)!r} is not in the group: it restarts or is lost, and its units are "
                f"delayed for it for {left_s:.1f} s more"
            )
        known = printable(", ".join(sorted(group.members)), limit=300)
        raise UnknownMemberId(f"worker: got {printable(member_id)!r}; allowed: {known or 'none, the group is empty'}")
    if group.current(member_id).temporarily_left:
        raise UnknownMemberId(
            f"worker {printable(member_id)!r} has temporarily left; its units are kept for its group.instance.id "
            f"{printable(member.instance_id)!r}"
        )
    draining = member.draining or member.drain_requested
    if draining and not request.drain:
        raise InvalidRequest(f"worker {printable(member_id)!r} is draining and leaves for good")
    if draining or (member.restart_requested and not request.drain):
        return Outcome(response=RestartResponse(already_requested=True))
    # A drain replaces a requested restart: the worker leaves permanently.
    draft.set_member(
        replace(member, restart_requested=not request.drain, drain_requested=request.drain, restart_error="")
    )
    return draft.outcome(RestartResponse())
