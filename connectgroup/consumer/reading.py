"""The read state of a consumer: its position in each partition, and fetched records not returned yet.

A position is the offset of the next record to return. It is committed to the group (``offsets``) as the offset at which
to continue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from ..errors import ConnectGroupError, TransportError
from ..protocol.units import Partitions, TopicPartition
from .client import GroupClient, TopicSeen
from .errors import with_extra
from .fetching import Fetched, Fetcher
from .offsets import ReadPosition, committed
from .records import Record, RecordRun, record_of, records_of
from .settings import GroupConsumerSettings

with with_extra():
    from confluent_kafka import Message

logger = logging.getLogger(__name__)

FETCH_SLICE_S = 0.1
"""Maximum time that one read blocks its thread, and hence the maximum wait of a rebalance for it."""

MAX_RECORDS = 250
"""Default maximum of records that one ``poll`` returns, and of those that are taken from librdkafka at a time.

Python's garbage collector runs when 700 more objects exist than at its last run, and a record is two objects. In a
large program, a collection for every few hundred records takes as long as reading them.
"""


class Reading:
    """The partitions that are read.

    Attributes:
        paused: partitions of which no records are returned.
        committed: last known committed positions of them.
        callback_error: an error from reading, to be raised by the next ``poll``.
        recreated: topics that were deleted and created again while they were read. ``find_recreated`` adds to it,
            ``read_again`` empties it.
    """

    def __init__(self, settings: GroupConsumerSettings, client: GroupClient) -> None:
        self._settings, self._client = settings, client
        self._fetcher = Fetcher(settings, client.problems)
        self._positions: dict[TopicPartition, ReadPosition] = {}  # the next record to return, of each partition
        self.committed: dict[TopicPartition, ReadPosition] = {}
        self.callback_error: ConnectGroupError | None = None
        self._fetch: asyncio.Future[Fetched] | None = None  # the read under way
        self._buffer: deque[RecordRun] = deque()  # records that were read and not returned yet
        self._taken = 0  # records of the first run in the buffer that were returned already
        self._last: Sequence[RecordRun] = ()
        self.paused: set[TopicPartition] = set()
        self._fetched: set[TopicPartition] = set()  # partitions that librdkafka reads
        self.recreated: set[str] = set()
        self._subscribed: dict[str, TopicSeen] | None = None  # the topics when ``note_topics`` was first called
        self._ids: dict[str, str] = {}  # of the topics that are read, by name
        self._looked_at = 0.0  # when ``find_recreated`` last asked, by ``time.monotonic``
        self._single: Message | None = None  # returned last, by ``next_record``
        self._is_counted = True  # whether the position of ``_single`` is in ``_positions``

    @property
    def positions(self) -> dict[TopicPartition, ReadPosition]:
        """The position of each partition that is read."""
        if not self._is_counted and self._single is not None:
            self._positions[_place(self._single)] = _after(self._single)
        self._is_counted = True
        return self._positions

    # ------------------------------------------------------------------------------------------ partitions

    async def note_topics(self) -> None:
        """Note which partitions the subscribed topics have before the group is joined; only the first call does so.

        Raises:
            TransportError: no broker responded.
        """
        if self._subscribed is None:
            self._subscribed = await self._client.seen(
                self._settings.topics if self._settings.pattern is None else None
            )

    async def begin(self, partitions: Partitions) -> bool:
        """Start reading partitions at their committed positions; those without an available position are skipped.

        Returns:
            Whether a partition without a committed position has begun at its end. Its position should be committed
            soon: a later owner that begins at the end as well would skip the records written until then.

        Raises:
            BrokerError, FetchError: the request is rejected.
        """
        try:
            seen = await self._client.seen({each.topic for each in partitions})
            found = await committed(self._client, self._settings.group, partitions)
        except TransportError as error:
            logger.debug("group %s: %s; trying again", self._settings.group, error)
            return False
        # Committed offsets, by whatever member, may still be those of the topic before.
        again = {topic for topic, each in seen.items() if self._ids.get(topic, each.topic_id) != each.topic_id}
        found = {partition: at for partition, at in found.items() if partition.topic not in again}
        self.committed |= found
        begun_at_end = False
        for partition in sorted(partitions - found.keys()):
            is_new = partition.topic in again or self._is_new(partition, seen.get(partition.topic))
            offset = await self._fetcher.start_position(partition, is_new=is_new)
            if offset is not None:
                found[partition] = ReadPosition(offset)
                begun_at_end |= self._settings.auto_offset_reset == "latest"
        self._ids.update(
            {partition.topic: seen[partition.topic].topic_id for partition in found if partition.topic in seen}
        )
        self.positions.update(found)
        await self._resume(found.keys())
        return begun_at_end

    def _is_new(self, partition: TopicPartition, topic: TopicSeen | None) -> bool:
        """Whether a partition was created after the consumer subscribed."""
        if self._subscribed is None or topic is None:
            return False
        before = self._subscribed.get(partition.topic)
        return before is None or before.topic_id != topic.topic_id or partition.partition >= before.partitions

    async def find_recreated(self, *, since_s: float = 0.0) -> bool:
        """Compare the ids of the topics that are read with the cluster's; return whether some were created again.

        Args:
            since_s: nothing is asked if the last look is not older.

        Raises:
            TransportError: no broker responded.
        """
        if self._ids and time.monotonic() - self._looked_at >= since_s:
            self._looked_at = time.monotonic()
            seen = await self._client.seen(self._ids.keys())
            self.recreated |= {
                topic for topic, each in seen.items() if self._ids.get(topic, each.topic_id) != each.topic_id
            }
        return bool(self.recreated)

    async def read_again(self) -> None:
        """Discard the positions in topics that were created again: ``begin`` then starts at their beginning."""
        topics, self.recreated = frozenset(self.recreated), set()
        partitions = frozenset(each for each in self.positions if each.topic in topics)
        if partitions:
            logger.warning(
                "group %s: %s: deleted and created again; reading from the beginning of the new topic",
                self._settings.group,
                ", ".join(sorted(topics)),
            )
            await self.stop(partitions)
            self._discard(partitions)

    async def stop(self, partitions: Partitions) -> None:
        """Stop reading, and drop fetched records; positions are kept so that they can be committed."""
        await self._fetcher.drop(partitions & self._fetched)
        self._fetched -= partitions
        if self._fetch is not None:
            await asyncio.wait({self._fetch})
            self._take_fetched()
        self._pass_ends()
        for partition in partitions:
            self._fetcher.ends.pop(partition, None)
        if self._buffer and self._taken:
            # A record in the first run that was returned already is returned no more.
            first = self._buffer[0]
            self._buffer[0] = RecordRun(first.partition, first.messages[self._taken :])
            self._taken = 0
        self._buffer = deque(run for run in self._buffer if run.partition not in partitions)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue with the record at this offset; the records returned before count as processed."""
        self.settle()
        await self.stop(frozenset({partition}))
        self.positions[partition] = ReadPosition(offset)
        await self._resume({partition})

    async def pause(self, partitions: Partitions) -> None:
        """Return no records of these partitions until they are resumed; their positions are kept."""
        self.paused |= partitions
        await self.stop(partitions)

    async def resume(self, partitions: Partitions) -> None:
        """Return records of these partitions again."""
        resumed = partitions & self.paused
        self.paused -= resumed
        await self._resume(resumed & self.positions.keys())

    async def lag(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The records between the position of each partition and its end; one whose end is not available is omitted."""
        self._pass_ends()
        ends = {partition: await self._fetcher.end(partition) for partition in sorted(partitions)}
        return {
            partition: max(0, end - self.positions[partition].offset)
            for partition, end in ends.items()
            if end is not None and partition in self.positions
        }

    async def _resume(self, partitions: Collection[TopicPartition]) -> None:
        """Read partitions at their positions, except those that are paused."""
        offsets = {each: self.positions[each].offset for each in partitions if each not in self.paused}
        await self._fetcher.take(offsets)
        self._fetched |= offsets.keys()

    def forget(self, partitions: Partitions) -> None:
        """Discard the positions of these partitions, which this consumer does not own any more."""
        self.paused -= partitions
        self._discard(partitions)
        read = {partition.topic for partition in self.positions}
        self._ids = {topic: topic_id for topic, topic_id in self._ids.items() if topic in read}

    def _discard(self, partitions: Partitions) -> None:
        for partition in partitions:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    async def close(self) -> None:
        """Stop reading everything."""
        if self._fetch is not None:
            self._fetch.cancel()
        await self._fetcher.close()

    # ------------------------------------------------------------------------------------------ records

    def has(self, count: int) -> bool:
        """Whether as many records have arrived."""
        while (before := self._arrived()) < count:
            self.take_more()
            if self._arrived() == before:
                return False
        return True

    def _arrived(self) -> int:
        return sum(len(run.messages) for run in self._buffer) - self._taken

    def take_records(self, limit: int) -> list[Record]:
        """Return up to ``limit`` fetched records; they count as read."""
        positions, last, records = self.positions, list[RecordRun](), list[Record]()
        while self._buffer and limit > 0:
            partition, messages = self._buffer[0]
            end = min(self._taken + limit, len(messages))
            part = messages[self._taken : end]
            limit -= len(part)
            self._taken = end
            if end == len(messages):
                self._buffer.popleft()
                self._taken = 0
            records += records_of(part)
            positions[partition] = _after(part[-1])
            last.append(RecordRun(partition, part))
        self._last, self._single = last, None
        return records

    def next_record(self) -> Record | None:
        """Return the next fetched record, if there is one; it counts as read, and the one before it as processed.

        Its position is computed when ``positions`` is read next: not for each record.
        """
        if not self._buffer:
            self.take_more()
            if not self._buffer:
                return None
        if not self._taken:
            _ = self.positions  # count the last record of the run before
        messages = self._buffer[0].messages
        message = messages[self._taken]
        self._taken += 1
        if self._taken == len(messages):
            self._buffer.popleft()
            self._taken = 0
        self._last, self._single, self._is_counted = (), message, False
        return record_of(message)

    def settle(self) -> None:
        """Mark the records returned last as processed."""
        _ = self.positions
        self._last, self._single = (), None
        self._pass_ends()

    def return_unprocessed(self) -> None:
        """The records returned last were not processed: reset their positions, so that they do not count as read.

        Those that the program has committed itself, one by one, were processed.
        """
        positions, single = self.positions, self._single
        unprocessed = [(partition, messages[0]) for partition, messages in reversed(self._last)]
        if single is not None:
            unprocessed.append((_place(single), single))
        for partition, message in unprocessed:
            if partition in positions:
                first, known = ReadPosition(_offset(message)), self.committed.get(partition)
                positions[partition] = known if known is not None and known.offset >= first.offset else first
                self._fetcher.ends.pop(partition, None)
        self._last, self._single = (), None

    def _pass_ends(self) -> None:
        """Move positions over markers of transactions, which follow the last record of a partition that is read."""
        if not self._fetcher.ends:
            return
        arrived = {run.partition for run in self._buffer} | {run.partition for run in self._last}
        if self._single is not None:
            arrived.add(_place(self._single))
        for partition in self._fetcher.ends.keys() - arrived:
            end, at = self._fetcher.ends.pop(partition), self.positions.get(partition)
            if at is not None and at.offset < end:
                self.positions[partition] = ReadPosition(end, at.leader_epoch)

    def uncommitted(self) -> dict[TopicPartition, ReadPosition]:
        """The positions that differ from the committed ones."""
        self._pass_ends()
        return {each: at for each, at in self.positions.items() if self.committed.get(each) != at}

    def take_more(self) -> None:
        """Move records that have arrived to the buffer. An error is raised by the next ``poll``."""
        self._take_fetched()
        if self._fetch is None and self._fetched and self.callback_error is None:
            self._keep(self._fetcher.fetched(MAX_RECORDS))

    async def wait(self, wake: asyncio.Event, timeout_s: float) -> None:
        """Wait until records have arrived, the event is set, or the timeout has elapsed."""
        if self._fetch is None and self._fetched:
            self._fetch = self._fetcher.fetch(MAX_RECORDS, FETCH_SLICE_S)
        waking = asyncio.create_task(wake.wait(), name="wake")
        waited: set[asyncio.Future[Any]] = {waking, *((self._fetch,) if self._fetch else ())}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._take_fetched()

    def _take_fetched(self) -> None:
        if self._fetch is not None and self._fetch.done():
            fetch, self._fetch = self._fetch, None
            self._keep(fetch.result())

    def _keep(self, fetched: Fetched) -> None:
        self._buffer += fetched.runs
        self.callback_error = self.callback_error or fetched.error


def _place(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _offset(message: Message) -> int:
    return message.offset() or 0


def _after(message: Message) -> ReadPosition:
    """The position after a record."""
    epoch = message.leader_epoch()
    return ReadPosition(_offset(message) + 1, -1 if epoch is None else epoch)
