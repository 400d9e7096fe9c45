"""A member of a classic Kafka consumer group with assignors written in Python, for existing brokers.

    async with GroupConsumer("127.0.0.1:9092", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            ...

The group may contain consumers of any other kind: Java's, librdkafka's, other ``GroupConsumer``s. If this member is
elected leader, it computes the assignment of all members. Records that ``poll`` has returned count as processed when
``poll`` is called again: rebalances, commits and the listener's callbacks run there and nowhere else, so no partition
is revoked while one of its records is being processed. Heartbeats and the wait for a rebalance run in the background; a
consumer that does not call ``poll`` within ``max_poll_interval_ms`` leaves the group.

Delivery is at least once.

    membership   JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    leading      the leader's work between JoinGroup and SyncGroup
    fetching     records, through confluent-kafka
    reading      positions, and fetched records
    commits      when positions are committed
    offsets      OffsetCommit, OffsetFetch
    client       broker selection
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from ..assign.api import PartitionAssignor
from ..assign.members import PartitionMemberAssignment
from ..config.base import checked
from ..errors import ConfigError
from ..protocol.units import Partitions, TopicPartition
from .callbacks import Event, loaded, notify_listener, notify_plugin_assignor
from .choice import choose_protocol, join_offers
from .client import GroupClient
from .commits import Commits
from .errors import CommitRefused
from .fetching import Record
from .listener import ConsumerRebalanceListener
from .membership import Membership, Round
from .offsets import Position
from .reading import MAX_FETCHED, Reading
from .rounds import after_sync, before_joining
from .settings import ConsumerSettings

logger = logging.getLogger(__name__)

NOTHING: Partitions = frozenset()
RETRY_S = 0.1


class GroupConsumer:
    """Reads the partitions that its group assigns to it.

    Args:
        bootstrap: ``host:port`` of one or more brokers, with commas. PLAINTEXT only: no TLS, no SASL.
        group: the group's name.
        topics: names, at least one; the consumer waits for topics that do not exist yet.
        assignors: the assignors of this member, best first: entry-point names or objects. The group uses one that all
            its members offer. The rebalance protocol, EAGER or COOPERATIVE, is the highest that all of these support
            (KIP-429).
        listener: is notified of assigned and revoked partitions.
        instance: ``group.instance.id``, static membership: a static member does not leave the group on close; its
            partitions are kept for it until the session timeout (KIP-345).
        rack: the consumer's rack, for rack-aware assignors and for fetching from the closest replica.
        session_timeout_ms: time without a heartbeat after which the group removes the member.
        heartbeat_interval_ms: at most a third of that.
        max_poll_interval_ms: time without ``poll`` after which the member leaves. A rebalance waits for the member for
            the same time; its assignor may take half of it.
        auto_offset_reset: start position without a committed offset: ``earliest``, ``latest`` or ``error``.
        auto_commit_interval_ms: how often ``poll`` commits the records it returned before, and before each revocation;
            null disables automatic commits in favor of ``commit``.
        metadata_max_age_ms: how often the leader checks for new topics and partitions.
        client_id: sent to the brokers.
        fetch: settings of librdkafka for fetching, as ``{"fetch.min.bytes": 1}``.

    Raises:
        ConfigError: a setting is invalid; field, value, what is allowed. Also if the extra ``kafka`` is not installed.
        PluginError: an assignor cannot be loaded.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        topics: Sequence[str],
        assignors: Sequence[PartitionAssignor | str] = ("range", "cooperative-sticky"),
        listener: ConsumerRebalanceListener | None = None,
        instance: str | None = None,
        rack: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        auto_offset_reset: Literal["earliest", "latest", "error"] = "latest",
        auto_commit_interval_ms: int | None = 5_000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "connectgroup",
        fetch: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        self._settings = checked(
            ConsumerSettings,
            {
                "bootstrap": bootstrap,
                "group": group,
                "topics": topics,
                "instance": instance,
                "rack": rack,
                "session_timeout_ms": session_timeout_ms,
                "heartbeat_interval_ms": heartbeat_interval_ms,
                "max_poll_interval_ms": max_poll_interval_ms,
                "auto_offset_reset": auto_offset_reset,
                "auto_commit_interval_ms": auto_commit_interval_ms,
                "metadata_max_age_ms": metadata_max_age_ms,
                "client_id": client_id,
                "fetch": fetch or {},
            },
        )
        self._assignors = loaded(assignors)
        self._protocol = choose_protocol(self._assignors)
        self._listener = listener
        self._subscribed = frozenset(self._settings.topics)
        self._client = GroupClient(bootstrap, group, client_id)
        self._reading = Reading(self._settings, self._client)
        self._membership = Membership(self._client, self._settings, self._assignors)
        self._commits = Commits(self._client, self._settings, self._membership, self._reading)

        self._owned = NOTHING
        self._taken_over = -1  # generation of the last applied assignment
        self._ended: Round | None = None
        self._background: list[asyncio.Task[None]] = []
        self._group_work: asyncio.Task[None] | None = None
        self._polling = False
        self._closed = False

    # ------------------------------------------------------------------------------------------ records

    async def poll(self, timeout_s: float = 1.0, *, max_records: int = MAX_FETCHED) -> list[Record]:
        """Return the next records, in order within a partition; none if none arrive in time. Performs group work too.

        Records returned before count as processed.

        Args:
            timeout_s: maximum wait for the first record; a callback or a commit in progress may extend it.
            max_records: maximum number of records.

        Raises:
            FencedInstanceId: another process has this member's ``instance``. This consumer cannot continue.
            PluginError: a callback raised, or the assignor on the leader did (the member has then left the group).
            BrokerError: the group, a topic or an offset is rejected.
            FetchError: a partition cannot be read.
        """
        if self._closed:
            raise RuntimeError("poll was called after the consumer was closed")
        if self._polling:
            raise RuntimeError("poll was called while another call waits; allowed: one at a time")
        self._polling = True
        self._membership.polled_at = None
        try:
            self._start()
            self._reading.settle()
            give_up = time.monotonic() + timeout_s
            while True:
                if self._group_work is not None or self._has_work_to_do():
                    await self._run_group_work()
                if self._membership.changed.is_set():
                    continue  # membership changed meanwhile: handle that before records are returned
                if records := self._reading.hand_out(max_records):
                    return records
                left_s = give_up - time.monotonic()
                if left_s <= 0:
                    return []
                if self._owned != self._reading.positions.keys():
                    left_s = min(left_s, RETRY_S)  # a start position was not available
                await self._reading.wait(self._membership.changed, left_s)
        finally:
            self._membership.polled_at = time.monotonic()
            self._polling = False

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over records until the consumer is closed. Raises as ``poll`` does."""
        while not self._closed:
            for record in await self.poll(1.0, max_records=1):
                yield record

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit this consumer's positions to the group. Returns when they are stored.

        Args:
            offsets: of the next record to read, for partitions that this consumer owns; null commits all records that
                ``poll`` returned. The current record of an ``async for`` counts as returned.

        Raises:
            CommitRefused: the partitions belong, or may belong, to another member by now; nothing was stored.
            BrokerError: rejected for another reason.
            TransportError: no response; the offsets may have been stored.
        """
        if offsets is None:
            await self._commits.commit(self._reading.uncommitted(), self._owned)
            return
        for partition, offset in offsets.items():
            if partition not in self._owned:
                raise CommitRefused(
                    f"commit of {partition}: got a partition this consumer does not have; allowed: its own"
                )
            if not isinstance(offset, int) or offset < 0:
                raise ConfigError(f"offset of {partition}", offset, "an integer of 0 or more")
        positions = {TopicPartition(*partition): Position(offset) for partition, offset in offsets.items()}
        await self._commits.commit(positions, self._owned)

    # ------------------------------------------------------------------------------------------ state

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer owns."""
        return self._owned

    @property
    def member_id(self) -> str:
        """The member id, empty if the consumer has none."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """The generation of the current assignment, -1 outside the group."""
        return self._taken_over if self._membership.in_group else -1

    @property
    def is_leader(self) -> bool:
        """Whether this member computed the current assignment."""
        return self._membership.in_group and self._ended is not None and self._ended.leader

    @property
    def assignor(self) -> str | None:
        """The name of the assignor that the group used last."""
        return self._ended.assignor.name if self._ended is not None else None

    # ------------------------------------------------------------------------------------------ start and close

    async def __aenter__(self) -> GroupConsumer:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._reading.return_unprocessed()
        await self.close()

    async def close(self, *, leave: bool | None = None) -> None:
        """Commit, revoke all partitions, and leave the group.

        Args:
            leave: whether to send LeaveGroup; by default a static member does not, so that its partitions are kept for
                it.

        Raises:
            PluginError: a callback raised; everything is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        membership = self._membership
        leave = self._settings.instance is None if leave is None else leave
        try:
            if self._group_work is not None:
                await asyncio.wait({self._group_work})
                if (error := self._group_work.exception()) is not None:
                    logger.warning("group %s: %s", self._settings.group, error)
            if membership.lease_is_over():
                membership.lose("no response from the coordinator for session_timeout_ms", forget_id=False)
            if membership.in_group:
                await self._revoke(self._owned)
            else:
                await self._lose_partitions(self._owned)
            if membership.round is not None:
                # Not earlier: a commit may have to wait for the new generation.
                membership.round.cancel()
                await asyncio.wait({membership.round})
            if leave:
                await membership.leave("the consumer is closed")
        finally:
            for task in (tasks := [*self._background, *self._commits.tasks]):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._reading.close()
            await self._client.close()
        self._raise_callback_error()

    def _start(self) -> None:
        if not self._background:
            self._commits.schedule()
            self._background = [
                asyncio.create_task(self._membership.beat(), name="heartbeats"),
                asyncio.create_task(self._membership.watch_topics(), name="topics"),
            ]

    # ------------------------------------------------------------------------------------------ group work

    async def _run_group_work(self) -> None:
        """Perform all pending group work before more records are returned.

        It runs in a task of its own: a cancelled ``poll`` must not leave a rebalance half done. The next call first
        waits for the end of that task.
        """
        if self._group_work is None:
            self._group_work = asyncio.create_task(self._do_group_work(), name="group work")
        running = self._group_work
        await asyncio.wait({running})
        self._group_work = None
        running.result()

    def _has_work_to_do(self) -> bool:
        membership = self._membership
        return (
            membership.changed.is_set()
            or self._reading.callback_error is not None
            or membership.lease_is_over()
            or (membership.round is None and bool(membership.rejoin))
            or membership.fatal is not None
            or self._owned != self._reading.positions.keys()
            or self._commits.is_due()
            or any(task.done() for task in self._background)
        )

    async def _do_group_work(self) -> None:
        membership = self._membership
        while True:
            if membership.lease_is_over():
                membership.lose("no response from the coordinator for session_timeout_ms", forget_id=False)
            if membership.round is not None and membership.round.done():
                task, membership.round = membership.round, None
                await self._end_round(task)
            elif membership.round is None and not membership.in_group and self._owned:
                logger.warning("group %s: lost: %s", self._settings.group, membership.lost_because)
                await self._lose_partitions(self._owned)
            elif membership.fatal is not None:
                raise membership.fatal
            elif membership.round is None and membership.rejoin:
                await self._begin_round()
            else:
                break
        membership.changed.clear()
        self._raise_callback_error()
        for task in self._background:
            if task.done():
                task.result()  # a bug: without heartbeats the membership cannot be trusted
        if self._commits.is_due():
            self._commits.start(self._owned)
        if new := self._owned - self._reading.positions.keys():
            await self._reading.begin(new)

    async def _begin_round(self) -> None:
        """Revoke the partitions that must be revoked before a JoinGroup, then join concurrently with reading."""
        membership = self._membership
        before = before_joining(
            self._protocol, owned=self._owned, subscribed=self._subscribed, in_group=membership.in_group
        )
        await self._lose_partitions(before.lost)
        await self._revoke(before.revoked)
        if self._owned and not membership.in_group:
            return  # membership was lost while a callback ran: the remaining partitions are lost too
        membership.begin_round(self._offers)

    def _offers(self) -> tuple[tuple[str, bytes], ...]:
        return join_offers(
            self._assignors,
            subscribed=self._subscribed,
            owned=self._owned,
            generation=self._taken_over if self._membership.in_group else -1,
            rack=self._settings.rack,
        )

    async def _end_round(self, task: asyncio.Task[Round | None]) -> None:
        """Apply the result of a rebalance."""
        membership = self._membership
        try:
            ended = task.result()
        except Exception:
            membership.request_rejoin("the last rebalance failed")
            raise
        if ended is None or not membership.in_group or membership.generation != ended.generation:
            return
        self._ended, self._taken_over = ended, ended.generation
        step = after_sync(owned=self._owned, assigned=ended.share.partitions, subscribed=self._subscribed)
        await self._revoke(step.revoked)
        if not membership.in_group:
            return
        await notify_plugin_assignor(
            ended.assignor,
            PartitionMemberAssignment(
                member_id=self.member_id,
                version=ended.assignor.maximum_version,
                metadata=ended.share.user_data or b"",
                partitions=step.holds,
                group_id=self._settings.group,
                epoch=ended.generation,
                instance_id=self._settings.instance,
            ),
        )
        self._owned = step.holds
        await self._notify("on_assigned", step.added)
        if step.rejoin:
            membership.request_rejoin("revoked partitions that other members need")
        if ended.failure is not None:
            # Another member's assignor may succeed. This member must not lead again, so it leaves.
            await self._revoke(self._owned)
            await membership.leave(str(ended.failure))
            membership.fatal = ended.failure

    async def _revoke(self, partitions: Partitions) -> None:
        """Stop reading, commit, call the listener, and only then release the partitions."""
        if not partitions:
            return
        await self._reading.stop(partitions)
        await self._commits.before_revocation(self._owned)
        await self._notify("on_revoked" if self._membership.in_group else "on_lost", partitions)
        self._release(partitions)

    async def _lose_partitions(self, partitions: Partitions) -> None:
        """Stop reading partitions that may already belong to another member."""
        if not partitions:
            return
        await self._reading.stop(partitions)
        await self._notify("on_lost", partitions)
        self._release(partitions)

    def _release(self, partitions: Partitions) -> None:
        self._owned -= partitions
        self._reading.forget(partitions)

    # ------------------------------------------------------------------------------------------ callbacks

    async def _notify(self, event: Event, partitions: Partitions) -> None:
        """Call the listener; an exception is stored and raised at the end of ``poll``."""
        if self._listener is not None and partitions:
            metrics = self._membership.metrics
            failure = await notify_listener(self._listener, event, partitions, self._taken_over, metrics)
            self._reading.callback_error = self._reading.callback_error or failure

    def _raise_callback_error(self) -> None:
        callback_error, self._reading.callback_error = self._reading.callback_error, None
        if callback_error is not None:
            raise callback_error
