"""The positions and fences of connectors in one PostgreSQL schema, by the rules of ``fences``.

Advisory locks order the transactions: a claim holds the connector's lock alone, commits of different tasks share it.
So a claim waits for every commit in progress and reads the positions after it, and tasks do not wait for one another.
A worker that is suspended inside a transaction would hold its locks for ever: the server ends its session after
``idle_in_transaction_session_timeout``, which is set for every connection of the store.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from .errors import SinkError, SourceError
from .fences import ADD_METADATA, TABLES, Transaction, advance, alter_positions, claim_task, is_committed
from .ownership import Owner, Position, Range
from .settings import check_setting

if TYPE_CHECKING:
    import psycopg

FILES: Final = frozenset({"sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert"})
"""Options of a connection string that name a file, which must be in ``worker.allowed.paths``."""

OPTIONS: Final = FILES | {
    "application_name", "channel_binding", "connect_timeout", "dbname", "fallback_application_name",
    "host", "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts",
    "max_protocol_version", "min_protocol_version", "password", "port", "require_auth", "ssl_max_protocol_version",
    "ssl_min_protocol_version", "sslcertmode", "sslcompression", "sslmode", "sslnegotiation", "sslpassword", "sslsni",
    "target_session_attrs", "tcp_user_timeout", "user",
}  # fmt: skip
"""Options of a connection string. Not: those that read a file of passwords or services (``passfile``), take a password
of that file for another address (``hostaddr``), hand out the worker's Kerberos tickets, send requests to other servers
(``oauth_issuer``), write a file (``sslkeylogfile``), or that the store sets itself (``client_encoding``,
``options``)."""

_ADDRESSES: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
_WHAT: Final = "options of libpq for addresses, logins, TLS and time limits that docs/operations.md lists"

BUSY_TIMEOUT_S: Final = 10.0
"""Seconds to wait for a lock, and for a client that is silent inside a transaction."""


class PostgresTransaction(Transaction):
    """The open transaction of one claim or batch.

    Attributes:
        connection: for statements that ``execute`` cannot express, such as COPY.
    """

    def __init__(self, connection: psycopg.Connection, where: str) -> None:
        self.connection = connection
        self.where = where

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return run(self.connection, statement, *values)

    def execute_many(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(_translated(statement), rows)


class PostgresOffsetStore:
    """The offsets and fences of all connectors that write to one schema. One thread uses it at a time."""

    def __init__(self, url: str, *, schema: str = "", password: str | None = None) -> None:
        """Connect, and create the tables of the store if they are missing.

        Args:
            url: a connection string of libpq; without user, password or host, libpq's environment variables count.
            schema: the schema of the tables; the first of the search path by default.
            password: the password, if neither ``url`` nor libpq's files have it.

        Raises:
            ConfigError: the driver is not installed.
            SinkError: the server cannot be reached, or the tables cannot be created.
        """
        self._lock = threading.Lock()
        self._connection = connect(url, schema=schema, password=password)
        self.where = where(self._connection)
        try:
            with self.transaction("connectgroup tables") as transaction:
                for name, statement in TABLES.items():
                    # CREATE needs more rights than a test, so an administrator may create them beforehand.
                    if transaction.execute("SELECT to_regclass(?)", name) == [(None,)]:
                        transaction.execute(statement)
                has_metadata = "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(?) AND attname = 'metadata'"
                if not transaction.execute(has_metadata, "connectgroup_offsets"):
                    transaction.execute(ADD_METADATA)
        except BaseException:
            self._connection.close()
            raise

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        """Become the owner of a task and of its known slices; return their positions. See ``fences.claim_task``."""
        with self.transaction(f"connector {owner.connector}") as transaction:
            return claim_task(transaction, owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], write: Callable[[PostgresTransaction], None]) -> bool:
        """Write one batch and advance its slices, or change nothing.

        Returns:
            True if the batch was written now; False if it was already committed.

        Raises:
            Fenced: a task with a higher owner epoch has claimed the slice, the task or the layout.
            OffsetConflict: a slice's position is not the start of its range.
            SinkError: the server did not commit, or its answer was lost. Claim again to find out.
        """
        task = f"connector {owner.connector} task {owner.task}"
        with self.transaction(f"connector {owner.connector}", shared=True, also=task) as transaction:
            if is_committed(transaction, owner, ranges):
                return False
            write(transaction)
            advance(transaction, owner, ranges)
        return True

    def positions(self, connector: str) -> dict[str, int]:
        """Return the positions of all slices of a connector; claims nothing."""
        with self._lock, driver_errors(SinkError, self.where):
            statement = "SELECT slice, position, metadata FROM connectgroup_offsets WHERE connector = ? ORDER BY slice"
            found = run(self._connection, statement, connector)
            return {name: Position(position, metadata) for name, position, metadata in found}

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Change the positions of a connector that runs no task. See ``fences.alter_positions``."""
        with self.transaction(f"connector {connector}") as transaction:
            alter_positions(transaction, connector, fencing_token, positions)

    def advance(self, owner: Owner, ranges: Sequence[Range]) -> None:
        """See ``dataplane.sink.AdvancingStore``."""
        self.claim(owner, {each.slice for each in ranges}.__contains__)
        self.commit(owner, ranges, lambda _: None)

    @contextmanager
    def transaction(self, lock: str, *, shared: bool = False, also: str = "") -> Iterator[PostgresTransaction]:
        """One transaction under the advisory lock of a name, and with ``also`` under a second one, alone."""
        with self._lock, driver_errors(SinkError, self.where), self._connection.transaction():
            how = "_shared" if shared else ""
            # Names, not numbers: the hash separates the locks of this product from those of others.
            run(self._connection, f"SELECT pg_advisory_xact_lock{how}(hashtextextended(?, 848))", lock)
            if also:
                run(self._connection, "SELECT pg_advisory_xact_lock(hashtextextended(?, 848))", also)
            yield PostgresTransaction(self._connection, self.where)

    def close(self) -> None:
        """Close the connection. A second call does nothing."""
        with suppress(Exception):
            self._connection.close()


