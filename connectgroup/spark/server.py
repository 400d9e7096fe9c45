"""One Java process with one Spark for all workers of ``connectgroup up``.

The supervisor runs it (``SharedSpark``), as a child that ends with it, and starts it with the group's first worker, or,
if no connector of the group needs Spark then, when the first worker asks for it.
Each worker process has a gateway of its own in it: a port and a secret that only that worker knows, with its own
callbacks, and a session of its own, so that views and settings of one worker are not seen by another. The worker
learns of its gateway on its standard input (``session.JAVA``). When a worker ends, the supervisor closes its gateway,
and stops what its queries still do. A Java that ends is started again, and every worker is told: its tasks start again
on the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import struct
import tempfile
import uuid
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError, ConnectGroupError
from ..os_process import kill_family
from ..private import make_private
from ..threads import off_loop
from .archive import archive_classes, archive_options
from .errors import SparkError, root_cause
from .java import find_java
from .session import GATEWAY, MASTER, MEMORY, check_spark, environment, is_not_from_py4j, settings

ANSWER_TIMEOUT_S: Final = 30.0
"""How long Java may take to close a gateway. One that takes longer does not respond, and is killed."""
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05
RESTART_WAIT_S: Final = 1.0
MAX_RESTART_WAIT_S: Final = 30.0
LAST_LINES: Final = 200
"""Lines of Spark's output that are kept for an error."""
SHOWN_LINES: Final = 20
MAIN_HAS_FAILED: Final = 'Exception in thread "main" '
"""So begins what Java writes when its first thread fails. Other threads of it may then run for ever."""

logger = logging.getLogger(__name__)


class SharedSpark:
    """The Java process of a supervisor, from the first ``begin`` to ``close``. Used by one event loop.

    Attributes:
        is_ready: whether gateways can be opened. The task that runs Java sets it.
        failure: why Spark could not be started the last time; empty if it could. The same.
        began_s: when the start under way began, on the event loop's clock; ``None``: none is under way. The same.
    """

    def __init__(self, scratch: Path, *, heap: str, log: Callable[[str], None], changed: Callable[[], None]) -> None:
        """Store the arguments.

        Args:
            scratch: directory for Spark's files; it is emptied at each start, and removed at the end.
            heap: of Java, in its notation, unless an environment variable has another one.
            log: called with each line of Spark's output.
            changed: called when ``is_ready`` or ``failure`` has changed.
        """
        self.is_ready, self.failure = False, ""
        self.began_s: float | None = None
        self._scratch, self._heap, self._log, self._changed = scratch.resolve(), heap, log, changed
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._process: Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None
        self._archiving: asyncio.Task[None] | None = None
        self._java: Any = None
        """The gateway of this process. ``_connect`` sets it."""
        self._gateways: dict[int, tuple[str, Any]] = {}
        """By process id of a worker: tag and server in Java."""

    def begin(self) -> None:
        """Start Java, unless it runs or is being started."""
        if self._running is None or self._running.done():
            self.began_s = asyncio.get_running_loop().time()
            self._running = asyncio.create_task(self._run(), name="run Spark")

    async def open(self, pid: int) -> str:
        """Open a gateway for a worker process; return what ``SharedJava.receive`` takes.

        Raises:
            Exception: Java has ended.
        """
        tag = f"connectgroup-{uuid.uuid4().hex}"
        server, port, secret = await off_loop("open a gateway", _open, self._java)
        self._gateways[pid] = (tag, server)
        return json.dumps({"port": port, "secret": secret, "tag": tag})

    async def release(self, pid: int) -> None:
        """Close the gateway of a worker process, if it has one, and stop what its queries do."""
        tag, server = self._gateways.pop(pid, ("", None))
        process = self._process
        if server is None or not self.is_ready or process is None:
            return
        closing = asyncio.create_task(off_loop("close a gateway", _close, self._java, server, tag))
        await asyncio.wait({closing}, timeout=ANSWER_TIMEOUT_S)
        if not closing.done():
            closing.cancel()
            logger.error("Spark's Java process (pid %d) is killed: it does not respond", process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def kill(self) -> None:
        """Kill Java at once, with what it has started; ``close`` has nothing to wait for then."""
        for task in (self._running, self._archiving):
            if task is not None:
                task.cancel()
        self.is_ready = False
        self._gateways.clear()
        if self._process is not None and self._process.returncode is None:
            kill_family(self._process.pid)

    async def close(self) -> None:
        """Stop Java."""
        for task in (self._running, self._archiving):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self._stop()

    async def _run(self) -> None:
        wait_s = RESTART_WAIT_S
        while True:
            began_s = self.began_s = asyncio.get_running_loop().time()
            try:
                await self._start()
            except ConfigError as error:
                logger.error("Spark cannot be started: %s", error)
                self._now(False, str(error))
                return
            except Exception as error:
                await self._stop()
                text = str(error) if isinstance(error, ConnectGroupError) else f"Spark: {root_cause(error)}"
                logger.error("%s; it is started again in %g s", text, wait_s)
                self._now(False, text)
            else:
                logger.info("Spark has started after %.1f s", asyncio.get_running_loop().time() - began_s)
                self._now(True)
                if self._archiving is None:
                    self._archiving = asyncio.create_task(archive_classes(), name="archive Spark's classes")
                assert self._process is not None
                code = await self._process.wait()
                self._gateways.clear()
                if asyncio.get_running_loop().time() - began_s > MAX_RESTART_WAIT_S:
                    wait_s = RESTART_WAIT_S
                logger.error("Spark's Java process ended with code %d; it is started again in %g s", code, wait_s)
                self._now(False)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, MAX_RESTART_WAIT_S)

    def _now(self, is_ready: bool, failure: str = "") -> None:
        self.is_ready, self.failure, self.began_s = is_ready, failure, None
        self._changed()

    async def _start(self) -> None:
        check_spark()
        await off_loop("empty Spark's directory", shutil.rmtree, self._scratch, True)
        make_private(self._scratch, "scratch")
        java = await off_loop("find Java", find_java)
        options = {
            **settings(archive_options(java), scratch=self._scratch),
            "spark.app.name": "connectgroup",
            # The batches of one worker do not wait for those of another.
            "spark.scheduler.mode": "FAIR",
            # As pyspark sets them in a process of its own.
            "spark.serializer.objectStreamReset": "100",
            "spark.rdd.compress": "true",
            "spark.sql.artifact.isolation.enabled": "false",
        }
        if MASTER not in os.environ:
            options["spark.master"] = f"local[{max(2, os.cpu_count() or 1)}]"
        if MEMORY not in os.environ:
            options["spark.driver.memory"] = self._heap
        variables = await off_loop("prepare Java", environment, java)
        self._lines.clear()
        # Nothing else deletes this directory: Java that does not find it runs on when this process is killed.
        with tempfile.TemporaryDirectory(prefix="connectgroup-", ignore_cleanup_errors=True) as noted:
            self._java = await self._connected(options, variables, Path(noted, "gateway"))

    async def _connected(self, options: Mapping[str, str], variables: Mapping[str, str], told: Path) -> _Java:
        """Start Java, which writes the note about its gateway into this file, and start Spark in it."""
        self._process = await asyncio.create_subprocess_exec(
            Path(variables["SPARK_HOME"], "bin", "spark-submit"),
            *(word for name, value in options.items() for word in ("--conf", f"{name}={value}")),
            "pyspark-shell",
            stdin=PIPE,  # Java ends when this pipe closes: with this process, even if it is killed
            stdout=PIPE,
            stderr=STDOUT,
            env={
                **os.environ,
                **variables,
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
            },
            start_new_session=True,
        )
        self._output = asyncio.create_task(self._read(self._process), name="output of Spark")
        while not (note := _noted(told)):
            if self._process.returncode is not None or any(text.startswith(MAIN_HAS_FAILED) for text in self._lines):
                # The rest of its output; after a failure, Java may not end.
                await asyncio.wait({self._output}, timeout=STOP_TIMEOUT_S)
                raise SparkError(f"Spark has ended: {_cause(self._lines)}")
            await asyncio.sleep(POLL_S)
        return await off_loop("connect to Java", _connect, note)

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            self._log(text)

    async def _stop(self) -> None:
        self.is_ready, self._java = False, None
        self._gateways.clear()
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


