"""Splits a stream of bytes into messages: four bytes of length, then that many bytes.

No socket here: bytes are fed as they arrive, complete messages are returned. An invalid length means that the two sides
no longer agree on where messages begin; nothing after it can be trusted, and the connection must be closed.

Source: "Protocol Primitive Types" and "Common Request and Response Structure" of Kafka's protocol guide; the reader
has the form of h11, which does no I/O either.
"""

from __future__ import annotations

import struct
from typing import Final

from ..errors import WireError

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
