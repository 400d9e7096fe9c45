"""The log in PostgreSQL, which several coordinators share: the contract of every log, leases, and lost connections."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.coordinator.loading import recover_groups
from connectgroup.errors import LogError
from connectgroup.log import leased
from connectgroup.log.base import (
    MAX_BATCH_BYTES,
    NONE_STOOD_BY,
    REGISTER_S,
    AppendRefused,
    Log,
    LogAway,
    LogFenced,
    LogHeld,
    LogNotWritable,
    Ownership,
)
from connectgroup.log.leased import LeasedLog
from connectgroup.log.postgres.store import PostgresStore
from connectgroup.log.registry import log_from_url
from connectgroup.log.rows import Sums, Values
from connectgroup.protocol.records.connect import GroupRecord, MemberRecord
from connectgroup.testing.contracts.log import LogContract, contents, member, opened
from tests.spark.postgres_server import programs, running_server, running_standby
from tests.volume import ci_only

from .lease_contract import LeaseContract

if TYPE_CHECKING:
    import psycopg

pytest.importorskip("psycopg")
pytestmark = pytest.mark.asyncio

LEASE_S = 0.6
CALLS = ("connect", "look", "take", "retake", "renew", "mark_serving", "release", "leave", "append", "compact", "read")


class Faulty(PostgresStore):
    """A store of which the answers are lost.

    Attributes:
        cut: renewals do not reach the server.
        is_away: nothing does.
        loses: what the next append loses: ``request`` (it arrives later, with ``deliver_late``) or ``answer``.
    """

    cut = is_away = False
    loses = ""

    def __init__(self, url: str, **named: Any) -> None:
        super().__init__(url, **named)
        self._late: tuple[Any, ...] = ()

    async def connect(self) -> None:
        if self.is_away:
            raise LogAway("the server: cannot connect")
        await super().connect()

    async def renew(self, holder: str, last: int) -> bool:
        if self.cut or self.is_away:
            raise LogError("no answer")
        return await super().renew(holder, last)

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        if self.is_away:
            raise LogNotWritable("cannot connect")
        loses, self.loses = self.loses, ""
        if loses == "request":
            self._late = epoch, last, rows, sums
            raise LogError("no answer")
        written = await super().append(epoch, last, rows, sums)
        if loses == "answer":
            raise LogError("no answer")
        return written

    async def ownership(self) -> Ownership:
        if self.is_away:
            raise LogError("no answer")
        return await super().ownership()

    async def deliver_late(self) -> bool:
        return await super().append(*self._late)


def log_at(url: str, *, lease_s: float = LEASE_S, compact_after: int = 2_000) -> tuple[LeasedLog, Faulty]:
    store = Faulty(url)
    address = f"{uuid.uuid4().hex}:1"
    return LeasedLog(store, address=address, lease_s=lease_s, compact_after=compact_after), store


class TestPostgresLog(LogContract):
    """Each test has a schema of its own."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres: str) -> None:
        self.url = postgres
        self.schema = f"s{uuid.uuid4().hex}"

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return LeasedLog(PostgresStore(self.url, schema=self.schema), max_batch_bytes=max_batch_bytes)


