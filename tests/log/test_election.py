"""Several coordinators of one log: which one serves, and what the others respond (D4, D5)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("psycopg")

from connectgroup.checks import parse_address
from connectgroup.cli.command import main
from connectgroup.client.admin import Admin
from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.config.rest import RestConfig
from connectgroup.coordinator import metrics
from connectgroup.coordinator.compute import server_assignors
from connectgroup.coordinator.election import ElectedCoordinator
from connectgroup.coordinator.partitions import PartitionedCoordinator
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, LogError, NotCoordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.leased import LeasedLog
from connectgroup.protocol.messages.cluster import (
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.messages.offsets import (
    CommitInTransaction,
    PartitionCommit,
    TopicCommit,
    TxnOffsetCommitRequest,
)
from connectgroup.rest.server import RestServer
from connectgroup.telemetry.metrics import snapshot
from connectgroup.transport import following
from connectgroup.transport.access import Access
from connectgroup.transport.credentials import create_credentials
from connectgroup.transport.tcp_server import TcpServer
from connectgroup.wire.apis import APIS
from tests.log.test_postgres import Faulty, log_at, session
from tests.spark.postgres_server import running_server
from tests.transport.test_group_access import WITHOUT_GROUP, error_codes, request_about

pytestmark = pytest.mark.asyncio

GROUP = "g"
REQUESTS = [api.request_class for api in APIS.values() if api.request_class.__name__ not in WITHOUT_GROUP]


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(6_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within a minute")


class Process:
    """A coordinator process."""

    def __init__(self, url: str, lease_s: float) -> None:
        self.log, self.store = log_at(url, lease_s=lease_s)
        settings = GroupSettings(server_assignor="balanced", server_assignors=server_assignors(["balanced"]))
        self.elected = ElectedCoordinator(self.log, lambda: Coordinator(self.log, settings))
        self.server: TcpServer | None = None

    async def listen(self) -> None:
        """Open a port, before the election begins."""
        self.server = TcpServer(self.elected)
        self.elected.on_term_end = self.server.hang_up_all
        await self.server.start()
        self.server.find_coordinator = self.elected.find
        self.log.address = f"127.0.0.1:{self.server.port}"

    async def close(self) -> None:
        await self.elected.close()
        if self.server is not None:
            await self.server.close()

    async def ask(self, request: Any) -> Any:
        return await self.elected.handle(request, client_host="test")

    async def serves(self) -> None:
        """Wait until it does."""
        await until(lambda: self.elected.serving is not None)


class Member:
    """A worker without units.

    Attributes:
        epoch: its member epoch. ``beat`` changes it.
    """

    def __init__(self, coordinator: Process) -> None:
        self._coordinator, self.epoch, self._sequence = coordinator, 0, 0

    async def beat(self) -> int:
        """Send a heartbeat, which joins until the member has an assignment; return the error code."""
        self._sequence += 1
        more: dict[str, Any] = {} if self.epoch else {"rebalance_timeout_ms": 60_000, "owned": ()}
        request = HeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=self.epoch, sequence=self._sequence, process_id=1, **more
        )
        response = await self._coordinator.ask(request)
        if not response.error_code:
            self.epoch = response.member_epoch
        return int(response.error_code)


@asynccontextmanager
async def process(url: str, *, lease_s: float = 60.0) -> AsyncIterator[Process]:
    started = Process(url, lease_s)
    await started.elected.start()
    try:
        yield started
    finally:
        await started.close()


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Process]:
    """A coordinator process with a port."""
    started = Process(url, 60.0)
    await started.listen()
    await started.elected.start()
    try:
        yield started
    finally:
        await started.close()


def change(name: str) -> UpdateConnectorsRequest:
    return UpdateConnectorsRequest(group_id=GROUP, changes=(ConnectorChange(connector=name, config=()),))


async def connectors(of: Process) -> set[str]:
    described = await of.ask(DescribeRequest(group_ids=(GROUP,)))
    return {each.connector for group in described.groups for each in group.connectors}


async def test_coordinator_that_stands_by_refuses_every_request_and_names_the_owner(database: str) -> None:
    async with process(database) as owner:
        await owner.serves()
        assert (await owner.ask(change("a"))).error_code == 0
        async with process(database) as other:
            await until(lambda: other.log.owner == owner.log.address)
            for cls in REQUESTS:
                codes = set(error_codes(await other.ask(request_about(GROUP, cls)))) - {0}
                assert codes == {NotCoordinator.code}, cls.__name__
            found = await other.ask(FindCoordinatorRequest(coordinator_keys=(GROUP,)))
            assert isinstance(found, FindCoordinatorResponse)
            assert f"{found.coordinators[0].host}:{found.coordinators[0].port}" == owner.log.address
            described = await other.ask(DescribeCoordinatorsRequest())
            assert isinstance(described, DescribeCoordinatorsResponse)
            assert not described.error_code, described.error_message
            assert [(each.address, each.epoch) for each in described.coordinators] == [
                (owner.log.address, 1),
                (other.log.address, -1),
            ]
            assert await connectors(owner) == {"a"}


async def test_metrics_rest_and_command_show_who_serves_who_stands_by_and_the_last_failover(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "OWNERSHIP_INTERVAL_S", 0.05)
    # A lease that no busy machine lets expire.
    monkeypatch.setitem(LeasedLog.__init__.__kwdefaults__, "lease_s", 60.0)  # type: ignore[arg-type]
    credentials = tmp_path / "credentials"
    create_credentials(credentials)
    settings = {"log": database, "port": 0, "credentials": credentials}

    async def exported(**values: object) -> None:
        """Wait until metrics have these values; of two coordinators in a process, the one that was started later."""
        wanted = {f"connectgroup_shared_log_{name}": value for name, value in values.items()}
        found: dict[str, object] = {}
        async with asyncio.timeout(60):
            while {name: found.get(name) for name in wanted} != wanted:
                await asyncio.sleep(0.02)
                found = {
                    metric.exported: [(*sample.labels.values(), sample.value) for sample in samples]
                    for metric, samples in snapshot().items()
                }

    first = CoordinatorServer(checked(CoordinatorConfig, settings))
    await first.start()
    await exported(serving=[(1.0,)], standbys=[(0.0,)], last_failover_time_ms=[], coordinator_lag_ms=[])
    second = CoordinatorServer(checked(CoordinatorConfig, settings))
    await second.start()
    await exported(
        serving=[(0.0,)], standbys=[(1.0,)], coordinator_serving=[(first.address, 1.0), (second.address, 0.0)]
    )
    assert isinstance(second.coordinator, PartitionedCoordinator)
    async with Admin.local(second.coordinator) as admin:
        config = RestConfig(port=0, group=GROUP)
        rest = RestServer(admin, config)
        await rest.start()
        async with httpx.AsyncClient(base_url=rest.url) as http:
            served, standby = (await http.get("/coordinators")).json()["coordinators"]
        await rest.close()
    assert (served["address"], served["role"], served["lag_ms"]) == (first.address, "serves", None)
    assert (standby["address"], standby["role"]) == (second.address, "stands by")
    assert standby["lag_ms"] >= 0

    command = ["coordinators", "list", "--coordinator", second.address, "--credentials", str(credentials)]
    assert await asyncio.to_thread(main, command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ADDRESS", "ROLE", "EPOCH", "SINCE", "LAG"]
    assert [line.split()[-1] for line in lines[1:]] == ["-", "s"]

    await first.close()
    await exported(serving=[(1.0,)], standbys=[(0.0,)], last_failover_cause=[("handed over", 1.0)])
    await second.close()


async def test_clean_stop_hands_the_groups_over(database: str) -> None:
    async with process(database) as owner:
        await owner.serves()
        assert (await owner.ask(change("a"))).error_code == 0
        async with process(database) as other:
            await owner.elected.close()
            await other.serves()
            assert await connectors(other) == {"a"}
            assert (await other.ask(change("b"))).error_code == 0


async def test_owner_whose_lease_has_expired_refuses_reads_and_comes_back_with_what_others_have_written(
    database: str,
) -> None:
    """D5, also for clients that do not know coordinator epochs, such as Kafka's consumers."""
    async with process(database, lease_s=0.6) as owner, process(database, lease_s=0.6) as other:
        await until(lambda: owner.elected.serving is not None or other.elected.serving is not None)
        first, second = (owner, other) if owner.elected.serving is not None else (other, owner)
        assert (await first.ask(change("a"))).error_code == 0
        first.store.cut = True
        lost = await first.log.wait_lost()
        assert "the lease has expired" in lost
        for cls in REQUESTS:
            codes = set(error_codes(await first.ask(request_about(GROUP, cls)))) - {0}
            assert codes
            assert codes <= {NotCoordinator.code, CoordinatorNotAvailable.code}, cls.__name__
        await second.serves()
        assert (await second.ask(change("b"))).error_code == 0
        first.store.cut = False
        await second.elected.close()
        await first.serves()
        assert await connectors(first) == {"a", "b"}


