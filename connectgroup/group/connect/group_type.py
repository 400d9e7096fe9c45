"""The group type ``connect``, as the coordinator's shard knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ...errors import GroupError, InconsistentGroupProtocol
from ...protocol.messages.api import Response
from ...protocol.messages.assignment import InstallRequest, PrepareRequest
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ...protocol.messages.common import RestartRequest
from ...protocol.messages.connectors import UpdateConnectorsRequest
from ...protocol.messages.describe import (
    DeleteRequest,
    DescribedGroup,
    DescribeRequest,
    DescribeResponse,
    Rebalance,
)
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.messages.rejected import rejected
from ...protocol.records.connect import GROUP_TYPE, MAX_MOVES, ComputationRecord, MemberState, RebalanceRecord, Record
from ...protocol.units import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from ..classic.step import GROUP_TYPE as CLASSIC
from ..kernel import outcome as timing
from ..kernel.computation import computation_id, compute_timed_out, timer_after_load
from ..kernel.outcome import Compute, Computed, Converted, Effect, Outcome, Timer, TimerKey, TimerKind, session
from ..kernel.state import CacheKey
from ..kernel.validate import check_group_id
from ..registry import NO_CLIENT, ClientInfo, GroupNumbers, Input, RequestTraits
from . import validate
from .assignment import (
    effects_of,
    install,
    install_computed,
    next_round,
    prepare,
    request_computation,
    start_timer,
    starts_overdue,
)
from .classic_members import WorkerFormat, WorkerRules, decide as decide_classic, heartbeat_of, metadata_of
from .connectors import delete, restart_member, update_connectors
from .delay import delayed_until, timers_after_load as delays_after_load
from .describe import describe, measure
from .heartbeat import heartbeat
from .members import (
    ProcessEnded,
    check_process,
    delay_over,
    process_ended,
    rebalance_timed_out,
    sender_of,
    session_timed_out,
)
from .settings import GroupSettings, ServerAssignment
from .state import ConnectDraft, ConnectGroupState

MANY_UNITS: Final = 5_000
"""A description of so many units takes 20 ms."""

MANY_CHARS: Final = 512 << 10
"""Characters of settings: masking them takes 70 ms."""


class ConnectGroupType:
    """Worker groups of connectors and tasks: the ``registry.GroupType`` of type ``connect``."""

    name = GROUP_TYPE
    request_types: tuple[type, ...] = (
        HeartbeatRequest,
        PrepareRequest,
        InstallRequest,
        UpdateConnectorsRequest,
        DeleteRequest,
        RestartRequest,
    )
    member_request_types: tuple[type, ...] = (
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
    )
    claimed_request_types: tuple[type, ...] = (JoinGroupRequest, LeaveGroupRequest)

    def __init__(self, settings: GroupSettings, worker_format: WorkerFormat) -> None:
        """Create the type.

        Args:
            settings: for all groups of this type.
            worker_format: the bytes that workers of the classic protocol exchange with the coordinator.
        """
        self.settings, self._worker_format = settings, worker_format

    def claims(self, request: object) -> bool:
        """Whether one of our workers sends the request: its group is of this type, not of type ``classic``."""
        return metadata_of(request) is not None

    def new(self, group_id: str) -> ConnectGroupState:
        return ConnectGroupState(group_id)

    def traits(self, request: Any, client: ClientInfo = NO_CLIENT) -> RequestTraits:
        """A heartbeat re-arms the session timer of its sender when it arrives.

        A join does not: it proves that the previous incarnation of its sender is dead. Otherwise a join that is
        rejected and retried would keep the dead member in the group forever, with all units it owns.
        """
        match request:
            case HeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch):
                return RequestTraits(
                    group_id=group_id,
                    sender=member_id,
                    sequence=request.sequence,
                    process=sender_of(request, client),
                    max_wait_ms=min(request.max_wait_ms, self.settings.max_park_ms),
                    renews=session(group_id, member_id, self.settings.session_timeout_ms)
                    if epoch > JOIN_EPOCH
                    else None,
                    beats=epoch > JOIN_EPOCH,
                    creates_group=epoch == JOIN_EPOCH,
                )
            case JoinGroupRequest() | LeaveGroupRequest():
                try:
                    beat = heartbeat_of(self._worker_format, request)
                except GroupError:
                    return RequestTraits(group_id=request.group_id)
                return self.traits(beat, client)
            case DeleteRequest(group_ids=(group_id,)):
                return RequestTraits(group_id=group_id)
            case _:
                return RequestTraits(
                    group_id=request.group_id, creates_group=isinstance(request, UpdateConnectorsRequest)
                )

    def convert(self, group_type: str, group: Any) -> Converted:
        """Reject the conversion of a group with members: the coordinator does not have their connectors (CN-18).

        Raises:
            InconsistentGroupProtocol: always.
        """
        if group_type == CLASSIC:
            what = "their connectors are in topics that this coordinator does not read"
        else:
            what = "they are consumers"
        raise InconsistentGroupProtocol(
            f"the group has members of another protocol, and {what}: stop its members first, "
            "or choose another group id for these workers"
        )

    def step(self, group: ConnectGroupState, what: Input, now_ms: int, client: ClientInfo) -> Outcome[Response | None]:
        if isinstance(what, HeartbeatRequest) or not isinstance(what, GroupRequest):
            return step(group, what, now_ms, self.settings, client=client)

        def decide_heartbeat(beat: HeartbeatRequest, client: ClientInfo) -> Outcome[Response | None]:
            return step(group, beat, now_ms, self.settings, client=client)

        try:
            rules = WorkerRules(self.settings, self._worker_format, decide_heartbeat)
            return decide_classic(group, what, now_ms, client, rules)
        except GroupError as error:
            return Outcome(response=self.error_response(what, error))

    def unchanged(self, group: ConnectGroupState, request: HeartbeatRequest, client: ClientInfo) -> Outcome[Any] | None:
        return unchanged(group, request, self.settings, client)

    def apply(self, group: ConnectGroupState, record: Record) -> None:
        group.apply(record)

    def on_load(self, group: ConnectGroupState, now_ms: int) -> Outcome[None]:
        return on_load(group, now_ms, self.settings)

    def describe(self, group: ConnectGroupState, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        """Describe a group.

        Raises:
            InvalidGroupId: the group id is invalid.
        """
        check_group_id(group.group_id)
        return describe(group, now_ms, request=request, settings=self.settings)

    def takes_long_to_describe(self, group: ConnectGroupState, request: DescribeRequest) -> bool:
        named = None if request.connectors is None else map(group.connectors.get, {*request.connectors})
        described = tuple(group.connectors.values() if named is None else filter(None, named))
        units = sum(len(each.tasks) for each in described) + (0 if request.connectors_only else len(group.holders))
        if units > MANY_UNITS:
            return True
        configs = [each.config for each in described]
        if request.include_task_configs:
            configs += [task.config for each in described for task in each.tasks]
        return sum([len(line.value) for config in configs for line in config]) > MANY_CHARS

    def measure(self, group: ConnectGroupState) -> GroupNumbers:
        return measure(group)

    def error_response(self, request: Any, error: GroupError) -> Response:
        return rejected(request, error.code, str(error))

    def run_assignor(self, effect: Compute) -> ServerAssignment:
        result = self.settings.server_assignors[effect.assignor](effect.input)
        return result if isinstance(result, ServerAssignment) else ServerAssignment(members=result)


# --------------------------------------------------------------------------------------------------
# Entry point of the group logic: one request or one expired timer in, one outcome out.
#
# The runtime calls ``step``. It decides, applies the records, and repeats this for what follows from them (a target
# assignment for connectors that just changed, the end of a rebalance) until nothing follows. All records of one call
# belong in one batch of the log, and no response may be sent before that batch is durable.


ConnectRequest = (
    HeartbeatRequest
    | PrepareRequest
    | InstallRequest
    | DescribeRequest
    | UpdateConnectorsRequest
    | DeleteRequest
    | RestartRequest
)

GroupInput = ConnectRequest | TimerKey | Computed | ProcessEnded
"""An input of a step: a request, an expired timer, the result of a server-side assignor, or the end of a process."""


def handle(
    group: ConnectGroupState,
    request: ConnectRequest,
    now_ms: int,
    settings: GroupSettings,
    *,
    client: ClientInfo = NO_CLIENT,
) -> Outcome[Response]:
    """Decide one request. The group is only read; a rejected request writes no record.

    ``request`` concerns this group; a request to describe or delete several groups is processed for this group alone.
    """
    draft = ConnectDraft(group, now_ms)
    try:
        match request:
            case HeartbeatRequest():
                return heartbeat(draft, request, settings, client)
            case PrepareRequest():
                validate.prepare(request)
                check_process(group, request.member_id, sender_of(request, client))
                return prepare(draft, request, settings)
            case InstallRequest():
                validate.install(request)
                check_process(group, request.member_id, sender_of(request, client))
                return install(draft, request, settings)
            case UpdateConnectorsRequest():
                return update_connectors(draft, request, settings, client)
            case DescribeRequest():
                check_group_id(group.group_id)
                described = describe(group, now_ms, request=request, settings=settings)
                return Outcome(response=DescribeResponse(groups=(described,)))
            case DeleteRequest():
                return delete(group)
            case RestartRequest():
                return restart_member(draft, request)
    except GroupError as error:
        return Outcome(response=rejected(request, error.code, str(error)))


def expire(group: ConnectGroupState, key: TimerKey, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Process an expired timer. A stale timer does nothing: its cause no longer exists, or is not the current one."""
    if key.belongs_to != belongs_to(group, key):
        return Outcome(response=None)
    draft = ConnectDraft(group, now_ms)
    match key.kind:
        case TimerKind.SESSION:
            return session_timed_out(draft, key.member_id, settings)
        case TimerKind.REBALANCE:
            return rebalance_timed_out(draft, key.member_id, settings)
        case TimerKind.COMPUTE:
            return compute_timed_out(draft, settings)
        case TimerKind.DELAY:
            return delay_over(draft, key.member_id, settings)
        case TimerKind.START:
            return starts_overdue(group, settings)


