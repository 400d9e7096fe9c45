"""The ownership and the rows of a log in a Kafka topic.

Each change is one transaction of a producer whose ``transactional.id`` belongs to the log. Kafka lets only the producer
that initialized its transactions last write under an id; an open transaction of a former one is aborted then. So the
order of ``take`` is: fence the former owner (``init_transactions``), read what is committed to the end, write the
ownership with the next epoch; then the caller serves.

A change is acknowledged when its commit can be read, and not when the cluster has accepted the commit: its markers are
written later. A producer is used until a transaction fails; the next call makes a new one, which settles the outcome
(D6), unless the topic names another owner now. Nothing depends on the clocks of the brokers.

confluent-kafka's calls block: all run in one thread of the log, in the order of the calls of ``KafkaStore``.

Source: KIP-98, KIP-447; Kafka's ``KafkaBasedLog`` and ``KafkaConfigBackingStore`` (fencing of a former leader).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote

from ...errors import ConfigError, LogError
from ...properties import read_properties
from ...protocol.units import printable
from ..base import NONE_STOOD_BY, REGISTER_S, Candidate, Log, LogAway, LogNotWritable, Ownership
from ..leased import LeasedLog, LeasedStore, OwnerRow
from ..registry import check_parameters
from ..rows import Sums, Values
from .records import Encoded, OwnerState, Standby, encode_owner, encode_row, encode_standby
from .topic import CALL_S, OVERHEAD_BYTES, OpenTransactionError, Tail, Topic, client_logger

HANGING_S: Final = 0.3
"""How long a transaction may be open after the former owner was fenced before ``_abort_hanging``."""

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""When the cluster aborts the transaction of a silent owner. A successor aborts it at once; other readers wait."""

FENCES: Final = 5
"""How many fences a change outlives: one of each coordinator that tried to take the log together with the owner."""

SKIPPED: Final = 10_000
"""So many records of the topic the owner reads, if need be; of more, only those that it may not know: its renewals of a
day would take a second, during which nothing is written."""

KNOWN_S: Final = 5 * REGISTER_S
"""The owner knows all of the topic that is older than this, except for coordinators that do not stand by any more."""

_FIXED: Final = frozenset(
    {
        "acks", "auto.offset.reset", "bootstrap.servers", "client.id", "delivery.timeout.ms", "enable.auto.commit",
        "enable.gapless.guarantee", "enable.idempotence", "enable.partition.eof", "group.id", "group.instance.id",
        "group.protocol", "isolation.level", "log_level", "message.max.bytes", "message.timeout.ms",
        "queue.buffering.max.kbytes", "queue.buffering.max.messages", "request.required.acks", "transaction.timeout.ms",
        "transactional.id",
    }
)  # fmt: skip
"""Settings of librdkafka on which the promises of the log depend."""

P = ParamSpec("P")
T = TypeVar("T")


