"""A member of a Kafka consumer group, of the classic or the new protocol, with assignors written in Python.

    async with GroupConsumer("127.0.0.1:9092", group="billing", topics=["orders"]) as consumer:
        async for record in consumer:
            ...

The group may contain consumers of any other kind: Java's, librdkafka's, other ``GroupConsumer``s. If this member is
elected leader, it computes the assignment of all members. Records that ``poll`` has returned count as processed when
``poll`` is called again: rebalances, commits and the listener's callbacks run there and nowhere else, so no partition
is revoked while one of its records is being processed. Heartbeats and the wait for a rebalance run in the background; a
consumer that does not call ``poll`` within ``max_poll_interval_ms`` leaves the group.

Delivery is at least once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Literal

from ..assign.api import PartitionAssignor
from ..config.base import checked
from ..errors import ConfigError, ConnectGroupError, TransportError
from ..protocol.units import Partitions, TopicPartition
from .classic import ClassicMembership
from .client import GroupClient
from .epochs import EpochMembership
from .errors import CommitRefused
from .membership import Membership
from .offsets import ReadPosition, committed
from .ownership import ID_AGE_S, Commits, ConsumerRebalanceListener, PartitionOwnership, loaded
from .reading import MAX_RECORDS, Reading
from .records import Record
from .security import broker_security, coordinator_of
from .settings import GroupConsumerSettings
from .work import ClassicWork, EpochWork, GroupWork

logger = logging.getLogger(__name__)
RETRY_S = 0.1
WATCH_IDS_S = 5.0
"""How often the ids of the topics that are read are compared with the cluster's."""
CLOSE_TIMEOUT_S = 30.0
"""The default of ``close``, as in Kafka's consumer."""
CANCELLED_CLOSE_S = 1.0
"""How long ``close`` goes on to commit and to leave once it is cancelled."""
YIELD_S = 0.05
"""How long an ``async for`` returns fetched records before other tasks, such as heartbeats, get their turn."""


