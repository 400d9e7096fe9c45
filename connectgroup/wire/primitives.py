"""Functions that generated code calls (long lengths, skipped tags, error descriptions), and the frames of messages.

The common case is inlined in the generated code; the functions here are called for the rare case (a length of 128 or
more, a tagged field of a newer peer, a fault).

A frame is four bytes of length, then that many bytes. No socket here: bytes are fed as they arrive, complete messages
are returned. An invalid length means that the two sides no longer agree on where messages begin; nothing after it can
be trusted, and the connection must be closed.

Source: "Protocol Primitive Types" and "Common Request and Response Structure" of Kafka's protocol guide; the
rejected cases are those of KAFKA-20570 and related bugs. The reader of frames has the form of h11, which does no I/O
either.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ..errors import WireError
from ..protocol.units import printable

FOR_GENERATED_CODE: Final = (
    *("BOOL", "SHORT", "WireFault", "uvarint", "compact_string", "classic_string"),
    *("read_uvarint", "read_compact_string", "read_classic_string", "read_tag", "skip_tags", "read_uuid", "uuid_bytes"),
    *("bad_choice", "bad_count", "bad_length", "bad_presence", "bad_tag", "bad_total", "tag_not_used_up"),
    "too_many_tags",
)
"""The names that the generated code imports."""

MAX_TAGS: Final = 64
"""Maximum number of tagged fields in one struct. This package writes 5 at most; thousands of them are an attack."""

MAX_LENGTH: Final = 0xFFFFFFFF
"""The largest unsigned varint of 32 bits."""

UUID_BYTES: Final = 16

SHORT: Final = tuple(bytes((n,)) for n in range(128))
"""Unsigned varints of one byte."""


_INT16: Final = struct.Struct(">h")

BOOL: Final = {False: 0, True: 1}
"""A look-up, not a conversion: None is not a bool."""


class WireFault(Exception):
    """An invalid value at one position: value and allowed values. Becomes a ``WireError`` with the field's name."""

    def __init__(self, got: object, allowed: str) -> None:
        super().__init__(f"got {printable(got)}; allowed: {allowed}")


