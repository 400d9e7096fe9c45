"""Prepares a session for its first query, and archives the classes that both load."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .archive import recording
from .java import find_java
from .query import open_stream
from .remote import check_server, remote_address
from .session import spark_session, stop_session
from .sources.file_settings import FileSettings
from .sources.files import FileSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ARCHIVE_TIMEOUT_S: Final = 300
"""How long Java may take to write the archive at its exit."""


def warm_up() -> None:
    """Create the session and run a small batch like those of tasks, so that no task start pays for the first query.
    With a Spark Connect server, check that it answers.

    The first query of a session starts four Python helpers and loads half of Spark: 2 s once, 0.4 s after that.
    """
    if remote_address():
        check_server()
        return
    session = spark_session()
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
    """
    stop_session()
    with recording(find_java()) as archive:
        warm_up()
        stop_session(timeout_s=ARCHIVE_TIMEOUT_S)
    return archive


def _take(frame: DataFrame, batch_id: int) -> None:
    frame.toArrow()