def belongs_to(group: ConnectGroupState, key: TimerKey) -> int:
    """The value of ``TimerKey.belongs_to`` if the timer were armed now.

    Returns:
        COMPUTE: the current computation. REBALANCE: the pending revocation. SESSION, DELAY and START: 0, because a
        heartbeat or a record replaces these timers, and no epoch does.
    """
    match key.kind:
        case TimerKind.COMPUTE:
            return computation_id(group)
        case TimerKind.REBALANCE:
            return timing.revocation(group.current(key.member_id))
        case TimerKind.SESSION | TimerKind.DELAY | TimerKind.START:
            return 0


def step(
    group: ConnectGroupState,
    what: GroupInput,
    now_ms: int,
    settings: GroupSettings,
    *,
    client: ClientInfo = NO_CLIENT,
) -> Outcome[Response | None]:
    """Decide, apply, and follow up. The group has changed when this returns."""
    key = _reports_nothing(group, what, settings, client) if isinstance(what, HeartbeatRequest) else None
    if key is not None and (known := group.kept(key)):
        return known
    outcome: Outcome[Response | None]
    if isinstance(what, Computed):
        outcome = install_computed(ConnectDraft(group, now_ms), what, settings)
    elif isinstance(what, TimerKey):
        outcome = expire(group, what, now_ms, settings)
    elif isinstance(what, ProcessEnded):
        outcome = process_ended(ConnectDraft(group, now_ms), what, settings)
    else:
        outcome = handle(group, what, now_ms, settings, client=client)
        if isinstance(what, HeartbeatRequest) and group.unheard and not getattr(outcome.response, "error_code", 0):
            group.unheard.pop(what.member_id, None)
    if key is not None:
        group.keep(key, outcome)
    records, timers = list(outcome.records), list(outcome.timers)
    _apply(group, outcome.records)
    if isinstance(what, UpdateConnectorsRequest | InstallRequest | Computed) and outcome.records:
        follow_up = request_computation(ConnectDraft(group, now_ms), settings)
        _apply(group, follow_up.records)
        records += follow_up.records
        timers += follow_up.timers
    if not records:
        return outcome  # the usual heartbeat: no record, so no follow-up
    if isinstance(what, HeartbeatRequest) and what.member_epoch == STATIC_LEAVE_EPOCH:
        group.kept_until_ms[what.member_id] = now_ms + settings.session_timeout_ms
    records += _finish(group, now_ms)
    more = next_round(ConnectDraft(group, now_ms), settings)
    _apply(group, more.records)
    records += more.records
    timers += more.timers
    if more.records:
        records += _finish(group, now_ms)  # a round without any work for a member ends at once
    return replace(
        outcome, records=tuple(records), timers=tuple(timers), effects=_effects(group, records, now_ms, settings)
    )