class Pooled(PostgresStore):
    """A store whose statements run in any of several sessions, as behind a proxy that pools transactions."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__(url, schema=schema)
        self._sessions = [PostgresStore(url, schema=schema) for _ in range(3)]
        self._random = random.Random(url)

    def __getattribute__(self, name: str) -> Any:
        if name in CALLS:
            return getattr(self._random.choice(self._sessions), name)
        return super().__getattribute__(name)

    async def close(self) -> None:
        for each in self._sessions:
            await each.close()


@ci_only("the contract a second time, 10 s; in a user's run, TestPostgresLog has it in one session")
class TestPooledPostgresLog(TestPostgresLog):
    """No statement needs what an earlier one has left in its session."""

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return LeasedLog(Pooled(self.url, self.schema), max_batch_bytes=max_batch_bytes)


@ci_only("the contract a second time, 10 s; in a user's run, TestPostgresLog has it with one partition")
class TestPartitionOfPostgresLog(TestPostgresLog):
    """The second of two partitions."""

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        store = PostgresStore(self.url, schema=self.schema, partition=1)
        store.expected_partitions = 2
        return LeasedLog(store, max_batch_bytes=max_batch_bytes)


@asynccontextmanager
async def session(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Another session of the database, which commits each statement."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def batch_delayed(url: str, offset: int) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """The batch that begins at this offset is under way until the end of the block: it waits for an equal key."""
    async with session(url) as holder, session(url) as other, holder.transaction(force_rollback=True):
        await holder.execute("INSERT INTO connectgroup.records VALUES (%s, 1, 1, 1, '', '', '', 0)", (offset,))
        yield other


async def waiting_for_the_lock(url_session: psycopg.AsyncConnection[Any]) -> int:
    """Wait until a batch waits for the lock; return the process of its server."""
    while True:
        found = await url_session.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND query LIKE '%INSERT INTO%records%'"
        )
        if (row := await found.fetchone()) is not None:
            return int(row[0])
        await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------- one owner


class TestLeaseInPostgres(LeaseContract):
    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.url = database

    def coordinator(self) -> tuple[LeasedLog, Faulty]:
        return log_at(self.url)


class TestLeaseOfPartitionInPostgres(TestLeaseInPostgres):
    """The second of two partitions."""

    def coordinator(self) -> tuple[LeasedLog, Faulty]:
        store = Faulty(self.url, partition=1)
        store.expected_partitions = 2
        return LeasedLog(store, address=f"{uuid.uuid4().hex}:1"), store


async def test_batch_of_a_former_owner_is_not_written_however_late_it_arrives(database: str) -> None:
    """D4: the epoch in the write decides, not the lease."""
    (first, store), (second, _) = log_at(database), log_at(database)
    async with opened(first):
        store.loses, store.cut = "request", True
        with pytest.raises(LogError, match="no answer"):
            await first.append([member("late")])
        await second.stand_by()
        async with opened(second):
            await second.append([member("b")])
            assert not await store.deliver_late()
            assert await contents(second) == [member("b")]
        async with opened(log_at(database)[0]) as third:
            assert await contents(third) == [member("b")]


async def test_close_does_not_wait_for_long_for_a_batch_that_waits_for_a_locked_table(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = log_at(database, lease_s=60)
    await log.open()
    monkeypatch.setattr(leased, "ANSWER_S", 0.5)
    async with session(database) as holder, session(database) as other, holder.transaction():
        await holder.execute("LOCK TABLE connectgroup.records")
        appending = asyncio.ensure_future(log.append([member("a")]))
        await waiting_for_the_lock(other)
        async with asyncio.timeout(60):
            await log.close()
        with pytest.raises(asyncio.CancelledError):
            await appending


async def test_open_waits_for_the_batch_under_way(database: str) -> None:
    (first, store), (second, _) = log_at(database, lease_s=2), log_at(database, lease_s=5)
    async with opened(first):
        async with batch_delayed(database, 1) as other:
            batch = asyncio.ensure_future(first.append([member("a")]))
            await waiting_for_the_lock(other)
            store.cut = True
            await second.stand_by()
            opening = asyncio.ensure_future(second.open())
            done, _ = await asyncio.wait({opening}, timeout=0.3)
            assert not done
        await opening
        with pytest.raises(LogError, match="the outcome of a change is unknown"):  # its lease was over before
            await batch
        assert await contents(second) == [member("a")]
        await second.close()


async def test_of_coordinators_that_start_together_one_opens_the_log(database: str) -> None:
    """The tables are missing, too."""
    logs = [log_at(database)[0] for _ in range(4)]
    outcomes = await asyncio.gather(*(log.open() for log in logs), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["LogHeld"] * 3 + ["NoneType"], outcomes
    await asyncio.gather(*(log.close() for log in logs))


async def test_lag_of_a_coordinator_that_no_longer_reads_the_log_grows_until_it_reads_again(database: str) -> None:
    (first, _), (second, _) = log_at(database, lease_s=60.0), log_at(database, lease_s=60.0)

    async def lag_until(holds: Callable[[int], bool]) -> None:
        for _ in range(1_200):
            if any(holds(each.lag_ms) for each in (await first.ownership()).coordinators[1:]):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("not within a minute")

    async with opened(first):
        standing_by = asyncio.ensure_future(second.stand_by())
        await lag_until(lambda ms: ms >= 0)
        standing_by.cancel()  # suspended
        await lag_until(lambda ms: ms > REGISTER_S * 1000)
        standing_by = asyncio.ensure_future(second.stand_by())
        await lag_until(lambda ms: 0 <= ms < REGISTER_S * 1000)
        standing_by.cancel()
    await second.close()


async def test_coordinator_that_stands_by_says_each_reason_why_it_cannot_read_the_log_once(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    (first, _), (second, _) = (log_at(database, lease_s=60) for _ in range(2))
    async with opened(first), session(database) as other:
        await second.connect()
        standing_by = asyncio.ensure_future(second.stand_by())
        await other.execute("ALTER TABLE connectgroup.owner RENAME TO renamed")
        await warned(caplog, "does not exist")
        async with other.transaction():
            await other.execute("ALTER TABLE connectgroup.renamed RENAME TO owner")
            await other.execute("DELETE FROM connectgroup.owner")
        await warned(caplog, "has lost the row of its owner")
        assert len(warnings_of(caplog, "does not exist")) == 1
        standing_by.cancel()
    await second.close()


async def test_start_after_the_owner_has_ended_is_no_failover(database: str) -> None:
    """A start when no coordinator stood by: how long the groups were not served says nothing of a fail-over."""
    (first, _), (second, _) = log_at(database), log_at(database)
    async with opened(first):
        await first.mark_serving()
    async with opened(second):
        await second.mark_serving()
        found = await second.ownership()
        assert found.failover_cause == NONE_STOOD_BY
        assert found.failover_took_ms >= 0


async def test_coordinators_between_which_clients_cannot_follow_are_warned_of(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One address for two of them; other users. Not a former process at an address, which was started again."""
    (former, _), (owner, _), (other, _), (third, _) = (log_at(database, lease_s=3) for _ in range(4))
    for each in owner, other, former:
        each.address, each.credentials = "a:1", "0001"
    third.address, third.credentials = "b:1", "0002"
    async with opened(former):
        assert not warnings_of(caplog, "")
    async with opened(owner):
        async with standing_by(other, third):
            await warned(caplog, "advertises a:1, too")
            await warned(caplog, "other users")
        caplog.clear()
        for each in other, third:
            each.address, each.credentials = "b:1", "0001"
        async with standing_by(other, third):
            await warned(caplog, "advertises b:1, too", times=2)
        assert not warnings_of(caplog, "other users")


