"""The group type ``classic``, as the coordinator's shard knows it; its descriptions, and its numbers for metrics."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from ...errors import (
    FencedInstanceId,
    GroupError,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NonEmptyGroup,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    WireError,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ...protocol.messages.describe import (
    DeletedGroup,
    DeleteRequest,
    DeleteResponse,
    DescribedGroup,
    DescribedMember,
    DescribeRequest,
)
from ...protocol.messages.offsets import (
    CommitInTransaction,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from ...protocol.messages.rejected import rejected
from ...protocol.records.base import Key, Kind, Tombstone
from ...protocol.records.connect import Record
from ...protocol.records.consumer import ClassicState
from ...protocol.units import printable
from .. import offsets
from ..kernel.members import no_such_group
from ..kernel.outcome import (
    Compute,
    ExpireOffsets,
    Outcome,
    Repeat,
    SetTimer,
    Timer,
    TimerKey,
    TimerKind,
    TopicsChanged,
    TransactionsEnded,
)
from ..kernel.state import NO_PROCESS, Process
from ..offsets import Topics, among, end_transactions, refused_commit
from ..registry import NO_CLIENT, ClientInfo, GroupNumbers, Input, RequestTraits, Retired
from .assignment import (
    continue_without_pending,
    drop_pending,
    expire_rebalance,
    is_current,
    remove_and_rebalance,
    sync,
)
from .members import heartbeat, join, leave
from .state import JOIN_WAIT_MS, ClassicGroupState, ClassicSettings, EmbeddedFormat, NoFormat
from .step import GROUP_TYPE, ClassicStep, rebalance_key, session_key


class ClassicGroupType:
    """Groups whose members assign: the ``registry.GroupType`` of type ``classic``.

    Attributes:
        topics: all topics of the cluster by name, as the topic source last read them; ``None``: they are not known, so
            an offset of any topic can be committed. The coordinator sets it.
    """

    name = GROUP_TYPE
    request_types: tuple[type, ...] = (
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        OffsetDeleteRequest,
        CommitInTransaction,
        DeleteRequest,
    )

    def __init__(
        self, settings: ClassicSettings, new_id: Callable[[], str], embedded: EmbeddedFormat | None = None
    ) -> None:
        """Create the group type.

        Args:
            settings: for all groups of this type.
            new_id: returns a part of a member id that no other call returns, also in another process.
            embedded: the bytes that members of the protocol type ``consumer`` exchange; ``None``: they are not read.
        """
        self.settings, self._new_id = settings, new_id
        self._embedded = embedded or NoFormat()
        self.topics: Topics = None

    def new(self, group_id: str) -> ClassicGroupState:
        return ClassicGroupState(group_id)

    def traits(self, request: Any, client: ClientInfo = NO_CLIENT) -> RequestTraits:
        """JoinGroup and SyncGroup may be parked; only JoinGroup creates a group.

        Heartbeats have no sender here: a heartbeat of a member must not complete its JoinGroup, which is parked.
        Requests about offsets belong to this type first, also those of a group of type ``consumer``.
        """
        match request:
            case JoinGroupRequest(group_id=group_id, member_id=member_id):
                return RequestTraits(
                    group_id=group_id, sender=member_id, max_wait_ms=JOIN_WAIT_MS, creates_group=not member_id
                )
            case SyncGroupRequest(group_id=group_id, member_id=member_id):
                return RequestTraits(group_id=group_id, sender=member_id)
            case DeleteRequest(group_ids=(group_id,)):
                return RequestTraits(group_id=group_id)
            case OffsetFetchRequest(groups=(asked, *_)):
                return RequestTraits(group_id=asked.group_id, follows=asked.member_id or "")
            case OffsetCommitRequest(group_id=group_id):
                return RequestTraits(
                    group_id=group_id,
                    follows=request.member_id,
                    creates_group=request.generation_id_or_member_epoch < 0,
                )
            case CommitInTransaction(request=TxnOffsetCommitRequest(group_id=group_id, generation_id=generation)):
                return RequestTraits(group_id=group_id, follows=request.request.member_id, creates_group=generation < 0)
            case GroupHeartbeatRequest(group_id=group_id, member_id=member_id):
                process = Process(NO_PROCESS.process_id, client.principal)
                return RequestTraits(group_id=group_id, member=member_id, beats=True, process=process)
            case _:
                return RequestTraits(group_id=request.group_id)

    def step(self, group: ClassicGroupState, what: Input, now_ms: int, client: ClientInfo) -> Outcome[Response | None]:
        step = ClassicStep(group, self.settings, now_ms, self.topics)
        match what:
            case JoinGroupRequest():
                return join(step, what, client, self._new_id)
            case SyncGroupRequest():
                return sync(step, what)
            case GroupHeartbeatRequest():
                return heartbeat(step, what)
            case LeaveGroupRequest():
                return leave(step, what)
            case OffsetCommitRequest() | OffsetFetchRequest() | OffsetDeleteRequest() | CommitInTransaction():
                return self._offsets(step, what)
            case ExpireOffsets():
                for record in expire(step, among(partial(self._subscribed_topics, group))):
                    step.write(record)
            case TransactionsEnded():
                for record in end_transactions(group.offsets, what):
                    step.write(record)
            case DeleteRequest():
                return step.outcome(_delete(step))
            case TopicsChanged():
                for record in group.offsets.changes(self.topics):
                    step.write(record)
            case TimerKey(kind=TimerKind.SESSION):
                _expire_session(step, what.member_id)
            case TimerKey(kind=TimerKind.REBALANCE) if is_current(step, what.belongs_to):
                expire_rebalance(step)
        return step.outcome(None)

    def _offsets(self, step: ClassicStep, request: Any) -> Outcome[Response | None]:
        try:
            match request:
                case OffsetCommitRequest():
                    return commit(step, request)
                case OffsetFetchRequest():
                    return fetch(step, request)
                case OffsetDeleteRequest():
                    return delete(step, request, among(partial(self._subscribed_topics, step.group)))
                case _:
                    return commit_in_transaction(step, request)
        except GroupError as error:
            return Outcome(response=self.error_response(request, error))

    def _subscribed_topics(self, group: ClassicGroupState) -> Container[str]:
        """The topics that the members are subscribed to; any if a subscription cannot be read, as in Kafka."""
        try:
            subscriptions = [
                self._embedded.decode_subscription(group.metadata(member)) for member in group.members.values()
            ]
        except WireError:
            return _Everything()
        return frozenset[str]().union(*(each.topics for each in subscriptions))

    def apply(self, group: ClassicGroupState, record: Record) -> None:
        group.apply(record)

    def on_load(self, group: ClassicGroupState, now_ms: int) -> Outcome[None]:
        """Sessions restart. A rebalance continues: its members send their requests again.

        Topics may have been deleted since the group was last in memory.
        """
        timers: list[Timer] = [
            SetTimer(session_key(group, member.member_id), member.session_timeout_ms)
            for member in group.members.values()
        ]
        if group.state in REBALANCING:
            timers.append(SetTimer(rebalance_key(group), group.rebalance_timeout_ms))
        if group.state is ClassicState.STABLE:
            group.synced.update(group.members)
        changed = Repeat(group_id=group.group_id, what=TopicsChanged(group_id=group.group_id))
        return Outcome(response=None, timers=tuple(timers), effects=(changed,) if group.offsets else ())

    def describe(self, group: ClassicGroupState, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        """Describe a group.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        if not group.exists:
            raise no_such_group(group.group_id)
        return describe(group, request)

    def retire(self, group: ClassicGroupState) -> Retired | None:
        """A group without members may be replaced by a consumer group, which keeps its offsets."""
        if group.members or group.pending:
            return None
        return Retired(removed=(Tombstone(Key(Kind.CLASSIC_GROUP, group.group_id)),), kept=group.offsets.every_record())

    def takes_long_to_describe(self, group: ClassicGroupState, request: DescribeRequest) -> bool:
        return False

    def measure(self, group: ClassicGroupState) -> GroupNumbers:
        return measure(group)

    def error_response(self, request: Any, error: GroupError) -> Response:
        """The response with the error, as Kafka's clients know it."""
        if isinstance(request, OffsetCommitRequest):
            return refused_commit(request, error, self.topics)
        if isinstance(request, CommitInTransaction):
            request = request.request
        return rejected(request, _code(request, error), str(error) if isinstance(request, DeleteRequest) else None)

    def run_assignor(self, effect: Compute) -> Any:
        """Never called: the members of a classic group assign."""
        raise AssertionError("classic groups have no server-side assignor")