def _finish(group: ConnectGroupState, now_ms: int) -> tuple[Record, ...]:
    """Apply the record that ends a rebalance, if one ends now, and return it."""
    records = finished(group, now_ms)
    _apply(group, records)
    return records


def unchanged(
    group: ConnectGroupState, request: HeartbeatRequest, settings: GroupSettings, client: ClientInfo
) -> Outcome[Response | None] | None:
    """The outcome of a heartbeat that reports nothing, kept from the last equal one; ``None``: it is to be decided."""
    key = _reports_nothing(group, request, settings, client)
    return None if key is None else group.kept(key)


def _reports_nothing(
    group: ConnectGroupState, request: HeartbeatRequest, settings: GroupSettings, client: ClientInfo
) -> CacheKey | None:
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


def _effects(
    group: ConnectGroupState, records: Sequence[Record], now_ms: int, settings: GroupSettings
) -> tuple[Effect, ...]:
    """The effects that the records of a step request. The input of an assignor is the group after the whole step."""
    if not any(isinstance(record, ComputationRecord) for record in records):
        return ()
    return effects_of(group, now_ms, settings)


def on_load(group: ConnectGroupState, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """The timers of a loaded group, and its server-side computation, which ended with the former coordinator.

    A session timer for every member, a rebalance timer for UNREVOKED members only (TO-05), the time left of each delay
    (CN-11), the limit on starts that moves wait for, and the deadline of a computation.
    """
    group.stops.moves_not_started = 0  # as all totals, it starts with the coordinator
    group.stops.ended.clear()
    timers: list[Timer] = [*delays_after_load(group, now_ms, settings)]
    for member_id, member in sorted(group.members.items()):
        timers.append(session(group.group_id, member_id, settings.session_timeout_ms))
        current = group.current(member_id)
        if current.state == MemberState.UNREVOKED:
            timers.append(timing.rebalance(group.group_id, member_id, current, member.rebalance_timeout_ms))
    if group.deferred_starts:
        timers.append(start_timer(group.group_id, settings))
    timers += timer_after_load(group, settings)
    return Outcome(response=None, timers=tuple(timers), effects=effects_of(group, now_ms, settings))


def _apply(group: ConnectGroupState, records: tuple[Record, ...]) -> None:
    for record in records:
        group.apply(record)


def finished(group: ConnectGroupState, now_ms: int) -> tuple[Record, ...]:
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
        max_handover_ms=max((move.handover_ms for move in moves if move.source), default=0),
        moves=tuple(sorted(moves, key=lambda move: move.handover_ms, reverse=True)[:MAX_MOVES]),
        assignor=group.target_assignor,
        delayed=tuple(delayed_until(ConnectDraft(group, now_ms), MAX_MOVES)),
    )
    return (RebalanceRecord(group_id=group.group_id, rebalance=ended),)