@asynccontextmanager
async def standing_by(*logs: LeasedLog) -> AsyncIterator[None]:
    """These coordinators stand by until the end of the block."""
    waiting = [asyncio.ensure_future(each.stand_by()) for each in logs]
    yield
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for log in logs:
        await log.close()


async def warned(caplog: pytest.LogCaptureFixture, text: str, *, times: int = 1) -> None:
    """Wait for a warning."""
    for _ in range(6_000):
        if len(warnings_of(caplog, text)) >= times:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within a minute: {text}")


def warnings_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "connectgroup.log.leased"]
    return [each for each in found if text in each]


# ------------------------------------------------------------------------------------------- unknown outcomes


async def test_batch_whose_request_is_late_is_not_written_after_the_group_was_read_again(database: str) -> None:
    """D6, F13: a delayed commit must not hit a later one."""
    log, store = log_at(database)
    async with opened(log):
        store.loses = "request"
        with pytest.raises(LogError, match="no answer"):
            await log.append([member("late")])
        assert await contents(log) == []
        assert not await store.deliver_late()
        await log.append([member("b")])
        assert not await store.deliver_late()
        assert await contents(log) == [member("b")]


async def test_batch_whose_connection_is_lost_is_written_whole_or_not_at_all(database: str) -> None:
    log, _ = log_at(database, lease_s=5)
    async with opened(log):
        await log.append([member("a")])
        async with batch_delayed(database, 2) as other:
            batch = asyncio.ensure_future(log.append([member("b"), member("c")]))
            await other.execute("SELECT pg_terminate_backend(%s)", (await waiting_for_the_lock(other),))
            with pytest.raises(LogError) as error:
                await batch
        assert not isinstance(error.value, AppendRefused | LogNotWritable | LogFenced)
        assert await contents(log) == [member("a")]
        await log.append([member("d")])
        assert await contents(log) == [member("a"), member("d")]


async def test_connections_that_the_server_closes_while_they_are_idle_are_opened_again(database: str) -> None:
    log, _ = log_at(database)
    async with opened(log), session(database) as other:
        for number in range(3):
            await log.append([member(str(number))])
            await other.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        await log.append([member("last")])
        assert await contents(log) == [member("0"), member("1"), member("2"), member("last")]
        assert log.epoch == 1


async def test_batch_that_the_server_refuses_is_not_written_and_the_log_can_be_read(database: str) -> None:
    log, _ = log_at(database)
    async with opened(log), session(database) as other:
        await log.append([member("a")])
        await other.execute("ALTER TABLE connectgroup.records ADD CONSTRAINT full_disk CHECK (name <> 'b')")
        with pytest.raises(LogNotWritable, match="full_disk"):
            await log.append([member("b")])
        assert await contents(log) == [member("a")]
        await other.execute("ALTER TABLE connectgroup.records DROP CONSTRAINT full_disk")
        await log.append([member("b")])
        assert await contents(log) == [member("a"), member("b")]


