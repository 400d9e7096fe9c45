"""A TCP proxy between a worker process and its coordinator, which a test can cut: bytes are lost, connections stay."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """Forwards connections to one address until it is cut.

    Attributes:
        port: the port to connect to, on 127.0.0.1.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._cut = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Open the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Lose all bytes from now on, in both directions."""
        self._cut.set()

    def heal(self) -> None:
        """Close the connections that were cut; new ones are forwarded."""
        if self._cut.is_set():
            self._cut.clear()
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            if self._cut.is_set():
                await asyncio.get_running_loop().create_future()
            onward, back = await asyncio.open_connection(*self._target)
            writers.append(back)
            pumps = {asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(onward, writer))}
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                with contextlib.suppress(OSError):
                    each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self._cut.is_set():
                    await asyncio.get_running_loop().create_future()
                writer.write(data)
                await writer.drain()
        # The peer closed: a partition hides that as well.
        if self._cut.is_set():
            await asyncio.get_running_loop().create_future()
