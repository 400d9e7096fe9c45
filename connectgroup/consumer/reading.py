"""What a consumer is reading: where it has got to in each partition, and what has come and was not handed out yet.

A position is the offset of the next record to hand out. It is told to the group (``offsets``) as the offset to read
on from.
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
"""How long one read may block its thread: what a rebalance waits for at most."""

MOST_FETCHED = 500


class Reading:
    """The partitions that are read.

    Attributes:
        positions: of each partition that is read.
        committed: what the group is known to know of them.
        trouble: what reading has met, for the next ``poll`` to raise.
    """

    def __init__(self, settings: ConsumerSettings, client: GroupClient) -> None:
        self._settings, self._client = settings, client
        self._fetcher = Fetcher(settings)
        self.positions: dict[TopicPartition, Position] = {}
        self.committed: dict[TopicPartition, Position] = {}
        self.trouble: ConnectGroupError | None = None
        self._fetch: asyncio.Task[list[Record]] | None = None
        self._buffer: deque[Record] = deque()
        self._last: Sequence[Record] = ()

    # ------------------------------------------------------------------------------------------ partitions

    async def begin(self, partitions: Partitions) -> None:
        """Read these too, each from where the group has got to; those for which that cannot be told are left for later.

        Raises:
            BrokerError, FetchError: it is refused.
        """
        try:
            found = await committed(self._client, self._settings.group, partitions)
        except TransportError as error:
            logger.warning("group %s: %s; trying again", self._settings.group, error)
            return
        self.committed |= found
        for partition in sorted(partitions - found.keys()):
            offset = await self._fetcher.where_to_begin(partition)
            if offset is not None:
                found[partition] = Position(offset)
        await self._fetcher.take({partition: position.offset for partition, position in found.items()})
        self.positions |= found

    async def stop(self, partitions: Partitions) -> None:
        """Read these no more, and hand out nothing of them; their positions stay, so that they can be committed."""
        await self._fetcher.drop(partitions & self.positions.keys())
        if self._fetch is not None:
            await asyncio.wait({self._fetch})
            self._take_fetched()
        self._buffer = deque(record for record in self._buffer if record.topic_partition not in partitions)

    def forget(self, partitions: Partitions) -> None:
        """Let go of the positions of these."""
        for partition in partitions:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    async def close(self) -> None:
        """Read nothing any more."""
        if self._fetch is not None:
            self._fetch.cancel()
        await self._fetcher.close()

    # ------------------------------------------------------------------------------------------ records

    def hand_out(self, most: int) -> list[Record]:
        """What has come, up to so many; they count as read."""
        records = [self._buffer.popleft() for _ in range(min(most, len(self._buffer)))]
        for record in records:
            self.positions[record.topic_partition] = Position(record.offset + 1, record.leader_epoch)
        self._last = records
        return records

    def settle(self) -> None:
        """What was handed out last has been dealt with."""
        self._last = ()

    def take_back(self) -> None:
        """What was handed out last was not dealt with: it does not count as read."""
        for record in reversed(self._last):
            if record.topic_partition in self.positions:
                self.positions[record.topic_partition] = Position(record.offset)

    def uncommitted(self) -> dict[TopicPartition, Position]:
        """The positions that the group does not know of."""
        return {each: at for each, at in self.positions.items() if self.committed.get(each) != at}

    async def wait(self, wake: asyncio.Event, timeout_s: float) -> None:
        """Until records have come, the event is set, or time is up."""
        if self._fetch is None and self.positions:
            self._fetch = asyncio.create_task(self._fetcher.fetch(MOST_FETCHED, FETCH_SLICE_S), name="fetch")
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
                self.trouble = self.trouble or error
            else:
                self._buffer += fetch.result()
