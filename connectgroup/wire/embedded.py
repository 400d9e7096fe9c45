"""The data that members exchange in JoinGroup, SyncGroup and LeaveGroup: of consumers, and of classic workers.

A coordinator does not interpret that of consumers, Subscription and Assignment. A member puts one Subscription per
offered assignor into its JoinGroup; the leader reads all of them and puts one Assignment per member into its SyncGroup.
The coordinator only transports them. Each begins with its version in two bytes; the rest is not flexible, has no tagged
fields, and is extended only at its end:

    Subscription   0  topics, user data
                   1  owned partitions       (KIP-429)
                   2  generation             (KIP-792)
                   3  rack                   (KIP-881)
    Assignment     0  partitions, user data; 1 to 3 are the same, so that both have equal versions

An old reader therefore skips fields that a newer writer added, and a new reader uses defaults for fields that an older
writer omitted. An unknown higher version is read as the highest known one; trailing bytes are ignored. For this reason
the two do not use the compiled codec, which rejects trailing bytes.

Any input bytes result in a value or a ``WireError``, and every length is checked against the remaining bytes before it
is used. Output is sorted: equal values are equal bytes.

Two rules are stricter than Kafka's, as in our codec: text that is not UTF-8 is rejected, where Kafka substitutes U+FFFD
and thereby names a different topic; and of negative lengths only -1 is null.

Source: Kafka's ``ConsumerProtocolSubscription.json``, ``ConsumerProtocolAssignment.json`` and ``ConsumerProtocol``.

Workers of the classic protocol: the metadata in JoinGroup and LeaveGroup is a ConnectGroupHeartbeat request, the
assignment in a SyncGroup response is a ConnectGroupHeartbeat response. Each begins with the version of that API in two
bytes; the rest is the body. As in ``apis``, bytes that are not exactly one message are rejected, and every length is
checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any, Final, TypeVar

from ..errors import WireError
from ..protocol.messages.classic import UNKNOWN_GENERATION, EmbeddedAssignment, Subscription
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.units import Partitions, TopicPartition
from .apis import APIS, HEARTBEAT
from .codec import Codec
from .primitives import WireFault, bad_count, bad_length, classic_string, read_classic_string

T = TypeVar("T")

HIGHEST_VERSION: Final = 3
"""The default version for writing both."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NULL: Final = -1

_PROBLEMS: Final = (
    (UnicodeEncodeError, "a string with a lone surrogate"),
    (struct.error, "a value out of range"),
    (Exception, "a value of another type"),
)
"""Descriptions of invalid values by the exception raised when writing them."""

_UNREADABLE: Final = {
    UnicodeDecodeError: "got bytes that are not UTF-8; allowed: UTF-8",
    struct.error: "the bytes end before the value does",
}

_SMALLEST_STRING: Final = 2
_SMALLEST_INT32: Final = 4
_SMALLEST_TOPIC: Final = 6
"""Minimum bytes per element, which bounds the declared length of an array: here a name and a count."""