def _cause(lines: Iterable[str]) -> str:
    """What Spark has logged of its end: from the first line about an error on, in one line."""
    logged = [text for text in lines if text.strip()]
    first = next(
        (at for at, text in enumerate(logged) if re.search(r"error|exception|denied", text, re.IGNORECASE)), -1
    )
    shown = logged[-SHOWN_LINES:] if first < 0 else logged[first : first + SHOWN_LINES]
    return " | ".join(shown) or "without a message"


class _Java:
    """The objects of Java that a supervisor keeps: its own gateway, the context and the first session."""

    def __init__(self, gateway: Any) -> None:
        self.jvm = gateway.jvm
        self.conf = self.jvm.org.apache.spark.SparkConf()
        self.context = self.jvm.org.apache.spark.api.java.JavaSparkContext(self.conf).sc()
        sessions = self.jvm.org.apache.spark.sql.classic.SparkSession
        self.session = sessions(self.context, self.jvm.java.util.HashMap())
        # Workers make theirs from it (``newSession``).
        sessions.setDefaultSession(self.session)


def _noted(file: Path) -> bytes:
    """What Java has noted about its gateway, which it writes at once; nothing before that."""
    return file.read_bytes() if file.exists() else b""


def _connect(told: bytes) -> _Java:
    """Connect to a Java that has just started, and start Spark in it. ``told``: what pyspark's gateway has written."""
    from py4j.clientserver import (  # type: ignore[import-untyped]
        ClientServer,
        JavaParameters,
        PythonParameters,
    )

    port, length = struct.unpack(">ii", told[:8])
    parameters = JavaParameters(port=port, auth_token=told[8 : 8 + length].decode(), auto_convert=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(is_not_from_py4j)
    return _Java(ClientServer(parameters, PythonParameters(port=0, eager_load=False)))


def _open(java: _Java) -> tuple[Any, int, str]:
    server = java.jvm.org.apache.spark.api.python.Py4JServer(java.conf)
    server.start()
    return server, int(server.getListeningPort()), str(server.secret())


def _close(java: _Java, server: Any, tag: str) -> None:
    try:
        server.shutdown()
        java.context.cancelJobsWithTag(tag)
        for query in list(java.session.sharedState().activeStreamingQueries().values()):
            if query.sparkSession().conf().get(GATEWAY, "") == tag:
                query.stop()
    except Exception as error:  # py4j raises many types of error for a Java that ends
        logger.debug("gateway %s is not closed: %s", tag, type(error).__name__)