async def test_batch_of_which_the_wait_for_a_synchronous_standby_was_cancelled_is_not_acknowledged() -> None:
    """It is committed on the primary, of which the standby knows nothing: the server reports success with a warning."""
    waits = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep' "
        "AND query LIKE '%records%'"
    )
    with running_server() as url:
        log, _ = log_at(url, lease_s=120)
        async with session(url) as other, opened(log):
            await other.execute("SET synchronous_commit = local")
            await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
            await other.execute("SELECT pg_reload_conf()")
            written: list[MemberRecord] = []
            pid: tuple[Any, ...] | None = None
            while pid is None:  # the server takes a while to read its settings
                written.append(member(f"{len(written):04}"))
                batch = asyncio.ensure_future(log.append(written[-1:]))
                while not batch.done() and pid is None:
                    await asyncio.sleep(0.01)
                    pid = await (await other.execute(waits)).fetchone()
            await other.execute("SELECT pg_cancel_backend(%s)", pid)
            with pytest.raises(LogError, match="committed locally") as error:
                await batch
            assert type(error.value) is LogError, "its outcome is unknown"
            read = asyncio.ensure_future(contents(log))
            pid = None
            while pid is None:
                await asyncio.sleep(0.01)
                pid = await (await other.execute(waits.replace("records", "owner"))).fetchone()
            assert not read.done(), "nothing of it is shown before a standby has it"
            await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await other.execute("SELECT pg_reload_conf()")
            assert await read == written


async def test_owner_moves_to_a_session_that_takes_writes_when_its_own_takes_none_any_longer() -> None:
    """As after a fail-over that leaves connections to the former primary open."""
    with running_server() as url:
        log, _ = log_at(url, lease_s=120)
        async with session(url) as other, opened(log):
            await log.append([member("a")])
            await other.execute("ALTER DATABASE postgres SET default_transaction_read_only = off")  # of new sessions
            await other.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await other.execute("SELECT pg_reload_conf()")

            async def append_until_refused() -> None:
                for number in itertools.count():  # the server takes a while to read its settings
                    await log.append([member(f"b{number}")])

            with pytest.raises(LogNotWritable, match="read-only"):
                await append_until_refused()
            await log.append([member("c")])
            assert (await contents(log))[-1] == member("c")
            assert log.epoch == 1


class Proxy:
    """Between a client and a server of PostgreSQL, as one that pools transactions.

    Attributes:
        answers: the fields of the error that it sends in place of the next answer about records, of which the server
            has committed the statement; null: it sends the answers of the server.
        about: words of the statement to whose answer that happens.
    """

    def __init__(self, url: str) -> None:
        self._server = url.rpartition("@")[2].partition("/")[0].split(":")
        self._tasks: set[asyncio.Task[None]] = set()
        self.answers: bytes | None = None
        self.about: tuple[bytes, ...] = b"INSERT INTO", b"records"

    async def start(self, url: str) -> str:
        """Listen; the URL of the server by way of this proxy."""
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1")
        return url.replace(":".join(self._server), f"127.0.0.1:{self._listening.sockets[0].getsockname()[1]}")

    def close(self) -> None:
        self._listening.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_server, to_server = await asyncio.open_connection(*self._server)
        loses = asyncio.Event()

        async def send() -> None:
            while data := await reader.read(1 << 20):
                if self.answers is not None and all(word in data for word in self.about):
                    loses.set()
                to_server.write(data)
            to_server.close()

        async def answer() -> None:
            while data := await at_server.read(1 << 20):
                if loses.is_set():
                    while not data.endswith(b"Z\0\0\0\5I"):
                        data += await at_server.read(1 << 20)
                    fields, self.answers = self.answers or b"", None
                    loses.clear()
                    data = b"E" + (len(fields) + 4).to_bytes(4, "big") + fields + b"Z\0\0\0\5I"
                writer.write(data)
            writer.close()

        self._tasks |= {asyncio.create_task(send()), asyncio.create_task(answer())}


@pytest.mark.parametrize("code", ["08006", "08P01", "57P01", "58000", "XX000", "40003"])
async def test_batch_of_which_a_proxy_lost_the_answer_has_an_unknown_outcome(database: str, code: str) -> None:
    """D6: the proxy keeps the connection of the client, and has lost that to the server after the commit."""
    proxy = Proxy(database)
    log, _ = log_at(await proxy.start(database), lease_s=60)
    async with opened(log):
        await log.append([member("a")])
        proxy.answers = f"SERROR\0VERROR\0C{code}\0Mserver connection lost\0\0".encode()
        with pytest.raises(LogError, match="server connection lost") as error:
            await log.append([member("b")])
        assert type(error.value) is LogError, "it is not said that nothing was written"
        assert await contents(log) == [member("a"), member("b")]
        await log.append([member("c")])
        assert await contents(log) == [member("a"), member("b"), member("c")]
    proxy.close()