def encode_subscription(subscription: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Encode a subscription; fields that a lower version does not have are omitted.

    Raises:
        WireError: a version that is not 0 to 3, or a value that its field cannot hold.
    """

    def write(out: _EmbeddedWriter) -> None:
        out.strings("topics", subscription.topics)
        out.data("user_data", subscription.user_data)
        if version >= 1:
            out.partitions("owned", subscription.owned)
        if version >= 2:
            out.int32("generation", subscription.generation)
        if version >= 3:
            out.string_or_null("rack", subscription.rack or None)

    return _written("Subscription", version, write)


def decode_subscription(data: bytes) -> Subscription:
    """Decode the subscription in ``data``, of any version.

    Raises:
        WireError: not a subscription; names the field and the byte.
    """

    def read(source: _EmbeddedReader, version: int) -> Subscription:
        return Subscription(
            topics=source.strings("topics"),
            user_data=source.data("user_data"),
            owned=source.partitions("owned") if version >= 1 else frozenset(),
            generation=source.int32("generation") if version >= 2 else UNKNOWN_GENERATION,
            rack=source.string_or_null("rack") or None if version >= 3 else None,
        )

    return _read("Subscription", data, read)


def encode_assignment(assignment: EmbeddedAssignment, version: int = HIGHEST_VERSION) -> bytes:
    """Encode an assignment. Raises as ``encode_subscription`` does."""

    def write(out: _EmbeddedWriter) -> None:
        out.partitions("partitions", assignment.partitions)
        out.data("user_data", assignment.user_data)

    return _written("Assignment", version, write)


def decode_assignment(data: bytes) -> EmbeddedAssignment:
    """Decode the assignment in ``data``, of any version. Raises as ``decode_subscription`` does.

    Empty bytes are rejected like any other truncated input: a member receives them if the leader omitted it, and must
    not interpret them as a revocation of everything (Kafka, ``ConsumerCoordinator.onJoinComplete``).
    """

    def read(source: _EmbeddedReader, version: int) -> EmbeddedAssignment:
        return EmbeddedAssignment(partitions=source.partitions("partitions"), user_data=source.data("user_data"))

    return _read("Assignment", data, read)


# --------------------------------------------------------------------------------------------------
# Field by field. ``field`` is set before anything can fail, so that the error message can name it.


def _written(name: str, version: int, write: Callable[[_EmbeddedWriter], None]) -> bytes:
    if version not in range(HIGHEST_VERSION + 1):
        raise WireError(f"{name}: version: got {version}; allowed: 0 to {HIGHEST_VERSION}")
    out = _EmbeddedWriter()
    try:
        write(out)
    except (UnicodeEncodeError, struct.error, AttributeError, TypeError) as error:
        got = next(problem for kind, problem in _PROBLEMS if isinstance(error, kind))
        raise WireError(f"{name} v{version}: {out.field}: got {got}; allowed: {out.allowed}") from error
    return _INT16.pack(version) + b"".join(out.parts)


class _EmbeddedWriter:
    """Appends fields one after the other."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.field = self.allowed = ""

    def strings(self, field: str, values: frozenset[str]) -> None:
        self.field, self.allowed = field, "strings of at most 32767 bytes of UTF-8"
        self.parts += [_INT32.pack(len(values)), *map(classic_string, sorted(values))]

    def string_or_null(self, field: str, value: str | None) -> None:
        self.field, self.allowed = field, "a string of at most 32767 bytes of UTF-8, or None"
        self.parts.append(_INT16.pack(_NULL) if value is None else classic_string(value))

    def data(self, field: str, value: bytes | None) -> None:
        self.field, self.allowed = field, "bytes or None"
        self.parts.append(_INT32.pack(_NULL) if value is None else _INT32.pack(len(value)) + value)

    def int32(self, field: str, value: int) -> None:
        self.field, self.allowed = field, "an int32"
        self.parts.append(_INT32.pack(value))

    def partitions(self, field: str, values: Partitions) -> None:
        """Each topic once; topics and partition numbers sorted."""
        self.field, self.allowed = field, "topics of at most 32767 bytes of UTF-8, int32 numbers"
        by_topic = [(topic, list(its)) for topic, its in groupby(sorted(values), key=attrgetter("topic"))]
        self.parts.append(_INT32.pack(len(by_topic)))
        for topic, its in by_topic:
            numbers = struct.pack(f">{len(its)}i", *(number for _, number in its))
            self.parts += [classic_string(topic), _INT32.pack(len(its)), numbers]


def _read(name: str, data: bytes, read: Callable[[_EmbeddedReader, int], T]) -> T:
    source = _EmbeddedReader(data)
    try:
        return read(source, min(source.version(), HIGHEST_VERSION))
    except (WireFault, UnicodeDecodeError, struct.error) as error:
        problem = str(error) if isinstance(error, WireFault) else _UNREADABLE[type(error)]
        raise WireError(f"{name}: {source.field} at byte {source.pos}: {problem}") from error


class _EmbeddedReader:
    """Reads fields one after the other; bytes after the last requested field are ignored."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.pos = 0
        self.field = "version"

    def version(self) -> int:
        version = self._number(_INT16)
        if version < 0:
            raise WireFault(version, "0 or more")
        return version

    def strings(self, field: str) -> frozenset[str]:
        self.field = field
        return frozenset(self._string() for _ in range(self._count(_SMALLEST_STRING)))

    def string_or_null(self, field: str) -> str | None:
        self.field = field
        (length,) = _INT16.unpack_from(self._data, self.pos)
        if length == _NULL:
            self.pos += _INT16.size
            return None
        return self._string()

    def data(self, field: str) -> bytes | None:
        self.field = field
        length = self._number(_INT32)
        if length == _NULL:
            return None
        begin, end = self.pos, self.pos + length
        if not begin <= end <= len(self._data):
            raise bad_length(length, len(self._data) - begin)
        self.pos = end
        return self._data[begin:end]

    def int32(self, field: str) -> int:
        self.field = field
        return self._number(_INT32)

    def partitions(self, field: str) -> Partitions:
        """A repeated topic or partition counts once, as in Kafka."""
        self.field = field
        found: set[TopicPartition] = set()
        for _ in range(self._count(_SMALLEST_TOPIC)):
            topic = self._string()
            count = self._count(_SMALLEST_INT32)
            found.update(map(TopicPartition, repeat(topic), struct.unpack_from(f">{count}i", self._data, self.pos)))
            self.pos += count * _SMALLEST_INT32
        return frozenset(found)

    def _count(self, smallest: int) -> int:
        count = self._number(_INT32)
        left = len(self._data) - self.pos
        if not 0 <= count * smallest <= left:
            raise bad_count(count, left, smallest)
        return count

    def _string(self) -> str:
        text, self.pos = read_classic_string(self._data, self.pos, len(self._data))
        return text

    def _number(self, form: struct.Struct) -> int:
        value: int
        (value,) = form.unpack_from(self._data, self.pos)
        self.pos += form.size
        return value


_API: Final = APIS[HEARTBEAT]
_VERSION: Final = struct.Struct(">h")


def encode_request(request: HeartbeatRequest) -> bytes:
    """Encode a heartbeat as the metadata of a JoinGroup or LeaveGroup.

    Raises:
        WireError: a value that its field cannot hold.
    """
    return _encoded(_API.requests, request)


def decode_request(data: bytes) -> HeartbeatRequest:
    """Decode the metadata of a JoinGroup or LeaveGroup.

    Raises:
        WireError: not a heartbeat of a version known here.
    """
    request = _decoded("JoinGroup metadata", _API.requests, data)
    assert isinstance(request, HeartbeatRequest)
    return request


def encode_response(response: HeartbeatResponse) -> bytes:
    """Encode the response to a heartbeat as the assignment of a SyncGroup response. Raises as ``encode_request``."""
    return _encoded(_API.responses, response)


def decode_response(data: bytes) -> HeartbeatResponse:
    """Decode the assignment of a SyncGroup response. Raises as ``decode_request``."""
    response = _decoded("SyncGroup assignment", _API.responses, data)
    assert isinstance(response, HeartbeatResponse)
    return response


def _encoded(codecs: dict[int, Codec], message: HeartbeatRequest | HeartbeatResponse) -> bytes:
    version = max(codecs)
    return _VERSION.pack(version) + codecs[version].encode(message)


def _decoded(name: str, codecs: dict[int, Codec], data: bytes) -> Any:
    if len(data) < _VERSION.size:
        raise WireError(f"{name}: got {len(data)} bytes; allowed: {_VERSION.size} or more")
    (version,) = _VERSION.unpack_from(data)
    codec = codecs.get(version)
    if codec is None:
        raise WireError(f"{name}: version: got {version}; allowed: {min(codecs)} to {max(codecs)}")
    return codec.decode(data, _VERSION.size)