def connect(url: str, *, schema: str = "", password: str | None = None) -> psycopg.Connection:
    """Open a connection in which each statement is a transaction unless one is begun; times are UTC.

    Raises:
        ConfigError: the driver is not installed, or an option of the URL is not allowed.
        SinkError: the server cannot be reached.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            "postgres", f"no package {error.name}", "pip install 'connectgroup[postgres]' on each worker"
        ) from error
    milliseconds = round(BUSY_TIMEOUT_S * 1000)
    options = {
        "lock_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
        # A server may be set to acknowledge commits before they are durable.
        "synchronous_commit": "on",
        # A claim that waits for a lock has to see what was committed before it got it.
        "default_transaction_isolation": r"read\ committed",
        # The defaults of a role or a database may round numbers, or write values in another form.
        "timezone": "UTC",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "bytea_output": "hex",
        "extra_float_digits": 3,
        "standard_conforming_strings": "on",
        **({"search_path": schema} if schema else {}),
    }
    arguments: dict[str, Any] = {
        # COPY sends bytes as they are. Without this, they count as text in the encoding of the database.
        "client_encoding": "UTF8",
        "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        "connect_timeout": 10,
        "tcp_user_timeout": milliseconds,
        "fallback_application_name": "connectgroup",
        **({"password": password} if password is not None else {}),
    }
    try:
        found = parse_url("url", url)
        if not found.get("host") and not any(os.environ.get(name) for name in _ADDRESSES):
            # libpq's default is a socket, whose server may take the user of this process for a login.
            raise ConfigError(
                "url", "no host", f"a host, or one of {', '.join(_ADDRESSES)} in the worker's environment"
            )
        if found.get("host") and password is None and "password" not in found:
            # PGPASSWORD is for the server of PGHOST, not for every server that a connector names. The file of passwords
            # has a server on each line, and is used.
            arguments["password"] = ""
        return psycopg.connect(url, autocommit=True, **arguments)
    except (psycopg.Error, OSError) as error:
        raise SinkError(f"PostgreSQL: {one_line(error)}; allowed: a server that accepts this connection") from error


def parse_url(field: str, url: str) -> dict[str, str]:
    """Return the options of a connection string of libpq.

    Args:
        field: the setting of the connector.
        url: the connection string; a part of it may be a reference to a secret.

    Raises:
        ConfigError: it has an option that is not allowed, a list of hosts with an empty one, or a file that is no
            absolute path.
    """
    try:
        from psycopg import Error, conninfo
    except ImportError:
        return {}  # No connection is opened without the driver.
    try:
        found = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except Error as error:
        if "${" in url:
            return {}  # Checked again with the secret.
        raise ConfigError(field, "a text", "a connection string of libpq, postgresql://USER@HOST:PORT/DB") from error
    for name in found:
        check_setting(field, "postgres", name, OPTIONS, _WHAT)
    hosts = found.get("host", "")
    if hosts and not all(hosts.split(",")):
        allowed = "a host on each side of a comma: for an empty one, libpq takes a socket of the worker's machine"
        raise ConfigError(field, f"host={hosts}", allowed)
    for name, path in _paths_of(found):
        if not os.path.isabs(path):
            raise ConfigError(field, f"{name}={path}", "an absolute path", is_path=True)
    return found


def files_in_url(url: str) -> dict[str, str]:
    """Return the files that a connection string names: those of TLS, and directories of sockets.

    A socket is a file, too: a server on this machine may take the user of the worker's process for its login.
    """
    with suppress(ConfigError):
        return dict(_paths_of(parse_url("url", url)))
    return {}


def _paths_of(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in options.items():
        if (name in FILES or name in ("passfile", "servicefile", "sslkeylogfile")) and value not in ("", "system"):
            yield name, value
    for number, host in enumerate(options.get("host", "").split(",")):
        if host.startswith("@"):
            yield "host", f"/@/{host[1:]}"  # An abstract socket is in no directory.
        elif "/" in host:
            yield f"host {number + 1}" if number else "host", host


def where(connection: psycopg.Connection) -> str:
    """Return the server and database of a connection, for errors; without the user and the password."""
    info = connection.info
    return f"PostgreSQL {info.host or 'local'}:{info.port}/{info.dbname}"


def run(connection: psycopg.Connection, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Execute one statement, with ``?`` for values, and return its rows."""
    plain: Any = statement
    # prepare=None: psycopg prepares a statement on the server once it has been executed five times.
    # Without values, psycopg looks for no places of them: names of columns may have ? and %.
    cursor = connection.execute(_translated(statement), values) if values else connection.execute(plain)
    return cursor.fetchall() if cursor.description is not None else []