@pytest.mark.parametrize(
    "reason",
    ["server login has been failing, try again later (server_login_retry)", "pgbouncer cannot connect to server"],
)
async def test_server_that_is_away_behind_a_proxy_is_waited_for(database: str, reason: str) -> None:
    """As PgBouncer responds, which has accepted the client: a coordinator that starts then does not end."""
    proxy = Proxy(database)
    proxy.about = (b"server_version_num",)
    log, _ = log_at(await proxy.start(database))
    proxy.answers = f"SFATAL\0VFATAL\0C08P01\0M{reason}\0\0".encode()
    with pytest.raises(LogAway, match=re.escape(reason)):
        await log.connect()
    async with opened(log):
        await log.append([member("a")])
    proxy.close()


async def test_log_on_a_server_that_is_away_can_be_read_until_the_lease_ends() -> None:
    with running_server() as url:
        log, _ = log_at(url, lease_s=10)
        await log.open()
        await log.append([member("a")])
    with pytest.raises(LogNotWritable, match=r"cannot connect: .*refused"):
        await log.append([member("b")])
    assert await contents(log) == [member("a")]
    with pytest.raises(LogError, match="cannot connect"):
        await log.check_writable()
    await log.close()


# ------------------------------------------------------------------------------------------- records


async def test_group_with_a_damaged_missing_or_foreign_record_is_not_loaded(database: str) -> None:
    """D7: other groups are."""
    log, _ = log_at(database)
    async with opened(log):
        for group in "abcd":
            await log.append([member("m", group=group), member("n", group=group)])
    async with session(database) as other:
        await other.execute("UPDATE connectgroup.records SET value = 'x' WHERE group_id = 'a' AND name = 'm'")
        await other.execute("DELETE FROM connectgroup.records WHERE group_id = 'b' AND name = 'm'")
        await other.execute("UPDATE connectgroup.records SET group_id = 'd' WHERE group_id = 'c' AND name = 'm'")
    async with opened(log):
        loaded = await log.load()
        assert {group: isinstance(found, LogError) for group, found in loaded.items()} == dict.fromkeys("abcd", True)
        assert "offset 1, group a: its checksum is" in str(loaded["a"])
        assert "group b: 1 records found where 2 were written" in str(loaded["b"])
        await log.compact()
        assert {group: isinstance(found, LogError) for group, found in (await log.load()).items()} == dict.fromkeys(
            "abcd", True
        )
        await log.append([member("m", group="e")])
        assert await contents(log, "e") == [member("m", group="e")]


async def test_log_does_not_grow_with_the_number_of_changes(database: str) -> None:
    log, _ = log_at(database, compact_after=20)
    async with opened(log), session(database) as other:
        for number in range(200):
            await log.append([member("m", host=str(number))])
        ((rows,),) = await (await other.execute("SELECT count(*) FROM connectgroup.records")).fetchall()
        assert rows <= 40
        assert (await contents(log))[-1] == member("m", host="199")


# ------------------------------------------------------------------------------------------- lost records


async def test_log_that_ends_before_a_record_that_was_seen_has_lost_records(database: str) -> None:
    """The server was restored from a copy, by a method that does not change its identity."""
    (first, _), (second, _) = log_at(database), log_at(database)
    async with opened(first), session(database) as other:
        await first.append([member("a")])
        await other.execute("CREATE TABLE copied AS SELECT epoch, last FROM connectgroup.owner")
        await first.append([member("b")])
        with pytest.raises(LogHeld):
            await second.open()  # which sees the offset
        await other.execute("DELETE FROM connectgroup.records WHERE name = 'b'")
        await other.execute(
            "UPDATE connectgroup.groups SET row_count = 1, checksum = (SELECT crc32 FROM connectgroup.records)"
        )
        await other.execute("UPDATE connectgroup.owner SET last = copied.last FROM copied")
        assert "has lost records" in await first.wait_lost()
        with pytest.raises(LogFenced):
            await first.append([member("c")])
    assert not second.lost_records
    await second.open()
    assert "it ends at record 1 of epoch 1, but record 2 of epoch 1 was written" in second.lost_records
    assert second.epoch > 1_000, "workers ignore a coordinator of a lower epoch"
    await second.mark_serving()
    assert not second.lost_records
    await second.close()


