"""The one Spark session of a worker process.

It is created once, before the worker joins and not when a task starts, because creation takes seconds. Workers of
``up`` share the Java of their supervisor (``SharedJava``). Otherwise its Java process is a child of the worker and ends
with the worker, even if the worker is killed: it reads from a pipe of the worker and exits when the pipe closes. It
runs in its own process session, so that a signal to the worker's process group (Ctrl-C, a supervisor's SIGTERM) reaches
only the worker, which then stops its queries in order.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import NO_VALUE, ConfigError
from ..private import temporary_parent
from ..threads import outcome
from .archive import archive_options, java_option
from .errors import SparkError
from .java import cache_directory, ensure_java, find_java, make_script
from .remote import QUERY_LOGGERS, answers, is_remote

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

MASTER: Final = "CONNECTGROUP_SPARK_MASTER"
"""Environment variable: Spark's master; ``local[2]`` by default."""

MEMORY: Final = "CONNECTGROUP_SPARK_MEMORY"
"""Environment variable: heap size of the Java process in Java's notation; ``1g`` by default."""

SECRET: Final = "CONNECTGROUP_SPARK_SECRET"
"""Environment variable: ``spark.authenticate.secret`` of the cluster, with a master ``spark://``."""

DRIVER_HOST: Final = "CONNECTGROUP_SPARK_DRIVER_HOST"
"""Environment variable: the address at which the machines of a cluster reach this one; ``127.0.0.1`` by default."""

SOCKET_TIMEOUT_S: Final = 60
"""How long Spark's Java and Python wait for each other when they connect. With Spark's 15 s, tasks on a busy machine
failed again and again."""

WITHOUT_EXTERNAL_XML: Final = tuple(f"-Djavax.xml.accessExternal{each}=" for each in ("DTD", "Schema", "Stylesheet"))
"""System properties of Java: an XML document in a value of a row names no file and no server (JAXP 1.5)."""

REFLECTION: Final = ("reflect", "java_method", "try_reflect")
"""Functions of Spark SQL that call a method of Java by its name."""

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_session: SparkSession | None = None
_starts_lock = threading.Lock()
_starting_javas: set[subprocess.Popen[Any]] = set()
"""Those of which ``launch_gateway`` has no gateway yet. ``_launch`` and ``_JavaProcess`` change it."""
_is_ending = False
"""Whether this process ends: ``end_starts`` sets it."""

# --------------------------------------------------------------------------------------------------
# The Java that a supervisor runs for all of its workers (``server``), as one of these workers sees it.

SHARED: Final = "CONNECTGROUP_SPARK_SHARED"
"""Environment variable that a supervisor sets: its worker has no Java of its own and asks for a gateway."""

GATEWAY: Final = "connectgroup.gateway"
"""Setting of a session: the tag of its gateway."""

GATEWAY_TIMEOUT_S: Final = 600.0


