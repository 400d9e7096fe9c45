"""The group type ``consumer``, as the coordinator's shard knows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupError,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    UnreleasedInstanceId,
    UnsupportedVersion,
)
from ...protocol.messages.api import Response
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ...protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    DescribedConsumerGroup,
)
from ...protocol.messages.describe import DeleteRequest, DescribedGroup, DescribeRequest
from ...protocol.messages.offsets import (
    CommitInTransaction,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from ...protocol.messages.rejected import rejected
from ...protocol.records.base import Kind, MemberState, Tombstone
from ...protocol.records.connect import Record
from ...protocol.records.consumer import CONSUMER, TopicMetadata
from ...protocol.units import JOIN_EPOCH, printable
from ..classic.state import ClassicSettings, EmbeddedFormat, NoFormat
from ..classic.step import GROUP_TYPE as CLASSIC
from ..kernel import outcome as timing
from ..kernel.computation import computation_id, timer_after_load
from ..kernel.members import check_exists
from ..kernel.outcome import (
    Compute,
    Computed,
    Converted,
    ExpireOffsets,
    Match,
    Matched,
    Outcome,
    Repeat,
    Timer,
    TimerKey,
    TimerKind,
    TopicsChanged,
    TransactionsEnded,
    Warn,
)
from ..kernel.state import CacheKey
from ..kernel.validate import check_group_id
from ..offsets import among, end_transactions, expired, refused_commit
from ..registry import NO_CLIENT, ClientInfo, GroupNumbers, Input, RequestTraits, Retired
from . import classic_members, offsets
from .assignment import (
    compute_timed_out,
    effects_of,
    ensure_computation,
    install,
    install_computed,
    prepare,
    refresh,
    resolve,
)
from .classic_members import ClassicMemberRules, session_timer
from .convert import from_classic, to_classic, unknown_topics
from .describe import describe, describe_consumer, measure
from .heartbeat import check_computation, check_heartbeat, heartbeat, leave, rebalance_timed_out, session_timed_out
from .settings import ConsumerServerAssignment, ConsumerSettings
from .state import Awaited, ConsumerDraft, ConsumerGroupState


def match_no_topic(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    """The search for topics on a coordinator without a library for regular expressions."""
    return frozenset()


MANY_PARTITIONS: Final = 5_000
"""A description of so many partitions takes 7 ms."""


class ConsumerGroupType:
    """Groups of consumers on the protocol of KIP-848: the ``registry.GroupType`` of type ``consumer``.

    Attributes:
        topics: all topics of the cluster by name, as the topic source last read them; ``None``: there is no topic
            source, and consumers cannot join.
    """

    name = CONSUMER
    request_types: tuple[type, ...] = (
        ConsumerHeartbeatRequest,
        ConsumerDescribeRequest,
        ConsumerPrepareRequest,
        ConsumerInstallRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        OffsetDeleteRequest,
        CommitInTransaction,
        DeleteRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
    )
    member_request_types: tuple[type, ...] = (
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
    )

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        new_id: Callable[[], str],
        match_topics: Callable[[str, tuple[str, ...]], frozenset[str]] = match_no_topic,
        embedded: EmbeddedFormat | None = None,
        classic: ClassicSettings | None = None,
        confirm_absent: Callable[[frozenset[str]], bool] = lambda names: True,
        expect_topics: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the type.

        Args:
            settings: for all groups of this type.
            new_id: returns a member id that no other call returns, also in another process.
            match_topics: returns the names that match a regular expression; called in a thread.
            embedded: the bytes that members of the classic protocol exchange; ``None``: none can be in a group.
            classic: the settings of classic groups; the defaults if ``None``.
            confirm_absent: whether these topics have been looked for since a request named them, and do not exist; if
                not, a read of the topics begins.
            expect_topics: called when a member subscribes to a topic that does not exist, as far as is known.
        """
        self.settings = settings
        self.topics: Mapping[str, TopicMetadata] | None = None
        self._confirm_absent, self._expect_topics = confirm_absent, expect_topics
        self._new_id, self._match_topics = new_id, match_topics
        self._classic = ClassicMemberRules(settings, classic or ClassicSettings(), embedded or NoFormat(), new_id)

    def new(self, group_id: str) -> ConsumerGroupState:
        return ConsumerGroupState(group_id)

    def traits(self, request: Any, client: ClientInfo = NO_CLIENT) -> RequestTraits:
        """A heartbeat re-arms the session timer of its sender when it arrives; a join does not.

        Each may be parked: clients of other implementations do not ask for it, and a commit of theirs on the same
        connection ends it (``RequestTraits.follows``).
        """
        if isinstance(request, ConsumerHeartbeatRequest):
            joins = request.member_epoch == JOIN_EPOCH
            session = timing.session(request.group_id, request.member_id, self.settings.session_timeout_ms)
            return RequestTraits(
                group_id=request.group_id,
                sender=request.member_id,
                max_wait_ms=min(request.max_wait_ms or self.settings.max_wait_ms, self.settings.max_park_ms),
                yields=not request.max_wait_ms,
                renews=session if request.member_epoch > JOIN_EPOCH else None,
                beats=request.member_epoch > JOIN_EPOCH,
                creates_group=joins,
            )
        match request:
            case ConsumerDescribeRequest() | DeleteRequest():
                return RequestTraits(group_id=request.group_ids[0])
            case OffsetFetchRequest(groups=(asked, *_)):
                return RequestTraits(group_id=asked.group_id)
            case _:
                return RequestTraits(group_id=request.group_id)

    def step(self, group: ConsumerGroupState, what: Input, now_ms: int, client: ClientInfo) -> Outcome[Response | None]:
        """Decide, apply, follow up."""
        key = self._reports_nothing(group, what) if isinstance(what, ConsumerHeartbeatRequest) else None
        if key is not None and (known := group.kept(key)):
            return known
        if isinstance(what, ConsumerHeartbeatRequest) and not what.member_id and what.member_epoch == JOIN_EPOCH:
            what = replace(what, member_id=self._new_id())
        try:
            outcome = self._decide(self._draft(group, now_ms), what, client)
        except GroupError as error:
            return Outcome(response=self.error_response(what, error), effects=self._warnings(group, error))
        if key is not None:
            group.keep(key, outcome)
        if outcome.records:
            outcome = replace(outcome, parked_responses=classic_members.responses_to_removed(group, outcome.records))
        for record in outcome.records:
            group.apply(record)
        records, timers = outcome.records, outcome.timers
        if isinstance(what, ConsumerInstallRequest | Computed) and records:
            # The group epoch may have advanced while the assignor ran.
            draft = self._draft(group, now_ms)
            timers = (*timers, *ensure_computation(draft, self.settings))
            for record in draft.records:
                group.apply(record)
            records = (*records, *draft.records)
        if not records:
            return outcome
        if self._has_classic_members_only(group, records):
            converted = to_classic(self._classic, group, now_ms, self._cluster(group))
            for record in converted.records:
                group.apply(record)
            return replace(
                outcome,
                records=(*records, *converted.records),
                timers=(*timers, *converted.timers),
                converted=converted,
            )
        effects = (*outcome.effects, *effects_of(self._draft(group, now_ms), records))
        return replace(outcome, records=records, timers=timers, effects=tuple(dict.fromkeys(effects)))

    def unchanged(
        self, group: ConsumerGroupState, request: ConsumerHeartbeatRequest, client: ClientInfo
    ) -> Outcome[Any] | None:
        key = self._reports_nothing(group, request)
        return None if key is None else group.kept(key)

    def _warnings(self, group: ConsumerGroupState, error: GroupError) -> tuple[Warn, ...]:
        """Two consumers with one group instance id: one of them is a mistake that its operator must see."""
        if not isinstance(error, UnreleasedInstanceId | FencedInstanceId):
            return ()
        message = f"two consumers have the same group.instance.id: {error}; give each its own"
        return (Warn(group_id=group.group_id, epoch=group.epoch, message=message),)

    def _reports_nothing(self, group: ConsumerGroupState, request: ConsumerHeartbeatRequest) -> CacheKey | None:
        """The key of a heartbeat that reports nothing and does not join or leave; ``None`` for any other request."""
        if (
            request.owned is None
            and request.member_epoch > JOIN_EPOCH
            and request.rebalance_timeout_ms == -1
            and request.rack_id is None
            and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None
            and request.server_assignor is None
            and request.client_assignors is None
            and request.max_wait_ms >= 0
            and request.group_id == group.group_id
            and self.topics is not None
        ):
            return request.member_id, request.member_epoch, request.max_wait_ms > 0, request.instance_id
        return None

    def _has_classic_members_only(self, group: ConsumerGroupState, records: tuple[Record, ...]) -> bool:
        """Whether the last member of the consumer protocol has been removed, and members of the other remain."""
        return (
            any(isinstance(each, Tombstone) and each.key.kind is Kind.CONSUMER_MEMBER for each in records)
            and self.settings.migration_policy.downgrades
            and 0 < len(group.members) <= self.settings.max_classic_members
            and all(member.uses_classic_protocol for member in group.members.values())
        )

    def convert(self, group_type: str, group: Any) -> Converted:
        """Convert a classic group with members into a consumer group.

        Raises:
            InconsistentGroupProtocol, UnsupportedVersion: it cannot be converted.
            CoordinatorLoadInProgress: it can be converted once the topics that its members own have been read.
        """
        if group_type != CLASSIC:
            raise InconsistentGroupProtocol(f"group {printable(group.group_id)} is of type {group_type!r}")
        topics = self._known_topics()
        converted = from_classic(self._classic, group, topics)
        unknown = unknown_topics(self._classic, group, topics)
        if unknown and not self._confirm_absent(unknown):
            names = printable(", ".join(sorted(unknown)))
            raise CoordinatorLoadInProgress(f"members own partitions of topics that are being read: {names}")
        return converted

    def _known_topics(self) -> Mapping[str, TopicMetadata]:
        if self.topics is None:
            raise UnsupportedVersion(
                "this coordinator does not know the cluster's topics: start it with topics_from=HOST:PORT, "
                "or set group.protocol=classic"
            )
        return self.topics

    def _draft(self, group: ConsumerGroupState, now_ms: int) -> ConsumerDraft:
        return ConsumerDraft(group, now_ms, self._cluster(group))

    def _cluster(self, group: ConsumerGroupState) -> Mapping[str, TopicMetadata]:
        """All topics of the cluster or, while they are not known, those that the group has stored."""
        return self.topics if self.topics is not None else group.topics

    def _decide(self, draft: ConsumerDraft, what: Input, client: ClientInfo) -> Outcome[Any]:
        settings = self.settings
        match what:
            case ConsumerHeartbeatRequest():
                return self._heartbeat(draft, what, client)
            case JoinGroupRequest():
                return classic_members.join(self._classic, draft, what, client)
            case SyncGroupRequest():
                return classic_members.sync(self._classic, draft, what)
            case GroupHeartbeatRequest():
                return classic_members.heartbeat(self._classic, draft, what)
            case LeaveGroupRequest():
                return classic_members.leave(self._classic, draft, what)
            case ConsumerDescribeRequest():
                return Outcome(response=ConsumerDescribeResponse(groups=(self._described(draft.group),)))
            case ConsumerPrepareRequest():
                check_computation(what)
                return prepare(draft, what)
            case ConsumerInstallRequest():
                check_computation(what)
                return install(draft, what, settings)
            case OffsetCommitRequest():
                return offsets.commit(draft.group, what, draft.now_ms, self.topics, settings.offsets)
            case OffsetFetchRequest():
                return offsets.fetch(draft.group, what, self.topics)
            case OffsetDeleteRequest():
                return offsets.delete(draft, what, self.topics)
            case CommitInTransaction():
                return offsets.commit_in_transaction(draft.group, what, draft.now_ms, self.topics, settings.offsets)
            case ExpireOffsets():
                return Outcome(response=None, records=self._expired(draft))
            case TransactionsEnded():
                return Outcome(response=None, records=end_transactions(draft.group.offsets, what))
            case DeleteRequest():
                return offsets.delete_group(draft)
            case Computed():
                return install_computed(draft, what, settings)
            case Matched():
                resolve(draft, what)
            case TopicsChanged():
                return self._topics_changed(draft)
            case TimerKey() if what.belongs_to == _belongs_to(draft.group, what):
                return self._expire(draft, what)
        timers = ensure_computation(draft, settings) if draft.records else ()
        return draft.outcome(None, timers)

    def _heartbeat(self, draft: ConsumerDraft, request: ConsumerHeartbeatRequest, client: ClientInfo) -> Outcome[Any]:
        known = self._known_topics()
        check_heartbeat(request, self.settings)
        if request.subscribed_topic_names and not all(name in known for name in request.subscribed_topic_names):
            self._expect_topics()
        if request.member_epoch < JOIN_EPOCH:
            return leave(draft, request, self.settings)
        return heartbeat(draft, request, self.settings, client)

    def _topics_changed(self, draft: ConsumerDraft) -> Outcome[Any]:
        """The topics of the cluster have changed: store the subscribed ones, resolve regular expressions again.

        The offsets of deleted topics are removed.
        """
        refresh(draft)
        for record in draft.group.offsets.changes(self.topics):
            draft.write(record)
        timers = ensure_computation(draft, self.settings)
        regexes = sorted({member.subscribed_topic_regex for member in draft.members()} - {""})
        effects = [Match(group_id=draft.group_id, group_type=CONSUMER, pattern=regex) for regex in regexes]
        return Outcome(response=None, records=tuple(draft.records), timers=timers, effects=tuple(effects))

    def _expired(self, draft: ConsumerDraft) -> tuple[Record, ...]:
        """The offsets of topics that no member has been subscribed to for the retention time since the commit."""
        before_ms = draft.now_ms - self.settings.offsets.retention_ms
        is_subscribed = among(draft.subscribed_topics)
        return expired(draft.group.offsets, is_subscribed, lambda record: record.at_ms, before_ms)

    def _expire(self, draft: ConsumerDraft, key: TimerKey) -> Outcome[Any]:
        match key.kind:
            case TimerKind.SESSION:
                return session_timed_out(draft, key.member_id, self.settings)
            case TimerKind.REBALANCE:
                return rebalance_timed_out(draft, key.member_id, self.settings)
            case TimerKind.COMPUTE:
                return compute_timed_out(draft, self.settings)
            case _:
                return Outcome(response=None)

    def _described(self, group: ConsumerGroupState) -> DescribedConsumerGroup:
        check_group_id(group.group_id)
        check_exists(group)
        return describe_consumer(group, self.settings)

    def apply(self, group: ConsumerGroupState, record: Record) -> None:
        group.apply(record)

    def on_load(self, group: ConsumerGroupState, now_ms: int) -> Outcome[None]:
        """Session timers for all members, rebalance timers for UNREVOKED members only (TO-05).

        The topics may have changed while no coordinator served the group.
        """
        timers: list[Timer] = []
        for member_id, member in sorted(group.members.items()):
            timers.append(session_timer(group.group_id, member, self.settings))
            current = group.current(member_id)
            if current.state == MemberState.UNREVOKED and not member.uses_classic_protocol:
                timers.append(timing.rebalance(group.group_id, member_id, current, member.rebalance_timeout_ms))
        timers += timer_after_load(group, self.settings)
        again = Repeat(group_id=group.group_id, what=TopicsChanged(group_id=group.group_id))
        return Outcome(response=None, timers=tuple(timers), effects=(*effects_of(self._draft(group, now_ms)), again))

    def describe(self, group: ConsumerGroupState, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        """Describe a group.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        check_exists(group)
        return describe(group, request)

    def retire(self, group: ConsumerGroupState) -> Retired | None:
        """A group without members may be replaced by a classic one, which keeps its offsets."""
        return None if group.members else Retired(removed=offsets.remains(group), kept=group.offsets.every_record())

    def takes_long_to_describe(self, group: ConsumerGroupState, request: DescribeRequest) -> bool:
        return not request.connectors_only and len(group.holders) > MANY_PARTITIONS

    def measure(self, group: ConsumerGroupState) -> GroupNumbers:
        return measure(group)

    def error_response(self, request: Any, error: GroupError) -> Response:
        """The response of the request's own type that carries the error."""
        if isinstance(request, GroupRequest):
            return rejected(request, error.code)
        if isinstance(error, InconsistentGroupProtocol):
            # Kafka's clients then describe the group as one of the classic type.
            error = GroupIdNotFound(str(error))
        if isinstance(request, OffsetCommitRequest):
            return refused_commit(request, error, self.topics)
        if isinstance(request, CommitInTransaction):
            request = request.request
        return rejected(request, error.code, str(error))

    def run_assignor(self, effect: Compute) -> ConsumerServerAssignment:
        return self.settings.server_assignors[effect.assignor](effect.input)

    def match(self, effect: Match) -> frozenset[str]:
        """The topics that match a regular expression."""
        if self.topics is None:
            raise CoordinatorNotAvailable("the topics of the cluster are not known")
        return self._match_topics(effect.pattern, tuple(self.topics))


def _belongs_to(group: ConsumerGroupState, key: TimerKey) -> int:
    match key.kind:
        case TimerKind.COMPUTE:
            return computation_id(group)
        case TimerKind.REBALANCE:
            awaited = group.awaited.get(key.member_id, Awaited.NOTHING)
            return awaited or timing.revocation(group.current(key.member_id))
        case _:
            return 0