def uvarint(value: int) -> bytes:
    """Encode ``value`` in seven bits per byte, lowest first."""
    if not 0 <= value <= MAX_LENGTH:
        raise WireFault(f"length {value}", f"0 to {MAX_LENGTH}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def classic_string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a UUID, which is text of 32 hexadecimal digits everywhere else."""
    encoded = bytes.fromhex(text)
    if len(encoded) != UUID_BYTES:
        raise WireFault(f"uuid {text!r}", "32 hexadecimal digits")
    return encoded


def read_uuid(data: bytes, pos: int, size: int) -> tuple[str, int]:
    stop = pos + UUID_BYTES
    if stop > size:
        raise WireFault(f"uuid of {size - pos} bytes", f"{UUID_BYTES} bytes")
    return data[pos:stop].hex(), stop


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """Decode a varint of two bytes or more whose first byte, already read, is at ``pos - 1``.

    Returns:
        The value and the position after it.

    Raises:
        WireFault: more than 5 bytes, more than 32 bits, or longer than needed: each value has one encoding, so that
            equal messages are equal bytes.
    """
    value, shift = data[pos - 1] & 127, 7
    while shift < 35:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if byte == 0:
                raise WireFault("a varint with a zero byte at its end", "the shortest form")
            if value > MAX_LENGTH:
                raise WireFault(f"varint {value}", f"at most {MAX_LENGTH}")
            return value, pos
        shift += 7
    raise WireFault("a varint of more than 5 bytes", "1 to 5 bytes")


def read_compact_string(data: bytes, pos: int, size: int, limit: int = MAX_LENGTH) -> tuple[str, int]:
    length = data[pos]
    pos += 1
    if length > 127:
        length, pos = read_uvarint(data, pos)
    return _read_text(data, pos, size, length - 1, limit)


def read_classic_string(data: bytes, pos: int, size: int, limit: int = MAX_LENGTH) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(data, pos)
    return _read_text(data, pos + 2, size, length, limit)


def _read_text(data: bytes, pos: int, size: int, length: int, limit: int) -> tuple[str, int]:
    stop = pos + length
    if not pos <= stop <= size or length > limit:
        raise bad_length(length, size - pos, limit)
    return data[pos:stop].decode(), stop


def skip_tags(data: bytes, pos: int, size: int) -> int:
    """The position after a section of unknown tagged fields (``pos``: its first byte)."""
    count = data[pos]
    pos += 1
    if count > 127:
        count, pos = read_uvarint(data, pos)
    if count > MAX_TAGS:
        raise too_many_tags(count)
    tag = -1
    for _ in range(count):
        last = tag
        tag, length, pos = read_tag(data, pos)
        if tag <= last or pos + length > size:
            raise bad_tag(last, tag, length, size - pos)
        pos += length
    return pos


def read_tag(data: bytes, pos: int) -> tuple[int, int, int]:
    """The tag at ``pos``, the length of its value, the position of its value."""
    tag = data[pos]
    pos += 1
    if tag > 127:
        tag, pos = read_uvarint(data, pos)
    length = data[pos]
    pos += 1
    if length > 127:
        length, pos = read_uvarint(data, pos)
    return tag, length, pos


def bad_tag(last: int, tag: int, length: int, left: int) -> WireFault:
    """The fault for a duplicate or misordered tag, or one whose value extends beyond the end."""
    if tag <= last:
        return WireFault(f"tag {tag} after tag {last}", "each tag once, ascending")
    return WireFault(f"tag {tag} of {length} bytes", f"at most the {left} that remain")


def too_many_tags(count: int) -> WireFault:
    return WireFault(f"{count} tagged fields", f"at most {MAX_TAGS}")


def tag_not_used_up(tag: int, used: int, length: int) -> WireFault:
    return WireFault(f"tag {tag} of {length} bytes whose value takes {used}", "equal sizes")


def bad_length(length: int, left: int, limit: int = MAX_LENGTH) -> WireFault:
    """The fault for an invalid length of a string or bytes, -1 being null."""
    if limit < length <= left:
        return WireFault(f"length {length}", f"at most {limit} bytes")
    return WireFault("null" if length == -1 else f"length {length}", f"0 to the {left} bytes that remain")


def bad_count(count: int, left: int, smallest: int, limit: int = MAX_LENGTH) -> WireFault:
    """The fault for an invalid count of an array, -1 being null."""
    if limit < count <= left // smallest:
        return WireFault(f"{count} elements", f"at most {limit}")
    return WireFault(
        "null" if count == -1 else f"{count} elements",
        f"0 to {left // smallest}: {left} bytes remain, {smallest} or more each",
    )


def bad_total(total: int, limit: int) -> WireFault:
    """The fault for too many elements in all arrays of one field in one message."""
    return WireFault(f"{total} elements in the whole message", f"at most {limit}")


def bad_presence(mark: int) -> WireFault:
    return WireFault(f"struct mark {mark}", "1 present, 255 null")


def bad_choice(value: int, choices: Iterable[int]) -> WireFault:
    return WireFault(value, ", ".join(map(str, choices)))


DEFAULT_MAX_BYTES: Final = 1 << 20
"""1 MiB: a heartbeat with 100,000 tasks takes 400 kB."""

_LENGTH: Final = struct.Struct(">i")


class FrameReader:
    """Splits the bytes of one peer into frames. Buffers at most one incomplete frame.

    Args:
        max_bytes: the maximum size of a frame, in bytes, without its length prefix.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._broken: str | None = None

    def allow(self, max_bytes: int) -> None:
        """Change the maximum size of a frame, from the next frame on."""
        self._max_bytes = max_bytes

    @property
    def mid_frame(self) -> bool:
        """Whether a frame is partly received: a deadline for slow peers depends on it."""
        return bool(self._pending)

    @property
    def size(self) -> int:
        """Number of bytes of the incomplete frame that have arrived."""
        return len(self._pending)

    def discard(self) -> None:
        """Drop the incomplete frame: its connection is lost, and a reference cycle may keep the reader for a while."""
        self._pending = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Feed ``data``; return the frames that are complete now, without their lengths.

        Raises:
            WireError: a length that is not from 1 to ``max_bytes``; every later call raises it too. Frames that were
                complete in the same ``data`` are lost with the connection, as if it had failed.
        """
        if self._broken is not None:
            raise WireError(self._broken)
        pending = self._pending
        if not pending and isinstance(data, bytes) and len(data) > 4:
            (length,) = _LENGTH.unpack_from(data)
            if length == len(data) - 4 and length <= self._max_bytes:
                return [data[4:]]  # exactly one frame, as most requests arrive
        pending += data
        frames: list[bytes] = []
        pos, size = 0, len(pending)
        while size - pos >= 4:
            (length,) = _LENGTH.unpack_from(pending, pos)
            if not 1 <= length <= self._max_bytes:
                pending.clear()
                self._broken = _refusal(length, self._max_bytes)
                raise WireError(self._broken)
            stop = pos + 4 + length
            if stop > size:
                break
            frames.append(bytes(pending[pos + 4 : stop]))
            pos = stop
        del pending[:pos]
        return frames


def frame(data: bytes) -> bytes:
    """``data`` with its length prefix.

    Raises:
        WireError: no data, or more than an int32 can count.
    """
    if not 1 <= len(data) <= 0x7FFFFFFF:
        raise WireError(_refusal(len(data), 0x7FFFFFFF))
    return _LENGTH.pack(len(data)) + data


def _refusal(length: int, max_bytes: int) -> str:
    if length < 1:
        return f"frame of {length} bytes; allowed: 1 to {max_bytes}"
    return f"frame of {length} bytes exceeds max {max_bytes}"