class SharedJava:
    """What a worker process knows of the Java that its supervisor runs. Any thread may call it.

    Attributes:
        gateway: its gateway: ``port``, ``secret`` and ``tag``; ``None``: none now. ``receive`` sets it.
        is_used: whether the worker uses it; ``use`` sets it.
        is_closed: whether the worker stops; ``close`` sets it.
    """

    def __init__(self) -> None:
        self.gateway: dict[str, Any] | None = None
        self.is_used = False
        self._ask: Callable[[str], None] = lambda why: None
        self._failure = ""
        self.is_closed = False
        self._changed = threading.Condition()

    def use(self, ask: Callable[[str], None]) -> None:
        """From now on Spark is the one of the supervisor; ``ask`` tells it that the worker wants a gateway, and why."""
        self.is_used, self._ask = True, ask

    def receive(self, text: str) -> None:
        """The supervisor has sent a gateway; or reports that there is none, with ``failed``: why."""
        message = json.loads(text)
        with self._changed:
            self.gateway = message if "port" in message else None
            self._failure = message.get("failed", "")
            self._changed.notify_all()

    def wait(self) -> dict[str, Any]:
        """Return the gateway; wait until Spark has started.

        Raises:
            SparkError: Spark cannot be started, or the worker stops.
        """
        give_up_s = time.monotonic() + GATEWAY_TIMEOUT_S
        with self._changed:
            if self.gateway is None:
                self._failure = ""
                self._ask("start")
            while self.gateway is None:
                if self._failure or self.is_closed or time.monotonic() > give_up_s:
                    raise SparkError(self._failure or "Spark has not started; allowed: the task starts again")
                self._changed.wait(1.0)
            return self.gateway

    def give_back(self) -> None:
        """Have the supervisor close the gateway: what this process waits for fails. Java is killed if it hangs."""
        with self._changed:
            self.gateway = None
        self._ask("again")

    def close(self) -> None:
        """The worker stops: nothing waits for Spark any more."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


JAVA: Final = SharedJava()
"""That of this process."""


# --------------------------------------------------------------------------------------------------


def spark_session() -> SparkSession:
    """Return the session of this process; the first call creates it. Any thread may call this.

    Raises:
        ConfigError: pyspark or Java is missing.
    """
    global _session
    with _lock:
        if _session is not None and not _is_alive(_session):
            _forget(_session)
            _session = None
        if _session is None:
            _session = _start_in_thread()
        return _session


@contextlib.contextmanager
def java_alone() -> Iterator[Any]:
    """Run a Java process with Spark's classes and without a session, and yield its gateway. It ends with the block: for
    a process that runs no tasks, such as a REST server.

    Raises:
        ConfigError: pyspark or Java is missing.
    """
    check_spark()
    from pyspark import SparkConf

    java = find_java()
    ensure_java(java)
    conf = SparkConf(loadDefaults=False).setAll(list(settings(archive_options(java)).items()))
    gateway = _launch(conf)
    try:
        yield gateway
    finally:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        gateway.proc.kill()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def check_spark() -> None:
    """Check that Spark can be started.

    Raises:
        ConfigError: pyspark or Java is missing.
    """
    try:
        found = importlib.util.find_spec("pyspark")
    except ImportError:
        found = None
    if found is None:
        raise ConfigError("spark", "no package pyspark", "pip install 'connectgroup[spark]' on each worker")
    find_java()


def stop_session(*, timeout_s: float = 30.0) -> None:
    """Stop the session and its Java process; for tests and an orderly exit. Stop all queries first.

    Args:
        timeout_s: how long Java may take to end.
    """
    global _session
    with _lock:
        if _session is not None:
            _forget(_session, timeout_s)
            _session = None


def kill_session(*, ends: bool = False) -> None:
    """Kill the Java process of the session, which does not respond; the next task starts another one.

    Args:
        ends: it is killed because this process ends, not because it does not respond.
    """
    if ends:
        end_starts()
    # Without the lock: a thread that holds it may wait for this very process.
    session = _session
    if JAVA.is_used:
        if not ends:
            logger.error("Spark does not respond: its supervisor opens another gateway, or starts another Java")
        JAVA.give_back()
        return
    gateway: Any = None if session is None else session.sparkContext._gateway
    if gateway is not None:
        level, why = (logging.INFO, "this process ends") if ends else (logging.ERROR, "it does not respond")
        logger.log(level, "Spark's Java process (pid %d) is killed: %s", gateway.proc.pid, why)
        gateway.proc.kill()


def end_starts() -> None:
    """This process ends: kill the Java that starts, and start none any more.

    Java would notice the end of this process only once it has started, and not at all if the directory for temporary
    files, in which it reports that, has been deleted meanwhile.
    """
    global _is_ending
    with _starts_lock:
        _is_ending = True
        for java in _starting_javas:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(java.pid, signal.SIGKILL)  # with what Spark's script runs before it becomes Java


class _JavaProcess(subprocess.Popen[Any]):
    """The process that ``launch_gateway`` starts: its own name for it is local until Java has started."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with _starts_lock:
            if _is_ending:
                raise SparkError("this process ends; allowed: the task starts again on another worker")
            super().__init__(*arguments, **options)
            _starting_javas.add(self)


def _launch(conf: SparkConf) -> Any:
    """Start a Java process; return its gateway."""
    from pyspark import java_gateway

    vars(java_gateway)["Popen"] = _JavaProcess
    gateway: Any = None
    try:
        gateway = java_gateway.launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        return gateway
    finally:
        with _starts_lock:
            ended = {java for java in _starting_javas if java.poll() is not None}
            _starting_javas.difference_update(ended if gateway is None else {*ended, gateway.proc})


def _start_in_thread() -> SparkSession:
    """Start a session in a thread: a SparkContext created on the main thread replaces the SIGINT handler.

    In a daemon thread, because a start that hangs must not prevent the process from exiting.
    """
    results: list[tuple[Any, BaseException | None]] = []
    thread = threading.Thread(target=lambda: results.append(outcome(_start)), name="spark-start", daemon=True)
    thread.start()
    thread.join()
    session, error = results[0]
    if error is not None:
        raise error
    assert session is not None
    return session  # type: ignore[no-any-return]


def _start() -> SparkSession:
    # That of a program with a session of its own, which embeds the worker: this process has forgotten ours.
    is_ours = "pyspark" not in sys.modules or sys.modules["pyspark"].SparkContext._gateway is None
    try:
        return _started()
    except BaseException:
        if is_ours and "pyspark" in sys.modules:
            _forget_gateway()
        raise