async def test_log_on_another_server_is_recovered_until_its_owner_has_proved_that_nothing_is_missing(
    postgres: str, database: str
) -> None:
    """A standby that was promoted, or a restored backup, has another timeline: it may lack what was acknowledged."""
    (first, _), (second, _), (third, _) = log_at(database), log_at(database), log_at(database)
    async with opened(first), session(database) as other:
        await first.append([GroupRecord(group_id="g", epoch=3, created_ms=5_000), member("m")])
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")  # as if it were another one now
        await first.check_writable()  # its last record is there
    async with opened(second):
        assert not second.lost_records
    async with session(database) as other:
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
    async with opened(third):
        assert "it was restored, or is on another server than before: " in third.lost_records
        assert "not a/00000001/1" in third.lost_records
        assert await recover_groups(third, now_ms=1_000) == (["g"], [])
        group = [record for record in await contents(third) if isinstance(record, GroupRecord)][-1]
        assert (group.created_ms, group.epoch) == (6_000, 4), "a new incarnation, whose fencing tokens are higher"
        await third.mark_serving()
    fourth, _ = log_at(database)
    async with opened(fourth):
        assert not fourth.lost_records


@pytest.mark.parametrize("is_short", [False, True])
async def test_log_that_another_coordinator_has_recovered_is_not_recovered_again(database: str, is_short: bool) -> None:
    """A coordinator that stands by sees what the one that takes the log sees; a second recovery would end all tasks."""
    (first, store), (second, _), (third, _) = (log_at(database, lease_s=60) for _ in range(3))
    async with opened(first), session(database) as other:
        await first.append([GroupRecord(group_id="g", epoch=3, created_ms=5_000), member("m")])
        with pytest.raises(LogHeld):
            await second.open()  # which sees the offset
        store.cut = True
        if is_short:
            await other.execute("TRUNCATE connectgroup.records, connectgroup.groups")
            await other.execute("UPDATE connectgroup.owner SET last = 0")
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
        with pytest.raises(LogHeld):
            await second.open()
        assert ("it ends at record 0" if is_short else "is on another server than before") in second.lost_records
    # As if the first had crashed: its release has noted whether it found its records.
    async with session(database) as other:
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
    async with opened(third):
        with pytest.raises(LogHeld):
            await second.open()
        assert second.lost_records, "the groups are not recovered yet"
        await recover_groups(third, now_ms=1_000)
        await third.mark_serving()
        with pytest.raises(LogHeld):
            await second.open()
        assert not second.lost_records
    async with opened(second):
        assert (second.lost_records, second.epoch) == ("", third.epoch + 1)


async def test_log_of_which_the_owner_has_found_its_last_record_is_not_recovered_by_others(database: str) -> None:
    """The database fails over to a synchronous standby: the owner goes on, and so does its successor."""
    (first, store), (second, _) = (log_at(database, lease_s=60) for _ in range(2))
    async with opened(first), session(database) as other:
        await first.append([member("m")])
        store.cut = True
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
        with pytest.raises(LogHeld):
            await second.open()
        assert "is on another server than before" in second.lost_records
        store.cut = False
        await first.check_writable()
    async with opened(second):
        assert (second.lost_records, second.epoch) == ("", first.epoch + 1)


async def test_owner_that_stops_right_after_a_failover_of_its_database_notes_that_nothing_is_missing(
    database: str,
) -> None:
    """A clean stop before the first renewal on the new server: its successor would end all tasks for nothing."""
    (first, store), (second, _) = (log_at(database, lease_s=60) for _ in range(2))
    async with opened(first), session(database) as other:
        await first.append([member("m")])
        store.cut = True
        await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
    async with opened(second):
        assert (second.lost_records, second.epoch) == ("", first.epoch + 1)


async def test_owner_that_misses_records_tells_its_successor(database: str) -> None:
    """A crash of a server without fsync: it has the identity that it had, and only the owner knows its last record."""
    (first, store), (second, _), (third, _) = (log_at(database, lease_s=60) for _ in range(3))
    async with opened(first), session(database) as other:
        store.cut = True  # the owner is stopped before it finds out
        await first.append([member("a")])
        await other.execute("TRUNCATE connectgroup.records, connectgroup.groups")
        await other.execute("UPDATE connectgroup.owner SET last = 0")
    async with opened(second):
        assert second.lost_records == "its last owner has missed records"
        await second.mark_serving()
    async with opened(third):
        assert not third.lost_records


async def test_log_on_another_server_is_left_to_its_owner_for_as_long_as_a_lease(database: str) -> None:
    """The database was away for longer than the lease. Only the owner knows that all records are there: groups would be
    recovered if another coordinator took the log first."""
    (first, store), (second, _) = log_at(database), log_at(database)
    async with session(database) as other:
        async with opened(first):
            await first.append([member("m")])
            store.cut = True
            await first.wait_lost()
            await second.connect()
            await second.stand_by()  # until the lease has expired without a renewal
            await other.execute("UPDATE connectgroup.owner SET server = 'a/00000001/1'")
            with pytest.raises(LogHeld):
                await second.open()
        store.cut = False
        async with opened(first):
            assert not first.lost_records
    await second.close()


