"""The membership of one consumer in a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A round is one rebalance from JoinGroup to SyncGroup. It runs as a task concurrently with the consumer, so that reading
continues under the COOPERATIVE protocol.

Source: Kafka's ``AbstractCoordinator`` and ``ConsumerCoordinator``; KIP-62, KIP-345, KIP-394, KIP-792, KIP-800,
KIP-814.

The coordinator does not interpret partitions. Between JoinGroup and SyncGroup the member that it elected leader reads
all subscriptions, queries the cluster for the topics, and computes the assignment. The assignor is untrusted code: it
runs off the event loop with a time limit, and its result is validated. If it fails, all members keep their partitions
for this generation, so a faulty plug-in costs the group no more than a rebalance.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ..assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from ..assign.convert import assignor_info
from ..assign.members import PartitionMemberAssignment, TopicSpec, claimants
from ..assign.sandbox import run_assignor
from ..errors import ConnectGroupError, PluginError, TransportError
from ..protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ..protocol.messages.common import AssignorInfo
from ..protocol.units import TopicPartition, printable
from ..threads import off_loop
from ..topics import matching_topics
from ..wire.embedded import decode_assignment, decode_subscription
from .client import REQUEST_TIMEOUT_S, GroupClient
from .errors import Code
from .membership import LEAVE_TIMEOUT_S, Membership
from .rounds import Joined, assignments_to_send, assignor_named, group_input, validate_result
from .settings import GroupConsumerSettings

logger = logging.getLogger(__name__)

PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A rebalance that is complete for this member.

    Attributes:
        generation: of the rebalance.
        assignor: the assignor that was used.
        leader: whether this member computed the assignment.
        share: the member's assignment.
        version: the version of its user data, -1 if unknown.
        error: the assignor's own error number for this member, 0 if there is none.
        failure: of the assignor, if this member led and the assignor failed.
        missed: whether a generation began without this member since its last assignment. Other members may own the
            partitions that it kept.
    """

    generation: int
    assignor: PartitionAssignor
    leader: bool
    share: EmbeddedAssignment
    version: int
    error: int
    failure: PluginError | None
    missed: bool


