"""The tables of a log in PostgreSQL, and the statements that use them.

Each call is one autocommitted statement. Nothing depends on the session: no prepared statements, advisory locks,
settings or LISTEN, so that the log works behind a proxy that pools transactions. Statements of the lease have a
connection of their own: a batch that waits for the server does not delay a renewal.

Groups and names of records are stored as bytes: text in PostgreSQL cannot have every character.

A batch and the check of its epoch are one statement. It locks the row of the owner, so ``take`` waits for a batch that
is under way; and a batch that waited for ``take`` reads the row again and finds another epoch (READ COMMITTED).

Source: PostgreSQL's documentation, "Transaction Isolation", "Explicit Locking", "WITH Queries (Data-Modifying
Statements)"; PgBouncer's "SQL feature map for pooling modes".
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, LiteralString
from urllib.parse import SplitResult, parse_qsl, urlencode

from ...errors import ConfigError, LogError
from ...protocol.units import printable
from ..base import NONE_STOOD_BY, REGISTER_S, Candidate, Log, LogAway, LogNotWritable, Ownership
from ..leased import ANSWER_S, LeasedLog, LeasedStore, OwnerRow
from ..registry import check_parameters
from ..rows import Sums, Values

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

SCHEMA: Final = "connectgroup"
"""The schema of the tables, unless the URL has ``schema=NAME``."""

SCHEMA_VERSION: Final = 1

PARTITIONED_VERSION: Final = 2
"""Of a log with several partitions. The tables of partition 1 are ``owner_1``, ``records_1`` and so on; those of
partition 0 have no number."""

OLDEST_SERVER: Final = 13
"""The oldest major version of PostgreSQL that is supported."""

_DEFAULTS: Final = {
    "application_name": "connectgroup",
    "connect_timeout": "3",
    "target_session_attrs": "read-write",
    "tcp_user_timeout": "5000",
}

_TABLES: Final = ("owner", "coordinators", "records", "groups")

_OWNERS: Final = "^owner(_[1-9][0-9]*)?$"
"""The names of the tables with the owners: one for each partition."""

_SERVER: Final = """
    (SELECT system_identifier::text FROM pg_control_system())
    || '/' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    || '/' || (SELECT oid::text FROM pg_database WHERE datname = current_database())
    || '/' || tableoid::text
