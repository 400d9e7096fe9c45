"""Messages that a proxy forwards: reads and replaces the few fields that it must know; all other bytes stay.

A proxy decodes only the head of a message: the fields behind it may be of any size, and of newer versions than the
definitions here.

Source: Kafka's protocol guide: Produce, Fetch, Metadata, DescribeCluster; KIP-951.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ..errors import WireError
from .primitives import WireFault, read_uvarint, skip_tags, uvarint

T = TypeVar("T")

Address = tuple[str, int]
"""Host and port."""

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
END_TXN: Final = 26
DESCRIBE_CLUSTER: Final = 60

CHANGES_TOPICS: Final = frozenset((19, 20, 37))
"""CreateTopics, DeleteTopics, CreatePartitions."""

ENDPOINTS_FROM: Final = {PRODUCE: 10, FETCH: 16}
"""The versions from which a response may have the addresses of new leaders (KIP-951)."""

MAX_VERSIONS: Final = {PRODUCE: 13, FETCH: 18, METADATA: 13, DESCRIBE_CLUSTER: 2}
"""The highest versions whose fields are known here."""

_HEADER: Final = struct.Struct(">hhi")
_FLEXIBLE_FROM: Final = {PRODUCE: 9, FETCH: 12, METADATA: 9, DESCRIBE_CLUSTER: 0}
_MALFORMED: Final = (WireFault, IndexError, struct.error, UnicodeDecodeError)


class Header(NamedTuple):
    """The start of a request's header."""

    api_key: int
    version: int
    correlation_id: int


class _Reader:
    """A position in a message."""

    def __init__(self, data: bytes, pos: int, *, flexible: bool) -> None:
        self.data, self.pos, self.flexible = data, pos, flexible

    def number(self, letter: str) -> int:
        value: int
        (value,) = struct.unpack_from(">" + letter, self.data, self.pos)
        self.pos += struct.calcsize(">" + letter)
        return value

    def length(self, letter: str) -> int:
        """The length of a string or an array; -1 for null."""
        if not self.flexible:
            return self.number(letter)
        length = self.data[self.pos]
        self.pos += 1
        if length > 127:
            length, self.pos = read_uvarint(self.data, self.pos)
        return length - 1

    def skip(self, count: int) -> None:
        """Skip bytes.

        Raises:
            IndexError: there are fewer.
        """
        self.pos += count
        if self.pos > len(self.data):
            raise IndexError

    def array(self, skip_element: Callable[[], None]) -> None:
        """Skip an array."""
        for _ in range(self.length("i")):
            skip_element()

    def text(self) -> str | None:
        length = self.length("h")
        if length < 0:
            return None
        start, self.pos = self.pos, self.pos + length
        if self.pos > len(self.data):
            raise IndexError
        return self.data[start : self.pos].decode()

    def tags(self) -> None:
        if self.flexible:
            self.pos = skip_tags(self.data, self.pos, len(self.data))


def read_header(data: bytes) -> Header | None:
    """The start of the header of a request, or ``None`` if the bytes end before."""
    return Header(*_HEADER.unpack_from(data)) if len(data) >= _HEADER.size else None


def expects_response(data: bytes) -> bool:
    """Whether the broker responds to a request: it does not to a Produce with acks 0.

    Raises:
        WireError: the bytes are not a request.
    """
    api_key, version, _ = _HEADER.unpack_from(data)
    if api_key != PRODUCE:
        return True

    def acks(reader: _Reader) -> bool:
        if version >= 3:
            reader.text()  # the transactional id
        return reader.number("h") != 0

    return _read_request(data, acks)


def brokers_in(data: bytes, api_key: int, version: int) -> dict[int, Address]:
    """Host and port of each broker that a response of Metadata or DescribeCluster lists, by its node id.

    Raises:
        WireError: the bytes are not such a response.
    """
    brokers: dict[int, Address] = {}
    with_addresses(data, api_key, version, lambda node, address: brokers.setdefault(node, address))
    return brokers


def with_addresses(data: bytes, api_key: int, version: int, replace: Callable[[int, Address], Address]) -> bytes:
    """A response of Metadata or DescribeCluster in which every broker has another address.

    Args:
        replace: returns the host and port of a broker, by its node id and those in the response.

    Raises:
        WireError: the bytes are not such a response.
    """
    try:
        return _with_addresses(data, api_key, version, replace)
    except _MALFORMED as error:
        raise WireError(f"response of API {api_key} v{version}: not of Kafka's format") from error


def endpoint(host: str, port: int) -> bytes:
    """An address as it occurs in a response of a flexible version."""
    return _text(host, flexible=True) + struct.pack(">i", port)


