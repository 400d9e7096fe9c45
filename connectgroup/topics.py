"""Where a coordinator learns the topics of a cluster, and the regular expressions by which subscriptions select them.

A broker is read often, because a read that finds no change costs little: Kafka tells clients of no epoch of its topics,
a read is one Metadata request, and if the bytes of the response are those of the one before, nothing has changed and
nothing is decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import struct
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from hashlib import md5
from typing import Any, Final, Protocol

from .errors import ConfigError, WireError
from .protocol.messages.cluster import ApiVersionsRequest, MetadataRequest, MetadataResponse
from .protocol.records.consumer import TopicMetadata
from .threads import off_loop
from .wire.kafka_apis import decode_kafka_response, encode_call
from .wire.primitives import frame

Topics = Mapping[str, TopicMetadata]
"""Topics by name. A value is never changed after it has been passed on."""


class TopicSource(Protocol):
    """The topics of a cluster, watched for changes. All calls are made on the coordinator's event loop."""

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        """Call ``on_change`` with all topics before returning, then on the event loop after each change.

        Raises:
            ConfigError: the topics cannot be read: where, what is allowed.
        """

    async def refresh(self) -> None:
        """Read the topics now; if they have changed, ``on_change`` is called before this returns.

        Raises:
            Exception: the topics cannot be read; they stay those of the last read.
        """

    def expect_change(self, for_s: float) -> None:
        """A topic is about to be created or changed, or is waited for: watch the topics closely for so many seconds."""

    async def close(self) -> None:
        """Stop watching. ``on_change`` is not called any more."""


MAX_MEMORY_BYTES = 8 << 20
"""Memory that one compiled expression may use."""

MAX_COMPILED = 16
"""Expressions that are kept compiled: consumers choose theirs, and a small one is compiled again in no time."""


def regex_violation(pattern: str) -> str:
    """What is allowed instead of a regular expression; empty if it is valid."""
    try:
        _compiled(pattern)
    except ImportError:
        return "no regular expression: google-re2 is not installed here (extra 'kafka')"
    except Exception as error:
        detail = error.args[0] if error.args else ""
        return f"RE2 syntax ({detail.decode('utf-8', 'replace') if isinstance(detail, bytes) else detail})"
    return ""


def matching_topics(pattern: str, names: tuple[str, ...]) -> frozenset[str]:
    """The names that match as a whole."""
    compiled = _compiled(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name))


@lru_cache(maxsize=MAX_COMPILED)
def _compiled(pattern: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    compiled = re2.compile(pattern, options)
    re2.purge()  # the library remembers 128 besides
    return compiled


def topic_id(name: str) -> str:
    """A topic id that depends on the name only."""
    return md5(name.encode(), usedforsecurity=False).hexdigest()


class StaticTopics:
    """A topic source with the topics of its last ``replace``."""

    def __init__(self, partitions: Mapping[str, int]) -> None:
        """``partitions``: the number of partitions of each topic."""
        self._topics = _topics(partitions)  # changed by ``replace``
        self._on_change: Callable[[Topics], None] | None = None

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        self._on_change = on_change
        on_change(self._topics)

    async def refresh(self) -> None:
        """Nothing to read: ``replace`` reports each change."""

    def expect_change(self, for_s: float) -> None:
        """Nothing to watch."""

    async def close(self) -> None:
        self._on_change = None

    def replace(self, partitions: Mapping[str, int]) -> None:
        """Replace all topics; call it on the coordinator's event loop."""
        self._topics = _topics(partitions)
        if self._on_change is not None:
            self._on_change(self._topics)


def _topics(partitions: Mapping[str, int]) -> Topics:
    return {
        name: TopicMetadata(topic_id=topic_id(name), topic_name=name, num_partitions=count)
        for name, count in partitions.items()
    }


logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
"""Interval between two reads: how long a topic or an added partition may stay unnoticed if nothing announces it."""

EXPECTING_INTERVAL_S: Final = 0.05
"""As ``INTERVAL_S``, while a change is expected."""

IDLE_SHARE: Final = 9
"""After a read that took a second, the next one begins so many seconds later at the earliest: large clusters."""

TIMEOUT_S: Final = 10.0
"""Time limit of one read."""

MAX_RESPONSE_BYTES: Final = 1 << 28
DECODED_AT_ONCE: Final = 64 * 1024
"""Bytes of a response that are decoded on the event loop: in about 10 ms."""

_VERSIONS: Final = range(10, 13)
"""Of Metadata: from the first one with topic ids (Kafka 2.8)."""

_GONE: Final = frozenset((3, 100))
"""The errors of a topic that does not exist: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID."""

_METADATA: Final = 3
_CORRELATION_ID: Final = 1
_LENGTH: Final = struct.Struct(">i")
_ALL: Final = MetadataRequest(topics=None, allow_auto_topic_creation=False)
_CLIENT_ID: Final = "connectgroup-topics"


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]]]
"""Opens a connection; also returns until when it may be used, on the loop's clock."""