async def test_database_that_has_lost_no_more_than_a_compaction_damages_no_group(database: str) -> None:
    """As after a fail-over to an asynchronous standby: all records are there, and some of which the owner knows no
    longer. It reads the log again before it removes others."""
    (log, _), (successor, _) = (log_at(database, lease_s=60) for _ in range(2))
    async with opened(log), session(database) as other:
        for host in "ab":
            await log.append([member("m", host=host)])
        for table in "records", "groups":
            await other.execute(f"CREATE TABLE copied_{table} AS SELECT * FROM connectgroup.{table}")
        assert await log.compact() == 1
        for table in "records", "groups":
            await other.execute(f"TRUNCATE connectgroup.{table}")
            await other.execute(f"INSERT INTO connectgroup.{table} SELECT * FROM copied_{table}")
        await log.append([member("m", host="c")])
        with pytest.raises(LogFenced):
            await log.compact()
        assert "it has lost records" in await log.wait_lost()
    async with opened(successor):
        assert not successor.lost_records
        assert await successor.compact() == 2
        assert await contents(successor) == [member("m", host="c")]


async def test_older_dump_that_is_put_back_while_no_coordinator_runs_is_recognized(
    postgres: str, database: str
) -> None:
    """As docs/several-machines.md says how to: the tables are new ones then."""
    first, _ = log_at(database)
    async with opened(first):
        await first.append([GroupRecord(group_id="g", epoch=3, created_ms=5_000), member("m")])
    dump = await _run_program("pg_dump", "--schema=connectgroup", database)
    second, _ = log_at(database)
    async with opened(second):
        assert not second.lost_records
        await second.append([member("gone")])
    async with session(database) as other:
        await other.execute("DROP SCHEMA connectgroup CASCADE")
    await _run_program("psql", "--quiet", "--set=ON_ERROR_STOP=1", database, stdin=dump)
    third, _ = log_at(database)
    async with opened(third):
        assert "it was restored, or is on another server than before" in third.lost_records
        assert member("gone") not in await contents(third)
        assert await recover_groups(third, now_ms=1_000) == (["g"], [])
        await third.mark_serving()
    fourth, _ = log_at(database)
    async with opened(fourth):
        assert not fourth.lost_records