class ClassicMembership(Membership):
    """This member's state at the coordinator of a classic group.

    Attributes:
        round: the rebalance in progress, until the consumer has applied its result.
        subscribed: the topics that the member subscribes to.
    """

    def __init__(
        self, client: GroupClient, settings: GroupConsumerSettings, assignors: Sequence[PartitionAssignor]
    ) -> None:
        super().__init__(client, settings)
        self._assignors = assignors
        self.round: asyncio.Task[Round | None] | None = None
        self.subscribed = frozenset(settings.topics)
        self._watched: tuple[frozenset[str], tuple[TopicSpec, ...]] | None = None
        self._missed = False
        self._sent_metadata: tuple[AssignorInfo, ...] | None = None  # of the last JoinGroup; ``None``: rejoining anyway

    @property
    def is_rebalancing(self) -> bool:
        return self.round is not None

    async def next_generation(self, code: int, generation: int) -> bool:
        if self.round is None or self.round.done():
            return False
        # The commit carried the old generation while the new one begins, or came before its leader has assigned.
        # Partitions that are still owned are owned in the new generation too, unless a generation was missed.
        joining = self.round
        await asyncio.wait({joining})
        return self.in_group and not _has_missed(joining)

    # ------------------------------------------------------------------------------------------ join

    def begin_round(self, offers: Callable[[], tuple[OfferedProtocol, ...]]) -> None:
        """Start a rebalance in the background."""
        self.round = asyncio.create_task(self._measured(self._join(offers)), name="rebalance")

    def take_round(self) -> Round | None:
        """Return the result of the rebalance that is complete. Raises what ended it."""
        assert self.round is not None
        task, self.round = self.round, None
        return task.result()

    async def cancel_round(self) -> None:
        """Abort the rebalance in progress, if any."""
        if self.round is not None:
            self.round.cancel()
            await asyncio.wait({self.round})

    async def _measured(self, joining: Coroutine[Any, Any, Round | None]) -> Round | None:
        began_s = time.monotonic()
        try:
            ended = await joining
        except Exception:
            self.metrics.on_rebalance(began_s, failed=True)
            raise
        self.metrics.on_rebalance(began_s, failed=ended is None)
        return ended

    async def _join(self, offers: Callable[[], tuple[OfferedProtocol, ...]]) -> Round | None:
        """Run one rebalance; retry until it is complete or the membership has ended.

        Args:
            offers: returns the protocols for JoinGroup: assignor names and subscriptions.

        Returns:
            ``None`` if the membership was lost, also by the response to a request sent before: the member's partitions
            must be released before the next attempt. They belong to others, who would lose commits to those of a new
            member.

        Raises:
            ConnectGroupError: the member cannot join the group at all.
        """
        self._joining, was_member = True, self.in_group
        try:
            reason = ""
            while self.in_group or not was_member:
                reason, self.rejoin = self.rejoin or reason, ""
                self._sent_metadata = self._metadata()
                joined = await self._join_group(offers(), reason)
                if joined is None:
                    return None
                try:
                    ended = await self._sync_group(joined)
                except TransportError as error:
                    logger.warning("group %s: %s; joining again", self.settings.group, error)
                    continue
                if ended is not None or not self.in_group:
                    return ended
            return None
        finally:
            self._joining = False
            self.changed.set()

    async def _join_group(self, offers: tuple[OfferedProtocol, ...], reason: str) -> JoinGroupResponse | None:
        """Send JoinGroup until it is accepted; ``None`` if the membership is lost."""
        settings, was_member = self.settings, self.in_group
        while self.in_group or not was_member:
            request = JoinGroupRequest(
                group_id=settings.group,
                session_timeout_ms=settings.session_timeout_ms,
                rebalance_timeout_ms=settings.max_poll_interval_ms,
                member_id=self.member_id,
                group_instance_id=settings.instance,
                protocol_type=PROTOCOL_TYPE,
                protocols=offers,
                reason=reason[:255],
            )
            # The response is sent when the slowest member has joined: the coordinator's limit for that, and a margin.
            max_s = max(REQUEST_TIMEOUT_S, settings.max_poll_interval_ms / 1000 + 5)
            began_s = time.monotonic()
            try:
                response: JoinGroupResponse = await self._client.send_to_coordinator(request, timeout_s=max_s)
            except TransportError as error:
                logger.debug("group %s: %s; trying again", settings.group, error)
                continue
            match response.error_code:
                case Code.NONE:
                    self.metrics.on_joined(began_s)
                    if was_member and not self.in_group:
                        break
                    # A static member stays in the group without joining. In a group of KIP-848, which has no leader,
                    # epochs are skipped.
                    if self.in_group and response.leader and response.generation_id > self.generation + 1:
                        self._missed, self.losses = True, self.losses + 1
                    self.member_id, self.generation = response.member_id, response.generation_id
                    self.in_group, self.lost_because = True, ""
                    self._heard_at = time.monotonic()
                    self._note_assignor(response.protocol_name or "", [each.name for each in self._assignors])
                    return response
                case Code.MEMBER_ID_REQUIRED:
                    self.member_id = response.member_id
                case Code.REBALANCE_IN_PROGRESS | Code.UNRELEASED_INSTANCE_ID:
                    await asyncio.sleep(0.1)
                case Code.UNKNOWN_MEMBER_ID | Code.ILLEGAL_GENERATION if not self.in_group:
                    self.member_id = ""  # not in the group, nothing to lose: the next attempt joins as a new member
                case code:
                    self.refused(code, "JoinGroup")
                    break
        return None

    async def _sync_group(self, joined: JoinGroupResponse) -> Round | None:
        """Return ``None`` to join again: membership was lost, or another rebalance has begun."""
        settings = self.settings
        assignor = assignor_named(self._assignors, joined.protocol_name or "")
        leader = joined.leader == joined.member_id
        led = None
        self._watched = None
        if leader:
            self._joining = False  # heartbeats continue while the leader computes
            try:
                # The coordinator removes a leader that sends nothing for the whole interval.
                timeout_s = settings.max_poll_interval_ms / 2000
                led = await lead(
                    self._client,
                    assignor,
                    joined.members,
                    as_before=joined.skip_assignment,
                    timeout_s=timeout_s,
                )
            finally:
                self._joining = True
            if not self.in_group:
                return None
            self._watched = (led.names, led.topics)
        request = SyncGroupRequest(
            group_id=settings.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=settings.instance,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=led.shares if led is not None else (),
        )
        max_s = max(REQUEST_TIMEOUT_S, settings.max_poll_interval_ms / 1000 + 5)
        began_s = time.monotonic()
        response: SyncGroupResponse = await self._client.send_to_coordinator(request, timeout_s=max_s)
        match response.error_code:
            case Code.NONE:
                self.metrics.on_synced(began_s)
                self._heard_at = time.monotonic()
                missed, self._missed = self._missed, False
                return Round(
                    generation=joined.generation_id,
                    assignor=assignor,
                    leader=leader,
                    share=decode_assignment(response.assignment),
                    version=response.assignment_version,
                    error=response.assignment_error,
                    failure=led.failure if led is not None else None,
                    missed=missed,
                )
            case Code.REBALANCE_IN_PROGRESS:
                logger.debug("group %s: another rebalance has begun", settings.group)
            case code:
                self.refused(code, "SyncGroup")
        return None

    # ------------------------------------------------------------------------------------------ heartbeats

    async def _beat_forever(self) -> None:
        settings = self.settings
        while True:
            await asyncio.sleep(settings.heartbeat_interval_ms / 1000)
            if self._joining or not self.in_group:
                continue
            if self.has_stopped_polling():
                await self.leave(f"no poll for more than max_poll_interval_ms ({settings.max_poll_interval_ms})")
                continue
            self._look_at_metadata()
            try:
                await self._beat()
            except ConnectGroupError as error:
                logger.debug("group %s: heartbeat: %s", settings.group, error)

    async def _beat(self) -> None:
        settings, sent_at = self.settings, time.monotonic()
        request = GroupHeartbeatRequest(
            group_id=settings.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=settings.instance,
        )
        session_s = settings.session_timeout_ms / 1000
        self.metrics.on_heartbeat_sent()
        response: GroupHeartbeatResponse = await self._client.send_to_coordinator(
            request, timeout_s=session_s, each_s=session_s / 3
        )
        self.metrics.on_heartbeat(sent_at)
        if (request.generation_id, request.member_id) != (self.generation, self.member_id):
            return  # a rebalance completed meanwhile: the response is stale
        match response.error_code:
            case Code.NONE:
                self._heard_at = max(self._heard_at, sent_at)
            case Code.REBALANCE_IN_PROGRESS:
                self._heard_at = max(self._heard_at, sent_at)
                if not self._joining:
                    self.request_rejoin("the group is rebalancing")
            case Code.ILLEGAL_GENERATION if self._joining:
                # A copy of an earlier heartbeat, sent again after a lost response: the group has passed to the
                # generation of the JoinGroup that is unanswered, whose response decides. Kafka's client never gets
                # this error here, because it sends no heartbeat, and repeats none, until JoinGroup is answered.
                pass
            case code:
                self.refused(code, "Heartbeat")

    def _look_at_metadata(self) -> None:
        """Rejoin if the metadata or the reason of an assignor has changed since the member joined."""
        try:
            now = self._metadata()
        except PluginError as error:
            self._client.problems.met("metadata", f"{error}; the group keeps the metadata sent before")
            return
        if self._sent_metadata is not None and now != self._sent_metadata:
            self._sent_metadata = None
            self.request_rejoin("the metadata of an assignor has changed")

    def _metadata(self) -> tuple[AssignorInfo, ...]:
        return tuple([assignor_info(assignor, self.subscribed) for assignor in self._assignors])

    def enforce_rebalance(self, reason: str) -> None:
        self.request_rejoin(reason)

    async def resolve(self) -> None:
        """Look up the topics that match the pattern, if there is one.

        Raises:
            TransportError: no broker responded.
        """
        if self.settings.pattern is not None:
            self.subscribed = matching_topics(self.settings.pattern, tuple(await self._client.all_topics()))

    async def _match_again(self) -> None:
        before = self.subscribed
        try:
            await self.resolve()
        except ConnectGroupError as error:
            logger.debug("group %s: topics: %s", self.settings.group, error)
        if self.subscribed != before and self.in_group:
            self.request_rejoin("other topics match the pattern")

    async def watch_topics(self) -> None:
        """On the leader: rejoin when topics or partitions have been added or removed."""
        while True:
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1000)
            await self._match_again()
            watched = self._watched
            if watched is None or not self.in_group or self._joining:
                continue
            names, before = watched
            try:
                now = (await self._client.topics(names)).there
            except ConnectGroupError as error:
                logger.debug("group %s: topics: %s", self.settings.group, error)
                continue
            if watched is self._watched and sorted(now, key=_name) != sorted(before, key=_name):
                self.request_rejoin("topics or partitions have changed")

    def lose(self, why: str, *, forget_id: bool) -> None:
        super().lose(why, forget_id=forget_id)
        self._watched = None

    # ------------------------------------------------------------------------------------------ leave

    async def end(self, reason: str, *, leave: bool) -> None:
        if leave:
            await self.leave(reason)

    async def leave(self, reason: str) -> None:
        member_id, was_in = self.member_id, self.in_group
        self.lose(reason, forget_id=True)
        if not was_in:
            return
        leaving = LeavingMember(member_id=member_id, group_instance_id=self.settings.instance, reason=reason[:255])
        request = LeaveGroupRequest(group_id=self.settings.group, members=(leaving,))
        try:
            await self._client.send_to_coordinator(request, timeout_s=LEAVE_TIMEOUT_S)
        except ConnectGroupError as error:
            logger.warning(
                "group %s: could not notify the coordinator that %s leaves: %s", self.settings.group, member_id, error
            )


