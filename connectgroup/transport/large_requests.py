"""Large requests of all connections are decoded one after the other, so that heartbeats need not wait for them.

Decoding a megabyte takes up to 300 ms. A connection has one request decoded at a time, and reads no further ones
meanwhile: they wait in the buffer of its socket. So the connections that send large requests share the time fairly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..threads import NoThread, off_loop
from ..wire.apis import DecodedRequest, DecodeFailure, decode_request

LARGE_BYTES: Final = 4 * 1024
"""Smaller requests are decoded on arrival, which takes less than a millisecond."""

IN_THREAD_BYTES: Final = 64 * 1024
"""Larger ones are decoded in a thread: they take more than 10 ms."""

MAX_TOGETHER_S: Final = 0.005
"""Seconds of decoding in one turn of the event loop, after which everything else has its turn."""

Decoded = DecodedRequest | DecodeFailure


def decoded(data: bytes) -> Decoded:
    """The request in a frame, or why there is none."""
    try:
        return decode_request(data)
    except DecodeFailure as failure:
        return failure


class LargeRequests:
    """The large requests of one server that are to be decoded, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[bytes, Callable[[Decoded], None]]] = {}  # by connection
        self._task: asyncio.Task[None] | None = None

    def decode(self, connection: object, data: bytes, then: Callable[[Decoded], None]) -> None:
        """Decode a request of a connection that has none here; ``then`` is called with it, in a later turn of the loop.

        ``then`` must not raise.
        """
        self._waiting[connection] = data, then
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="decoding large requests")

    def forget(self, connection: object) -> None:
        """A connection is lost: its request is not decoded any more."""
        self._waiting.pop(connection, None)

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            while self._waiting:
                data, then = self._waiting.pop(next(iter(self._waiting)))
                then(await _decoded_in_thread(data) if len(data) > IN_THREAD_BYTES else decoded(data))
                if clock() - began_s > MAX_TOGETHER_S:
                    await asyncio.sleep(0)
                    began_s = clock()
        finally:
            self._task = None


async def _decoded_in_thread(data: bytes) -> Decoded:
    try:
        return await off_loop("decode a request", decoded, data)
    except NoThread:
        return decoded(data)