class _Everything:
    """Contains every topic."""

    def __contains__(self, topic: object) -> bool:
        return True


def _code(request: Any, error: GroupError) -> int:
    """The error code of a request that was not decided."""
    if not isinstance(request, GroupRequest):
        return error.code
    if isinstance(error, StaleMemberEpoch):
        return RebalanceInProgress.code  # a later request of the member has replaced this one
    if isinstance(error, InconsistentGroupProtocol) and not isinstance(request, JoinGroupRequest):
        return UnknownMemberId.code  # the group is of another type, so it has no such member
    return error.code


def _expire_session(step: ClassicStep, member_id: str) -> None:
    """The session of a member, or of a member id that is pending, has expired."""
    group = step.group
    if member_id in group.pending:
        drop_pending(step, member_id)
        continue_without_pending(step)
    elif member_id in group.members:
        # A member whose request is parked is alive. A new member may have disconnected: see ``new_member_timeout_ms``.
        waits = member_id in group.joining or member_id in group.syncing
        if not waits or member_id in group.new:
            remove_and_rebalance(step, member_id)


def _delete(step: ClassicStep) -> DeleteResponse:
    group = step.group
    name = printable(group.group_id)
    error: GroupError | None = None
    if not group.exists:
        error = GroupIdNotFound(f"GroupId: got {name!r}; there is no such group")
    elif group.members:
        error = NonEmptyGroup(f"group {name} has {len(group.members)} members; allowed: a group without members")
    else:
        step.delete()
    code, message = (error.code, str(error)) if error else (0, None)
    return DeleteResponse(results=(DeletedGroup(group_id=group.group_id, error_code=code, error_message=message),))