"""
"""The identity of a log: its cluster, its timeline, which each recovery and promotion increments, its database, and its
table, which a dump that is restored creates anew."""

_CREATE: Final = f"""
CREATE TABLE {{owner}} (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version int NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    renewals bigint NOT NULL DEFAULT 0,
    last bigint NOT NULL DEFAULT 0,
    holder text NOT NULL DEFAULT '',
    address text NOT NULL DEFAULT '',
    lease_ms int NOT NULL DEFAULT 0,
    credentials text NOT NULL DEFAULT '',
    server text NOT NULL DEFAULT '',
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    renewed timestamptz NOT NULL DEFAULT clock_timestamp(),
    failover_from timestamptz,
    failover timestamptz,
    failover_cause text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
CREATE TABLE {{coordinators}} (
    process text PRIMARY KEY,
    address text NOT NULL,
    since timestamptz NOT NULL,
    seen timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {{records}} (
    "offset" bigint PRIMARY KEY,
    batch bigint NOT NULL,
    epoch bigint NOT NULL,
    kind int NOT NULL,
    group_id bytea NOT NULL,
    name bytea NOT NULL,
    value bytea,
    crc32 bigint NOT NULL
);
CREATE INDEX {{index}} ON {{records}} (group_id);
CREATE TABLE {{groups}} (
    group_id bytea PRIMARY KEY,
    row_count bigint NOT NULL,
    checksum bigint NOT NULL
);
INSERT INTO {{owner}} (version) VALUES ({{version}});
UPDATE {{owner}} SET server = {_SERVER};
"""

_LOOK: Final = f"""
SELECT epoch, renewals, last, holder, address, lease_ms, server, {_SERVER}, credentials, coalesce((
    SELECT min(other.process)
    FROM {{coordinators}} itself JOIN {{coordinators}} other ON other.address = itself.address
    WHERE itself.process = %(process)s AND other.process <> itself.process AND other.seen > itself.since
), '') FROM {{owner}}
"""

_REGISTER: Final = """
WITH gone AS (
    DELETE FROM {coordinators}
    WHERE process <> %(process)s AND seen < clock_timestamp() - %(kept_s)s * interval '1 s'
)
INSERT INTO {coordinators} AS c (process, address, since, seen)
VALUES (%(process)s, %(address)s, clock_timestamp(), clock_timestamp())
ON CONFLICT (process) DO UPDATE SET seen = excluded.seen, address = excluded.address,
    since = CASE WHEN c.seen < excluded.seen - %(kept_s)s * interval '1 s' THEN excluded.since ELSE c.since END
"""

_TAKE: Final = """
UPDATE {owner} SET
    epoch = epoch + %(epochs)s, renewals = renewals + 1, holder = %(holder)s, address = %(address)s,
    lease_ms = %(lease_ms)s, credentials = %(credentials)s, since = clock_timestamp(), renewed = clock_timestamp(),
    failover = NULL, failover_from = CASE WHEN epoch > 0 THEN renewed END,
    failover_cause = CASE
        WHEN epoch = 0 THEN ''
        WHEN split_part(holder, ':', 1) <> %(process)s
            AND (SELECT c.since FROM {coordinators} c WHERE c.process = %(process)s) > renewed
        THEN %(none_stood_by)s
        WHEN holder = '' THEN 'handed over' ELSE 'lease expired'
    END
WHERE epoch = %(seen_epoch)s AND renewals = %(seen_renewals)s AND holder = %(seen_holder)s
RETURNING epoch, last
"""

_RETAKE: Final = "UPDATE {owner} SET epoch = epoch + 1 WHERE holder = %(holder)s RETURNING epoch, last"

# The holder has all acknowledged records if the last offset has not fallen, whichever server this is.
_RENEW: Final = f"""
UPDATE {{owner}} SET renewals = renewals + 1, renewed = clock_timestamp(),
    server = CASE WHEN failover_from IS NOT NULL AND failover IS NULL THEN server ELSE {_SERVER} END
WHERE holder = %(holder)s AND last >= %(last)s RETURNING 1
"""

_SERVING: Final = f"""
UPDATE {{owner}} SET server = {_SERVER},
    failover = CASE WHEN failover_from IS NOT NULL THEN clock_timestamp() END
WHERE holder = %(holder)s RETURNING 1
"""

# The successor cannot know whether all acknowledged records are there: noted as by _RENEW; without a server, some lack.
_RELEASE: Final = f"""
UPDATE {{owner}} SET holder = '', renewed = clock_timestamp(), address = coalesce(%(successor)s, address),
    server = CASE
        WHEN last < %(last)s THEN ''
        WHEN failover_from IS NOT NULL AND failover IS NULL THEN server
        ELSE {_SERVER}
    END
WHERE holder = %(holder)s
"""

_LEAVE: Final = "DELETE FROM {coordinators} WHERE process = %(process)s"

_APPEND: Final = """
WITH own AS (
    UPDATE {owner} SET last = last + %(count)s WHERE epoch = %(epoch)s AND last = %(last)s RETURNING 1
), written AS (
    INSERT INTO {records}
    SELECT r.* FROM unnest(
        %(offsets)b::bigint[], %(batches)b::bigint[], %(epochs)b::bigint[], %(kinds)b::int[],
        %(group_ids)b::bytea[], %(names)b::bytea[], %(values)b::bytea[], %(checksums)b::bigint[]
    ) r WHERE EXISTS (SELECT FROM own)
), counted AS (
    INSERT INTO {groups} AS g
    SELECT s.* FROM unnest(%(sum_groups)b::bytea[], %(sum_counts)b::bigint[], %(sum_totals)b::bigint[]) s
    WHERE EXISTS (SELECT FROM own)
    ON CONFLICT (group_id) DO UPDATE
    SET row_count = g.row_count + excluded.row_count, checksum = (g.checksum + excluded.checksum) & 4294967295
)
SELECT 1 FROM own
"""

_COMPACT: Final = """
WITH own AS (
    SELECT FROM {owner} WHERE epoch = %(epoch)s AND EXISTS (
        SELECT FROM {groups}
        WHERE group_id = %(group)b AND row_count = %(stored_count)s AND checksum = %(stored_total)s
    ) FOR SHARE
), removed AS (
    DELETE FROM {records} WHERE "offset" = ANY (%(offsets)b::bigint[]) AND EXISTS (SELECT FROM own)
), emptied AS (
    DELETE FROM {groups} WHERE group_id = %(group)b AND %(count)s = 0 AND EXISTS (SELECT FROM own)
), counted AS (
    UPDATE {groups} SET row_count = %(count)s, checksum = %(total)s
    WHERE group_id = %(group)b AND %(count)s > 0 AND EXISTS (SELECT FROM own)
)
SELECT 1 FROM own
"""

_ROWS: Final = """
SELECT "offset", batch, epoch, kind, group_id, name, value, crc32 FROM {records}
WHERE %(groups)b::bytea[] IS NULL OR group_id = ANY (%(groups)b::bytea[]) ORDER BY "offset"
"""

_SUMS: Final = """
SELECT group_id, row_count, checksum FROM {groups}
WHERE %(groups)b::bytea[] IS NULL OR group_id = ANY (%(groups)b::bytea[])
"""

_OWNERSHIP: Final = """
SELECT holder <> '' AND renewed > clock_timestamp() - 2 * lease_ms * interval '1 ms', address, epoch, _ms(since),
    split_part(holder, ':', 1), coalesce(_ms(failover), -1),
    coalesce(_ms(failover) - _ms(failover_from), -1), failover_cause
FROM {owner}
"""

_STANDBYS: Final = """
SELECT process, address, _ms(since), greatest(0, extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint
FROM {coordinators}
WHERE seen > clock_timestamp() - %(kept_s)s * interval '1 s' ORDER BY address, process
"""

_CHECKS: Final = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('synchronous_commit'),
    current_setting('synchronous_standby_names') <> '', current_setting('fsync'), current_setting('full_page_writes'),
    current_user::text, has_database_privilege(current_database(), 'CREATE'),
    n.oid, (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid AND relkind = 'r' AND relname ~ %(owners)s),
    has_schema_privilege(n.oid, 'USAGE'), has_schema_privilege(n.oid, 'CREATE'),
    has_function_privilege('pg_control_system()', 'EXECUTE')
FROM (VALUES (1)) one LEFT JOIN pg_namespace n ON n.nspname = %(schema)s
"""

_RIGHTS: Final = """
SELECT t.name, r.name FROM unnest(%(tables)s::text[]) t (name), unnest(%(rights)s::text[]) r (name)
WHERE NOT has_table_privilege(t.name, r.name)
"""

_UNLOGGED: Final = """
SELECT t.name FROM unnest(%(tables)s::text[]) t (name) JOIN pg_class c ON c.oid = t.name::regclass
WHERE c.relpersistence <> 'p'
"""

_RIGHTS_NEEDED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")

_NO_SERVER: Final = (
    "Connection refused", "Connection reset", "Connection timed out", "Host is unreachable", "Network is unreachable",
    "No route to host", "connection timeout expired", "failed to resolve host", "server closed the connection",
    "timeout expired",
)  # fmt: skip

_NOT_READY: Final = (
    "is starting up", "is shutting down", "in recovery mode", "not yet accepting connections", "too many clients",
    "too many connections", "remaining connection slots",
)  # fmt: skip

_NOT_READY_CODES: Final = ("57P03", "53300")
"""The SQLSTATE codes of these: cannot_connect_now, too_many_connections."""

_NONE_FROM_PROXY: Final = (
    "server_login_retry", "no more connections allowed", "query_wait_timeout",
    "pgbouncer cannot connect to server",  # of older versions
)  # fmt: skip
"""What PgBouncer responds to a client, or to its first statement, while it has no connection to the server for it."""

_PROTOCOL: Final = (3 << 16).to_bytes(4, "big")
"""Version 3.0, which every supported server speaks."""

_UNKNOWN_OUTCOME: Final = ("08", "40003", "57P", "58", "XX")
"""Beginnings of the SQLSTATE codes after which a statement may have been committed. A server that reports one of them
closes the connection; a proxy that has lost its connection to the server may report it and keep the client's."""

_READ_ONLY: Final = "25006"
"""The SQLSTATE of a write in a session that takes none, as on a primary that has become a standby."""

_WAITS_FOR_STANDBY: Final = "SyncRepWaitForLSN"
"""The function of the server that waits for synchronous standbys. If an operator cancels the wait, the statement is
committed on this server alone, and the server reports success, with a warning."""

logger = logging.getLogger(__name__)


class PostgresStore(LeasedStore):
    """A log in the schema of a database.

    Attributes:
        name: the server and the database, without credentials, for messages.
    """

    def __init__(self, conninfo: str, *, schema: str = SCHEMA, partition: int = 0) -> None:
        """``conninfo``: a connection string or URL of libpq; its environment variables count as well.

        Raises:
            ConfigError: the driver is not installed.
            ValueError: the connection string is invalid.
        """
        try:
            import psycopg
            from psycopg import conninfo as parsing
        except ImportError as error:
            allowed = "after pip install 'connectgroup[postgres]'"
            raise ConfigError("log", "postgresql://, whose driver is not installed", allowed) from error
        try:
            given = parsing.conninfo_to_dict(conninfo)
        except psycopg.Error as error:
            raise ValueError(str(error)) from error
        for each in str(given.get("port") or "5432").split(","):
            if not each.isdigit():  # libpq would say so only when it connects
                raise ValueError("port")
        self._settings: dict[str, Any] = {**_DEFAULTS, **given}
        self._conninfo, self._schema, self._partition = conninfo, schema, partition
        host = given.get("host") or os.environ.get("PGHOST") or "localhost"
        port = given.get("port") or os.environ.get("PGPORT") or "5432"
        database = given.get("dbname") or os.environ.get("PGDATABASE") or given.get("user") or ""
        where = f" schema {schema}" if schema != SCHEMA else ""
        which = f" partition {partition}" if partition else ""
        self.name = printable(f"postgresql://{host}:{port}/{database}{where}{which}")
        self._lease, self._data = _Line(self), _Line(self)
        self._registered_s = -REGISTER_S
        self._has_warned = False

    @property
    def grants(self) -> str:
        """The statement that gives a user all rights on the tables, for messages."""
        return f"GRANT {', '.join(_RIGHTS_NEEDED)} ON ALL TABLES IN SCHEMA {_quoted(self._schema)} TO that user"

    def partition(self, number: int) -> PostgresStore:
        store = PostgresStore(self._conninfo, schema=self._schema, partition=number)
        store.expected_partitions, store._has_warned = self.partitions, self._has_warned
        return store

    # ------------------------------------------------------------------------------------------ the tables

    async def connect(self) -> None:
        try:
            (found,) = await self._run(self._lease, _CHECKS, schema=self._schema, owners=_OWNERS)
        except LogError as error:
            cause = error.__cause__
            if cause is not None and (_is_away(cause) or await _refusal_of(cause) in _NOT_READY_CODES):
                raise LogAway(str(error)) from error
            raise
        version, is_standby, synchronous, is_replicated, fsync, full_pages, user, may_create, schema, count, *rights = (
            found
        )
        may_use, may_create_in, may_identify = rights
        if version < OLDEST_SERVER * 10_000:
            raise LogError(f"{self.name}: runs PostgreSQL {version // 10_000}; allowed: {OLDEST_SERVER} or later")
        if is_standby:
            raise LogError(f"{self.name}: is a standby, which takes no writes; allowed: the primary")
        if synchronous == "off" or (synchronous == "local" and is_replicated):
            lost = "a crash of the server" if synchronous == "off" else "a fail-over to its synchronous standby"
            raise LogError(
                f"{self.name}: synchronous_commit is {synchronous} for user {printable(user)}, so that {lost} loses "
                "acknowledged changes; allowed: ALTER ROLE ... SET synchronous_commit = on, and no other value with "
                "-c synchronous_commit in the options of the URL"
            )
        if not self._has_warned:
            for setting, value in ("fsync", fsync), ("full_page_writes", full_pages):
                if value == "off":
                    logger.warning("%s: %s is off: a crash of its machine may destroy the log", self.name, setting)
            self._has_warned = True
        if not may_identify:
            raise LogError(
                f"{self.name}: user {printable(user)} may not identify the server; "
                "allowed: GRANT EXECUTE ON FUNCTION pg_control_system TO that user"
            )
        if schema is not None and not may_use:
            raise LogError(
                f"{self.name}: user {printable(user)} may not use the schema {printable(self._schema)}; allowed: "
                f"GRANT USAGE ON SCHEMA {_quoted(self._schema)} TO that user"
            )
        if not count:
            if schema is not None and not may_create_in:
                raise LogError(
                    f"{self.name}: user {printable(user)} may not create tables in the schema "
                    f"{printable(self._schema)}; allowed: GRANT CREATE ON SCHEMA {_quoted(self._schema)} TO that user"
                )
            count = await self._create(user, may_create=may_create, has_schema=schema is not None)
        if self.expected_partitions not in (None, count):
            raise LogError(
                f"{self.name}: was started with {count} partition{'s' if count > 1 else ''}, not "
                f"{self.expected_partitions}: the number cannot be changed; allowed: --partitions {count}, or none"
            )
        self.partitions = count
        await self._check_tables(user)
        ((stored,),) = await self._run(self._lease, "SELECT max(version) FROM {owner}")
        if stored is None:
            raise LogError(f"{self.name}: has lost the row of its owner")
        if stored != (version := _version(count)):
            raise LogError(f"{self.name}: has schema version {stored}, written by other software; allowed: {version}")

    async def _create(self, user: str, *, may_create: bool, has_schema: bool) -> int:
        """Create the tables of all partitions at once; return how many partitions there are now."""
        if not has_schema and not may_create:
            raise LogError(
                f"{self.name}: user {printable(user)} may not create the schema {printable(self._schema)}; allowed: "
                "GRANT CREATE ON DATABASE ... TO that user, or a schema that it may CREATE in"
            )
        from psycopg import sql

        wanted = self.expected_partitions or 1
        statements = [] if has_schema else [sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self._schema))]
        statements += [
            sql.SQL(_CREATE).format(**self._names(number), version=sql.Literal(_version(wanted)))
            for number in range(wanted)
        ]
        try:
            await self._lease.run(sql.SQL(";").join(statements), {})
        except LogError:
            # Another coordinator that starts now may have created them.
            ((*_, count, _, _, _),) = await self._run(self._lease, _CHECKS, schema=self._schema, owners=_OWNERS)
            if not count:
                raise
            return int(count)
        return wanted

    async def _check_tables(self, user: str) -> None:
        tables = [f"{_quoted(self._schema)}.{table}{self._suffix()}" for table in _TABLES]
        lacking = await self._run(self._lease, _RIGHTS, tables=tables, rights=list(_RIGHTS_NEEDED))
        if lacking:
            table, right = lacking[0]
            raise LogError(
                f"{self.name}: user {printable(user)} lacks {right} on {printable(table)}; allowed: {self.grants}"
            )
        for (table,) in await self._run(self._lease, _UNLOGGED, tables=tables):
            raise LogError(
                f"{self.name}: {printable(table)} is unlogged: a crash of the server empties it; "
                f"allowed: ALTER TABLE {printable(table)} SET LOGGED"
            )

    # ------------------------------------------------------------------------------------------ the lease

    async def look(self, process: str, address: str) -> OwnerRow:
        if time.monotonic() >= self._registered_s + REGISTER_S:
            await self._run(self._lease, _REGISTER, process=process, address=address, kept_s=5 * REGISTER_S)
            self._registered_s = time.monotonic()
        rows = await self._run(self._lease, _LOOK, process=process)
        if len(rows) != 1:
            raise LogError(f"{self.name}: has lost the row of its owner")
        epoch, renewals, last, holder, address, lease_ms, server, current, credentials, namesake = rows[0]
        return OwnerRow(
            epoch=epoch,
            renewals=renewals,
            last=last,
            holder=holder,
            address=address,
            lease_ms=lease_ms,
            server=server,
            current=current,
            credentials=credentials,
            namesake=namesake,
        )

    async def take(
        self, seen: OwnerRow, *, holder: str, address: str, lease_ms: int, epochs: int, credentials: str = ""
    ) -> tuple[int, int] | None:
        rows = await self._run(
            self._lease,
            _TAKE,
            holder=holder,
            address=address,
            lease_ms=lease_ms,
            epochs=epochs,
            credentials=credentials,
            process=holder.partition(":")[0],
            none_stood_by=NONE_STOOD_BY,
            seen_epoch=seen.epoch,
            seen_renewals=seen.renewals,
            seen_holder=seen.holder,
        )
        return rows[0] if rows else None

    async def retake(self, holder: str) -> tuple[int, int] | None:
        rows = await self._run(self._data, _RETAKE, holder=holder)
        return rows[0] if rows else None

    async def renew(self, holder: str, last: int) -> bool:
        return bool(await self._run(self._lease, _RENEW, holder=holder, last=last))

    async def mark_serving(self, holder: str) -> bool:
        return bool(await self._run(self._lease, _SERVING, holder=holder))

    async def release(self, holder: str, last: int, successor: str | None = None) -> None:
        await self._run(self._lease, _RELEASE, holder=holder, last=last, successor=successor)

    async def leave(self, process: str) -> None:
        self._registered_s = -REGISTER_S
        await self._run(self._lease, _LEAVE, process=process)

    async def ownership(self) -> Ownership:
        ((is_held, address, epoch, since_ms, process, at_ms, took_ms, cause),) = await self._run(
            self._lease, _OWNERSHIP
        )
        others = await self._run(self._lease, _STANDBYS, kept_s=5 * REGISTER_S)
        owner = (Candidate(address=address, epoch=epoch, since_ms=since_ms),) if is_held else ()
        standbys = (
            Candidate(address=at, epoch=-1, since_ms=since, lag_ms=lag)
            for name, at, since, lag in others
            if not is_held or name != process
        )
        return Ownership(
            coordinators=(*owner, *standbys),
            failover_ms=at_ms,
            failover_took_ms=took_ms,
            failover_cause=cause if at_ms >= 0 else "",
        )

    # ------------------------------------------------------------------------------------------ the records

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        offsets, batches, epochs, kinds, group_ids, names, values, checksums = zip(*rows, strict=True)
        written = await self._run(
            self._data,
            _APPEND,
            epoch=epoch,
            last=last,
            count=len(rows),
            offsets=list(offsets),
            batches=list(batches),
            epochs=list(epochs),
            kinds=list(kinds),
            group_ids=list(group_ids),
            names=list(names),
            values=list(values),
            checksums=list(checksums),
            sum_groups=[group.encode() for group in sums],
            sum_counts=[count for count, _ in sums.values()],
            sum_totals=[total for _, total in sums.values()],
        )
        return bool(written)

    async def compact(
        self, epoch: int, offsets: Sequence[int], group: bytes, stored: tuple[int, int], kept: tuple[int, int]
    ) -> bool:
        (stored_count, stored_total), (count, total) = stored, kept
        compacted = await self._run(
            self._data,
            _COMPACT,
            epoch=epoch,
            offsets=list(offsets),
            group=group,
            stored_count=stored_count,
            stored_total=stored_total,
            count=count,
            total=total,
        )
        return bool(compacted)

    async def read(self, groups: Sequence[bytes] | None) -> tuple[list[Values], list[tuple[bytes, int, int]]]:
        named = None if groups is None else list(groups)
        rows: list[Any] = await self._run(self._data, _ROWS, groups=named)
        sums: list[Any] = await self._run(self._data, _SUMS, groups=named)
        return rows, sums

    # ------------------------------------------------------------------------------------------ connections

    async def close(self) -> None:
        for line in self._lease, self._data:
            line.drop()

    async def open_connection(self) -> psycopg.AsyncConnection[Any]:
        """A new connection.

        Raises:
            LogNotWritable: the server cannot be reached, or does not admit this user.
        """
        import psycopg

        try:
            return await psycopg.AsyncConnection.connect(**self._settings, autocommit=True, prepare_threshold=None)
        except (psycopg.Error, OSError, ValueError) as error:
            raise LogNotWritable(f"{self.name}: cannot connect: {_reason(error)}") from error

    async def _run(self, line: _Line, statement: LiteralString, **values: object) -> list[tuple[Any, ...]]:
        from psycopg import sql

        return await line.run(sql.SQL(_with_functions(statement)).format(**self._names()), values)

    def _names(self, partition: int | None = None) -> dict[str, sql.Identifier]:
        """The names of the tables of a partition, of this one by default."""
        from psycopg import sql

        suffix = self._suffix(partition)
        names = {table: sql.Identifier(self._schema, table + suffix) for table in _TABLES}
        return {**names, "index": sql.Identifier(f"records_by_group{suffix}")}

    def _suffix(self, partition: int | None = None) -> str:
        number = self._partition if partition is None else partition
        return f"_{number}" if number else ""


class _Line:
    """One connection, opened on demand and again after a loss."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        # Why the statement under way is not on a standby that must have it: ``_on_notice``; ``run`` empties it.
        self._not_replicated = ""

    async def run(self, statement: sql.Composed, values: dict[str, object]) -> list[tuple[Any, ...]]:
        """Execute one statement and return its rows.

        Raises:
            LogNotWritable: nothing was changed.
            LogError: the connection was lost; the outcome is unknown.
        """
        import psycopg

        async with self._turn:
            if self._connection is None or not _is_alive(self._connection):
                self.drop()
                self._connection = await self._store.open_connection()
                self._connection.add_notice_handler(self._on_notice)
            connection = self._connection
            self._not_replicated = ""
            executed = asyncio.ensure_future(connection.execute(statement, values or None, binary=bool(values)))
            try:
                cursor = await asyncio.shield(executed)
                rows = await cursor.fetchall() if cursor.description is not None else []
            except asyncio.CancelledError:
                # psycopg would ask the server to cancel the statement, and wait for its answer.
                self.drop()
                executed.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise
            except psycopg.Error as error:
                message = f"{self._store.name}: {_reason(error)}"
                if error.sqlstate == psycopg.errors.InsufficientPrivilege.sqlstate:
                    message += f"; allowed: {self._store.grants}"
                is_known = error.sqlstate is not None and not error.sqlstate.startswith(_UNKNOWN_OUTCOME)
                if is_known and not connection.closed:
                    if error.sqlstate == _READ_ONLY:
                        self.drop()  # the next connection is to the server that takes writes now
                    raise LogNotWritable(message) from error
                self.drop()
                raise LogError(message) from error
            if self._not_replicated:
                raise LogError(f"{self._store.name}: {self._not_replicated}")
            return rows

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == _WAITS_FOR_STANDBY:
            text = f"{notice.message_primary}: {notice.message_detail}"
            self._not_replicated = printable(text, limit=300)

    def drop(self) -> None:
        """Close the connection at once, also one with a statement under way."""
        connection, self._connection = self._connection, None
        if connection is None or connection.closed:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)  # ends a statement that waits for the server
        if connection.info.transaction_status != connection.info.transaction_status.ACTIVE:
            connection.pgconn.finish()


def _is_alive(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection that waits for nothing is open: the server sends one more message before it closes it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _version(partitions: int) -> int:
    """The schema version of a log with so many partitions."""
    return SCHEMA_VERSION if partitions == 1 else PARTITIONED_VERSION


def _with_functions(statement: LiteralString) -> LiteralString:
    """Replace ``_ms(column)``, a time in milliseconds since 1970."""
    parts = statement.split("_ms(")
    whole = parts[0]
    for part in parts[1:]:
        column, _, rest = part.partition(")")
        whole += f"(extract(epoch FROM {column}) * 1000)::bigint{rest}"
    return whole


def _parameters() -> list[str]:
    """The parameters that libpq knows in a URL; none if the driver is not installed."""
    try:
        from psycopg.pq import Conninfo
    except ImportError:
        return []
    return [each.keyword.decode() for each in Conninfo.get_defaults()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_away(error: BaseException) -> bool:
    """Whether an attempt to connect has found no server that is ready.

    A server that refuses this user, its password or the database is there. libpq has only texts for these errors; the
    strings of the system are not translated in a Python process, those of the server may be: ``_refusal_of``.
    """
    text = str(error)
    if any(each in text for each in _NONE_FROM_PROXY):
        return True
    if "FATAL" in text:
        return any(each in text for each in _NOT_READY)
    return any(each in text for each in _NO_SERVER)


async def _refusal_of(error: BaseException) -> str:
    """The SQLSTATE with which a server refuses all clients, whatever their user; empty: it refuses none so.

    Args:
        error: of an attempt to connect: libpq has only its text, in the language of the server (``lc_messages``).
    """
    attempt = getattr(error, "pgconn", None)
    if attempt is None or getattr(error, "sqlstate", None) is not None or not attempt.port.isdigit():
        return ""
    host, port = os.fsdecode(attempt.hostaddr or attempt.host), int(attempt.port)
    request = _PROTOCOL + b"user\0connectgroup\0\0"  # in plain text: not the user of the log
    try:
        async with asyncio.timeout(ANSWER_S):
            if host.startswith("/"):
                reader, writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            else:
                reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write((len(request) + 4).to_bytes(4, "big") + request)
                if await reader.readexactly(1) != b"E":
                    return ""
                size = int.from_bytes(await reader.readexactly(4), "big")
                fields = (await reader.readexactly(min(size, 1 << 15) - 4)).split(b"\0")
            finally:
                writer.close()
    except (OSError, EOFError, ValueError):  # a TimeoutError is an OSError
        return ""
    return next((field[1:].decode(errors="replace") for field in fields if field[:1] == b"C"), "")


def _reason(error: Exception) -> str:
    """The error on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable("; ".join(lines) or type(error).__name__, limit=300)


def from_url(url: SplitResult, *, restored: bool = False) -> Log:
    """The log of ``postgresql://USER@HOST:PORT/DATABASE``; see ``registry``.

    Raises:
        ConfigError: the URL has a parameter that neither libpq nor this log has.
        ValueError: libpq rejects the URL, or the schema has no name.
    """
    options = parse_qsl(url.query, keep_blank_values=True)
    check_parameters([name for name, _ in options], ("schema", *_parameters()))
    schema = next((value for name, value in options if name == "schema"), SCHEMA)
    if not schema or "\0" in schema or url.fragment:
        raise ValueError("schema")
    query = urlencode([(name, value) for name, value in options if name != "schema"])
    text = url._replace(query=query).geturl()
    if not url.netloc:  # ``geturl`` drops the slashes of a URL that leaves the host to libpq
        text = f"{url.scheme}://{url.path}" + (f"?{query}" if query else "")
    return LeasedLog(PostgresStore(text, schema=schema), restored=restored)