class BrokerTopics:
    """A topic source that asks a Kafka broker.

    While the broker cannot be reached, the topics stay those of the last read, and the groups live on.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        interval_s: float = INTERVAL_S,
        read: Callable[[], Awaitable[Topics]] | None = None,
        setting: str = "topics_from",
        connect: Connect | None = None,
    ) -> None:
        """Create a source; ``start`` reads the topics.

        Args:
            bootstrap: ``host:port`` of a broker.
            interval_s: interval between two reads, in seconds.
            read: reads all topics. By default, a connection to the broker does.
            setting: where the address was set, for errors.
            connect: opens a connection to a broker; by default, in plain text to ``bootstrap``.
        """
        self.bootstrap, self._interval_s = bootstrap, interval_s
        self._setting = setting
        self._reader = MetadataReader(bootstrap, connect)
        self._read = read or self._reader.read
        self._topics: Topics | None = None  # as last read
        self._on_change: Callable[[Topics], None] = lambda topics: None
        self._reading = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None  # reads at an interval, from ``start`` to ``close``
        self._expected = asyncio.Event()  # ``expect_change`` ends the wait for the next read
        self._expects_until = 0.0  # on the loop's clock; ``expect_change`` raises it

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        self._on_change = on_change
        try:
            await self.refresh()
        except Exception as error:
            raise ConfigError(self._setting, self.bootstrap, f"a reachable Kafka broker ({_reason(error)})") from error
        self._watch = asyncio.get_running_loop().create_task(self._run())

    async def refresh(self) -> None:
        # One read at a time: the result of an earlier one must not replace that of a later one.
        async with self._reading:
            topics = await self._read()
            if topics != self._topics:
                self._topics = topics
                self._on_change(topics)

    def expect_change(self, for_s: float) -> None:
        self._expects_until = max(self._expects_until, asyncio.get_running_loop().time() + for_s)
        self._expected.set()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._reader.close()

    async def _run(self) -> None:
        reachable = True
        loop = asyncio.get_running_loop()
        took_s = 0.0
        while True:
            await self._wait(IDLE_SHARE * took_s)
            began_s = loop.time()
            try:
                await self.refresh()
            except Exception as error:
                if reachable:
                    logger.warning("%s: the topics cannot be read, retrying: %s", self.bootstrap, _reason(error))
                reachable = False
                await asyncio.sleep(self._interval_s)
                continue
            took_s = loop.time() - began_s
            if not reachable:
                logger.info("%s: the topics can be read again", self.bootstrap)
            reachable = True

    async def _wait(self, min_s: float) -> None:
        """Wait until the next read: for the interval, or less when a change is expected, but not less than a time."""
        if self._interval_s > min_s:
            await asyncio.sleep(min_s)
        if asyncio.get_running_loop().time() < self._expects_until:
            await asyncio.sleep(min(EXPECTING_INTERVAL_S, self._interval_s))
            return
        self._expected.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._expected.wait(), max(self._interval_s, min_s))


class MetadataReader:
    """Reads all topics on one connection, which is opened when needed."""

    def __init__(self, bootstrap: str, connect: Connect | None = None) -> None:
        """``bootstrap``: ``host:port`` of a broker's PLAINTEXT listener; ``connect``: see ``BrokerTopics``."""
        host, _, self._port = bootstrap.rpartition(":")
        self._host = host.strip("[]")
        self._open = connect or self._open_plain
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None  # while connected
        self._lives_until = math.inf  # changed by _connect
        self._version = _VERSIONS[-1]  # of the requests; agreed with each connection
        self._last = b""  # the last response, and the topics in it
        self._topics: Topics = {}

    async def read(self) -> Topics:
        """Return all topics; the same object as before if nothing has changed.

        Raises:
            OSError, TimeoutError, EOFError, WireError: the broker cannot be reached, or is not of Kafka 2.8 or later.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if asyncio.get_running_loop().time() >= self._lives_until:
                    self.close()
                if self._streams is None:
                    await self._connect()
                data = await self._exchange(_ALL, self._version)
        except BaseException:
            self.close()
            raise
        if data != self._last:
            decode = self._decoded
            topics = decode(data) if len(data) <= DECODED_AT_ONCE else await off_loop("topics", decode, data)
            self._topics, self._last = topics, data
        return self._topics

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
        self._streams = None

    async def _open_plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, float]:
        return *await asyncio.open_connection(self._host, int(self._port)), math.inf

    async def _connect(self) -> None:
        reader, writer, self._lives_until = await self._open()
        self._streams = reader, writer
        asked = ApiVersionsRequest(client_software_name="connectgroup", client_software_version="0")
        data = await self._exchange(asked, 3)
        _, response = decode_kafka_response(data, to=ApiVersionsRequest, version=3)
        served = {api.api_key: range(api.min_version, api.max_version + 1) for api in response.api_keys}
        both = [version for version in _VERSIONS if version in served.get(_METADATA, ())]
        if not both:
            raise WireError("it does not serve Metadata with topic ids; Kafka 2.8 does")
        self._version = both[-1]

    async def _exchange(self, request: Any, version: int) -> bytes:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(frame(encode_call(request, version=version, correlation_id=_CORRELATION_ID, client_id=_CLIENT_ID)))
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 4 <= length <= MAX_RESPONSE_BYTES:
            raise WireError(f"a response of {length} bytes; is it a Kafka broker's PLAINTEXT listener?")
        return await reader.readexactly(length)

    def _decoded(self, data: bytes) -> Topics:
        _, response = decode_kafka_response(data, to=MetadataRequest, version=self._version)
        assert isinstance(response, MetadataResponse)
        topics = {}
        for topic in sorted(response.topics, key=lambda each: each.name or ""):
            name = topic.name or ""
            if name and not topic.error_code:
                topics[name] = TopicMetadata(
                    topic_id=topic.topic_id, topic_name=name, num_partitions=len(topic.partitions)
                )
            elif name in self._topics and topic.error_code not in _GONE:
                # A topic whose partitions are not known at the moment: its committed offsets must not be deleted.
                topics[name] = self._topics[name]
        return topics


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "it closed the connection; is it a Kafka broker's PLAINTEXT listener?"
    return str(error) or f"no response within {TIMEOUT_S:g} s"
