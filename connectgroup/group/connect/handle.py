"""Entry point of the group logic: one request or one expired timer in, one outcome out.

The runtime calls ``step``. It decides, applies the records, and repeats this for what follows from them (a target
assignment for connectors that just changed, the end of a rebalance) until nothing follows. All records of one call
belong in one batch of the log, and no response may be sent before that batch is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import GroupError
from ...protocol.messages.api import Response
from ...protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ...protocol.messages.common import RestartRequest, RestartResponse
from ...protocol.messages.connectors import UpdateConnectorsRequest, UpdateConnectorsResponse
from ...protocol.messages.describe import (
    DeletedGroup,
    DeleteRequest,
    DeleteResponse,
    DescribeRequest,
    DescribeResponse,
    Rebalance,
)
from ...protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ...protocol.records.connect import MAX_MOVES, ComputationRecord, RebalanceRecord, Record
from ...protocol.units import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from ..kernel.computation import compute_timed_out
from ..kernel.effects import Computed, Effect
from ..kernel.outcome import Outcome
from ..kernel.timers import TimerKey, TimerKind
from ..kernel.unchanged import Key as UnchangedKey, keep, kept
from ..registry import NO_CLIENT, Client
from . import validate
from .computation import effects_of, next_round, request_computation
from .connectors import update_connectors
from .delay import delayed_until
from .delete import delete
from .describe import describe
from .heartbeat import heartbeat
from .install import install, install_computed, prepare
from .leave import delay_over, process_ended, rebalance_timed_out, session_timed_out
from .move_limit import starts_overdue
from .overlay import Overlay
from .process import ProcessEnded, sender_of
from .restart import restart_member
from .settings import GroupSettings
from .state import Group
from .timers import belongs_to, on_load as timers_on_load

GroupRequest = (
    HeartbeatRequest
    | PrepareRequest
    | InstallRequest
    | DescribeRequest
    | UpdateConnectorsRequest
    | DeleteRequest
    | RestartRequest
)

GroupInput = GroupRequest | TimerKey | Computed | ProcessEnded
"""An input of a step: a request, an expired timer, the result of a server-side assignor, or the end of a process."""


def handle(
    group: Group,
    request: GroupRequest,
    now_ms: int,
    settings: GroupSettings,
    *,
    client: Client = NO_CLIENT,
) -> Outcome[Response]:
    """Decide one request. The group is only read; a rejected request writes no record.

    ``request`` concerns this group; a request to describe or delete several groups is processed for this group alone.
    """
    try:
        match request:
            case HeartbeatRequest():
                return heartbeat(group, request, now_ms, settings, client)
            case PrepareRequest():
                return prepare(group, request, now_ms, settings, client)
            case InstallRequest():
                return install(group, request, now_ms, settings, client)
            case UpdateConnectorsRequest():
                return update_connectors(group, request, now_ms, settings, client)
            case DescribeRequest():
                validate.group_id(group.group_id)
                described = describe(group, now_ms, request=request, settings=settings)
                return Outcome(response=DescribeResponse(groups=(described,)))
            case DeleteRequest():
                return delete(group)
            case RestartRequest():
                return restart_member(group, request, now_ms)
    except GroupError as error:
        return Outcome(response=error_response(request, error))


def error_response(request: GroupRequest, error: GroupError) -> Response:
    """The response of the request's own type that carries the error."""
    code, message = error.code, str(error)
    match request:
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=code, error_message=message)
        case PrepareRequest():
            return PrepareResponse(error_code=code, error_message=message)
        case InstallRequest():
            return InstallResponse(error_code=code, error_message=message)
        case UpdateConnectorsRequest():
            return UpdateConnectorsResponse(error_code=code, error_message=message)
        case RestartRequest():
            return RestartResponse(error_code=code, error_message=message)
        case DescribeRequest():
            described = [describe(Group(group_id)) for group_id in request.group_ids]
            return DescribeResponse(
                groups=tuple(replace(group, error_code=code, error_message=message) for group in described)
            )
        case DeleteRequest():
            return DeleteResponse(
                results=tuple(
                    DeletedGroup(group_id=group_id, error_code=code, error_message=message)
                    for group_id in request.group_ids
                )
            )