def _started() -> SparkSession:
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "spark", f"no package {error.name}", "pip install 'connectgroup[spark]' on each worker"
        ) from error
    shared = JAVA.wait() if JAVA.is_used else None
    java = find_java() if shared is None else None
    os.environ |= {"PYSPARK_PYTHON": str(python_launcher())} if java is None else environment(java)
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.environ["PYSPARK_PYTHON"]
    # For this process; the others have it by a setting.
    os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", str(SOCKET_TIMEOUT_S))
    # The task reports the cause of a query's end once; py4j would log it earlier, with a stack trace.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(is_not_from_py4j)
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    if java is not None:
        conf = SparkConf().setAll(list(settings(archive_options(java)).items()))
        gateway = _launch(conf)
        context = SparkContext(conf=conf, gateway=gateway)
    else:
        assert shared is not None
        # pyspark's way to a Java that runs already.
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(shared["port"]), "PYSPARK_GATEWAY_SECRET": shared["secret"]}
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        jvm = gateway.jvm
        running = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
        context = SparkContext(conf=SparkConf(_jvm=jvm, _jconf=running.getConf()), gateway=gateway, jsc=running)
    if (server := getattr(context, "_accumulatorServer", None)) is not None:
        # Its connection ends when Java is killed; it would print a stack trace to the standard error.
        server.handle_error = _ignore_error
    session = SparkSession(context)
    if shared is not None:
        session = session.newSession()
        session.conf.set(GATEWAY, shared["tag"])
        gateway.connectgroup_tag = shared["tag"]
    _remove_reflection(session)
    return session


def _remove_reflection(session: SparkSession) -> None:
    """Remove the functions of Spark SQL that call any method of Java, for this session and for all that follow it.

    A transform could read environment variables or open files with them, whatever the worker allows.
    """
    jvm: Any = session._jvm
    some, catalyst = jvm.scala.Option.apply, jvm.org.apache.spark.sql.catalyst
    registries = catalyst.analysis.FunctionRegistry.builtin(), session._jsparkSession.sessionState().functionRegistry()
    for name in REFLECTION:
        function = catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
        for registry in registries:
            # Another worker of a shared Java may have removed it.
            registry.dropFunction(function)
            assert not registry.functionExists(function), f"Spark still has the function {name}"


def is_not_from_py4j(record: logging.LogRecord) -> bool:
    """Filter of the root logger: py4j logs to it, with a stack trace, each call that a killed Java does not answer."""
    return "py4j" not in Path(record.pathname).parts


def _ignore_error(request: object, client_address: object) -> None:
    """Replaces ``socketserver.BaseServer.handle_error``."""


def settings(java_options: Sequence[str] = (), *, scratch: Path | None = None) -> dict[str, str]:
    """Return Spark's settings for a worker; comments give the reason where it is not obvious.

    Args:
        java_options: further options of the Java process.
        scratch: directory for Spark's files; ``None``: the directory for temporary files of this process.

    Raises:
        ConfigError: a cluster needs a secret; or Java cannot use the directory.
    """
    scratch = scratch or temporary_parent()
    try:
        str(scratch).encode()
    except UnicodeEncodeError as error:
        allowed = "a directory whose name is UTF-8: Java opens no other"
        raise ConfigError("Spark's directory", scratch, allowed, is_path=True) from error
    host = os.environ.get(DRIVER_HOST, "127.0.0.1")
    checkpointing = "org.apache.spark.sql.execution.streaming.checkpointing"
    return {
        "spark.app.name": f"connectgroup worker {os.getpid()}",
        **_master(),
        "spark.driver.memory": os.environ.get(MEMORY, "1g"),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        # Spark's own ports require a secret, which Spark makes for this session in local mode.
        "spark.authenticate": "true",
        # Half of the heap is young, with large survivor spaces: collected batches die there, instead of filling the old
        # generation, whose collections are slow.
        "spark.driver.extraJavaOptions": " ".join(
            (
                "-XX:+UseSerialGC",
                "-XX:NewRatio=1",
                "-XX:SurvivorRatio=4",
                "-XX:+ExitOnOutOfMemoryError",
                "-Djava.net.preferIPv4Stack=true",
                *WITHOUT_EXTERNAL_XML,
                java_option(f"-Djava.io.tmpdir={scratch}"),
                *java_options,
                f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
            )
        ),
        # A worker process has set it to a directory that is deleted with the worker's scratch directory.
        # Spark reads a comma in it as the end of a path.
        "spark.local.dir": str(scratch) if "," not in str(scratch) else "/tmp",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "connectgroup-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # Queries of transforms: a path is no table, and ${name} stands for no setting.
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.variable.substitute": "false",
        # The default, and the option in which a source of this package travels: it may contain a password.
        "spark.sql.redaction.options.regex": "(?i)url|plan",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # Results above this size, 1 MiB by default, take the way of blocks between machines: four copies more.
        "spark.task.maxDirectResultSize": "100m",
        "spark.python.authenticate.socketTimeout": f"{SOCKET_TIMEOUT_S}s",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.minBatchesToRetain": "10",
        # Checkpoints are temporary files on local disk: no fsync, no link and rename. Halves the minimum batch period.
        "spark.sql.streaming.checkpointFileManagerClass": f"{checkpointing}.FileSystemBasedCheckpointFileManager",
    }


