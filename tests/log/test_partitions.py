"""A log whose groups are spread over several partitions: which group is where, who owns what, and requests about groups
of several owners."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from connectgroup.coordinator import metrics, partitions
from connectgroup.coordinator.partitions import PartitionedCoordinator, surplus_of
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.server import CoordinatorServer
from connectgroup.errors import ConfigError, CoordinatorNotAvailable, GroupIdNotFound, LogError, NotCoordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log import leased
from connectgroup.log.base import Candidate, Ownership, owners_and_standbys
from connectgroup.log.leased import LeasedLog
from connectgroup.log.registry import log_from_url
from connectgroup.log.rows import RESTORED_EPOCHS
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest, ListGroupsRequest
from connectgroup.protocol.units import partition_of
from connectgroup.rest.server import RestServer
from connectgroup.telemetry.metrics import snapshot
from connectgroup.transport import following
from connectgroup.transport.access import Access
from connectgroup.transport.credentials import create_credentials, read_credentials
from connectgroup.wire.apis import UPDATE_CONNECTORS
from tests.transport.test_tcp_server import Peer

GROUPS = tuple(f"group-{number}" for number in range(12))


# ------------------------------------------------------------------------------------------- which partition


def test_partition_of_a_group_never_changes() -> None:
    """The records of a started log are where they were put."""
    known = {"workers": 0, "orders": 6, "connect-cluster": 7, "gruppe-\u00e4": 2, "": 0, "a\udc80": 3}
    assert {group: partition_of(group, 8) for group in known} == known
    assert {partition_of(group, 1) for group in known} == {0}


def test_groups_spread_evenly_over_partitions() -> None:
    counts = Counter(partition_of(f"group-{number}", 8) for number in range(8_000))
    assert len(counts) == 8
    assert min(counts.values()) > 900


# ------------------------------------------------------------------------------------------- who gives up what


def ownerships(owners: Sequence[str], live: Sequence[str], *, lag_ms: int = 500) -> list[Ownership]:
    """Who owns each partition; the others stand by."""
    return [
        Ownership(
            coordinators=(
                *([Candidate(address=owner, epoch=1, since_ms=1)] if owner else []),
                *(Candidate(address=each, epoch=-1, since_ms=1, lag_ms=lag_ms) for each in live if each != owner),
            )
        )
        for owner in owners
    ]


@pytest.mark.parametrize(
    ("owners", "live", "expected"),
    [
        ("aaaaaaaa", "ab", {"a": (7, "b")}),
        ("aaaaabbb", "ab", {"a": (4, "b")}),
        ("aaaabbbb", "ab", {}),
        ("aaaabbb", "ab", {}),
        ("aabb", "abc", {"a": (1, "c")}),  # of those that own as many, one hands over
        ("aaabbc", "abcd", {"a": (2, "d")}),
        ("a", "ab", {}),
        ("aaaa", "a", {}),
        ("aaaaaaa", "abc", {"a": (6, "b")}),
    ],
)
def test_no_coordinator_owns_two_partitions_more_than_another(
    owners: str, live: str, expected: dict[str, tuple[int, str]]
) -> None:
    found = ownerships(owners, live)
    assert {each: surplus for each in live if (surplus := surplus_of(each, found)) is not None} == expected


def test_partition_is_handed_over_only_while_all_are_owned_and_to_one_that_is_there() -> None:
    assert surplus_of("a", ownerships(["a", "a", "a", ""], "ab")) is None, "a fail-over is under way"
    assert surplus_of("a", ownerships("aaaa", "ab", lag_ms=9_000)) is None, "it may have ended"
    assert surplus_of("a", ownerships("aaaa", "abc"), {"b"}) == (3, "c"), "one that has not taken a partition"


def test_partition_is_handed_over_to_no_process_that_serves_nothing() -> None:
    """``groups recover`` has no address."""
    assert surplus_of("a", ownerships("aaaa", ["a", ""])) is None


def test_coordinator_that_stands_by_is_described_once_with_its_largest_lag() -> None:
    """Of a former process at its address, which is listed for some seconds, nothing is said."""

    def standby(address: str, lag_ms: int) -> Candidate:
        return Candidate(address=address, epoch=-1, since_ms=1, lag_ms=lag_ms)

    owner = Candidate(address="a", epoch=1, since_ms=1)
    found = [
        Ownership(coordinators=(owner, standby("c", 100), standby("c", 9_000), standby("b", 300), standby("", 5))),
        Ownership(coordinators=(standby("a", 200), standby("b", 700), standby("c", 400))),
    ]
    owners, standbys = owners_and_standbys(found)
    assert owners == [(0, owner)]
    assert [(each.address, each.lag_ms) for each in standbys] == [("b", 700), ("c", 400)]


@pytest.mark.parametrize("seed", range(20))
def test_balance_is_reached_with_the_fewest_moves(seed: int) -> None:
    """Nothing goes back and forth, and one coordinator hands over at a time."""
    chance = random.Random(seed)
    for _ in range(20):
        live = "abcdefgh"[: chance.randint(1, 8)]
        owners = [chance.choice(live) for _ in range(chance.randint(1, 32))]
        least, extra = divmod(len(owners), len(live))
        counts = sorted((owners.count(each) for each in live), reverse=True)
        needed = sum(max(0, count - least - (position < extra)) for position, count in enumerate(counts))
        moves = 0
        while wanted := [
            surplus for each in live if (surplus := surplus_of(each, ownerships(owners, live))) is not None
        ]:
            ((number, successor),) = wanted
            owners[number] = successor
            moves += 1
        assert moves == needed
        assert max(map(owners.count, live)) - min(map(owners.count, live)) <= 1


# ------------------------------------------------------------------------------------------- the number of partitions


def test_several_partitions_need_a_log_that_coordinators_share() -> None:
    for log in "memory:", "sqlite:///log":
        assert checked(CoordinatorConfig, {"log": log, "partitions": 1}).partitions == 1
        with pytest.raises(ConfigError, match="partitions: got '2'; allowed: 1 for a log that one process owns"):
            checked(CoordinatorConfig, {"log": log, "partitions": 2})


@pytest.mark.asyncio
async def test_log_keeps_the_number_of_partitions_of_its_first_start(database: str) -> None:
    async def number_of(wanted: int | None, url: str = database) -> int:
        log = log_from_url(url)
        assert isinstance(log, LeasedLog)
        if wanted is not None:
            log.expect_partitions(wanted)
        try:
            await log.connect()
            return log.partitions
        finally:
            await log.close()

    assert await number_of(3) == await number_of(None) == await number_of(3) == 3
    with pytest.raises(LogError, match=r"was started with 3 partitions, not 4: .*; allowed: --partitions 3, or none"):
        await number_of(4)
    with pytest.raises(LogError, match="was started with 3 partitions, not 1"):
        await number_of(1)
    other = f"{database}?schema=other"
    assert await number_of(None, other) == await number_of(1, other) == 1
    with pytest.raises(LogError, match="was started with 1 partition, not 8"):
        await number_of(8, other)
    server = CoordinatorServer(checked(CoordinatorConfig, {"log": database, "partitions": 2, "port": 0}))
    with pytest.raises(LogError, match=r"was started with 3 partitions, not 2: .*; allowed: --partitions 3, or none"):
        await server.start()
    await server.close()


@pytest.mark.asyncio
async def test_coordinator_in_a_program_refuses_a_log_of_several_partitions(database: str) -> None:
    """It would look for all groups in the first one."""
    log = log_from_url(database)
    assert isinstance(log, LeasedLog)
    log.expect_partitions(2)
    with pytest.raises(LogError, match="the log has 2 partitions; allowed: a log of one partition, or the command"):
        await Coordinator(log, GroupSettings()).start()


@pytest.mark.asyncio
async def test_coordinators_that_start_together_agree_on_the_number(database: str) -> None:
    logs = [log_from_url(database) for _ in range(4)]
    for count, log in enumerate(logs, 1):
        assert isinstance(log, LeasedLog)
        log.expect_partitions(1 + count % 2)
    found = await asyncio.gather(*(log.connect() for log in logs if isinstance(log, LeasedLog)), return_exceptions=True)
    refused = [each for each in found if each is not None]
    assert len(refused) == 2
    assert all(isinstance(each, LogError) and "the number cannot be changed" in str(each) for each in refused)
    for log in logs:
        await log.close()


# ------------------------------------------------------------------------------------------- several that serve


class Cluster:
    """Coordinators of one log in this process, with a port each."""

    def __init__(self, log: str, credentials: Path) -> None:
        self._log, self._credentials = log, credentials
        create_credentials(credentials)
        self.servers: list[CoordinatorServer] = []

    async def add(self, **settings: Any) -> CoordinatorServer:
        values = {"log": self._log, "port": 0, "credentials": self._credentials, **settings}
        server = CoordinatorServer(checked(CoordinatorConfig, values))
        await server.start()
        self.servers.append(server)
        return server

    async def remove(self, server: CoordinatorServer) -> None:
        self.servers.remove(server)
        await server.close()

    def admin(self, *servers: CoordinatorServer) -> Admin:
        access = Access(credentials=read_credentials("credentials", self._credentials))
        return Admin.connect([each.address for each in servers or self.servers], access=access, retry_for_s=60)

    async def owners(self) -> list[str]:
        """The addresses of the owners of all partitions; empty: of one that has none."""
        async with self.admin() as admin:
            found = await admin.describe_coordinators()
        owners = {each.partition: each.address for each in found.coordinators if each.epoch >= 0}
        return [owners.get(number, "") for number in range(found.partitions)]

    async def owned(self, *counts: int) -> None:
        """Wait until the coordinators own so many partitions, and all agree on who does."""

        async def are_owned() -> bool:
            found = Counter(await self.owners())
            served = [len(parts_of(each).served()) for each in self.servers]
            return [found[each.address] for each in self.servers] == served and sorted(served) == sorted(counts)

        await until(are_owned)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1_200):
        if await holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("not within a minute")


def parts_of(server: CoordinatorServer) -> PartitionedCoordinator:
    assert isinstance(server.coordinator, PartitionedCoordinator)
    return server.coordinator


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that no busy machine lets expire, and a balance that is looked at often."""
    monkeypatch.setitem(LeasedLog.__init__.__kwdefaults__, "lease_s", 60.0)  # type: ignore[arg-type]
    monkeypatch.setattr(partitions, "BALANCE_S", 0.05)
    monkeypatch.setattr(partitions, "SEEN_S", 30.0)