class GroupConsumer:
    """Reads the partitions that its group assigns to it.

    Args:
        bootstrap: ``host:port`` of one or more brokers, with commas.
        group: the group's name.
        topics: names; the consumer waits for topics that do not exist yet.
        pattern: instead of ``topics``: a regular expression (RE2) that whole names of topics match.
        group_protocol: ``classic``, or ``consumer`` for the protocol of KIP-848 (``group.protocol``); ``generic`` is
            another name of the former.
        assignors: the assignors of this member, best first: entry-point names or objects. The group uses one that all
            its members offer. In a classic group, the rebalance protocol, EAGER or COOPERATIVE, is the highest that all
            of these support (KIP-429); by default ``range`` and ``cooperative-sticky``. In the new protocol they are
            client-side assignors, which only connectgroup's coordinator supports; by default there are none.
        server_assignor: in the new protocol: the assignor of the coordinator, ``uniform``, ``range`` or another that it
            has (``--group-assignors``); ``None`` for its default. It assigns if there are no client-side assignors or
            the coordinator does not support them.
        coordinator: ``host:port`` of a connectgroup coordinator that is not behind ``bootstrap``, or of several that
            share a log, with commas; ``None`` looks it up.
            With ``ssl://`` or ``plaintext://`` before it; by default, it has TLS if the brokers have (``fetch``).
        listener: is notified of assigned and revoked partitions.
        instance: ``group.instance.id``, static membership: a static member does not leave the group on close; its
            partitions are kept for it until the session timeout (KIP-345).
        rack: the consumer's rack, for rack-aware assignors and for fetching from the closest replica.
        session_timeout_ms: time without a heartbeat after which the group removes the member. In the new protocol the
            coordinator's setting counts; give the same here, because a consumer without a response for that time stops
            reading.
        heartbeat_interval_ms: at most a third of that; in the new protocol the coordinator's setting counts.
        max_poll_interval_ms: time without ``poll`` after which the member leaves. A rebalance waits for the member for
            the same time; its assignor may take half of it.
        auto_offset_reset: start position without a committed offset: ``earliest``, ``latest`` or ``error``.
        auto_commit_interval_ms: how often ``poll`` commits the records it returned before, and before each revocation;
            0 commits in every ``poll``, before it returns more; ``None`` disables automatic commits: call ``commit``.
            A failed automatic commit is logged, and ``poll`` continues: a later one commits those records too.
            A process that is killed has read at most one interval, or one ``poll``, that is read again.
        metadata_max_age_ms: how often topics are queried, for new ones and for new partitions.
        client_id: sent to the brokers.
        fetch: settings of librdkafka, as ``{"fetch.min.bytes": 1}``: for fetching, and TLS and SASL
            (``security.protocol`` and the settings listed in ``consumer.security``).

    Raises:
        ConfigError: a setting is invalid; field, value, what is allowed. Also if the extra ``kafka`` is not installed.
        PluginError: an assignor cannot be loaded.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        group: str,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        group_protocol: Literal["classic", "consumer", "generic"] = "classic",
        assignors: Sequence[PartitionAssignor | str] | None = None,
        server_assignor: str | None = None,
        coordinator: str | None = None,
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
            GroupConsumerSettings,
            {
                "bootstrap": bootstrap,
                "group": group,
                "topics": topics,
                "pattern": pattern,
                "group_protocol": group_protocol,
                "server_assignor": server_assignor,
                "coordinator": coordinator,
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
        self._client = client_of(self._settings)
        self._reading = Reading(self._settings, self._client)
        self._membership, work = protocol_of(self._settings, self._client, assignors)
        self._commits = Commits(self._client, self._settings, self._membership, self._reading)
        self._ownership = PartitionOwnership(self._membership, self._reading, self._commits, listener)
        self._work = work(self._ownership)

        self._background: list[asyncio.Task[None]] = []
        self._group_work: asyncio.Task[None] | None = None
        self._polling = False
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._close_limit: asyncio.Timeout | None = None

    # ------------------------------------------------------------------------------------------ records

    async def poll(self, timeout_s: float = 1.0, *, max_records: int = MAX_RECORDS) -> list[Record]:
        """Return the next records, in order within a partition; none if none arrive in time. Performs group work too.

        Records returned before count as processed.

        Args:
            timeout_s: maximum wait for the first record; a callback or a commit in progress may extend it.
            max_records: maximum number of records.

        Raises:
            FencedInstanceId: another process has this member's ``instance``. This consumer cannot continue.
            NotAuthenticated: the brokers reject this client's credentials; the next ``poll`` retries.
            PluginError: a callback raised, or the assignor on the leader did (the member has then left the group).
            BrokerError: the group, a topic or an offset is rejected.
            FetchError: a partition cannot be read.
        """
        return await self._poll(timeout_s, max_records, at_least=1)

    async def _poll(self, timeout_s: float, limit: int, *, at_least: int) -> list[Record]:
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
                await self._finish_group_work()
                if self._has_work_to_do():
                    self._group_work = asyncio.create_task(self._do_group_work(), name="group work")
                    await self._finish_group_work()
                if self._membership.changed.is_set():
                    continue  # membership changed meanwhile: handle that before records are returned
                left_s, has_enough = give_up - time.monotonic(), self._reading.has(at_least)
                if (has_enough or left_s <= 0) and (records := self._reading.take_records(limit)):
                    return records
                if self._client.rejected is not None:
                    raise self._client.rejected
                if left_s <= 0:
                    return []
                if not self._ownership.is_read() or self._work.has_retry():
                    left_s = min(left_s, RETRY_S)  # a start position or a topic was not available
                await self._reading.wait(self._membership.changed, left_s)
        finally:
            self._membership.polled_at = time.monotonic()
            self._polling = False

    async def consume(self, count: int, timeout_s: float = 1.0) -> list[Record]:
        """Return ``count`` records, or those that have arrived within ``timeout_s``. Otherwise as ``poll``."""
        return await self._poll(timeout_s, count, at_least=count)

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
            offsets: of the next record to read, for partitions that this consumer owns; ``None`` commits all records
                that ``poll`` returned. The current record of an ``async for`` counts as returned.

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
        positions = {TopicPartition(*partition): ReadPosition(offset) for partition, offset in offsets.items()}
        await self._commits.commit(positions, self._ownership.owned)

    # ------------------------------------------------------------------------------------------ positions

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record of a partition; ``None`` if it has none: it is not owned, or not read yet."""
        position = self._reading.positions.get(TopicPartition(*partition))
        return position.offset if position is not None else None

    async def committed(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Fetch the committed offsets of the group; partitions without one are omitted.

        Args:
            partitions: any of the cluster; ``None`` for those that this consumer owns.

        Raises:
            BrokerError: rejected.
            TransportError: no response.
        """
        asked = self._ownership.owned if partitions is None else {TopicPartition(*each) for each in partitions}
        found = await committed(self._client, self._settings.group, asked)
        return {partition: position.offset for partition, position in found.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """The number of offsets between this consumer's position in each owned partition and the end of the partition.

        A partition whose end is not available at present is omitted.
        """
        return await self._reading.lag(self._ownership.owned & self._reading.positions.keys())

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue with the record at this offset of an owned partition. It counts for the next commit.

        Raises:
            ConfigError: an offset below 0, or a partition that this consumer does not own or has not begun to read.
        """
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ConfigError(f"offset of {partition}", offset, "an integer of 0 or more")
        await self._change([partition], lambda _: self._reading.seek(TopicPartition(*partition), offset))

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until ``resume``; a new owner does not pause them.

        Raises:
            ConfigError: a partition that this consumer does not own or has not begun to read.
        """
        await self._change(partitions, self._reading.pause)

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again. Raises as ``pause`` does."""
        await self._change(partitions, self._reading.resume)

    @property
    def paused(self) -> Partitions:
        """The partitions that are paused."""
        return frozenset(self._reading.paused)

    async def _change(
        self, partitions: Iterable[TopicPartition], change: Callable[[Partitions], Coroutine[None, None, None]]
    ) -> None:
        """Change how owned partitions are read. Group work of a cancelled ``poll`` ends first: it may revoke them."""
        if self._polling or self._closed or self._group_work is asyncio.current_task():
            raise RuntimeError("the consumer is closed, or a poll is in progress; allowed: between two polls")
        self._polling = True
        try:
            await self._finish_group_work()
            changed = frozenset(TopicPartition(*each) for each in partitions)
            for other in sorted(changed - (self._ownership.owned & self._reading.positions.keys())):
                raise ConfigError("partition", str(other), "a partition that this consumer owns and reads")
            self._group_work = asyncio.create_task(change(changed), name="change of reading")
            await self._finish_group_work()
        finally:
            self._polling = False

    def enforce_rebalance(self, reason: str = "requested by the program") -> None:
        """Have the group compute its assignment anew, for example because an assignor would decide otherwise now.

        It happens in the next calls of ``poll``. An assignor whose ``metadata`` changes needs no call: the member
        notices at its next heartbeat. In the new protocol this has an effect only with client-side assignors;
        otherwise a warning is logged.

        Args:
            reason: for logs, up to 255 characters.
        """
        self._membership.enforce_rebalance(reason)

    # ------------------------------------------------------------------------------------------ state

    def assignment(self) -> Partitions:
        """Return the partitions that this consumer owns."""
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

    async def close(
        self, *, leave: bool | None = None, commit: bool | None = None, timeout_s: float = CLOSE_TIMEOUT_S
    ) -> None:
        """Commit, revoke all partitions, and leave the group.

        The commit is an automatic one: there is none with ``auto_commit_interval_ms=None``.

        Args:
            leave: whether to send LeaveGroup; by default a static member does not, so that its partitions are kept for
                it.
            commit: whether the records that ``poll`` returned last count as processed. By default they do, unless
                ``close`` is called while an exception is handled, a cancellation included: in ``finally``, in
                ``except``, or at the end of an ``async with`` block. With false, nothing is committed at all.
            timeout_s: for the commit, the callbacks and LeaveGroup together; then everything is closed without them,
                and the coordinator removes the member when its session ends. A cancelled ``close`` takes a second more
                at most.

        Raises:
            ConfigError: ``timeout_s`` is not a number of seconds.
            PluginError: a callback raised; everything is closed all the same.
        """
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 <= timeout_s < math.inf:
            raise ConfigError("timeout_s", timeout_s, "a number of seconds of 0 or more")
        if self._closing is None:
            if commit is None and sys.exception() is not None:
                self._reading.return_unprocessed()
            self._closed = True
            leave = self._settings.instance is None if leave is None else leave
            limit = asyncio.timeout(timeout_s)
            self._closing = asyncio.create_task(self._close(limit, leave, commits=commit is not False), name="close")
            self._close_limit = limit
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            await self._hurry()
            raise

    async def _hurry(self) -> None:
        """``close`` was cancelled: end it soon."""
        assert self._closing is not None
        assert self._close_limit is not None
        if not self._closing.done():
            await asyncio.sleep(0)  # the task must have entered the timeout
            soon = asyncio.get_running_loop().time() + CANCELLED_CLOSE_S
            if self._close_limit.when() is not None and not self._close_limit.expired():
                self._close_limit.reschedule(min(soon, self._close_limit.when() or soon))
            await asyncio.wait({self._closing})

    async def _close(self, limit: asyncio.Timeout, leave: bool, *, commits: bool) -> None:
        try:
            async with limit:
                await self._leave_group(leave, commits=commits)
        except TimeoutError:
            logger.warning(
                "group %s: closed without leaving the group: the coordinator or a callback did not respond in time",
                self._settings.group,
            )
        finally:
            tasks = [*self._background, *self._commits.tasks]
            if self._group_work is not None:
                tasks.append(self._group_work)
            for task in tasks:
                task.cancel()
            await self._work.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._reading.close()
            await self._client.close()
        self._raise_callback_error()

    async def _leave_group(self, leave: bool, *, commits: bool) -> None:
        membership = self._membership
        if self._group_work is not None:
            await asyncio.wait({self._group_work})
            if (error := self._group_work.exception()) is not None:
                logger.warning("group %s: %s", self._settings.group, error)
        if membership.lease_is_over():
            membership.lose("no response from the coordinator for session_timeout_ms", forget_id=False)
        if membership.in_group:
            await self._ownership.revoke(self._ownership.owned, commits=commits)
        else:
            await self._ownership.lose(self._ownership.owned)
        await self._work.cancel()  # not earlier: a commit may have to wait for the new generation
        await membership.end("the consumer is closed", leave=leave)

    def _start(self) -> None:
        if not self._background:
            self._commits.schedule()
            self._background = [
                asyncio.create_task(self._membership.beat(), name="heartbeats"),
                asyncio.create_task(self._membership.watch_topics(), name="topics"),
                asyncio.create_task(self._watch_ids(), name="ids of topics"),
            ]

    async def _watch_ids(self) -> None:
        """Look for topics that were created again, also while nothing is committed."""
        while True:
            await asyncio.sleep(min(self._settings.metadata_max_age_ms / 1000, WATCH_IDS_S))
            try:
                if await self._reading.find_recreated(since_s=ID_AGE_S):
                    self._membership.changed.set()
            except ConnectGroupError as error:
                logger.debug("group %s: ids of topics: %s", self._settings.group, error)

    # ------------------------------------------------------------------------------------------ group work

    async def _finish_group_work(self) -> None:
        """Wait for the end of the group work in progress. Raises what it raised.

        It runs in a task of its own: a cancelled call must not leave a rebalance half done. The next call waits for it.
        """
        if (running := self._group_work) is not None:
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
        if self._settings.auto_offset_reset != "earliest":
            try:
                await self._reading.note_topics()
            except TransportError as error:
                logger.debug("group %s: topics: %s", self._settings.group, error)
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
            await self._commits.start(self._ownership.owned)
        await self._ownership.begin_reading()

    def _raise_callback_error(self) -> None:
        callback_error, self._reading.callback_error = self._reading.callback_error, None
        if callback_error is not None:
            raise callback_error


CLASSIC_ASSIGNORS = ("range", "cooperative-sticky")


def client_of(settings: GroupConsumerSettings) -> GroupClient:
    """Return a consumer's access to its cluster.

    Raises:
        ConfigError: a file that the settings name cannot be used.
    """
    coordinator = coordinator_of(settings.coordinator, settings.fetch) if settings.coordinator is not None else None
    return GroupClient(
        settings.bootstrap,
        settings.group,
        settings.client_id,
        coordinator=coordinator,
        security=broker_security(settings.fetch),
    )


def protocol_of(
    settings: GroupConsumerSettings, client: GroupClient, assignors: Sequence[PartitionAssignor | str] | None
) -> tuple[Membership, Callable[[PartitionOwnership], GroupWork]]:
    """Return the membership of a consumer, and a function that creates its group work.

    Args:
        assignors: ``None`` for the default of the protocol.

    Raises:
        ConfigError, PluginError: an assignor cannot be used.
    """
    if settings.group_protocol == "classic":
        ours = loaded(CLASSIC_ASSIGNORS if assignors is None else assignors, settings.rack)
        classic = ClassicMembership(client, settings, ours)
        return classic, partial(ClassicWork, settings, ours, classic)
    epochs = EpochMembership(client, settings, loaded(assignors, settings.rack) if assignors is not None else ())
    return epochs, partial(EpochWork, settings, epochs)