def with_endpoints(data: bytes, api_key: int, version: int, replace: Callable[[int], Address]) -> bytes:
    """A response of Produce or Fetch in which every new leader has another address.

    Args:
        replace: returns host and port of a broker by its node id.

    Raises:
        WireError: the bytes are not such a response.
    """
    try:
        reader = _Reader(data, 4, flexible=True)
        reader.tags()
        if api_key == FETCH:
            reader.skip(4 + 2 + 4)  # throttle time, error code, session
        reader.array(lambda: _skip_topic(reader, api_key, version))
        if api_key == PRODUCE:
            reader.skip(4)  # throttle time
        return data[: reader.pos] + _tags_with_endpoints(reader, replace)
    except _MALFORMED as error:
        raise WireError(f"response of API {api_key} v{version}: not of Kafka's format") from error


def _skip_topic(reader: _Reader, api_key: int, version: int) -> None:
    if version >= 13:
        reader.skip(16)  # topic id
    else:
        reader.text()
    reader.array(lambda: _skip_partition(reader, api_key))
    reader.tags()


def _skip_partition(reader: _Reader, api_key: int) -> None:
    reader.skip(4 + 2 + 3 * 8)  # partition, error code, three offsets or times

    def skip_record_error() -> None:
        reader.skip(4)
        reader.text()
        reader.tags()

    def skip_aborted_transaction() -> None:
        reader.skip(16)
        reader.tags()

    if api_key == PRODUCE:
        reader.array(skip_record_error)
        reader.text()  # error message
    else:
        reader.array(skip_aborted_transaction)
        reader.skip(4)  # preferred replica
        reader.skip(max(reader.length("i"), 0))  # records
    reader.tags()


def _tags_with_endpoints(reader: _Reader, replace: Callable[[int], Address]) -> bytes:
    """The tagged fields at the end of a response; the one with tag 0 is the list of nodes."""
    count = reader.length("i") + 1
    parts = [uvarint(count)]
    for _ in range(count):
        tag, size = reader.length("i") + 1, reader.length("i") + 1
        start = reader.pos
        value = reader.data[start : start + size]
        if tag == 0:
            value = _nodes_with_address(_Reader(value, 0, flexible=True), replace)
        parts += [uvarint(tag), uvarint(len(value)), value]
        reader.skip(size)
    if reader.pos != len(reader.data):
        raise IndexError
    return b"".join(parts)


def _nodes_with_address(reader: _Reader, replace: Callable[[int], Address]) -> bytes:
    count = reader.length("i")
    parts = [uvarint(count + 1)]
    for _ in range(count):
        node = reader.number("i")
        parts += [struct.pack(">i", node), endpoint(*replace(node))]
        reader.text()
        reader.skip(4)
        start = reader.pos
        reader.text()  # rack
        reader.tags()
        parts.append(reader.data[start : reader.pos])
    return b"".join(parts)


def _with_addresses(data: bytes, api_key: int, version: int, replace: Callable[[int, Address], Address]) -> bytes:
    flexible = version >= _FLEXIBLE_FROM[api_key]
    reader = _Reader(data, 4, flexible=flexible)
    reader.tags()
    is_metadata = api_key == METADATA
    if not is_metadata or version >= 3:
        reader.number("i")  # throttle time
    if not is_metadata:
        reader.number("h")  # error code
        reader.text()  # error message
        if version >= 1:
            reader.number("b")  # endpoint type
        reader.text()  # cluster id
        reader.number("i")  # controller
    count = reader.length("i")
    parts: list[bytes] = []
    copied = 0
    for _ in range(count):
        node = reader.number("i")
        parts.append(data[copied : reader.pos])
        host, port = replace(node, (reader.text() or "", reader.number("i")))
        parts.append(_text(host, flexible=flexible) + struct.pack(">i", port))
        copied = reader.pos
        if not is_metadata or version >= 1:
            reader.text()  # rack
        if not is_metadata and version >= 2:
            reader.number("b")  # fenced
        reader.tags()
    return b"".join((*parts, data[copied:]))


def _read_request(data: bytes, read: Callable[[_Reader], T]) -> T:
    """Read the head of a request's body."""
    api_key, version, _ = _HEADER.unpack_from(data)
    try:
        reader = _Reader(data, _HEADER.size, flexible=False)
        reader.text()  # the client id, which is never compact
        reader.flexible = version >= _FLEXIBLE_FROM[api_key]
        reader.tags()
        return read(reader)
    except _MALFORMED as error:
        raise WireError(f"request of API {api_key} v{version}: not of Kafka's format") from error


def _text(text: str | None, *, flexible: bool) -> bytes:
    data = (text or "").encode()
    length = -1 if text is None else len(data)
    return (uvarint(length + 1) if flexible else struct.pack(">h", length)) + data