async def test_owner_whose_lease_has_expired_rejects_no_commit_in_a_transaction_by_what_it_remembers(
    database: str,
) -> None:
    """D5: as of a proxy that was paused. The consumer would end its transaction because of a group that has changed."""
    topic = TopicCommit(
        name="t", partitions=(PartitionCommit(partition_index=0, committed_offset=5, committed_metadata=""),)
    )
    request = TxnOffsetCommitRequest(
        transactional_id="p",
        group_id=GROUP,
        producer_id=1,
        producer_epoch=0,
        generation_id=3,
        member_id="unknown",
        topics=(topic,),
    )
    async with process(database, lease_s=0.6) as owner:
        await owner.serves()
        serving = owner.elected.serving
        assert serving is not None
        time.sleep(1.0)  # noqa: ASYNC251 - the process is paused
        commit = CommitInTransaction(request=request, token="token")
        response = await serving.commit_in_transaction(commit, client_host="test")
    assert set(error_codes(response)) <= {NotCoordinator.code, CoordinatorNotAvailable.code}


async def test_group_of_a_batch_whose_answer_was_lost_is_served_with_it_once(database: str) -> None:
    """D6: the request is refused as retriable, since its outcome is unknown; the retry finds its own change."""
    async with process(database) as owner:
        await owner.serves()
        assert isinstance(owner.store, Faulty)
        owner.store.loses = "answer"
        assert (await owner.ask(change("a"))).error_code == CoordinatorNotAvailable.code
        await until(lambda: owner.log.epoch == 2)
        for _ in range(6_000):
            code = (await owner.ask(change("b"))).error_code
            if code != CoordinatorLoadInProgress.code:
                break
            await asyncio.sleep(0.01)
        assert code == 0
        assert await connectors(owner) == {"a", "b"}
        assert owner.log.epoch == 2