def expire(group: Group, key: TimerKey, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Process an expired timer. A stale timer does nothing: its cause no longer exists, or is not the current one."""
    if key.belongs_to != belongs_to(group, key):
        return Outcome(response=None)
    match key.kind:
        case TimerKind.SESSION:
            return session_timed_out(group, key.member_id, now_ms, settings)
        case TimerKind.REBALANCE:
            return rebalance_timed_out(group, key.member_id, now_ms, settings)
        case TimerKind.COMPUTE:
            return compute_timed_out(Overlay(group, now_ms), settings)
        case TimerKind.DELAY:
            return delay_over(group, key.member_id, now_ms, settings)
        case TimerKind.START:
            return starts_overdue(group, now_ms, settings)


def step(
    group: Group,
    what: GroupInput,
    now_ms: int,
    settings: GroupSettings,
    *,
    client: Client = NO_CLIENT,
) -> Outcome[Response | None]:
    """Decide, apply, and follow up. The group has changed when this returns."""
    key = _reports_nothing(group, what, settings, client) if isinstance(what, HeartbeatRequest) else None
    if key is not None and (known := kept(group, key)):
        return known
    outcome: Outcome[Response | None]
    if isinstance(what, Computed):
        outcome = install_computed(group, what, now_ms, settings)
    elif isinstance(what, TimerKey):
        outcome = expire(group, what, now_ms, settings)
    elif isinstance(what, ProcessEnded):
        outcome = process_ended(group, what, now_ms, settings)
    else:
        outcome = handle(group, what, now_ms, settings, client=client)
    if key is not None:
        keep(group, key, outcome)
    records, timers = list(outcome.records), list(outcome.timers)
    _apply(group, outcome.records)
    if isinstance(what, UpdateConnectorsRequest | InstallRequest | Computed) and outcome.records:
        follow_up = request_computation(group, now_ms, settings)
        _apply(group, follow_up.records)
        records += follow_up.records
        timers += follow_up.timers
    if not records:
        return outcome  # the usual heartbeat: no record, so no follow-up
    if isinstance(what, HeartbeatRequest) and what.member_epoch == STATIC_LEAVE_EPOCH:
        group.kept_until_ms[what.member_id] = now_ms + settings.session_timeout_ms
    finish = finished(group, now_ms)
    _apply(group, finish)
    records += finish
    more = next_round(group, now_ms, settings)
    _apply(group, more.records)
    records += more.records
    timers += more.timers
    if more.records:
        # A round without any work for a member ends at once.
        finish = finished(group, now_ms)
        _apply(group, finish)
        records += finish
    return replace(
        outcome, records=tuple(records), timers=tuple(timers), effects=_effects(group, records, now_ms, settings)
    )


def unchanged(
    group: Group, request: HeartbeatRequest, settings: GroupSettings, client: Client
) -> Outcome[Response | None] | None:
    """The outcome of a heartbeat that reports nothing, kept from the last equal one; ``None``: it is to be decided."""
    key = _reports_nothing(group, request, settings, client)
    return None if key is None else kept(group, key)


def _reports_nothing(
    group: Group, request: HeartbeatRequest, settings: GroupSettings, client: Client
) -> UnchangedKey | None:
    """The key of a heartbeat that reports nothing and does not join or leave; ``None`` for any other request."""
    if (
        request.owned is None
        and request.member_epoch > JOIN_EPOCH
        and request.rebalance_timeout_ms == -1
        and request.server_assignor is None
        and request.client_assignors is None
        and not request.statuses
        and not request.restart_error
        and request.max_wait_ms >= 0
        and not (request.labels or request.rack or request.capacity or request.host)
        and request.group_id == group.group_id
    ):
        return request.member_id, request.member_epoch, sender_of(request, client), request.instance_id, settings
    return None


def _effects(group: Group, records: Sequence[Record], now_ms: int, settings: GroupSettings) -> tuple[Effect, ...]:
    """The effects that the records of a step request. The input of an assignor is the group after the whole step."""
    if not any(isinstance(record, ComputationRecord) for record in records):
        return ()
    return effects_of(group, now_ms, settings)


def on_load(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """The timers of a loaded group; and its server-side computation, which ended with the former coordinator."""
    group.stops.moves_not_started = 0  # as all totals, it starts with the coordinator
    timers = timers_on_load(group, now_ms, settings)
    return Outcome(response=None, timers=timers, effects=effects_of(group, now_ms, settings))


def _apply(group: Group, records: tuple[Record, ...]) -> None:
    for record in records:
        group.apply(record)


def finished(group: Group, now_ms: int) -> tuple[Record, ...]:
    """The record that ends a rebalance, once every member has reached the newest target assignment (PD-12)."""
    last = group.latest_rebalance
    if last is None or last.finished_ms >= 0 or group.behind or group.epoch > group.target_epoch:
        return ()
    # A unit has moved if its owner epoch is newer than the last finished rebalance: after a replay of a compacted log,
    # an old assignment looks as if it had just been made.
    before = max((past.epoch for past in group.rebalances.values() if past.finished_ms >= 0), default=0)
    moves = [group.landed[unit] for unit in sorted(group.landed) if group.holders.get(unit, ("", 0))[1] > before]
    # A unit that starts again on the worker that stopped it has not moved: the worker was restarted, or was lost and
    # has returned.
    moved = [move for move in moves if move.source not in ("", move.target)]
    ended = Rebalance(
        epoch=last.epoch,
        causes=last.causes,
        started_ms=last.started_ms,
        finished_ms=max(now_ms, last.started_ms),
        computed_by=group.computed_by,
        moved=len(moved),
        started=len(moves) - len(moved),
        max_downtime_ms=max((move.downtime_ms for move in moves if move.source), default=0),
        moves=tuple(sorted(moves, key=lambda move: move.downtime_ms, reverse=True)[:MAX_MOVES]),
        assignor=group.target_assignor,
        delayed=tuple(delayed_until(Overlay(group, now_ms), MAX_MOVES)),
    )
    return (RebalanceRecord(group_id=group.group_id, rebalance=ended),)
