"""Messages out of a stream of bytes: four bytes of length, then that many.

No socket here: bytes go in as they come, whole messages come out. A length that cannot be one means that both sides
no longer agree on where messages begin; nothing after it can be trusted, and the connection must be closed.

Source: "Protocol Primitive Types" and "Common Request and Response Structure" of Kafka's protocol guide; the reader
is shaped as in h11, which does no I/O either.
"""

from __future__ import annotations

import struct
from typing import Final

from ..errors import WireError

DEFAULT_MAX_BYTES: Final = 1 << 20
"""1 MiB: a heartbeat with 100,000 tasks takes 400 kB."""

_LENGTH: Final = struct.Struct(">i")


class FrameReader:
    """Cuts what one peer sends into frames. Holds at most one frame that is not whole yet.

    Args:
        max_bytes: the longest frame accepted, in bytes, its length not counted.
    """

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()
        self._broken: str | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether part of a frame has come and the rest has not: what a deadline for slow peers watches."""
        return bool(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take in ``data``; give out the frames that are whole now, without their lengths.

        Raises:
            WireError: a length that is not from 1 to ``max_bytes``; from then on always. Frames that came whole in
                the same ``data`` are lost with the connection, as they would be had it broken.
        """
        if self._broken is not None:
            raise WireError(self._broken)
        pending = self._pending
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
    """``data`` with its length in front.

    Raises:
        WireError: nothing to send, or more than an int32 can count.
    """
    if not 1 <= len(data) <= 0x7FFFFFFF:
        raise WireError(_refusal(len(data), 0x7FFFFFFF))
    return _LENGTH.pack(len(data)) + data


def _refusal(length: int, max_bytes: int) -> str:
    if length < 1:
        return f"frame of {length} bytes; allowed: 1 to {max_bytes}"
    return f"frame of {length} bytes exceeds max {max_bytes}"