@contextmanager
def driver_errors(error_class: type[SinkError | SourceError], place: str) -> Iterator[None]:
    """Convert errors of the driver to an error of one line: what, where, what is allowed."""
    import psycopg

    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise error_class(
            f"{place}: locked by another connection for more than {BUSY_TIMEOUT_S:g} s;"
            " allowed: shorter write transactions"
        ) from error
    except psycopg.OperationalError as error:
        raise error_class(f"{place}: {one_line(error)}; allowed: a server that answers") from error
    except psycopg.Error as error:
        raise error_class(f"{place}: {one_line(error)}; allowed: {_allowed(error)}") from error


def _allowed(error: psycopg.Error) -> str:
    """Return what a statement that the server has rejected needs."""
    from psycopg import errors

    if isinstance(error, errors.UndefinedColumn):
        return "the columns that the table had when the task started; a task that starts again looks at it again"
    if isinstance(error, errors.UndefinedTable | errors.InvalidSchemaName):
        return "the table and the schema that were there when the task started"
    if isinstance(error, errors.InsufficientPrivilege):
        return "a user who may do this: SELECT for a source; SELECT, INSERT, UPDATE, DELETE, TEMPORARY for a sink"
    if isinstance(error, errors.WrongObjectType | errors.ObjectNotInPrerequisiteState | errors.InvalidColumnReference):
        return "a table that takes this statement, with a unique index of the columns of a key"
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return "a server that takes writes: the primary"
    if isinstance(error, errors.DatatypeMismatch | errors.UndefinedFunction):
        return "columns of the types that the table had when the task started"
    return "rows that fit the table"


_COPIED: Final = re.compile(r"^COPY \S+, line \d+, (?:column )?([^:\n]+):", re.MULTILINE)
"""The column, in the context of an error of COPY."""


def _translated(statement: str) -> Any:
    """Return a statement as psycopg expects it. A ? inside a quoted name is part of the name."""
    parts = statement.replace("%", "%%").split('"')
    parts[::2] = [part.replace("?", "%s") for part in parts[::2]]
    return '"'.join(parts)


def one_line(error: BaseException) -> str:
    """Return the text of an error of the driver: with its detail and, for COPY, with column and value."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    detail = getattr(getattr(error, "diag", None), "message_detail", None)
    copied = _COPIED.search(getattr(getattr(error, "diag", None), "context", None) or "")
    text = f"{primary} ({detail})" if primary and detail else primary or str(error)
    if copied is not None:
        text = f"column {copied[1]}: {text}"
    return " ".join(text.split())[:300] or type(error).__name__
