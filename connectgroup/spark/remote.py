"""A task's session on a Spark Connect server (``CONNECTGROUP_SPARK_REMOTE``), instead of the worker's own Spark.

The worker drives the batches: it plans a range, the server reads and transforms it, the worker collects the rows and
commits them. So the server holds no state that matters, and runs at most one operation of a task.

If a worker is killed, that operation runs on. Each start of a task therefore registers its session on the server, in a
global temporary view, which all sessions of the server see and which ends with it. The next start finds the session
there and releases it: Spark ends its operations, and rejects whatever its former owner may still send. This is not
what protects the sink: the fencing token is.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ..errors import ConfigError
from .errors import SparkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

REMOTE: Final = "CONNECTGROUP_SPARK_REMOTE"
"""Environment variable: address of a Spark Connect server, ``sc://HOST:PORT``; none by default."""

USER: Final = "connectgroup"
"""Spark's user of a session, unless the address has one: a successor finds the session of another system user."""

QUERY_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers of PySpark (``PySparkException._log_exception``). They print each error of a query with its whole plan, and
with that the secrets of a transform, which the task's own report of the error masks."""

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # As in ``session.settings``; and plans in full, for the check of expressions.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.debug.maxToStringFields": "2147483647",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
}
ALLOWED: Final = "sc://HOST:PORT, sc://HOST:PORT/;token=TEXT"

KEEP_S: Final = 300.0
"""Interval at which a task shows the server that its session is in use: a server closes idle ones after an hour."""

_MAX_RETRIES: Final = 6
"""Of a request that the server does not answer, within about 7 s. The task itself is retried without a limit."""

logger = logging.getLogger(__name__)


def remote_address() -> str:
    """Return the address of the Spark Connect server; empty: the worker has a Spark of its own."""
    return os.environ.get(REMOTE, "")


def is_remote(session: SparkSession) -> bool:
    """Whether a session is one on a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def own_session(session: SparkSession) -> SparkSession:
    """Return a session whose views no other task sees; a session on a server belongs to one task anyway."""
    return session if is_remote(session) else session.newSession()


def frame_of(session: SparkSession, table: pa.Table) -> DataFrame:
    """Return a DataFrame of an Arrow table."""
    if table.num_rows == 0 and is_remote(session):
        from pyspark.sql.pandas.types import from_arrow_schema

        return session.createDataFrame([], from_arrow_schema(table.schema))
    return session.createDataFrame(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKey:
    """The grant for which a session is opened.

    Attributes:
        task: identifies the task on the server, whichever worker runs it.
        fencing_token: of the grant.
    """

    task: str
    fencing_token: int

    @property
    def view(self) -> str:
        """Name of the view with the task's session."""
        return f"connectgroup_{hashlib.sha256(self.task.encode()).hexdigest()[:32]}"


class RemoteSession:
    """A task's session on the server.

    Attributes:
        session: the session.
    """

    def __init__(self, key: TaskKey) -> None:
        """Open a session, and release the one that an earlier owner of the task has left.

        Raises:
            ConfigError: the address is not valid, or a package is missing.
            SparkError: the server does not answer.
        """
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.session: Any = _connect(uuid.uuid4())
        try:
            with _answering():
                for name, value in SETTINGS.items():
                    self.session.conf.set(name, value)
                self._succeed(key)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._keep, name=f"keep session of {key.task}", daemon=True).start()

    def _keep(self) -> None:
        while not self._released.wait(KEEP_S):
            answers(self.session)

    def _succeed(self, key: TaskKey) -> None:
        """Release the session of an earlier owner, and register this one."""
        rows: list[Any] = []
        if self.session.catalog.tableExists(f"global_temp.{key.view}"):
            rows = self.session.sql(f"SELECT id, token FROM global_temp.{key.view}").collect()
        for row in rows:
            if row.token > key.fencing_token:
                return  # the task has a new owner already: the sink will reject this one
            _connect(uuid.UUID(row.id)).stop()
        mine = self.session.createDataFrame([(self.session.session_id, key.fencing_token)], "id STRING, token BIGINT")
        mine.createOrReplaceGlobalTempView(key.view)

    def is_alive(self) -> bool:
        """Whether the server answers and still has this session."""
        return answers(self.session)

    def interrupt(self) -> None:
        """End the operation in progress. A batch that is being committed is not affected."""
        with contextlib.suppress(Exception):  # the server does not answer: nor will the operation
            self.session.interruptAll()

    def cut(self) -> None:
        """Close the connection to a server that does not respond: the operation in progress fails here."""
        logger.error("the connection to %s is closed: it does not respond", shown_address())
        with contextlib.suppress(Exception):
            self.session.client._channel.close()

    def close(self) -> None:
        """Release the session. Idempotent."""
        with self._lock:
            if self._released.is_set():
                return
            self._released.set()
        self.session.stop()


def answers(session: Any) -> bool:
    """Whether the server of a session answers and still has this session."""
    try:
        return bool(session.version)
    except Exception:  # gRPC's, pyspark's, or that of a closed channel
        return False


def shown_address() -> str:
    """Return the address without its parameters, which may contain a token."""
    return remote_address().partition("/;")[0]


def check_server() -> None:
    """Check that the server answers.

    Raises:
        ConfigError: the address is not valid, or a package is missing.
        SparkError: the server does not answer.
    """
    session = _connect(uuid.uuid4())
    try:
        with _answering():
            _ = session.version
    finally:
        session.stop()


@contextlib.contextmanager
def _answering() -> Any:
    try:
        yield
    except Exception as error:
        if _is_of_connection(error):
            raise SparkError(
                f"Spark Connect server {shown_address()} does not answer ({_reason(error)}); allowed: one that runs"
            ) from error
        raise


def _is_of_connection(error: Exception) -> bool:
    import grpc

    return isinstance(error, grpc.RpcError) or "UNAVAILABLE" in str(error) or "UNAUTHENTICATED" in str(error)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "UNAUTHENTICATED: wrong token" if "UNAUTHENTICATED" in text else text[:150]


def _connect(session_id: uuid.UUID) -> Any:
    """Return a session with this id. The server is not asked yet."""
    address = remote_address()
    try:
        import grpc_status  # noqa: F401
        from pyspark.logger import PySparkLogger
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise ConfigError(
            "spark", f"no package {error.name}", "pip install 'connectgroup[spark-connect]' on each worker"
        ) from error
    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    # The functions of pyspark.sql make expressions for a server only then.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    url = urlsplit(address)
    if url.scheme != "sc" or not url.hostname:
        raise ConfigError(REMOTE, shown_address(), ALLOWED)
    parameters = [f"session_id={session_id}"]
    if "user_id=" not in address:
        parameters.append(f"user_id={USER}")
    whole = address.rstrip(";/") if ";" not in address else address.rstrip(";")
    whole += (";" if ";" in address else "/;") + ";".join(parameters)
    try:
        session = SparkSession(whole)
    except Exception as error:
        raise ConfigError(REMOTE, shown_address(), ALLOWED) from error
    session.client.set_retry_policies([DefaultPolicy(max_retries=_MAX_RETRIES, max_backoff=2000)])
    return session