async def test_members_without_news_are_served_while_the_log_is_away_until_the_lease_ends(database: str) -> None:
    """A change is refused as retriable; nothing is acknowledged that is not durable (D1)."""
    async with process(database, lease_s=6.0) as owner:
        await owner.serves()
        member = Member(owner)
        async with asyncio.timeout(60):
            while member.epoch < 1:
                assert await member.beat() == 0
                await asyncio.sleep(0.01)
        assert await member.beat() == 0
        owner.store.is_away = True
        assert await member.beat() == 0
        refused = await owner.ask(change("a"))
        assert refused.error_code == CoordinatorNotAvailable.code
        assert "the log takes no writes" in refused.error_message
        assert await member.beat() == 0
        await owner.log.wait_lost()
        assert await member.beat() in (NotCoordinator.code, CoordinatorNotAvailable.code)
        owner.store.is_away = False
        await owner.serves()
        assert await member.beat() == 0, "its session goes on"
        assert await connectors(owner) == set()


async def test_start_waits_for_a_server_that_is_away_and_ends_at_one_that_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A coordinator that starts with its machine, before the database; a wrong password does not get better."""
    caplog.set_level(logging.INFO, "connectgroup.coordinator.election")
    with running_server() as url:
        refused = Process(f"{url}-missing", 60.0)
        with pytest.raises(LogError, match="does not exist"):
            await refused.elected.start()
        await refused.elected.close()
        owner = Process(url, 60.0)
        owner.store.is_away = True
        starting = asyncio.ensure_future(owner.elected.start())
        await until(lambda: bool(caplog.messages))
        owner.store.is_away = False
        await starting
        await owner.serves()
        await owner.elected.close()
    assert [each for each in caplog.messages if "waiting" in each] == [
        "the server: cannot connect; waiting until it can be reached"
    ]
    assert "the log can be reached" in caplog.messages


async def test_log_that_cannot_be_served_is_an_error_once_however_long_that_lasts(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(database) as owner, process(database) as other, session(database) as operator:
        await owner.serves()
        connect, attempts = other.store.connect, 0

        async def counted() -> None:
            nonlocal attempts
            attempts += 1
            await connect()

        other.store.connect = counted  # type: ignore[method-assign]
        await operator.execute("ALTER TABLE connectgroup.groups SET UNLOGGED")
        await owner.elected.close()
        await until(lambda: attempts > 2)
        await operator.execute("ALTER TABLE connectgroup.groups SET LOGGED")
        await other.serves()
    errors = [each.message for each in caplog.records if each.message.startswith("cannot serve")]
    assert len(errors) == 1
    assert "is unlogged: a crash of the server empties it; allowed: ALTER TABLE" in errors[0]


async def test_client_with_one_address_follows_when_that_coordinator_is_gone(
    database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has learnt the addresses of those that stand by, also of one that was never the owner before."""
    caplog.set_level(logging.INFO, "connectgroup.transport.following")
    monkeypatch.setattr(following, "LEARN_S", 0.05)
    monkeypatch.setattr(following, "LEARN_AGAIN_S", 0.05)
    request = DescribeRequest(group_ids=(GROUP,))
    async with listening(database) as owner:
        await owner.serves()
        client = following.FollowingClient([parse_address("owner", owner.log.address)], access=Access())
        async with listening(database) as other, asyncio.timeout(60):
            while f"follows the coordinators of the same log, too: {other.log.address}" not in caplog.messages:
                assert isinstance(await client.call(request, timeout_s=60), DescribeResponse)
                await asyncio.sleep(0.01)
            await owner.close()
            await other.serves()
            assert isinstance(await client.call(request, timeout_s=60), DescribeResponse)
            assert client.address == other.log.address
            await client.close()


