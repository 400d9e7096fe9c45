"""Offsets that transactions commit: the broker decides about them, the groups adopt what it has decided.

The broker's transaction coordinator knows producers, epochs and outcomes, and reports an outcome only to its own
brokers. So the broker gets a copy of each offset that a transaction commits (TxnOffsetCommit), in a group of the same
name without members, with a token as its metadata. Here, the offset is a pending record with the same token. What the
broker has committed of the partition afterwards is the outcome: the token is there, or it is not.

Source: KIP-98, KIP-447; Kafka's ``OffsetMetadataManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final, Protocol

from ..group.kernel.outcome import TransactionOutcome, TransactionsEnded
from ..group.offsets import Offsets, Place
from ..protocol.units import printable
from .shard import Shard

logger = logging.getLogger(__name__)

ASK_WAIT_S: Final = 2.0
"""Seconds that a request waits for the broker; without an outcome, the offsets stay pending."""

AFTER_END_S: Final = (0.05, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before each attempt after a transaction was ended: the broker completes it after its response, and one answer
is about all transactions that have ended meanwhile."""

CHECK_EVERY_S: Final = 10.0
"""Seconds between attempts without a reason: the broker aborts a transaction whose producer is gone."""


class BrokerOffsets(Protocol):
    """The offsets that the broker has of the groups."""

    async def tokens(self, group_id: str, places: Collection[Place], *, stable: bool) -> Mapping[Place, str | None]:
        """The metadata of the committed offset of each partition, empty without one.

        Args:
            group_id: the group.
            places: the partitions.
            stable: whether ``None`` is returned for a partition of which an open transaction commits an offset.

        Raises:
            Exception: the broker does not say.
        """


class Transactions:
    """Asks the broker for the outcome of transactions that have pending offsets."""

    def __init__(self, shard: Shard, broker: BrokerOffsets) -> None:
        """``shard``: with the groups; ``broker``: is asked."""
        self._shard, self._broker = shard, broker
        self._asking: dict[str, asyncio.Task[bool]] = {}  # the question to the broker under way, by group
        self._committing: set[str] = set()  # groups with transactions that have not ended, as far as is known
        self._settling: set[str] = set()  # groups that a task asks for since a transaction has ended
        self._tasks: set[asyncio.Task[None]] = set()  # ``close`` ends them

    def start(self) -> None:
        """Begin to ask at an interval."""
        self._spawn(self._watch())

    async def close(self) -> None:
        """Stop asking."""
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_commit(self, group_id: str) -> None:
        """A transaction has committed offsets of a group."""
        self._committing.add(group_id)

    def on_end(self) -> None:
        """A producer has ended a transaction: the pending offsets of some groups will be decided soon."""
        for group_id in self._committing - self._settling:
            self._settling.add(group_id)
            self._spawn(self._settle_soon(group_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, group_id: str) -> None:
        """Give the group the outcome of its transactions, as far as the broker knows it; requests share a question."""
        if self._pending(group_id) is not None:
            await asyncio.wait([self._ask_once(group_id)], timeout=ASK_WAIT_S)

    def _with_pending(self) -> list[str]:
        return [group_id for group_id in self._shard.groups.loaded if self._pending(group_id) is not None]

    def _pending(self, group_id: str) -> Offsets | None:
        """The offsets of a group if some of them are pending."""
        loaded = self._shard.groups.loaded.get(group_id)
        offsets = getattr(loaded.state, "offsets", None) if loaded is not None else None
        return offsets if isinstance(offsets, Offsets) and offsets.pending else None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for group_id in self._with_pending():
                await self.settle(group_id)

    async def _settle_soon(self, group_id: str) -> None:
        try:
            for pause_s in AFTER_END_S:
                await asyncio.sleep(pause_s)
                self._committing.discard(group_id)  # what is committed from here on needs another question
                if self._pending(group_id) is None or await self._ask_once(group_id):
                    return
                self._committing.add(group_id)
        finally:
            self._settling.discard(group_id)

    def _ask_once(self, group_id: str) -> asyncio.Task[bool]:
        if group_id not in self._asking:
            task = asyncio.get_running_loop().create_task(self._ask(group_id))
            self._asking[group_id] = task
            task.add_done_callback(lambda _: self._asking.pop(group_id, None))
        return self._asking[group_id]

    async def _ask(self, group_id: str) -> bool:
        """Ask for the outcome; return whether all transactions have ended."""
        offsets = self._pending(group_id)
        if offsets is None:
            return True
        asked = {place: frozenset(each.token for each in pending.commits) for place, pending in offsets.pending.items()}
        try:
            stable = await self._broker.tokens(group_id, asked, stable=True)
            open_ = [place for place, token in stable.items() if token is None]
            # What earlier transactions have committed.
            unstable = await self._broker.tokens(group_id, open_, stable=False) if open_ else {}
        except Exception as error:
            logger.debug("group %s: the outcome of transactions is not known: %s", printable(group_id), error)
            return False
        outcomes = {
            place: TransactionOutcome(
                token=(token if token is not None else unstable.get(place)) or "",
                is_stable=token is not None,
                asked=asked[place],
            )
            for place, token in stable.items()
        }
        self._shard.intake.submit_input(group_id, TransactionsEnded(group_id=group_id, outcomes=outcomes))
        return not open_
