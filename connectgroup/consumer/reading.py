"""The read state of a consumer: its position in each partition, and fetched records not returned yet.

A position is the offset of the next record to return. It is committed to the group (``offsets``) as the offset at which
to continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from ..errors import ConnectGroupError, TransportError
from ..protocol.units import Partitions, TopicPartition
from .client import GroupClient
from .fetching import Fetcher, Record
from .offsets import Position, committed
from .settings import ConsumerSettings

logger = logging.getLogger(__name__)

FETCH_SLICE_S = 0.1
"""Maximum time that one read blocks its thread, and hence the maximum wait of a rebalance for it."""

MAX_FETCHED = 500


class Reading:
    """The partitions that are read.

    Attributes:
        positions: position of each partition that is read.
        committed: last known committed positions of them.
        callback_error: an error from reading, to be raised by the next ``poll``.
    """

    def __init__(self, settings: ConsumerSettings, client: GroupClient) -> None:
        self._settings, self._client = settings, client
        self._fetcher = Fetcher(settings)
        self.positions: dict[TopicPartition, Position] = {}
        self.committed: dict[TopicPartition, Position] = {}
        self.callback_error: ConnectGroupError | None = None
        self._fetch: asyncio.Task[list[Record]] | None = None
        self._buffer: deque[Record] = deque()
        self._last: Sequence[Record] = ()

    # ------------------------------------------------------------------------------------------ partitions

    async def begin(self, partitions: Partitions) -> None:
        """Start reading partitions at their committed positions; those without an available position are skipped.

        Raises:
            BrokerError, FetchError: the request is rejected.
        """
        try:
            found = await committed(self._client, self._settings.group, partitions)
        except TransportError as error:
            logger.warning("group %s: %s; trying again", self._settings.group, error)
            return
        self.committed |= found
        for partition in sorted(partitions - found.keys()):
            offset = await self._fetcher.start_position(partition)
            if offset is not None:
                found[partition] = Position(offset)
        await self._fetcher.take({partition: position.offset for partition, position in found.items()})
        self.positions |= found

    async def stop(self, partitions: Partitions) -> None:
        """Stop reading, and drop fetched records; positions are kept so that they can be committed."""
        await self._fetcher.drop(partitions & self.positions.keys())
        if self._fetch is not None:
            await asyncio.wait({self._fetch})
            self._take_fetched()
        self._buffer = deque(record for record in self._buffer if record.topic_partition not in partitions)

    def forget(self, partitions: Partitions) -> None:
        """Discard the positions of these partitions."""
        for partition in partitions:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    async def close(self) -> None:
        """Stop reading everything."""
        if self._fetch is not None:
            self._fetch.cancel()
        await self._fetcher.close()

    # ------------------------------------------------------------------------------------------ records

    def hand_out(self, limit: int) -> list[Record]:
        """Return up to ``limit`` fetched records; they count as read."""
        records = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        for record in records:
            self.positions[record.topic_partition] = Position(record.offset + 1, record.leader_epoch)
        self._last = records
        return records

    def settle(self) -> None:
        """Mark the records returned last as processed."""
        self._last = ()

    def return_unprocessed(self) -> None:
        """The records returned last were not processed: reset their positions, so that they do not count as read."""
        for record in reversed(self._last):
            if record.topic_partition in self.positions:
                self.positions[record.topic_partition] = Position(record.offset)

    def uncommitted(self) -> dict[TopicPartition, Position]:
        """The positions that differ from the committed ones."""
        return {each: at for each, at in self.positions.items() if self.committed.get(each) != at}

    async def wait(self, wake: asyncio.Event, timeout_s: float) -> None:
        """Wait until records have arrived, the event is set, or the timeout has elapsed."""
        if self._fetch is None and self.positions:
            self._fetch = asyncio.create_task(self._fetcher.fetch(MAX_FETCHED, FETCH_SLICE_S), name="fetch")
        waking = asyncio.create_task(wake.wait(), name="wake")
        waited: set[asyncio.Task[object]] = {waking, *((self._fetch,) if self._fetch else ())}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._take_fetched()

    def _take_fetched(self) -> None:
        if self._fetch is not None and self._fetch.done():
            fetch, self._fetch = self._fetch, None
            if isinstance(error := fetch.exception(), ConnectGroupError):
                self.callback_error = self.callback_error or error
            else:
                self._buffer += fetch.result()