async def test_client_asks_another_coordinator_than_one_that_cannot_read_the_log(database: str) -> None:
    """Each coordinator describes those that share the log; one that is cut off from the database cannot."""
    async with listening(database) as owner:
        await owner.serves()
        async with listening(database) as other:
            await until(lambda: other.log.owner == owner.log.address)
            other.store.is_away = True
            client = following.FollowingClient(
                [parse_address("other", other.log.address), parse_address("owner", owner.log.address)], access=Access()
            )
            found = await client.call(DescribeCoordinatorsRequest(), timeout_s=60)
            assert isinstance(found, DescribeCoordinatorsResponse)
            assert found.coordinators[0].address == owner.log.address
            assert client.address == owner.log.address
            await client.close()
            other.store.is_away = False


async def test_connections_do_not_outlive_the_term_of_their_coordinator(database: str) -> None:
    """A request that was sent to an earlier term must not arrive in a later one, which could take it for a new one."""
    async with process(database, lease_s=1.5) as owner:
        await owner.listen()
        ended, hang_up = asyncio.Event(), owner.elected.on_term_end

        def on_term_end() -> None:
            hang_up()
            ended.set()

        owner.elected.on_term_end = on_term_end
        await owner.serves()
        reader, writer = await asyncio.open_connection(*parse_address("owner", owner.log.address))
        owner.store.cut = True
        await asyncio.wait_for(ended.wait(), 60)  # not by a limit of connections that send nothing
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