async def _run_program(name: str, *words: str, stdin: bytes = b"") -> bytes:
    """Run a client program of PostgreSQL; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        str(programs() / name), *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate(stdin)
    assert process.returncode == 0, name
    return out


async def test_promoted_standby_is_another_server() -> None:
    with running_server() as primary:
        log, _ = log_at(primary)
        async with opened(log):
            await log.append([member("a")])
        with running_standby(primary) as standby:
            refused = log_at(standby)[0]
            with pytest.raises(LogError, match=r"read-only|standby"):
                await refused.connect()
            async with session(standby) as other:
                await other.execute("SELECT pg_promote()")
            promoted, _ = log_at(standby)
            async with opened(promoted):
                assert "is on another server than before" in promoted.lost_records
                assert await contents(promoted) == [member("a")]


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://test@127.0.0.1:1/postgres", "postgresql://127.0.0.1:1/postgres: cannot connect: .*refused"),
        ("postgresql://127.0.0.1:1", "postgresql://127.0.0.1:1/: cannot connect: "),
        ("{server}/no_such_database", 'cannot connect: .*database "no_such_database" does not exist'),
        ("postgresql://nobody:hunter2@{address}/postgres", 'cannot connect: .*role "nobody" does not exist'),
    ],
)
async def test_server_that_cannot_be_used_is_named(postgres: str, url: str, error: str) -> None:
    server = postgres.rpartition("/")[0]
    log = log_from_url(url.format(server=server, address=server.rpartition("@")[2]))
    with pytest.raises(LogError, match=error) as raised:
        await log.open()
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_missing_rights_are_named(database: str) -> None:
    user = f"u{uuid.uuid4().hex}"
    of_user = database.replace("//test@", f"//{user}@")
    async with session(database) as admin:
        await admin.execute(f"CREATE USER {user}")
        try:
            log, _ = log_at(of_user)
            with pytest.raises(LogError, match=f"user {user} may not create the schema connectgroup; allowed: "):
                await log.open()
            async with opened(log_at(database)[0]):
                pass  # creates the tables
            with pytest.raises(LogError, match='schema connectgroup; allowed: GRANT USAGE ON SCHEMA "connectgroup" TO'):
                await log.open()
            await admin.execute(f"GRANT USAGE ON SCHEMA connectgroup TO {user}")
            with pytest.raises(LogError, match=f"user {user} lacks SELECT on .*owner; allowed: GRANT SELECT, "):
                await log.open()
            await admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA connectgroup TO {user}")
            async with opened(log):
                await log.append([member("a")])
                await admin.execute(f"REVOKE INSERT ON connectgroup.records FROM {user}")
                with pytest.raises(
                    LogNotWritable, match=r'permission denied .*; allowed: GRANT .* SCHEMA "connectgroup"'
                ):
                    await log.append([member("b")])
            await admin.execute("CREATE SCHEMA empty")
            await admin.execute(f"GRANT USAGE ON SCHEMA empty TO {user}")
            with pytest.raises(LogError, match='schema empty; allowed: GRANT CREATE ON SCHEMA "empty" TO that user'):
                await PostgresStore(of_user, schema="empty").connect()
            await admin.execute(f"ALTER USER {user} SET synchronous_commit = off")
            with pytest.raises(LogError, match=f"synchronous_commit is off for user {user}, .*; allowed: "):
                await log_at(of_user)[0].open()
        finally:
            await admin.execute(f"DROP OWNED BY {user}")
            await admin.execute(f"DROP USER {user}")


async def test_server_that_may_lose_acknowledged_changes_is_refused_or_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running_server() as url:
        async with session(url) as admin:
            async with opened(log_at(f"{url}?options=-csynchronous_commit%3Dlocal")[0]):
                pass  # there is no standby that could lack a change
            await admin.execute("SET synchronous_commit = local")
            for name, value in ("full_page_writes", "off"), ("synchronous_standby_names", "missing"):
                await admin.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            await admin.execute("SELECT pg_reload_conf()")
            shown = "SELECT 1 WHERE current_setting('full_page_writes') = 'off'"
            for _ in range(6000):  # the server takes a while to read its settings
                if await (await admin.execute(shown)).fetchone() is not None:
                    break
                await asyncio.sleep(0.01)
            local = log_at(f"{url}?options=-csynchronous_commit%3Dlocal")[0]
            with pytest.raises(LogError, match=r"commit is local for user test, .* synchronous standby .*; allowed: "):
                await local.connect()
            caplog.clear()
            log = log_at(url)[0]
            await log.connect()
            await log.connect()
            assert [each.partition(": ")[2] for each in caplog.messages] == [
                f"{name} is off: a crash of its machine may destroy the log" for name in ("fsync", "full_page_writes")
            ]
            await admin.execute("ALTER TABLE connectgroup.records SET UNLOGGED")
            with pytest.raises(LogError, match=r"records.* is unlogged: .*; allowed: ALTER TABLE .* SET LOGGED"):
                await log.connect()
            await log.close()
            await local.close()


async def test_unreachable_server_is_distinguished_from_one_that_refuses(postgres: str) -> None:
    server = postgres.rpartition("/")[0]
    for url in "postgresql://test@127.0.0.1:1/postgres", "postgresql://test@nowhere.invalid/postgres":
        with pytest.raises(LogAway):
            await log_at(url)[0].connect()
    for url in f"{server}/no_such_database", f"{server}/postgres?sslmode=require":
        with pytest.raises(LogError) as error:
            await log_at(url)[0].connect()
        assert not isinstance(error.value, LogAway)


@pytest.mark.parametrize(("code", "is_away"), [("57P03", True), ("53300", True), ("3D000", False)])
async def test_server_of_another_language_that_is_not_ready_is_waited_for(code: str, is_away: bool) -> None:
    """As one with ``lc_messages = ru_RU`` that starts: libpq has only the text of its error."""
    fields = f"SВАЖНО\0VFATAL\0C{code}\0Mсистема баз данных запускается\0\0".encode()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(1_000):
            if len(request) == 8:  # for TLS
                writer.write(b"N")
                continue
            writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
            break
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        log, _ = log_at(f"postgresql://test@127.0.0.1:{port}/postgres")
        with pytest.raises(LogError, match=r"ВАЖНО: .*запускается") as error:
            await log.connect()
        assert isinstance(error.value, LogAway) == is_away


async def test_tables_of_other_software_are_refused(database: str) -> None:
    async with opened(log_at(database)[0]):
        pass
    async with session(database) as other:
        await other.execute("UPDATE connectgroup.owner SET version = 2")
        with pytest.raises(LogError, match="has schema version 2, written by other software; allowed: 1"):
            await log_at(database)[0].open()
        await other.execute("DELETE FROM connectgroup.owner")
        with pytest.raises(LogError, match="has lost the row of its owner"):
            await log_at(database)[0].open()
