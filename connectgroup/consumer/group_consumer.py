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
from ..config.base import checked
from ..errors import ConfigError
from ..protocol.units import Partitions, TopicPartition
from .callbacks import loaded
from .classic import ClassicMembership
from .client import GroupClient
from .commits import Commits
from .errors import CommitRefused
from .listener import ConsumerRebalanceListener
from .membership import Membership
from .offsets import Position
from .ownership import Ownership
from .reading import MAX_RECORDS, Reading
from .records import Record
from .settings import ConsumerSettings
from .work import ClassicWork, GroupWork

logger = logging.getLogger(__name__)

RETRY_S = 0.1
YIELD_S = 0.05
"""How long an ``async for`` returns fetched records before other tasks, such as heartbeats, get their turn."""


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
        self._client = GroupClient(bootstrap, group, client_id)
        self._reading = Reading(self._settings, self._client)
        membership = ClassicMembership(self._client, self._settings, self._assignors)
        self._membership: Membership = membership
        self._commits = Commits(self._client, self._settings, self._membership, self._reading)
        self._ownership = Ownership(self._membership, self._reading, self._commits, listener)
        self._work: GroupWork = ClassicWork(self._settings, self._assignors, membership, self._ownership)

        self._background: list[asyncio.Task[None]] = []
        self._group_work: asyncio.Task[None] | None = None
        self._polling = False
        self._closed = False

    # ------------------------------------------------------------------------------------------ records

    async def poll(self, timeout_s: float = 1.0, *, max_records: int = MAX_RECORDS) -> list[Record]:
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
                if not self._ownership.is_read():
                    left_s = min(left_s, RETRY_S)  # a start position was not available
                await self._reading.wait(self._membership.changed, left_s)
        finally:
            self._membership.polled_at = time.monotonic()
            self._polling = False

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate over records until the consumer is closed. Raises as ``poll`` does."""
        membership, next_record, monotonic = self._membership, self._reading.next_record, time.monotonic
        while not self._closed:
            for record in await self.poll(1.0, max_records=1):
                yield record
            # Most records are here already. They are returned without the work of ``poll`` as long as there is none.
            until = self._no_work_until()
            while not membership.changed.is_set() and (now := monotonic()) < until and not self._polling:
                membership.polled_at = now
                following = next_record()
                if following is None:
                    break
                yield following
            else:
                await asyncio.sleep(0)

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
            await self._commits.commit(self._reading.uncommitted(), self._ownership.owned)
            return
        for partition, offset in offsets.items():
            if partition not in self._ownership.owned:
                raise CommitRefused(
                    f"commit of {partition}: got a partition this consumer does not have; allowed: its own"
                )
            if not isinstance(offset, int) or offset < 0:
                raise ConfigError(f"offset of {partition}", offset, "an integer of 0 or more")
        positions = {TopicPartition(*partition): Position(offset) for partition, offset in offsets.items()}
        await self._commits.commit(positions, self._ownership.owned)

    # ------------------------------------------------------------------------------------------ state

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer owns."""
        return self._ownership.owned

    @property
    def member_id(self) -> str:
        """The member id, empty if the consumer has none."""
        return self._membership.member_id

    @property
    def generation(self) -> int:
        """The generation of the current assignment, -1 outside the group."""
        return self._ownership.applied if self._membership.in_group else -1

    @property
    def is_leader(self) -> bool:
        """Whether this member computed the current assignment."""
        return self._work.is_leader

    @property
    def assignor(self) -> str | None:
        """The name of the assignor that the group used last."""
        return self._work.assignor

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
                await self._ownership.revoke(self._ownership.owned)
            else:
                await self._ownership.lose(self._ownership.owned)
            await self._work.cancel()  # not earlier: a commit may have to wait for the new generation
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
            or self._work.is_due()
            or membership.fatal is not None
            or not self._ownership.is_read()
            or self._commits.is_due()
            or any(task.done() for task in self._background)
        )

    def _no_work_until(self) -> float:
        """When ``poll`` has work to do, if nothing else happens; 0 if it has some now. By ``time.monotonic``."""
        if self._group_work is not None or self._closed or self._has_work_to_do():
            return 0.0
        return min(self._membership.lease_end(), self._commits.due_at(), time.monotonic() + YIELD_S)

    async def _do_group_work(self) -> None:
        membership = self._membership
        has_work = True
        while has_work:
            if membership.lease_is_over():
                membership.lose("no response from the coordinator for session_timeout_ms", forget_id=False)
            has_work = await self._work.step()
        membership.changed.clear()
        self._raise_callback_error()
        for task in self._background:
            if task.done():
                task.result()  # a bug: without heartbeats the membership cannot be trusted
        if self._commits.is_due():
            self._commits.start(self._ownership.owned)
        await self._ownership.begin_reading()

    def _raise_callback_error(self) -> None:
        callback_error, self._reading.callback_error = self._reading.callback_error, None
        if callback_error is not None:
            raise callback_error