@asynccontextmanager
async def cluster_at(log: str, path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(log, path / "credentials")
    try:
        yield cluster
    finally:
        for server in reversed(cluster.servers):
            await server.close()


async def put(admin: Admin, group_id: str, connector: str = "c") -> None:
    await admin.put_connector(group_id, connector, {"connector.class": "idle", "tasks.max": "1"})


@pytest.mark.asyncio
async def test_groups_of_several_owners_are_served_by_whichever_address(
    database: str, tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "OWNERSHIP_INTERVAL_S", 0.05)
    async with cluster_at(database, tmp_path) as cluster:
        first = await cluster.add(partitions=4)
        await cluster.owned(4)
        async with cluster.admin() as admin:
            for group_id in GROUPS[:6]:
                await put(admin, group_id)
            second = await cluster.add()  # without the number
            await cluster.owned(2, 2)
            for group_id in GROUPS[6:]:
                await put(admin, group_id)
            for server in first, second:
                async with cluster.admin(server) as at:
                    assert tuple(each.group_id for each in await at.list_groups()) == tuple(sorted(GROUPS))
                    for group_id in GROUPS:
                        assert [each.connector for each in (await at.describe(group_id)).connectors] == ["c"]
                    with pytest.raises(GroupIdNotFound):
                        await at.describe("none")
            await admin.delete_group(GROUPS[0])
            assert len(await admin.list_groups()) == len(GROUPS) - 1

            config = RestConfig(port=0, group=GROUPS[1])
            rest = RestServer(admin, config)
            await rest.start()
            async with httpx.AsyncClient(base_url=rest.url) as http:
                assert len((await http.get("/groups")).json()) == len(GROUPS) - 1
                shown = (await http.get("/coordinators")).json()
            await rest.close()
            assert shown["partitions"] == 4
            assert [each["partition"] for each in shown["coordinators"]] == [0, 1, 2, 3]
            assert {each["address"] for each in shown["coordinators"]} == {first.address, second.address}
            assert shown["last_failover"]["cause"] == "handed over"

        # The requests of Kafka's clients, which follow FindCoordinator.
        owners = await cluster.owners()
        for server in first, second:
            found: Any = await ask(server, FindCoordinatorRequest(coordinator_keys=GROUPS))
            assert [f"{each.host}:{each.port}" for each in found.coordinators] == [
                owners[partition_of(group_id, 4)] for group_id in GROUPS
            ]
            described: Any = await ask(server, DescribeRequest(group_ids=GROUPS[1:]))
            assert [each.group_id for each in described.groups] == list(GROUPS[1:])
            assert [each.error_code == 16 for each in described.groups] == [
                owners[partition_of(group_id, 4)] != server.address for group_id in GROUPS[1:]
            ]
            listed: Any = await ask(server, ListGroupsRequest())
            assert [each.group_id for each in listed.groups] == sorted(
                each for each in GROUPS[1:] if owners[partition_of(each, 4)] == server.address
            )
            deleted: Any = await ask(server, DeleteRequest(group_ids=("none", *GROUPS[:1])))
            assert [each.group_id for each in deleted.results] == ["none", GROUPS[0]]

        command = ["coordinators", "list", "--coordinator", second.address]
        assert await asyncio.to_thread(main, [*command, "--credentials", str(tmp_path / "credentials")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["ADDRESS", "ROLE", "PARTITION", "EPOCH", "SINCE", "LAG"]
        assert [line.split()[:3] for line in lines[1:5]] == [
            [owner, "serves", str(number)] for number, owner in enumerate(owners)
        ]
        assert lines[5].startswith("last fail-over of partition ")
        by_address = [(first.address, 2.0), (second.address, 2.0)]

        async def are_exported() -> bool:
            found = {
                metric.exported: sorted((*sample.labels.values(), sample.value) for sample in samples)
                for metric, samples in snapshot().items()
            }
            return (
                found["connectgroup_shared_log_coordinator_partitions"] == sorted(by_address)
                and found["connectgroup_shared_log_unserved_partitions"] == [(0.0,)]
                and found["connectgroup_shared_log_served_partitions"] == [(2.0,)]
            )

        await until(are_exported)


def records_written() -> float:
    """Of all coordinators in this process."""
    (sample,) = next(
        samples
        for metric, samples in snapshot().items()
        if metric.exported == "connectgroup_coordinator_append_records_total"
    )
    return sample.value


async def ask(server: CoordinatorServer, request: Any) -> Any:
    return await parts_of(server).handle(request, client_host="test")


@pytest.mark.asyncio
async def test_clean_stop_and_a_new_coordinator_move_partitions_one_by_one(
    database: str, tmp_path: Path, quick: None
) -> None:
    async with cluster_at(database, tmp_path) as cluster:
        first = await cluster.add(partitions=8)
        second = await cluster.add()
        await cluster.owned(4, 4)
        third = await cluster.add()
        await cluster.owned(2, 3, 3)
        async with cluster.admin() as admin:
            for group_id in GROUPS:
                await put(admin, group_id)
            written = records_written()
            await cluster.remove(first)
            await cluster.owned(4, 4)
            assert records_written() >= written > 0, "a total never decreases"
            assert tuple(each.group_id for each in await admin.list_groups()) == tuple(sorted(GROUPS))
            for group_id in GROUPS:
                await put(admin, group_id, "d")
            await cluster.remove(third)
            await cluster.owned(8)
        async with cluster.admin(second) as admin:
            for group_id in GROUPS:
                assert [each.connector for each in (await admin.describe(group_id)).connectors] == ["c", "d"]


@pytest.mark.asyncio
async def test_client_of_one_address_learns_each_coordinator_once(
    database: str, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on when all but one of them have ended, however many partitions each has owned."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(following, "LEARN_S", 0.05)
    monkeypatch.setattr(following, "LEARN_AGAIN_S", 600.0)
    async with cluster_at(database, tmp_path) as cluster:
        first = await cluster.add(partitions=6)
        others = [await cluster.add() for _ in range(2)]
        await cluster.owned(2, 2, 2)
        async with cluster.admin(first) as admin:
            await put(admin, GROUPS[0])
            said = "follows the coordinators of the same log, too: "

            async def has_learnt() -> bool:
                await admin.describe(GROUPS[0])
                return any(message.startswith(said) for message in caplog.messages)

            await until(has_learnt)
            (message,) = (message for message in caplog.messages if message.startswith(said))
            assert sorted(message.removeprefix(said).split(", ")) == sorted(each.address for each in others)
            for server in first, others[0]:
                await cluster.remove(server)
            await serves(others[1], *range(6))
            assert [each.group_id for each in await admin.list_groups()] == [GROUPS[0]]


@pytest.mark.asyncio
async def test_connections_of_the_groups_of_other_partitions_outlive_a_hand_over(
    database: str, tmp_path: Path, quick: None
) -> None:
    """A worker's connection ends with the term of its group's coordinator, and with no other."""
    settings = {"authentication": False, "credentials": None}
    async with cluster_at(database, tmp_path) as cluster:
        server = await cluster.add(partitions=2, **settings)
        await serves(server, 0, 1)
        groups = [next(each for each in GROUPS if partition_of(each, 2) == number) for number in range(2)]
        host, port = parse_address("server", server.address)
        peers = {group_id: Peer(*await asyncio.open_connection(host, port)) for group_id in groups}
        for group_id, peer in peers.items():
            peer.send(UpdateConnectorsRequest(group_id=group_id, changes=()), correlation_id=1)
            await peer.receive(UPDATE_CONNECTORS)
        of_both = Peer(*await asyncio.open_connection(host, port))
        for number, group_id in enumerate(groups):
            of_both.send(UpdateConnectorsRequest(group_id=group_id, changes=()), correlation_id=number)
            await of_both.receive(UPDATE_CONNECTORS)
        second = await cluster.add(**settings)

        async def second_serves_one() -> bool:
            return len(parts_of(second).served()) == 1

        # The one of which the new coordinator is known to stand by: usually the last one.
        await until(second_serves_one)
        (moved,) = parts_of(second).served()
        moving, staying = groups[moved], groups[1 - moved]
        assert await peers[moving].reader.read() == b""
        peers[staying].send(UpdateConnectorsRequest(group_id=staying, changes=()), correlation_id=2)
        assert (await peers[staying].receive(UPDATE_CONNECTORS))[0] == 2
        for number, group_id in enumerate((moving, staying), 3):
            of_both.send(UpdateConnectorsRequest(group_id=group_id, changes=()), correlation_id=number)
            assert (await of_both.receive(UPDATE_CONNECTORS))[0] == number
        for peer in (*peers.values(), of_both):
            peer.close()


async def serves(server: CoordinatorServer, *numbers: int) -> None:
    """Wait until a coordinator serves these partitions."""

    async def does_serve() -> bool:
        return parts_of(server).served() == {*numbers}

    await until(does_serve)


async def put_groups_and_stop(cluster: Cluster) -> None:
    """Put ``GROUPS`` in a log of three partitions; its coordinator has stopped."""
    server = await cluster.add(partitions=3)
    await cluster.owned(3)
    async with cluster.admin() as admin:
        for group_id in GROUPS:
            await put(admin, group_id)
    await cluster.remove(server)


@pytest.mark.asyncio
async def test_groups_of_all_partitions_are_recovered(
    database: str, tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster_at(database, tmp_path) as cluster:
        await put_groups_and_stop(cluster)
        assert await asyncio.to_thread(main, ["groups", "recover", database]) == 0
        assert capsys.readouterr().out.splitlines() == [f"group {each}: recovered" for each in sorted(GROUPS)]
        await cluster.add()
        await cluster.owned(3)
        async with cluster.admin() as admin:
            assert len(await admin.list_groups()) == len(GROUPS)


@pytest.mark.parametrize("server", ["postgresql://test@127.0.0.1:1/groups", "kafka://127.0.0.1:1/groups"])
def test_groups_of_a_server_that_is_away_may_be_recovered_later(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["groups", "recover", server]) == 5
    assert f"{server.replace('test@', '')}: " in capsys.readouterr().err


@pytest.mark.asyncio
async def test_groups_of_all_partitions_of_a_restored_log_are_recovered_at_the_next_start(
    database: str, tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    import psycopg

    async with cluster_at(database, tmp_path) as cluster:
        await put_groups_and_stop(cluster)
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            for table in "owner", "owner_1", "owner_2":
                await other.execute(f"UPDATE connectgroup.{table} SET server = 'another one'")
        await cluster.add()
        await cluster.owned(3)
        said = [message for message in caplog.messages if message.startswith("the log may lack acknowledged records")]
        assert len(said) == 3
        async with cluster.admin() as admin:
            found = await admin.describe_coordinators()
            assert all(each.epoch > RESTORED_EPOCHS for each in found.coordinators)
            assert len(await admin.list_groups()) == len(GROUPS)


@pytest.mark.asyncio
async def test_groups_of_a_partition_that_is_owned_are_not_recovered(
    database: str,
    tmp_path: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(leased, "LEASE_S", 0.2)
    async with cluster_at(database, tmp_path) as cluster:
        server = await cluster.add(partitions=2)
        await cluster.owned(2)
        async with cluster.admin() as admin:
            for group_id in GROUPS:
                await put(admin, group_id)
            await parts_of(server).parts[0].close()
            assert await asyncio.to_thread(main, ["groups", "recover", database]) == 2
            shown = capsys.readouterr()
            assert f"is owned by the coordinator at {server.address}" in shown.err
            recovered = sorted(each for each in GROUPS if partition_of(each, 2) == 0)
            assert shown.out.splitlines() == [f"group {each}: recovered" for each in recovered]
            parts_of(server).parts[0].take_part()
            assert len(await admin.list_groups()) == len(GROUPS)


@pytest.mark.asyncio
async def test_groups_of_a_partition_without_an_owner_are_refused_by_name_and_the_others_served(
    database: str, tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing hangs, and nothing is left out; what waits goes on once the partition has an owner."""
    async with cluster_at(database, tmp_path) as cluster:
        server = await cluster.add(partitions=2)
        await cluster.owned(2)
        served, unserved = (next(each for each in GROUPS if partition_of(each, 2) == number) for number in range(2))
        async with cluster.admin() as admin:
            for group_id in GROUPS:
                await put(admin, group_id)
            await parts_of(server).parts[1].close()
            access = Access(credentials=read_credentials("credentials", tmp_path / "credentials"))
            async with Admin.connect(server.address, access=access, timeout_s=0.5, retry_for_s=0) as impatient:
                with pytest.raises(CoordinatorNotAvailable, match="no coordinator lists the groups of partition 1 of"):
                    await impatient.list_groups()
                for refused in impatient.describe(unserved), put(impatient, unserved), impatient.delete_group(unserved):
                    with pytest.raises(NotCoordinator, match="does not serve partition 1 of the log; no coordinator "):
                        await refused
                await put(impatient, served, "d")
                assert [each.connector for each in (await impatient.describe(served)).connectors] == ["c", "d"]

                config = RestConfig(port=0, group=unserved)
                rest = RestServer(impatient, config)
                await rest.start()
                async with httpx.AsyncClient(base_url=rest.url) as http:
                    for path in "/groups", f"/groups/{unserved}", "/connectors":
                        response = await http.get(path)
                        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
                        assert "partition 1 of the log" in response.json()["message"]
                    assert (await http.get(f"/groups/{served}")).status_code == 200
                    assert (await http.get("/coordinators")).json()["unserved_partitions"] == [1]
                await rest.close()
            found = await ask(server, FindCoordinatorRequest(coordinator_keys=(served, unserved)))
            assert [each.error_code for each in found.coordinators] == [0, CoordinatorNotAvailable.code]
            command = ["coordinators", "list", "--coordinator", server.address]
            assert await asyncio.to_thread(main, [*command, "--credentials", str(tmp_path / "credentials")]) == 0
            assert capsys.readouterr().out.splitlines()[2:] == [
                "no coordinator serves partition 1 of the log at present"
            ]

            waiting = asyncio.gather(admin.list_groups(), admin.describe(unserved), put(admin, unserved, "d"))
            parts_of(server).parts[1].take_part()
            assert len((await waiting)[0]) == len(GROUPS)
            assert [each.connector for each in (await admin.describe(unserved)).connectors] == ["c", "d"]


@pytest.mark.asyncio
async def test_rest_of_any_coordinator_changes_groups_of_all_partitions(
    database: str, tmp_path: Path, quick: None
) -> None:
    async with cluster_at(database, tmp_path) as cluster:
        for _ in range(2):
            await cluster.add(partitions=4)
        await cluster.owned(2, 2)
        groups = [next(each for each in GROUPS if partition_of(each, 4) == number) for number in range(4)]
        for server in cluster.servers:
            async with cluster.admin(server) as admin:
                for group_id in groups:
                    rest = RestServer(admin, RestConfig(port=0, group=group_id, new_group=True))
                    await rest.start()
                    async with httpx.AsyncClient(base_url=rest.url) as http:
                        settings = {"connector.class": "idle", "tasks.max": "1"}
                        for path, body in (
                            ("/connectors/c/config", settings),
                            ("/connectors/c/pause", None),
                            ("/connectors/c/resume", None),
                        ):
                            response = await http.put(path, json=body)
                            assert response.status_code in (200, 201, 202), response.text
                        assert (await http.get("/connectors")).json() == ["c"]
                        assert (await http.delete("/connectors/c")).status_code == 204
                    await rest.close()


@pytest.mark.asyncio
async def test_rolling_upgrade_restarts_coordinators_one_by_one_under_writes(
    database: str, tmp_path: Path, quick: None
) -> None:
    """Each write is done once and none fails, whichever partitions move meanwhile."""
    async with cluster_at(database, tmp_path) as cluster:
        await asyncio.gather(*(cluster.add(partitions=4) for _ in range(3)))  # several balance at once
        await cluster.owned(1, 1, 2)
        async with cluster.admin() as admin:
            is_over = asyncio.Event()

            async def write() -> int:
                count = 0
                while not is_over.is_set():
                    for group_id in GROUPS[:4]:
                        await put(admin, group_id, f"c{count}")
                    count += 1
                return count

            writing = asyncio.create_task(write())
            for server in list(cluster.servers):
                await cluster.remove(server)
                await cluster.owned(2, 2)
                await cluster.add()
                await cluster.owned(1, 1, 2)
            is_over.set()
            written = {f"c{number}" for number in range(await writing)}
        async with cluster.admin() as admin:
            for group_id in GROUPS[:4]:
                assert {each.connector for each in (await admin.describe(group_id)).connectors} == written


@pytest.mark.asyncio
async def test_hand_over_without_a_term_or_twice_leaves_one_owner(database: str, tmp_path: Path, quick: None) -> None:
    async with cluster_at(database, tmp_path) as cluster:
        first = await cluster.add(partitions=2)
        await cluster.owned(2)
        second = await cluster.add()
        await cluster.owned(1, 1)
        owned = next(iter(parts_of(second).served()))
        await parts_of(first).parts[owned].hand_over(first.address)  # it does not own this one
        assert await cluster.owners() == [(second if number == owned else first).address for number in range(2)]
        other = parts_of(first).parts[1 - owned]
        await asyncio.gather(other.hand_over(second.address), other.hand_over("host:1"))
        await cluster.owned(1, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("dies", [False, True])
async def test_partition_that_its_successor_does_not_take_goes_to_another(
    database: str,
    tmp_path: Path,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dies: bool,
) -> None:
    async with cluster_at(database, tmp_path) as cluster:
        await cluster.add(partitions=2)
        await cluster.owned(2)
        unable = await cluster.add()
        for part in parts_of(unable).parts:
            monkeypatch.setattr(part.log, "open", hangs if dies else refuses)
        said = f"the coordinator at {unable.address} has not taken partition "

        async def is_refused() -> bool:
            return any(message.startswith(said) for message in caplog.messages)

        await until(is_refused)
        await cluster.owned(2, 0)
        await cluster.add()
        await cluster.owned(1, 0, 1)


async def refuses() -> None:
    raise LogError("it cannot open the log")


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.asyncio
async def test_third_coordinator_takes_a_partition_that_was_handed_to_one_that_has_ended(
    database: str, tmp_path: Path, quick: None
) -> None:
    """After ``YIELD_S``, and not only the one that has handed it over."""
    async with cluster_at(database, tmp_path) as cluster:
        first = await cluster.add(partitions=2)
        await cluster.owned(2)
        second = await cluster.add()
        await cluster.owned(1, 1)
        third = await cluster.add()
        number = next(iter(parts_of(first).served()))
        part = parts_of(first).parts[number]

        async def stands_by() -> bool:
            return third.address in [each.address for each in (await part.ownership()).coordinators]

        await until(stands_by)
        part.log.successor = "ended:1"
        await part.close()  # this one does not come back
        await cluster.owned(0, 1, 1)
        assert number in parts_of(third).served() | parts_of(second).served()