class KafkaStore(LeasedStore):
    """A log in one partition of a topic.

    Attributes:
        name: cluster and topic, for messages.
        max_record_bytes: maximum size of key and value of one record: the topic's ``max.message.bytes``.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        client: Mapping[str, str] | None = None,
        replication: int | None = None,
        partition: int = 0,
    ) -> None:
        """Create the client; nothing is sent.

        Args:
            servers: ``HOST:PORT`` of brokers, separated by commas.
            topic: the topic's name.
            client: settings of librdkafka: TLS and logins.
            replication: the replication factor of a new topic; ``None``: 3, or the number of brokers if fewer.

        Raises:
            ConfigError: confluent-kafka is not installed, or a setting is one of those that the log needs itself.
            ValueError: a setting is invalid.
        """
        client = dict(client or {})
        for name in sorted(client.keys() & _FIXED):
            raise ConfigError("log", name, "settings of connections, TLS and logins; the log sets this one itself")
        try:
            self._topic = Topic(servers, topic, client, replication=replication, partition=partition)
        except ImportError as error:
            allowed = "after pip install 'connectgroup[kafka]'"
            raise ConfigError("log", "kafka://, whose client is not installed", allowed) from error
        self.name = self._topic.name
        self._servers, self._client, self._replication = servers, client, replication
        self._thread: ThreadPoolExecutor | None = None
        # Only the thread uses the following.
        self._tail: Tail | None = None
        self._owner: _Owner | None = None
        self._announcer: Any = None
        self._standby = Standby()
        self._address = self._namesake = ""
        self._is_registered = False  # this process was found to stand by
        self._knows_partitions = False  # with how many of several the log was started

    @property
    def max_record_bytes(self) -> int | None:
        return self._topic.max_record_bytes

    def partition(self, number: int) -> KafkaStore:
        topic = self._topic.topic
        store = KafkaStore(self._servers, topic, client=self._client, replication=self._replication, partition=number)
        store.expected_partitions = self.partitions
        store._topic.server = self._topic.server
        return store

    async def connect(self) -> None:
        self._topic.expected_partitions = self._topic.expected_partitions or self.expected_partitions
        await self._run(KafkaStore._connect)
        self.partitions = self._topic.partitions

    async def look(self, process: str, address: str) -> OwnerRow:
        return await self._run(KafkaStore._look, process, address)

    async def take(
        self, seen: OwnerRow, *, holder: str, address: str, lease_ms: int, epochs: int, credentials: str = ""
    ) -> tuple[int, int] | None:
        taken = OwnerState(holder=holder, address=address, lease_ms=lease_ms, credentials=credentials)
        return await self._run(KafkaStore._take, seen, taken, epochs)

    async def retake(self, holder: str) -> tuple[int, int] | None:
        return await self._run(KafkaStore._retake, holder)

    async def renew(self, holder: str, last: int) -> bool:
        return await self._run(KafkaStore._renew, holder, last)

    async def mark_serving(self, holder: str) -> bool:
        return await self._run(KafkaStore._mark_serving, holder)

    async def release(self, holder: str, last: int, successor: str | None = None) -> None:
        await self._run(KafkaStore._release, holder, successor)

    async def leave(self, process: str) -> None:
        await self._run(KafkaStore._leave)

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        return await self._run(KafkaStore._append, epoch, last, rows)

    async def compact(
        self, epoch: int, offsets: Sequence[int], group: bytes, stored: tuple[int, int], kept: tuple[int, int]
    ) -> bool:
        """The brokers compact the topic when they see fit: only the rows in memory are removed now."""
        return True

    async def read(self, groups: Sequence[bytes] | None) -> tuple[list[Values], list[tuple[bytes, int, int]]]:
        return await self._run(KafkaStore._read, None if groups is None else set(groups))

    async def ownership(self) -> Ownership:
        return await self._run(KafkaStore._ownership)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            closed = asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)
            await closed

    async def _run(self, work: Callable[Concatenate[KafkaStore, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Call a method in the thread. A cancelled call goes on there, and the next one waits for it."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"log {self._topic.topic}")
        call = partial(work, self, *args, **named)
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        except RuntimeError as error:  # no thread is available
            raise LogNotWritable(f"{self.name}: {error}") from error
        return await running

    # ------------------------------------------------------------------------------------------ standing by

    def _connect(self) -> None:
        topic = self._topic
        try:
            topic.check()
            topic.check_in_sync()
            if topic.partition.partition == 0 and topic.found_partitions > 1 and not self._knows_partitions:
                started = self._caught_up(topic.end()).owner
                topic.settle_partitions(started.partitions if started.epoch else None, self.expected_partitions)
                self._knows_partitions = True
        except LogError as error:
            if topic.is_away(error):
                raise LogAway(str(error)) from error
            raise

    def _look(self, process: str, address: str) -> OwnerRow:
        if self._owner is not None:  # its lease was lost
            self._drop_owner()
        now = time.time()
        due = self._standby.process != process or now * 1000 >= self._standby.seen_ms + REGISTER_S * 1000
        if due or self._tail is None:
            self._topic.check()
            self._topic.check_in_sync()
        tail = self._caught_up(self._topic.end())
        if due:  # once it has read to the end: one that cannot is shown with a growing lag, then not at all
            since = self._standby.since_ms if self._standby.process == process else _ms(now)
            self._announce(address, Standby(process=process, since_ms=since, seen_ms=_ms(now)))
        # The order in the topic says which of two coordinators at one address has registered since the other did.
        found = tail.standbys.get(address, Standby()).process
        self._is_registered = self._is_registered or found == process
        self._namesake = found if self._is_registered and found != process else ""
        return self._row(tail.owner)

    def _row(self, owner: OwnerState) -> OwnerRow:
        tail = self._tail
        return OwnerRow(
            epoch=owner.epoch,
            renewals=owner.renewals,
            last=owner.last if tail is None else max(tail.last, owner.last),
            holder=owner.holder,
            address=owner.address,
            lease_ms=owner.lease_ms,
            server=owner.server,
            current=self._topic.server,
            credentials=owner.credentials,
            namesake=self._namesake,
        )

    def _caught_up(self, end: int, *, with_rows: bool = True) -> Tail:
        """A reader up to an offset of the topic, with all rows or, for the owner alone, without."""
        tail, owner = self._tail, self._owner
        if not with_rows and owner is not None and (tail is None or tail.position + SKIPPED < owner.known):
            standbys = {} if tail is None else tail.standbys
            self._drop_tail()
            tail = self._tail = Tail(self._topic, begins=owner.known, owner=owner.state, standbys=standbys)
        elif tail is None or (with_rows and tail.rows is None):
            self._drop_tail()
            tail = self._tail = Tail(self._topic)
        elif tail.rows is None:
            tail.resume()
        try:
            tail.catch_up(end)
        finally:
            if not tail.is_usable:
                self._drop_tail()
        return tail

    def _announce(self, address: str, standby: Standby) -> None:
        """Write that this coordinator stands by, or has left. Nothing depends on it, and nothing waits for it."""
        from confluent_kafka import KafkaException, Producer

        self._standby, self._address = standby, address
        try:
            if self._announcer is None:
                self._announcer = Producer(
                    self._topic.client(acks="all", message_timeout_ms=int(CALL_S * 1000)), logger=client_logger
                )
            key, value, _ = encode_standby(address, standby)
            self._announcer.produce(self._topic.topic, value, key, partition=self._topic.partition.partition)
            self._announcer.poll(0)
        except (KafkaException, BufferError):
            return

    def _leave(self) -> None:
        if self._standby.process:
            self._announce(self._address, Standby())
            self._announcer.flush(1.0)
            self._standby = Standby()

    def _ownership(self) -> Ownership:
        owner = self._owner
        if owner is None:
            self._topic.check()
        tail = self._caught_up(self._topic.end(), with_rows=owner is None)
        state = tail.owner if owner is None else owner.state
        now_ms = _ms(time.time())
        is_held = bool(state.holder) and now_ms - state.renewed_ms <= 2 * state.lease_ms
        holder = state.holder.partition(":")[0] if is_held else ""
        standbys = [
            Candidate(address=address, epoch=-1, since_ms=each.since_ms, lag_ms=max(0, now_ms - each.seen_ms))
            for address, each in sorted(tail.standbys.items())
            if each.process not in ("", holder) and now_ms - each.seen_ms <= 5_000 * REGISTER_S
        ]
        held = [Candidate(address=state.address, epoch=state.epoch, since_ms=state.since_ms)] if is_held else []
        is_failover = state.failover_ms >= 0
        return Ownership(
            coordinators=(*held, *standbys),
            failover_ms=state.failover_ms,
            failover_took_ms=max(0, state.failover_ms - state.failover_from_ms) if is_failover else -1,
            failover_cause=state.failover_cause if is_failover else "",
        )

    # ------------------------------------------------------------------------------------------ owning

    def _take(self, seen: OwnerRow, taken: OwnerState, epochs: int) -> tuple[int, int] | None:
        def may_take(now: OwnerState) -> bool:
            return (now.epoch, now.renewals, now.holder) == (seen.epoch, seen.renewals, seen.holder)

        if not may_take(self._caught_up(self._topic.end()).owner):
            return None
        if (fenced := self._fenced(may_take)) is None:
            return None
        owner, tail = fenced
        before, now_ms = tail.owner, _ms(time.time())
        cause = "lease expired" if before.holder else "handed over"
        is_other = before.holder.partition(":")[0] != taken.holder.partition(":")[0]
        if is_other and self._standby.since_ms > before.renewed_ms:
            cause = NONE_STOOD_BY
        state = replace(
            taken,
            epoch=before.epoch + epochs,
            renewals=before.renewals + 1,
            last=max(tail.last, before.last),
            server=before.server,
            since_ms=now_ms,
            renewed_ms=now_ms,
            failover_from_ms=before.renewed_ms if before.epoch else -1,
            failover_cause=cause if before.epoch else "",
            partitions=self._topic.partitions,
        )
        with suppress(_FencedInCommit):  # if it was written, ``_look`` finds it
            if owner.write(state):
                if self._standby.process:
                    self._announce(self._address, Standby())
                return state.epoch, state.last
        return None

    def _retake(self, holder: str) -> tuple[int, int] | None:
        if self._owner is None:
            return None
        for _ in range(FENCES):
            if (fenced := self._fenced(lambda now: now.holder == holder)) is None:
                return None
            owner, tail = fenced
            state = replace(tail.owner, epoch=tail.owner.epoch + 1, last=max(tail.last, tail.owner.last))
            with suppress(_FencedInCommit):
                if owner.write(state):
                    return state.epoch, state.last
        raise self._fenced_too_often()

    def _fenced(self, may_own: Callable[[OwnerState], bool], *, with_rows: bool = True) -> tuple[_Owner, Tail] | None:
        """Fence all earlier producers, then read to the end.

        The topic is read before, too: a producer that does not own the log any longer must not fence the owner.

        Returns:
            ``self._owner`` with the producer, and the reader; ``None``: the ownership as stored is another one.
        """
        from confluent_kafka import Producer

        topic, former = self._topic, self._owner
        topic.check()
        if not may_own(self._caught_up(topic.end(), with_rows=with_rows).owner):
            return None
        if former is not None:
            former.drop()
        with topic.errors():
            producer = Producer(
                topic.client(
                    transactional_id=topic.transactional_id,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    message_timeout_ms=int(CALL_S * 1000),
                    message_max_bytes=topic.max_record_bytes + OVERHEAD_BYTES,
                    queue_buffering_max_messages=0,
                    queue_buffering_max_kbytes=2_097_151,
                    linger_ms=0,
                ),
                logger=client_logger,
            )
            _fence(producer)
        try:
            end = topic.end_without_open_transactions(HANGING_S)
        except OpenTransactionError:
            _abort_hanging(topic, producer)
            end = topic.end_without_open_transactions()
        tail = self._caught_up(end, with_rows=with_rows)
        if not may_own(tail.owner):
            return None
        self._owner = _Owner(topic, producer, OwnerState() if former is None else former.state, tail.position)
        return self._owner, tail

    def _renew(self, holder: str, last: int) -> bool:
        owner = self._owner
        if owner is None or owner.state.holder != holder or owner.state.last < last:
            return False
        return self._write_ownership(
            holder, lambda state: replace(state, renewals=state.renewals + 1, renewed_ms=_ms(time.time()))
        )

    def _write_ownership(self, holder: str, changed: Callable[[OwnerState], OwnerState]) -> bool:
        if self._owner is None or self._owner.state.holder != holder:
            raise LogNotWritable(f"{self.name}: is not owned by this coordinator")
        for _ in range(FENCES):
            if (owner := self._writable()) is None:
                return False
            with suppress(_FencedInCommit):
                if owner.write(changed(owner.state)):
                    return True
        raise self._fenced_too_often()

    def _writable(self) -> _Owner | None:
        """The owner, with a new producer after an unknown outcome or a fence.

        Of coordinators that try to take the log together, one may fence the winner, and read only then that it has
        lost. The topic names the owner: it goes on.

        Returns:
            ``None``: the log has another owner, or lacks records.
        """
        owner = self._owner
        if owner is None or owner.producer is not None:
            return owner
        before, is_short = owner.state, owner.is_short
        if is_short:  # which records are gone, only a reader of all knows
            self._drop_tail()
        fenced = self._fenced(lambda now: now.holder == before.holder, with_rows=is_short)
        if fenced is None:
            return None
        owner, tail = fenced
        if tail.rows is not None:
            tail.take_rows(set())
        owner.state = replace(tail.owner, last=max(tail.last, tail.owner.last))
        return owner if owner.state.last >= before.last else None

    def _fenced_too_often(self) -> LogError:
        return LogError(f"{self.name}: the outcome of a change is unknown: other coordinators fence this one")

    def _mark_serving(self, holder: str) -> bool:
        def serving(state: OwnerState) -> OwnerState:
            failover_ms = _ms(time.time()) if state.failover_from_ms >= 0 else -1
            return replace(state, server=self._topic.server, failover_ms=failover_ms)

        return self._write_ownership(holder, serving)

    def _release(self, holder: str, successor: str | None) -> None:
        def released(state: OwnerState) -> OwnerState:
            address = state.address if successor is None else successor
            return replace(state, holder="", address=address, renewed_ms=_ms(time.time()))

        owner = self._owner
        try:
            # Without a producer, after a change that failed, a new one is made, unless the lease is over anyway.
            if owner is not None and owner.state.holder == holder and (owner.producer is not None or owner.has_lease):
                self._write_ownership(holder, released)
        finally:
            self._drop_owner()

    # ------------------------------------------------------------------------------------------ rows

    def _append(self, epoch: int, last: int, rows: Sequence[Values]) -> bool:
        encoded, after = [encode_row(row) for row in rows], last + len(rows)
        is_unknown = False
        for _ in range(FENCES):
            owner = self._writable()
            found = (0, 0) if owner is None else (owner.state.epoch, owner.state.last)
            if is_unknown and found == (epoch, after):
                return True  # the fence came after the commit
            if is_unknown and owner is None:
                break
            if owner is None or found != (epoch, last):
                return False
            is_unknown = False
            try:
                if owner.write(replace(owner.state, last=after), encoded):
                    return True
            except _FencedInCommit:
                is_unknown = True
        raise self._fenced_too_often()

    def _read(self, groups: set[bytes] | None) -> tuple[list[Values], list[tuple[bytes, int, int]]]:
        tail = self._tail
        if tail is None or tail.rows is None:
            tail = self._caught_up(self._topic.end())
        rows = tail.take_rows(groups)
        sums: dict[bytes, tuple[int, int]] = {}
        for row in rows:
            count, total = sums.get(row[4], (0, 0))
            sums[row[4]] = count + 1, total + row[7] & 0xFFFFFFFF
        return rows, [(group, count, total) for group, (count, total) in sums.items()]

    # ------------------------------------------------------------------------------------------ clients

    def _drop_owner(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.drop()

    def _drop_tail(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            tail.close()

    def _close(self) -> None:
        self._drop_owner()
        self._drop_tail()
        if self._announcer is not None:
            self._announcer.flush(1.0)
            self._announcer = None
        self._standby = Standby()


class _Owner:
    """The producer of the owner.

    Attributes:
        producer: ``None`` after a transaction that failed; only ``write`` and ``drop`` change it.
        state: the ownership, as written last, with the offset of the last row that was written.
        known: an offset that the topic had reached ``KNOWN_S`` ago, or when the producer was made.
        is_short: whether a record was written at an offset that others had; only ``write`` changes it.
    """

    def __init__(self, topic: Topic, producer: Any, state: OwnerState, position: int) -> None:
        self._topic, self.producer, self.state = topic, producer, state
        self._position = position  # the next record is at this offset of the topic, or behind it
        self.is_short = False
        self._renewals = deque([(time.monotonic(), position)])  # the last ones: when, and the position then

    @property
    def known(self) -> int:
        return self._renewals[0][1]

    @property
    def has_lease(self) -> bool:
        """Whether others may wait for the end of the lease that was written last."""
        return time.monotonic() < self._renewals[-1][0] + self.state.lease_ms / 1000

    def write(self, state: OwnerState, rows: Sequence[Encoded] = ()) -> bool:
        """Write rows, or without rows the ownership, in one transaction. It becomes ``state`` then.

        Returns:
            Whether it was written; false: another producer has fenced this one, and nothing was.

        Raises:
            LogNotWritable: nothing was written.
            LogError: the outcome is unknown; ``_FencedInCommit``: because of a fence.
        """
        from confluent_kafka import KafkaError, KafkaException

        topic, producer = self._topic, self.producer
        if producer is None:
            raise LogNotWritable(f"{topic.name}: is not connected")
        reports: list[tuple[Any, int]] = []  # error and offset of the last record
        is_committing = False
        try:
            producer.begin_transaction()
            self._send(rows or [encode_owner(state)], reports)
            left = producer.flush(CALL_S)
            if left or not reports:
                raise _NotDelivered(f"{left} records were not acknowledged in {CALL_S:g} s")
            ((problem, offset),) = reports
            if problem is not None:
                if problem.code() == KafkaError._PURGE_QUEUE:  # because the transaction has failed
                    producer.commit_transaction(CALL_S)  # raises why
                raise KafkaException(problem)
            if offset < self._position:
                self.is_short = True
                raise _NotDelivered(
                    f"a record was written at offset {offset}, where {self._position} or more was expected: the topic "
                    "was deleted and created again, or truncated"
                )
            is_committing = True
            producer.commit_transaction(CALL_S)
        except (KafkaException, _NotDelivered, BufferError, SystemError) as error:
            aborted = not is_committing or (
                isinstance(error, KafkaException) and bool(error.args[0].txn_requires_abort())
            )
            problems = [error, *(self._abort() if aborted else ())]
            self.drop()
            reason = topic.reason(error)
            if any(map(_is_fenced, problems)):
                if is_committing:
                    raise _FencedInCommit(f"{topic.name}: the outcome of a change is unknown: {reason}") from error
                return False
            if not is_committing or (aborted and len(problems) == 1):
                raise LogNotWritable(f"{topic.name}: {reason}") from error
            raise LogError(f"{topic.name}: the outcome of a change is unknown: {reason}") from error
        self._position = offset + 1
        self._wait_until_readable(offset)
        self.state = state
        if not rows:
            now_s = time.monotonic()
            self._renewals.append((now_s, self._position))
            while self._renewals[1][0] < now_s - KNOWN_S:
                self._renewals.popleft()
        return True

    def _wait_until_readable(self, offset: int) -> None:
        """Wait for the marker of a commit: a broker that is killed before it has written it may forget the commit.

        Also of an ownership: a successor goes by the renewals that it reads, and may serve while the lease of one that
        was forgotten has not ended.

        Raises:
            LogError: the outcome is unknown.
        """
        give_up = time.monotonic() + CALL_S
        try:
            while self._topic.end() <= offset:
                if time.monotonic() > give_up:
                    raise LogError(f"{self._topic.name}: the outcome of a change is unknown: it cannot be read yet")
        except LogError:
            self.drop()
            raise

    def _send(self, records: Sequence[Encoded], reports: list[tuple[Any, int]]) -> None:
        """Queue records; ``reports`` gets the error of the last one, or ``None``, and its offset in the topic."""

        def on_delivery(error: Any, message: Any) -> None:
            reports.append((error, message.offset() if error is None else -1))

        for number, (key, value, headers) in enumerate(records, 1):
            report = {"on_delivery": on_delivery} if number == len(records) else {}
            partition = self._topic.partition.partition
            self.producer.produce(self._topic.topic, value, key, partition=partition, headers=headers, **report)

    def _abort(self) -> list[Exception]:
        """Abort the transaction; the error, if there is one."""
        from confluent_kafka import KafkaException

        try:
            self.producer.abort_transaction(CALL_S)
        except KafkaException as error:
            return [error]
        return []

    def drop(self) -> None:
        """Close the producer: what it has not sent is never sent."""
        producer, self.producer = self.producer, None
        if producer is not None:
            with suppress(Exception):  # such as the fatal error because of which it is dropped
                producer.purge()
                producer.flush(0)


def _fence(producer: Any) -> None:
    """Fence all earlier producers; a broker that was just started may have to read its transactions first."""
    from confluent_kafka import KafkaException

    give_up_s = time.monotonic() + CALL_S
    while True:
        try:
            producer.init_transactions(max(0.1, give_up_s - time.monotonic()))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() >= give_up_s:
                raise
        time.sleep(0.1)


def _abort_hanging(topic: Topic, producer: Any) -> None:
    """End a transaction of an earlier producer that its cluster has forgotten to end.

    A cluster that restarts after a commit was acknowledged, and before its marker was written, may take the topic for
    deleted, because it does not know its leader yet: the transaction stays open for ever. ``_Owner.write`` has not
    acknowledged it. A marker ends all that is open of a producer id, which a new producer takes over from a former one
    of its transactional id; so one more transaction of it, which is aborted, ends the hanging one, too.
    """
    with topic.errors():
        producer.begin_transaction()
        key, value, _ = encode_owner(OwnerState())
        producer.produce(topic.topic, value, key, partition=topic.partition.partition)
        producer.flush(CALL_S)
        producer.abort_transaction(CALL_S)


class _FencedInCommit(LogError):
    """Another producer has fenced this one, perhaps before the commit, perhaps after it."""


class _NotDelivered(Exception):
    """The records of a transaction were not written as expected; it was not committed."""


def _is_fenced(error: BaseException) -> bool:
    from confluent_kafka import KafkaError

    if isinstance(error, SystemError) and error.__cause__ is not None:
        # confluent-kafka raises a fatal error of a producer while it reports a delivery.
        error = error.__cause__
    code = error.args[0].code() if error.args and hasattr(error.args[0], "code") else None
    return code in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)


def _ms(time_s: float) -> int:
    return int(time_s * 1000)


def from_url(url: SplitResult, *, restored: bool = False) -> Log:
    """The log of ``kafka://HOST:PORT,HOST:PORT/TOPIC``; see ``registry``.

    The query may have ``config``, a properties file with settings of librdkafka, and ``replication``, the replication
    factor of a new topic.

    Args:
        restored: treat the log as one that lacks acknowledged records.

    Raises:
        ValueError: it has no broker or no topic, or something that such a URL does not have.
        ConfigError: a setting of the file, the file, or a parameter of the URL is not valid.
    """
    servers, topic = unquote(url.netloc), unquote(url.path.removeprefix("/"))
    options = dict(parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query)))
    check_parameters(options, ("config", "replication"))
    if not servers or not topic or url.fragment:
        raise ValueError("a broker and a topic are required")
    if "@" in servers or "/" in topic or topic != printable(topic):
        raise ValueError("a login belongs into the file of config=FILE")
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError("HOST:PORT")
    replication = int(options["replication"]) if "replication" in options else None
    if replication is not None and not 0 < replication < 32_768:
        raise ValueError("replication")
    client = read_properties(Path(options["config"])) if "config" in options else {}
    try:
        return LeasedLog(KafkaStore(servers, topic, client=client, replication=replication), restored=restored)
    except ValueError as error:
        raise ConfigError("config", options.get("config", ""), f"settings of librdkafka ({error})") from error
