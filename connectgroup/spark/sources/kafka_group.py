"""The consumer group ``connect-NAME``: positions of the source ``kafka``, for Kafka's tools and lag exporters.

Kafka Connect's sink connectors have this group, so dashboards and alerts of a cluster find it. Here it is information:
a task continues at the positions in the sink, and nothing reads the group back. So it is written after the sink's
commit, in a thread of its own, and no error of it stops the task.

The offset's metadata are the owner's fencing token: an owner does not overwrite the offsets of a later one. Kafka has
no conditional commit, so an owner that is suspended between the check and the commit may still do so; the later owner
compares what is there at intervals, and corrects it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ...dataplane.ownership import Owner
from ...dataplane.source import Publisher
from ...protocol.units import printable
from ..kafka_client import client_settings

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

INTERVAL_S: Final = 5.0
"""Between two commits to the group: the interval of automatic commits of Kafka's consumers."""
CHECK_S: Final = 60.0
"""How often a group is compared without new positions. Its offsets may have expired (``offsets.retention.minutes``),
been deleted, or been overwritten by an earlier owner. After failures also the longest wait before the next attempt."""
CLOSE_S: Final = 3.0
"""How long the end of a task waits for its last positions to be published."""
_REQUEST_S: Final = 10.0
_TOKEN: Final = re.compile(r"connectgroup ([0-9]+)")

logger = logging.getLogger(__name__)


def group_of(connector: str) -> str:
    """Return the consumer group of a connector, as Kafka Connect names it."""
    return f"connect-{connector}"