# --------------------------------------------------------------------------------------------------
# Commit and fetch of a classic group's offsets, fenced by the generation (OC-06, OC-07).
#
# Source: Kafka's ``ClassicGroup.validateOffsetCommit`` and ``validateOffsetFetch``.


CONSUMERS: Final = "consumer"
"""The protocol type of members that read topics."""


def commit(step: ClassicStep, request: OffsetCommitRequest) -> Outcome[Response | None]:
    """Commit offsets. A sender without a generation may commit if the group has no members; it creates the group.

    Raises:
        GroupIdNotFound, IllegalGeneration, RebalanceInProgress, UnknownMemberId, FencedInstanceId: nothing is
            committed.
    """
    if (unknown := offsets.commits_nothing(request, step.topics)) is not None:
        return step.outcome(unknown)
    group, generation = step.group, request.generation_id_or_member_epoch
    if generation < 0 and not group.members:
        step.create()
    else:
        _check_member(step, request)
        if not group.is_generation_of(request.member_id, generation):
            raise IllegalGeneration(f"generation {generation}; the group is at {group.generation}")
        if group.state is ClassicState.COMPLETING_REBALANCE:
            raise RebalanceInProgress("the leader has not assigned yet")
        step.arm_session(request.member_id)
    response, records = offsets.commit(
        request, lambda topic, partition: 0, step.now_ms, step.topics, group.offsets, step.settings.offsets
    )
    for record in records:
        step.write(record)
    return step.outcome(response)


