"""Starts Spark beside tasks that read without it, prepares it for its first query, and archives what both load."""

from __future__ import annotations

import logging
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .archive import recording
from .driving import open_stream
from .errors import SparkError, root_cause
from .java import find_java
from .remote import check_server, remote_address
from .session import check_spark, session_is_alive, spark_session, stop_session
from .sources.file_settings import FileSettings
from .sources.files import FileSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE_TIMEOUT_S: Final = 300
"""How long Java may take to write the archive at its exit."""

logger = logging.getLogger(__name__)

_one_at_a_time = threading.Lock()
_warm: SparkSession | None = None
_task_waits = threading.Event()
"""Set by ``session_of_task``: a task is about to run the first query."""
_starting_lock = threading.Lock()
_starting: Starting | None = None


class Starting:
    """A start of this process's Spark, in a thread of its own.

    Attributes:
        has_failed: whether it has ended without a session. Its thread sets it, and the task that has started Spark
            since then takes it back.
    """

    def __init__(self) -> None:
        """Begin to start Spark."""
        self.has_failed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="start Spark", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def is_ready(self) -> bool:
        """Whether queries can start.

        Raises:
            Exception: the start has failed.
        """
        if not self.is_over:
            return False
        if self._error is not None and self.has_failed:
            raise self._error
        return True

    def _run(self) -> None:
        try:
            warm_up()
        except BaseException as error:
            self._error = error
            if session_is_alive():
                logger.warning("Spark has started, and its first query has failed: %s", root_cause(error))
            else:
                self.has_failed = True


def start_beside() -> Starting:
    """Return the start of Spark that is under way, the last one if it has failed, or else begin one.

    Raises:
        ConfigError: pyspark or Java is missing.
    """
    global _starting
    with _starting_lock:
        if _starting is None or (_starting.is_over and not _starting.has_failed and not session_is_alive()):
            check_spark()
            _starting = Starting()
        return _starting


def warm_up() -> None:
    """Create the session and run a small batch like those of tasks, so that no task start pays for the first query.
    With a Spark Connect server, check that it answers.

    The first query of a session starts four Python helpers and loads half of Spark: 2 s once, 0.4 s after that. If a
    task waits for Spark already, its query is the first one: another beside it would delay its rows. Called again, it
    waits for the call in progress, and does nothing more while the session lives.
    """
    global _warm
    if remote_address():
        check_server()
        return
    with _one_at_a_time:
        session = spark_session()
        if session is not _warm:
            if not _task_waits.is_set():
                _run_first_query(session)
            _task_waits.clear()
            _warm = session


def session_of_task() -> SparkSession:
    """As ``spark_session``, for a query of a task; while Spark starts, ``warm_up`` leaves the first query to it."""
    if not session_is_alive():
        _task_waits.set()
    return spark_session()


def _run_first_query(session: SparkSession) -> None:
    with tempfile.TemporaryDirectory(prefix="connectgroup-warm-up-") as scratch:
        root = Path(scratch, "files")
        root.mkdir()
        (root / "one.csv").write_text("a\n1\n")
        settings = FileSettings.model_validate({"path": str(root), "format": "csv", "schema": "a INT"})
        query = (
            open_stream(FileSource.create(settings, task=0, tasks=1), session, {})
            .writeStream.option("checkpointLocation", str(Path(scratch, "checkpoint")))
            .foreachBatch(_take)
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()


def prepare() -> Path:
    """Archive the classes that a session and its first query load; return the archive.

    The session of this process is stopped.

    Raises:
        ConfigError: pyspark or Java is missing, or the archive cannot be written.
        SparkError: Java was killed: what it has written may lack a part.
    """
    stop_session()
    with recording(find_java()) as archive:
        warm_up()
        gateway: Any = None if _warm is None else _warm.sparkContext._gateway
        stop_session(timeout_s=ARCHIVE_TIMEOUT_S)
        if gateway is not None and (java := gateway.proc).returncode < 0:
            raise SparkError(f"Java was ended by signal {-java.returncode} while it wrote the archive")
    return archive


def _take(frame: DataFrame, batch_id: int) -> None:
    frame.toArrow()
