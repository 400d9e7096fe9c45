"""A Spark Connect server on this machine: one Java process for all workers of ``connectgroup up --shared-spark``.

It listens on a loopback port, requires a token that only its workers know, and ends with the process that started it,
even if that is killed. If it ends by itself it is started again; tasks are retried meanwhile (``spark/remote.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import secrets
import shutil
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..private import make_private
from .archive import archive_options
from .errors import SparkError
from .java import ensure_java, find_java, has_kafka_jars, kafka_jars
from .remote import REMOTE
from .session import MASTER, python_launcher, settings

SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.1
RESTART_WAIT_S: Final = 1.0
MAX_RESTART_WAIT_S: Final = 30.0
LAST_LINES: Final = 20
"""Lines of Spark's output that an error shows."""

_PR_SET_PDEATHSIG: Final = 1
"""``prctl(2)``: send a signal when the parent process ends."""

logger = logging.getLogger(__name__)


class SparkServer:
    """A Spark Connect server, from the beginning of ``async with`` to its end.

    Args:
        scratch: directory for Spark's files; it is emptied first, and removed at the end.
        kafka: fetch the jars of Spark's Kafka source if they are not in the cache. Jars in the cache are used anyway.
        log: called with each line of Spark's output; the default is this module's logger.
    """

    def __init__(self, scratch: Path, *, kafka: bool = False, log: Callable[[str], None] = logger.warning) -> None:
        self._scratch, self._kafka, self._log = scratch.resolve(), kafka, log
        self._port = _free_port()
        self._token = secrets.token_urlsafe(24)
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, without the token."""
        return f"sc://localhost:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which a worker uses the server."""
        return {REMOTE: f"{self.address}/;token={self._token}"}

    async def __aenter__(self) -> SparkServer:
        """Start the server, and wait until it listens.

        Raises:
            ConfigError: pyspark, a package for Spark Connect or Java is missing.
            SparkError: Spark ended at once; with the last lines of its output.
        """
        try:
            await self._start()
            while not await self._listens():
                if self._process is not None and self._process.returncode is not None:
                    raise SparkError(f"Spark has ended: {' | '.join(self._lines) or 'without a message'}")
                await asyncio.sleep(POLL_S)
        except BaseException:
            await self._stop()
            raise
        self._watch = asyncio.create_task(self._start_again(), name="watch the Spark Connect server")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        await self._stop()

    async def _start(self) -> None:
        try:
            import grpc_status  # noqa: F401
            import pyspark
        except ImportError as error:
            raise ConfigError(
                "shared_spark", f"no package {error.name}", "pip install 'connectgroup[spark-connect]'"
            ) from error
        shutil.rmtree(self._scratch, ignore_errors=True)
        make_private(self._scratch, "scratch")
        java = find_java()
        options = {
            **settings(archive_options(java), scratch=self._scratch),
            "spark.app.name": "connectgroup",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
        }
        if MASTER not in os.environ:
            options["spark.master"] = f"local[{max(2, os.cpu_count() or 1)}]"
        if self._kafka or has_kafka_jars():
            options["spark.jars"] = ",".join(map(str, await asyncio.to_thread(kafka_jars)))
        home = Path(pyspark.__file__).parent
        self._process = await asyncio.create_subprocess_exec(
            *(home / "bin" / "spark-submit", "--class", SERVER),
            *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={
                **os.environ,
                "JAVA_HOME": str(ensure_java(java)),
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": str(python_launcher()),
                # Not an option: other users see the command line.
                "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
            },
            cwd=self._scratch,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._output = asyncio.create_task(self._read(self._process), name="output of Spark")

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            self._log(text)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True

    async def _start_again(self) -> None:
        wait_s = RESTART_WAIT_S
        while True:
            assert self._process is not None
            began_s = asyncio.get_running_loop().time()
            code = await self._process.wait()
            if asyncio.get_running_loop().time() - began_s > MAX_RESTART_WAIT_S:
                wait_s = RESTART_WAIT_S
            logger.error("Spark Connect server ended with code %d; it is started again in %g s", code, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_RESTART_WAIT_S)
            await self._start()

    async def _stop(self) -> None:
        if (process := self._process) is not None and process.returncode is None:
            # Python workers of Spark are in the group too.
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
                    break
        if self._output is not None:
            self._output.cancel()
        shutil.rmtree(self._scratch, ignore_errors=True)


def _end_with_parent() -> None:
    """In the new process, before it becomes Spark: SIGTERM when the process that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    """A port of the loopback address that was free a moment ago; Spark does not tell which one it chose itself."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
