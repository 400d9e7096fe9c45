"""The one Spark session of a worker process.

Made once, when the worker joins and never inside a task's start, because it takes seconds. Its Java process is
a child of the worker and ends when the worker does, also when the worker is killed: it reads the worker's end
of a pipe and goes when that closes. It sits in a session of its own, so that a signal to the worker's process
group (Ctrl-C, a supervisor's SIGTERM) reaches the worker alone, which then stops its queries in order.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from .java import cache_directory, ensure_java, make_script

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "CONNECTGROUP_SPARK_MASTER"
"""Environment variable: Spark's master; ``local[2]`` when not set."""

MEMORY: Final = "CONNECTGROUP_SPARK_MEMORY"
"""Environment variable: heap of the Java process, as Java writes it; ``1g`` when not set."""

_lock = threading.Lock()
_session: SparkSession | None = None


def spark_session() -> SparkSession:
    """The session of this process, made at the first call; any thread.

    Raises:
        ConfigError: pyspark or Java is missing.
    """
    global _session
    with _lock:
        if _session is not None and not _is_alive(_session):
            _forget(_session)
            _session = None
        if _session is None:
            # On a thread of its own: made on the main thread, SparkContext would take over SIGINT.
            with ThreadPoolExecutor(1, thread_name_prefix="spark-start") as pool:
                _session = pool.submit(_start).result()
        return _session


def warm_up() -> None:
    """Make the session and run a first small batch of the kind tasks run, so that no task start pays for it.

    The first query of a session starts four Python helpers and loads half of Spark: 2 s once, 0.4 s after that.
    """
    from ..dataplane.columns import Column
    from .sources.files import FileSource

    session = spark_session()
    with tempfile.TemporaryDirectory(prefix="connectgroup-warm-up-") as scratch:
        root = Path(scratch, "files")
        root.mkdir()
        (root / "one.csv").write_text("a\n1\n")
        columns = (Column("a", "INT"),)
        source = FileSource(root=root, form="csv", columns=columns, task=0, tasks=1, most_bytes=1024)
        query = (
            source.stream(session, {})
            .writeStream.option("checkpointLocation", str(Path(scratch, "checkpoint")))
            .foreachBatch(_take)
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()


def _take(frame: DataFrame, batch_id: int) -> None:
    frame.toArrow()


def stop_session() -> None:
    """End the session and its Java process; for tests and an orderly exit. Queries must have been stopped."""
    global _session
    with _lock:
        if _session is not None:
            _forget(_session)
            _session = None


def _start() -> SparkSession:
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("spark", error.name, "a worker with the extra connectgroup[spark] installed") from error
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = str(_python_launcher())
    # What ends a query is said once, by the task; py4j would say it before that, with a stack trace.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    conf = SparkConf().setAll(list(settings().items()))
    gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    return SparkSession(SparkContext(conf=conf, gateway=gateway))


def settings() -> dict[str, str]:
    """Spark's settings for a worker; the ones that are not obvious say why."""
    scratch = Path(tempfile.gettempdir())
    checkpointing = "org.apache.spark.sql.execution.streaming.checkpointing"
    return {
        "spark.app.name": f"connectgroup worker {os.getpid()}",
        "spark.master": os.environ.get(MASTER, "local[2]"),
        "spark.driver.memory": os.environ.get(MEMORY, "1g"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(
            (
                "-XX:+UseSerialGC",
                "-XX:+ExitOnOutOfMemoryError",
                "-Djava.net.preferIPv4Stack=true",
                f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
            )
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "connectgroup-warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.streaming.minBatchesToRetain": "10",
        # Checkpoints are scratch on local disk: no fsync and no link dance. Halves the shortest batch period.
        "spark.sql.streaming.checkpointFileManagerClass": f"{checkpointing}.FileSystemBasedCheckpointFileManager",
    }


def _python_launcher() -> Path:
    """What Spark's Python workers are started with: this interpreter, finding this package and an unzipped pyspark.

    Spark puts pyspark's zip file in front of their path. It holds no compiled code, so every one of the five
    processes that a query needs would compile pyspark anew: 0.7 s of the 1.0 s that a task start took.
    ``-P``: Spark starts them with ``-m`` in the worker's current directory, whose modules must not shadow others.
    """
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    return make_script(
        cache_directory(), "python", f'PYTHONPATH={shlex.quote(path)} exec {shlex.quote(sys.executable)} -P "$@"\n'
    )


def session_is_alive() -> bool:
    """Whether there is a session whose Java process runs."""
    session = _session
    return session is not None and _is_alive(session)


def _is_alive(session: SparkSession) -> bool:
    gateway: Any = session.sparkContext._gateway
    if gateway is None or gateway.proc.poll() is not None:
        return False
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except Exception:  # py4j has many words for a Java that is on its way out, and not all are its own
        return False


def _forget(session: SparkSession) -> None:
    """End a session and its Java, and clear away what pyspark remembers of them, also of a Java that is gone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = session.sparkContext._gateway
    if _is_alive(session):
        session.stop()
        gateway.shutdown()
    if gateway is not None:
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
    with SparkContext._lock:
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