def environment(java: Path) -> dict[str, str]:
    """The variables with which Spark's Java starts, whatever this process has: its own pyspark, Java and Python.

    Args:
        java: as ``find_java`` returns it.

    Raises:
        ConfigError: the scripts cannot be written.
    """
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return {
        "JAVA_HOME": str(ensure_java(java)),
        # Another installation's would be of another version.
        "SPARK_HOME": str(Path(found.origin).parent),
        # The name of this machine need not have an address.
        "SPARK_LOCAL_IP": os.environ.get(DRIVER_HOST, "127.0.0.1"),
        "PYSPARK_PYTHON": str(python_launcher()),
    }


def runs_here() -> bool:
    """Whether the session's workers are processes of this machine, not of a cluster."""
    master = os.environ.get(MASTER, "local[2]")
    return master == "local" or master.startswith("local[")


def _master() -> dict[str, str]:
    """Return the settings of Spark's master, and the secret that its processes need in addition to local mode's."""
    master = os.environ.get(MASTER, "local[2]")
    if runs_here():
        return {"spark.master": master, "spark.python.daemon.module": "connectgroup.spark.python_daemon"}
    secret = os.environ.get(SECRET)
    if not secret:
        raise ConfigError(SECRET, NO_VALUE, f"spark.authenticate.secret of the cluster {master}")
    # Before the options of the cluster's own configuration, which stay.
    options = {"spark.executor.defaultJavaOptions": " ".join(WITHOUT_EXTERNAL_XML)}
    return {"spark.master": master, "spark.authenticate.secret": secret, **options}


def python_launcher() -> Path:
    """Return the script that starts Spark's Python workers: this interpreter, with this package and an unzipped pyspark
    on its path.

    Spark puts pyspark's zip file in front of the path. The zip file holds no compiled code, so each of the five
    processes that a query needs would compile pyspark again: 0.7 s of the 1.0 s that a task start took.
    ``-P``: Spark starts them with ``-m`` in the worker's current directory, whose modules must not shadow others.
    """
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return make_script(
        cache_directory(), "python", f'PYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} -P "$@"\n'
    )


def session_is_alive() -> bool:
    """Whether a session exists whose Java process is running."""
    session = _session
    return session is not None and _is_alive(session)


def is_usable(session: SparkSession) -> bool:
    """Whether Spark still answers in a session: the Java process of this worker, or the server."""
    return answers(session) if is_remote(session) else session_is_alive()


def java_runs(gateway: Any) -> bool:
    """Whether the Java process of pyspark's gateway runs, as far as this process has noticed."""
    if gateway.proc is None:
        return JAVA.gateway is not None and bool(JAVA.gateway["tag"] == gateway.connectgroup_tag)
    return gateway.proc.poll() is None


def _is_alive(session: SparkSession) -> bool:
    gateway: Any = session.sparkContext._gateway
    if gateway is None or not java_runs(gateway):
        return False
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j raises many types of error for a Java that is exiting, and not all are py4j's
        return False


def _forget(session: SparkSession, timeout_s: float = 30.0) -> None:
    """Stop a session and its Java process, and clear pyspark's references to them, even if Java has already exited."""
    gateway: Any = session.sparkContext._gateway
    if gateway is not None and gateway.proc is None:
        # Other workers use this Java; the supervisor closes the gateway in it.
        with contextlib.suppress(Exception):
            gateway.close()
    elif _is_alive(session):
        session.stop()
        gateway.shutdown()
    if gateway is not None and gateway.proc is not None:
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout_s)
    _clear()


def _forget_gateway() -> None:
    """End the Java process of a start that has failed, and clear pyspark's references to it: it would use it for the
    next start, also when it has exited."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    _clear()
    if gateway is None:
        return
    with contextlib.suppress(Exception):
        if gateway.proc is None:  # other workers use this Java
            gateway.close()
            return
        gateway.proc.kill()
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _clear() -> None:
    """Clear pyspark's references to a session and its Java process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