class GroupOffsets:
    """A client of one consumer group; the tasks of a connector in this process share it, for each has threads and
    connections. It never joins the group. It is a consumer: librdkafka's admin client ends the process when the group's
    coordinator moves while it lists offsets.
    """

    _shared: ClassVar[dict[tuple[str, str, str], tuple[Consumer, int]]] = {}
    """By the arguments: the consumer, and the number of users. Changed by ``open`` and ``close``, under the lock."""
    _lock: ClassVar = threading.Lock()

    def __init__(self, servers: str, client: str, group: str) -> None:
        """Store the arguments; ``open`` connects."""
        self._key = servers, client, group
        self._consumer: Consumer | None = None

    def open(self) -> Consumer:
        """Return the consumer."""
        if self._consumer is None:
            with self._lock:
                consumer, users = self._shared.get(self._key, (None, 0))
                self._consumer = consumer or self._connect(*self._key)
                self._shared[self._key] = self._consumer, users + 1
        return self._consumer

    def close(self) -> None:
        """Disconnect, if nothing else uses the consumer. Idempotent."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        with self._lock:
            _, users = self._shared.pop(self._key)
            if users > 1:
                self._shared[self._key] = consumer, users - 1
                return
        consumer.close()

    @staticmethod
    def _connect(servers: str, client: str, group: str) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": servers,
                **client_settings("source.client", client),
                "group.id": group,
                "enable.auto.commit": False,
                # How long a commit waits for a coordinator.
                "session.timeout.ms": int(_REQUEST_S * 1000),
                "log_level": 0,
            }
        )


class GroupPublisher(Publisher):
    """Publishes the positions of one task. Its thread starts with it and is a daemon: a broker that does not answer
    delays neither a batch nor the end of the process.
    """

    def __init__(self, servers: str, client: str, owner: Owner, positions: Mapping[str, int]) -> None:
        """Start.

        Args:
            servers, client: the source's ``bootstrap.servers`` and ``client``.
            owner: the task's grant.
            positions: what the task has claimed. They are published too: an earlier owner may have been killed between
                its last commit and its publication.
        """
        self._servers, self._owner = servers, owner
        self._client = GroupOffsets(servers, client, group_of(owner.connector))
        self._metadata = f"connectgroup {owner.fencing_token}"
        self._lock = threading.Lock()
        # Written by the threads that call ``committed``, under the lock.
        self._wanted = {name: int(at) for name, at in positions.items()}
        # The rest is of the publishing thread alone.
        self._done: dict[str, int] = {}
        self._failures, self._is_reported = 0, False
        self._is_outdated = self._has_looked = False
        self._news, self._closing = threading.Event(), threading.Event()
        self._news.set()
        self._thread = threading.Thread(target=self._run, name=f"publish {owner}", daemon=True)
        self._thread.start()

    def committed(self, positions: Mapping[str, int]) -> None:
        with self._lock:
            self._wanted.update({name: int(at) for name, at in positions.items()})
        self._news.set()

    def close(self) -> None:
        self._closing.set()
        self._news.set()
        # The last attempt goes on in its thread. A cluster that has not answered before delays no move of a task.
        self._thread.join(0.0 if self._failures else CLOSE_S)

    def _run(self) -> None:
        while True:
            self._news.wait(CHECK_S)
            if self._closing.is_set():
                break
            self._news.clear()
            self._publish(_REQUEST_S)
            wait_s = min(CHECK_S, INTERVAL_S * (1 << min(self._failures, 10)))
            self._closing.wait(wait_s)
        with self._lock:
            is_complete = self._done == self._wanted
        if not is_complete:
            self._publish(CLOSE_S)
        self._client.close()

    def _publish(self, timeout_s: float) -> None:
        """Compare the group with the positions, and commit what differs."""
        with self._lock:
            wanted = dict(self._wanted)
        if not wanted:
            return
        try:
            self._commit(wanted, timeout_s)
        except Exception as error:
            self._failures += 1
            # A coordinator that moves or loads is back before the third attempt.
            if not self._is_reported and self._failures >= (3 if _code(error) in TRANSIENT else 1):
                self._is_reported = True
                logger.warning(
                    "%s: %s; the task goes on: its positions are in the sink", self._where, printable(_reason(error))
                )
            return
        if self._is_reported:
            logger.info("%s: offsets are published again", self._where)
        self._failures, self._is_reported = 0, False
        self._done = wanted

    def _commit(self, wanted: Mapping[str, int], timeout_s: float) -> None:
        from confluent_kafka import TopicPartition

        client = self._client.open()
        partitions = {name: name.rpartition("-") for name in sorted(wanted)}
        found = client.committed(
            [TopicPartition(topic, int(number)) for topic, _, number in partitions.values()], timeout=timeout_s
        )
        # A partition that Kafka does not know any more has an error, and no offset is committed for it.
        present = {f"{each.topic}-{each.partition}": each for each in found if each.error is None}
        later = {name for name, each in present.items() if self._is_later(each)}
        if later and not self._is_outdated:
            logger.info("%s: has offsets of a later owner of %s, which stay", self._where, ", ".join(sorted(later)))
        self._is_outdated = bool(later)
        if not self._has_looked:
            self._has_looked = True
            others = [name for name, each in present.items() if each.offset >= 0 and _token(each) is None]
            if others and any(present[name].offset != wanted[name] for name in others):
                logger.info("%s: had offsets of another client, which are replaced", self._where)
        changes = [
            TopicPartition(topic, int(number), wanted[name], self._metadata)
            for name, (topic, _, number) in partitions.items()
            if name not in later
            and name in present
            and (present[name].offset, present[name].metadata) != (wanted[name], self._metadata)
        ]
        if changes:
            for each in client.commit(offsets=changes, asynchronous=False) or ():
                if each.error is not None:
                    raise _OffsetRejected(each.error)

    def _is_later(self, found: TopicPartition) -> bool:
        """Whether the offset that is there belongs to an owner with a higher fencing token."""
        token = _token(found)
        return token is not None and token > self._owner.fencing_token

    @property
    def _where(self) -> str:
        return (
            f"{self._owner.connector}-{self._owner.task}: Kafka {self._servers}:"
            f" consumer group {group_of(self._owner.connector)}"
        )


TRANSIENT: Final = frozenset({"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"})
_MEMBERS: Final = frozenset({"UNKNOWN_MEMBER_ID", "STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS"})
"""Errors of a commit without a member, to a group that has members."""


def _token(found: TopicPartition) -> int | None:
    """The fencing token of the owner that committed an offset; ``None``: another client did."""
    token = _TOKEN.fullmatch(found.metadata or "")
    return None if token is None else int(token[1])


class _OffsetRejected(Exception):
    """The broker has rejected the offset of a partition; the argument is its error, as of a ``KafkaException``."""


def _code(error: BaseException) -> str:
    found: Any = error.args[0] if error.args else None
    return str(found.name()) if hasattr(found, "name") else ""


def _reason(error: BaseException) -> str:
    if _code(error) in _MEMBERS:
        return (
            "has live members, which are not of this connector, so offsets are not published: another consumer, or this"
            " connector in Kafka Connect, which would write the records twice; allowed: they end, or"
            " source.publish.offsets=false"
        )
    found = error.args[0] if error.args else error
    text = str(found.str()) if hasattr(found, "str") else str(found)
    return f"offsets cannot be published: {text.rpartition('Broker: ')[2] or 'the cluster does not answer'}"