def commit_in_transaction(step: ClassicStep, commit: CommitInTransaction) -> Outcome[Response | None]:
    """Commit offsets with a transaction. A sender that does not say which member it is may commit at any time.

    Raises:
        UnknownMemberId, FencedInstanceId, IllegalGeneration: nothing is committed.

    Source: Kafka's ``ClassicGroup.validateOffsetCommit``.
    """
    group, request = step.group, commit.request
    generation = request.generation_id
    if generation < 0 and not group.members:
        step.create()
    elif generation >= 0 or request.member_id or request.group_instance_id is not None:
        if not group.exists:
            raise IllegalGeneration(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
        _check_member(step, request)
        if not group.is_generation_of(request.member_id, generation):
            raise IllegalGeneration(f"generation {generation}; the group is at {group.generation}")
    response, records = offsets.commit_in_transaction(
        commit, lambda topic, partition: 0, step.now_ms, step.topics, group.offsets, step.settings.offsets
    )
    for record in records:
        step.write(record)
    return step.outcome(response)


def delete(
    step: ClassicStep, request: OffsetDeleteRequest, is_subscribed: Callable[[str], bool]
) -> Outcome[Response | None]:
    """Delete offsets.

    Raises:
        GroupIdNotFound: there is no such group.
        NonEmptyGroup: it has members whose subscriptions are not known.
    """
    group, name = step.group, printable(step.group.group_id)
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {name!r}; there is no such group")
    if group.members and group.record.protocol_type != CONSUMERS:
        raise NonEmptyGroup(f"group {name} has {len(group.members)} members; allowed: a group without members")
    response, records = offsets.delete(group.offsets, request, step.topics, is_subscribed)
    for record in records:
        step.write(record)
    return step.outcome(response)


def expire(step: ClassicStep, is_subscribed: Callable[[str], bool]) -> tuple[Record, ...]:
    """The records that remove offsets after the retention time: from when the last member left, or from the commit.

    The offsets of members that are rebalancing, or whose subscriptions are not known, do not expire.

    Source: Kafka's ``ClassicGroup.offsetExpirationCondition``.
    """
    group = step.group
    empty_ms = group.record.since_ms if group.record.protocol_type and not group.members else 0
    if group.members and (group.record.protocol_type != CONSUMERS or group.state is not ClassicState.STABLE):
        return ()
    before_ms = step.now_ms - step.settings.offsets.retention_ms
    return offsets.expired(group.offsets, is_subscribed, lambda record: empty_ms or record.at_ms, before_ms)


def _check_member(step: ClassicStep, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
    group, member_id = step.group, request.member_id
    if not group.exists:
        lacks = isinstance(request, OffsetCommitRequest) and request.lacks_member_epochs
        error = IllegalGeneration if lacks else GroupIdNotFound
        raise error(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    code = group.member_error(member_id, request.group_instance_id)
    if code == FencedInstanceId.code:
        raise FencedInstanceId(f"GroupInstanceId: {printable(request.group_instance_id)!r} is in use")
    if code:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def fetch(step: ClassicStep, request: OffsetFetchRequest) -> Outcome[Response | None]:
    """Fetch offsets: of any sender."""
    return step.outcome(offsets.fetch(step.group.offsets, request, step.topics))


REBALANCING: Final = (ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE)


def describe(group: ClassicGroupState, request: DescribeRequest) -> DescribedGroup:
    """A group that exists: its state, its generation and, unless left out, its members."""
    members = tuple(
        DescribedMember(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_host=member.client_host,
            client_id=member.client_id,
            member_epoch=group.generation,
            state="STABLE" if group.state is ClassicState.STABLE else "REBALANCING",
            classic_metadata=group.metadata(member) if request.include_classic else b"",
            classic_assignment=member.assignment if request.include_classic else b"",
        )
        for member in group.members.values()
    )
    return DescribedGroup(
        group_id=group.group_id,
        state=group.state.shown,
        group_epoch=group.generation,
        assignor_name=group.record.protocol_name,
        members=() if request.connectors_only else members,
        incarnation=group.created_ms,
        protocol_type=group.record.protocol_type,
        classic_state=group.state.shown,
    )


def measure(group: ClassicGroupState) -> GroupNumbers:
    """The state of a group as numbers, for metrics."""
    return GroupNumbers(
        members=len(group.members),
        epoch=group.generation,
        target_epoch=group.generation,
        computed_by=group.record.leader,
        is_rebalancing=group.state in REBALANCING,
    )