def _has_missed(ended: asyncio.Task[Round | None]) -> bool:
    if ended.cancelled() or ended.exception() is not None:
        return False
    result = ended.result()
    return result is not None and result.missed


def _name(topic: TopicSpec) -> str:
    return topic.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """The result of the leader's work.

    Attributes:
        shares: for SyncGroup.
        names: the topics with at least one subscriber.
        topics: those of them that exist, as passed to the assignor.
        failure: of the assignor, if it failed; all members then keep their partitions.
    """

    shares: tuple[MemberShare, ...]
    names: frozenset[str]
    topics: tuple[TopicSpec, ...]
    failure: PluginError | None


async def lead(
    client: GroupClient,
    assignor: PartitionAssignor,
    members: Sequence[JoinedMember],
    *,
    as_before: bool,
    timeout_s: float,
) -> Led:
    """Compute the assignment of the group.

    Args:
        client: for partition counts and racks.
        assignor: the assignor that the coordinator has chosen.
        members: from the JoinGroup response.
        as_before: keep the assignment: nothing has changed except that a static leader rejoined (KIP-814). ``shares``
            is then empty, and only the topics are queried.
        timeout_s: time limit of the assignor.

    Raises:
        TransportError: no broker returned the topics.
        WireError: a member's subscription cannot be decoded.
    """
    joined = [
        Joined(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            subscription=decode_subscription(member.metadata),
            version=member.metadata_version,
            reason=member.metadata_reason,
        )
        for member in members
    ]
    names = frozenset[str]().union(*(member.subscription.topics for member in joined))
    topics = await client.topics(names)
    if as_before:
        return Led(shares=(), names=names, topics=topics.there, failure=None)
    group = group_input(joined, topics.there, assignor)
    failure = None
    try:
        async with asyncio.timeout(timeout_s):
            result = await off_loop(f"assignor {assignor.name}", _run_assignor, assignor, group)
    except TimeoutError:
        failure = PluginError(f"assignor {assignor.name!r}: no response within {timeout_s:g} s")
    except PluginError as error:
        logger.error("%s", error.with_location())
        failure = error
    if failure is not None:
        result = as_it_is(group)
    shares = await off_loop("assignment", assignments_to_send, group, result)
    return Led(
        shares=shares,
        names=names,
        topics=topics.there,
        failure=failure,
    )


def as_it_is(group: PartitionAssignorInput) -> PartitionAssignment:
    """Every member keeps its undisputed partitions; the rest is unassigned until the next rebalance."""
    sole = {partition: owners[0] for partition, owners in claimants(group.members).items() if len(owners) == 1}
    there = frozenset(group.partitions)
    kept: dict[str, set[TopicPartition]] = {member.member_id: set() for member in group.members}
    subscribed = {member.member_id: member.subscribed for member in group.members}
    for partition, member_id in sole.items():
        if partition in there and partition.topic in subscribed[member_id]:
            kept[member_id].add(partition)
    return PartitionAssignment(
        members=[
            PartitionMemberAssignment(member_id=member_id, partitions=frozenset(partitions), version=-1)  # no user data
            for member_id, partitions in kept.items()
        ]
    )


def _run_assignor(assignor: PartitionAssignor, group: PartitionAssignorInput) -> PartitionAssignment:
    result = run_assignor(assignor, group)
    if result.error:
        raise PluginError(
            f"assignor {assignor.name!r}: error {result.error}: {printable(result.message or 'no message', limit=200)}"
        )
    return validate_result(assignor, group, result)
