"""The proxy for production: several brokers, TLS and SASL on both sides, rules of access, proxies that share a log."""

from __future__ import annotations

import asyncio
import signal
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.access import AccessConfig
from connectgroup.config.base import checked
from connectgroup.config.coordinator import ProxyConfig
from connectgroup.errors import (
    ConfigError,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    NotCoordinator,
    TransportError,
)
from connectgroup.log.base import SharedLog
from connectgroup.log.registry import log_from_url
from connectgroup.protocol.messages.cluster import (
    ApiVersionsRequest,
    FindCoordinatorRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse, ListGroupsRequest
from connectgroup.protocol.messages.offsets import PartitionCommit, TopicCommit, TxnOffsetCommitRequest
from connectgroup.proxy.server import ProxyServer
from connectgroup.topics import StaticTopics
from connectgroup.transport.access import Access, server_tls
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.wire.forwarded import METADATA, brokers_in
from tests.certificates import create_certificates
from tests.consumer.inside import eventually
from tests.spark.postgres_server import database, postgres
from tests.volume import ci_only

from .test_relay import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    JOIN_GROUP,
    TXN_OFFSET_COMMIT,
    Peer,
    SmallBroker,
    client,
    fetch,
    join,
)

if TYPE_CHECKING:
    from tests.consumer.broker import Broker

__all__ = ["database", "postgres"]  # fixtures

ASK_METADATA = struct.pack(">hhihi", METADATA, 1, 5, -1, 0)


@asynccontextmanager
async def cluster(*node_ids: int) -> AsyncIterator[dict[int, SmallBroker]]:
    """Brokers that list each other."""
    brokers: dict[int, SmallBroker] = {}
    for each in node_ids:
        brokers[each] = SmallBroker(brokers)
        await brokers[each].start()
    try:
        yield brokers
    finally:
        for broker in brokers.values():
            await broker.stop()


@asynccontextmanager
async def proxying(*brokers: SmallBroker, **settings: Any) -> AsyncIterator[ProxyServer]:
    bootstrap = ",".join(f"127.0.0.1:{each.port}" for each in brokers)
    config = checked(ProxyConfig, {"broker": bootstrap, "port": 0, "initial_rebalance_delay_ms": 0, **settings})
    proxy = ProxyServer(config, topics=StaticTopics({}))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


@asynccontextmanager
async def at(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


async def ports_of(proxy: ProxyServer) -> dict[int, int]:
    """The port of each broker, as clients learn it."""
    async with client(proxy) as peer:
        peer.send(ASK_METADATA)
        brokers = brokers_in(await peer.read(), METADATA, 1)
    assert {host for host, _ in brokers.values()} == {"127.0.0.1"}
    return {node: port for node, (_, port) in brokers.items()}


def commit(group_id: str = "g") -> TxnOffsetCommitRequest:
    partition = PartitionCommit(partition_index=0, committed_offset=1, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id="t",
        group_id=group_id,
        producer_id=1,
        producer_epoch=1,
        topics=(TopicCommit(name="t", partitions=(partition,)),),
    )


# --------------------------------------------------------------------------------------------------
# Several brokers.


async def test_each_broker_has_a_port_that_forwards_to_it() -> None:
    async with cluster(4, 9, 7) as brokers, proxying(brokers[4]) as proxy:
        ports = await ports_of(proxy)
        assert ports.keys() == brokers.keys()
        assert len(set(ports.values())) == 3
        for node, port in ports.items():
            async with at(port) as peer:
                peer.send(fetch(node))
                assert await peer.read() == struct.pack(">i", node) + fetch(node)
        for node, broker in brokers.items():
            assert broker.received == [fetch(node)]


async def test_all_ports_serve_the_groups_and_name_the_coordinator_at_a_listed_node() -> None:
    async with cluster(4, 9) as brokers, proxying(brokers[9]) as proxy:
        ports = await ports_of(proxy)
        for port in (*ports.values(), int(proxy.address.rpartition(":")[2])):
            async with at(port) as peer:
                request = FindCoordinatorRequest(coordinator_keys=("g",))
                (found,) = (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators
                assert ports[found.node_id] == found.port
                assert (await peer.ask(ListGroupsRequest(), 16, 4)).error_code == 0


async def test_coordinator_of_transactions_is_at_the_port_of_its_broker() -> None:
    async with cluster(4, 9) as brokers, proxying(brokers[4]) as proxy, client(proxy) as peer:
        ports = await ports_of(proxy)
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=("t",))
        (found,) = (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators
        assert (found.node_id, found.port) == (9, ports[9])


async def test_offsets_of_a_transaction_go_to_the_broker_that_has_those_of_the_group() -> None:
    """Clients send them to the coordinator of the group, which is the proxy at any of its ports."""
    async with cluster(4, 9) as brokers, proxying(brokers[4]) as proxy:
        ports = await ports_of(proxy)
        async with at(ports[4]) as peer:
            # The small broker echoes, which is no response: the connection is closed.
            await asyncio.gather(peer.ask(commit(), TXN_OFFSET_COMMIT, 3), return_exceptions=True)
        keys = [struct.unpack_from(">h", data)[0] for data in brokers[9].received]
        assert keys == [TXN_OFFSET_COMMIT]
        assert TXN_OFFSET_COMMIT not in [struct.unpack_from(">h", data)[0] for data in brokers[4].received]


async def test_broker_that_joins_the_cluster_gets_a_port() -> None:
    async with cluster(4) as brokers, proxying(brokers[4]) as proxy:
        assert await ports_of(proxy) == {4: int(proxy.address.rpartition(":")[2])}, "one broker is at the proxy's port"
        brokers[2] = SmallBroker(brokers)
        await brokers[2].start()
        ports = await ports_of(proxy)
        assert ports.keys() == {2, 4}
        async with at(ports[2]) as peer:
            peer.send(fetch(1))
            await peer.read()
        assert brokers[2].received == [fetch(1)]


async def test_broker_whose_port_another_process_takes_is_at_the_port_of_the_proxy(
    port_taken_late: Callable[[], AbstractContextManager[None]], caplog: pytest.LogCaptureFixture
) -> None:
    """Clients lost their connection, and then were sent to a port on which the other process listened."""
    async with cluster(4) as brokers, proxying(brokers[4]) as proxy:
        brokers[2] = SmallBroker(brokers)
        await brokers[2].start()
        with port_taken_late():
            ports = await ports_of(proxy)
        own = int(proxy.address.rpartition(":")[2])
        assert ports == await ports_of(proxy) == {2: own, 4: own}
        assert "no port for broker 2" in caplog.text


async def test_port_of_a_broker_that_could_not_be_opened_is_tried_again(
    port_taken_late: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without it, the clients of the broker reach another one, which is not the leader of its partitions."""
    monkeypatch.setattr("connectgroup.proxy.server.PORT_RETRY_S", 0)
    async with cluster(4) as brokers, proxying(brokers[4]) as proxy:
        brokers[2] = SmallBroker(brokers)
        await brokers[2].start()
        own = int(proxy.address.rpartition(":")[2])
        with port_taken_late():
            for _ in range(3):
                assert await ports_of(proxy) == {2: own, 4: own}
        assert caplog.text.count("no port for broker 2") == 1, "said once"
        ports = await ports_of(proxy)
        assert len({*ports.values(), own}) == 3
        async with at(ports[2]) as peer:
            peer.send(fetch(1))
            await peer.read()
        assert brokers[2].received == [fetch(1)]


async def test_advertised_ports_are_the_next_ones() -> None:
    settings = {"advertised_host": "proxy.example", "advertised_port": 7000}
    async with cluster(4, 6) as brokers, proxying(brokers[4], **settings) as proxy, client(proxy) as peer:
        peer.send(ASK_METADATA)
        found = brokers_in(await peer.read(), METADATA, 1)
        assert found == {4: ("proxy.example", 7001), 6: ("proxy.example", 7003)}


async def test_first_broker_that_can_be_reached_lists_the_others() -> None:
    gone = SmallBroker()
    await gone.start()
    await gone.stop()
    async with cluster(4, 9) as brokers, proxying(gone, brokers[9]) as proxy:
        assert (await ports_of(proxy)).keys() == {4, 9}


async def test_other_brokers_are_reached_while_one_is_away() -> None:
    async with cluster(4, 9) as brokers, proxying(brokers[4], brokers[9]) as proxy:
        ports = await ports_of(proxy)
        await brokers[4].stop()
        async with at(ports[4]) as peer:
            peer.send(fetch(1))
            assert await peer.is_closed()
        async with at(ports[9]) as peer:
            peer.send(fetch(2))
            await peer.read()
        assert (await ports_of(proxy)).keys() == {4, 9}, "another broker answers"
        await brokers[4].start()
        async with at(ports[4]) as peer:
            peer.send(fetch(3))
            await peer.read()


@ci_only("40 s, two brokers; the tests above have each request, test_transactions transactions with one broker")
def test_partitions_groups_and_transactions_of_a_cluster_of_two_brokers() -> None:
    """Partitions, offsets and transactions have their leaders on either of them."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from tests.consumer.broker import Unavailable, running_broker
    from tests.integration.processes import wait

    from .running import running_proxy

    with ExitStack() as stack:
        try:
            first = stack.enter_context(running_broker())
        except Unavailable as missing:
            pytest.skip(str(missing))
        stack.enter_context(running_broker(node_id=2, first=first))
        proxy = stack.enter_context(running_proxy(first))
        direct = AdminClient({"bootstrap.servers": first.bootstrap})
        wait("two brokers", lambda: len(direct.list_topics(timeout=30).brokers) == 2)
        admin = AdminClient({"bootstrap.servers": proxy.bootstrap})
        for name in ("in", "out"):
            admin.create_topics([NewTopic(name, 6, 1)])[name].result(60)

        def leaders() -> set[int]:
            return {each.leader for each in admin.list_topics("in", timeout=30).topics["in"].partitions.values()}

        def committed(consumer: Consumer) -> bool:
            places = [TopicPartition("in", number) for number in range(6)]
            return [each.offset for each in consumer.committed(places, 60)] == [10] * 6

        wait("leaders of partitions on each broker", lambda: leaders() == {1, 2})
        ports = {each.port for each in admin.list_topics(timeout=30).brokers.values()}
        assert not ports & {int(first.bootstrap.rpartition(":")[2])}
        assert len(ports) == 2
        producer = Producer({"bootstrap.servers": proxy.bootstrap})
        for number in range(60):
            producer.produce("in", str(number).encode(), partition=number % 6)
        assert producer.flush(60) == 0
        for group in (f"group-{number}" for number in range(4)):  # their coordinators are on either broker
            consumer = Consumer(
                {
                    "bootstrap.servers": proxy.bootstrap,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            consumer.subscribe(["in"])
            try:
                found: list[bytes | None] = []
                while len(found) < 60:
                    message = consumer.poll(60)
                    assert message is not None, len(found)
                    assert message.error() is None, message.error()
                    found.append(message.value())
                assert len({*found}) == 60
                transactional = Producer({"bootstrap.servers": proxy.bootstrap, "transactional.id": group})
                transactional.init_transactions(60)
                transactional.begin_transaction()
                for number in range(6):
                    transactional.produce("out", group.encode(), partition=number)
                transactional.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
                )
                transactional.commit_transaction(60)
                wait(f"offsets of {group}", partial(committed, consumer))
            finally:
                consumer.close()
        reader = Consumer({"bootstrap.servers": proxy.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
        reader.subscribe(["out"])
        try:
            values: list[bytes | None] = []
            while len(values) < 24:
                message = reader.poll(60)
                assert message is not None, values
                assert message.error() is None, message.error()
                values.append(message.value())
        finally:
            reader.close()
        assert {*values} == {f"group-{number}".encode() for number in range(4)}


async def test_last_broker_that_is_listed_keeps_its_port_while_the_configured_one_is_away() -> None:
    async with cluster(4, 9) as brokers, proxying(brokers[4]) as proxy:
        before = await ports_of(proxy)
        away = brokers.pop(4)
        await away.stop()
        try:
            assert await ports_of(proxy) == {9: before[9]}
            async with at(before[9]) as peer:
                peer.send(fetch(1))
                await peer.read()
            async with client(proxy) as peer:
                (found,) = (
                    await peer.ask(FindCoordinatorRequest(coordinator_keys=("g",)), FIND_COORDINATOR, 4)
                ).coordinators
                assert (found.node_id, found.port) == (9, before[9])
        finally:
            brokers[4] = away
            await away.start()
        assert await ports_of(proxy) == before


# --------------------------------------------------------------------------------------------------
# Clients of the proxy: TLS, SASL, rules of access.


def credentials(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text("alice=word-alice\nbob=word-bob\n")
    file.chmod(0o600)
    return file


async def log_in(peer: Peer, user: str) -> int:
    chosen = await peer.ask(SaslHandshakeRequest(mechanism="PLAIN"), 17, 1)
    assert chosen.error_code == 0
    done = await peer.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0word-{user}".encode()), 36, 2)
    code: int = done.error_code
    return code


async def test_nothing_is_forwarded_before_a_client_has_authenticated(tmp_path: Path) -> None:
    async with cluster(4, 9) as brokers, proxying(brokers[4], credentials=credentials(tmp_path)) as proxy:
        async with client(proxy) as peer:
            listed = {each.api_key for each in (await peer.ask(ApiVersionsRequest(), API_VERSIONS, 3)).api_keys}
            assert {17, 36} <= listed
            peer.send(fetch(1))
            assert await peer.is_closed()
        async with client(proxy) as peer:
            assert await log_in(peer, "nobody")
            assert await peer.is_closed()
        async with client(proxy) as peer:
            assert await log_in(peer, "alice") == 0
            peer.send(ASK_METADATA)
            ports = {node: port for node, (_, port) in brokers_in(await peer.read(), METADATA, 1).items()}
        async with at(ports[9]) as peer:
            peer.send(fetch(1))
            assert await peer.is_closed()
        async with at(ports[9]) as peer:
            assert await log_in(peer, "bob") == 0
            peer.send(fetch(2))
            await peer.read()
        assert brokers[4].received == []
        assert brokers[9].received == [fetch(2)]


async def test_clients_of_groups_authenticate_to_the_proxy_over_tls(tmp_path: Path) -> None:
    create_certificates(tmp_path, "server")
    tls = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
    async with cluster(4, 9) as brokers, proxying(brokers[4], credentials=credentials(tmp_path), **tls) as proxy:
        access = checked(AccessConfig, {"tls_ca": tmp_path / "server.pem"}).access()
        access = Access(credentials=Credentials("alice", "word-alice"), tls=access.tls)
        port = int(proxy.address.rpartition(":")[2])
        described = TcpClient("localhost", port, access=access)
        try:
            assert isinstance(await described.call(DescribeRequest(), timeout_s=20), DescribeResponse)
        finally:
            await described.close()
        async with client(proxy) as peer:
            peer.send(fetch(1))
            assert await peer.is_closed()
        assert brokers[4].received == []


async def test_rules_of_access_apply_to_groups_behind_the_proxy(tmp_path: Path) -> None:
    """Also to the offsets of a transaction, which the brokers do not get then."""
    rules = tmp_path / "rules"
    rules.write_text("allow alice read group g\n")
    settings = {"credentials": credentials(tmp_path), "access_rules": rules, "audit_log": tmp_path / "audit"}
    async with cluster(4) as brokers, proxying(brokers[4], **settings) as proxy:
        for user, allowed in (("alice", True), ("bob", False)):
            async with client(proxy) as peer:
                assert await log_in(peer, user) == 0
                codes = [(await peer.ask(join(), JOIN_GROUP, 3)).error_code]
                request = FindCoordinatorRequest(coordinator_keys=("g",))
                codes += [each.error_code for each in (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators]
                if not allowed:
                    response = await peer.ask(commit(), TXN_OFFSET_COMMIT, 3)
                    codes.append(response.topics[0].partitions[0].error_code)
                assert {code == GroupAuthorizationFailed.code for code in codes} == {not allowed}, (user, codes)
                peer.send(fetch(1))
                await peer.read()
        assert [struct.unpack_from(">h", data)[0] for data in brokers[4].received] == [FETCH, FETCH]
        await eventually(lambda: '"principal": "bob"' in (tmp_path / "audit").read_text())


# --------------------------------------------------------------------------------------------------
# Brokers that require TLS and SASL.


def broker_config(tmp_path: Path, **settings: str) -> Path:
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    file.chmod(0o600)
    return file


async def test_brokers_are_reached_over_tls(tmp_path: Path) -> None:
    create_certificates(tmp_path, "server", "other")
    async with AsyncExitStack() as stack:
        brokers: dict[int, SmallBroker] = {}
        for node in (4, 9):
            brokers[node] = SmallBroker(brokers)
            brokers[node].tls = server_tls("tls_cert", tmp_path / "server.pem", tmp_path / "server.key")
            await brokers[node].start()
            stack.push_async_callback(brokers[node].stop)
        tls = {"security_protocol": "ssl", "ssl_ca_location": str(tmp_path / "server.pem")}
        async with proxying(brokers[4], broker_config=broker_config(tmp_path, **tls)) as proxy:
            ports = await ports_of(proxy)
            for node, port in ports.items():
                async with at(port) as peer:
                    peer.send(fetch(node))
                    await peer.read()
                assert brokers[node].received == [fetch(node)]
        tls["ssl_ca_location"] = str(tmp_path / "other.pem")
        with pytest.raises(TransportError, match=r"broker 127\.0\.0\.1:\d+: cannot connect: self-signed certificate"):
            async with proxying(brokers[4], broker_config=broker_config(tmp_path, **tls)):
                pass
        with pytest.raises(TransportError, match=r"broker 127\.0\.0\.1:\d+: no valid response .*PLAINTEXT listener"):
            async with proxying(brokers[4]):
                pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"security_protocol": "sasl_ssl"}, r"broker_config: .*sasl\.mechanism: got .*; allowed: one of SCRAM"),
        ({"security_protocol": "tls"}, r"broker_config: .*: security\.protocol: got 'tls'; allowed: one of plaintext"),
        (
            {"security_protocol": "ssl", "ssl_ca_location": "/nowhere"},
            r"broker_config: .*: ssl\.ca\.location: got '/nowhere",
        ),
    ],
)
def test_unusable_settings_of_brokers_are_named(settings: dict[str, str], message: str, tmp_path: Path) -> None:
    config = ProxyConfig(broker="b:9092", broker_config=broker_config(tmp_path, **settings))
    with pytest.raises(ConfigError, match=message) as caught:
        ProxyServer(config)
    assert "fetch" not in str(caught.value)


def test_password_for_brokers_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = broker_config(tmp_path, sasl_password="hunter2-word")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="only its owner may read") as caught:
        ProxyServer(ProxyConfig(broker="b:9092", broker_config=file))
    assert "hunter2" not in str(caught.value)


@contextmanager
def secured(broker: Broker, tmp_path: Path, mechanism: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The settings of a Kafka client at a proxy with TLS and SASL whose broker has them, too; and the proxy's log."""
    from tests.consumer.broker import PASSWORD
    from tests.integration.processes import Program

    create_certificates(tmp_path, "server")
    to_broker = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": str(broker.certificates / "server.pem"),
        "sasl_mechanism": mechanism,
        "sasl_username": "alice",
        "sasl_password": PASSWORD,
    }
    rules = tmp_path / "rules"
    rules.write_text("allow bob read group mine-*\n")
    tls = ("--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"))
    command = (
        *("proxy", "--broker", broker.sasl, "--broker-config", str(broker_config(tmp_path, **to_broker))),
        *("--port", "0", "--log", "memory:", "--initial-rebalance-delay-ms", "0", *tls),
        *("--credentials", str(credentials(tmp_path)), "--access-rules", str(rules)),
    )
    with Program(*command) as program:
        settings = {
            "bootstrap.servers": program.line_with("proxy at ").split()[2],
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(tmp_path / "server.pem"),
            "ssl.endpoint.identification.algorithm": "none",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "bob",
            "sasl.password": "word-bob",
        }
        yield settings, program.lines


@ci_only("8 s of waiting; tests/consumer/test_security has the same for GroupConsumer")
def test_connections_to_brokers_are_renewed_before_their_sessions_end(broker: Broker, tmp_path: Path) -> None:
    """The broker closes a connection that sends a request after 3 s (KIP-368); neither client nor proxy notices."""
    from confluent_kafka import KafkaError, Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("renewed-proxy", 1)])["renewed-proxy"].result(60)
    errors: list[KafkaError] = []
    with secured(broker, tmp_path, "PLAIN") as (settings, log):
        producer = Producer({**settings, "error_cb": errors.append, "acks": "all"})
        ends_s = time.monotonic() + 8
        while time.monotonic() < ends_s:
            producer.produce("renewed-proxy", b"x")
            assert producer.flush(60) == 0
            time.sleep(0.2)
        assert not errors
        assert not [line for line in log if "ERROR" in line or "WARNING" in line]


def test_kafka_client_with_tls_and_sasl_at_a_proxy_whose_broker_requires_them(broker: Broker, tmp_path: Path) -> None:
    """librdkafka, SCRAM on both sides with other users: it produces, and reads in the group that the rules allow."""
    with secured(broker, tmp_path, "SCRAM-SHA-512") as (settings, _):
        _produce_and_read(settings, broker)


def _produce_and_read(secured: dict[str, Any], broker: Broker) -> None:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("secured", 1)])["secured"].result(60)
    producer = Producer(secured)
    for number in range(5):
        producer.produce("secured", str(number).encode())
    assert producer.flush(60) == 0
    of_groups = {**secured, "auto.offset.reset": "earliest"}
    consumer = Consumer({**of_groups, "group.id": "mine-1"})
    consumer.subscribe(["secured"])
    try:
        found: list[bytes | None] = []
        while len(found) < 5:
            message = consumer.poll(60)
            assert message is not None, found
            if message.error() is None:
                found.append(message.value())
        assert found == [str(number).encode() for number in range(5)]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    other = Consumer({**of_groups, "group.id": "theirs"})
    other.subscribe(["secured"])
    try:
        message = other.poll(60)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    except KafkaException as raised:
        assert raised.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED  # noqa: PT017
    finally:
        other.close()


# --------------------------------------------------------------------------------------------------
# Several proxies on one log.


async def owner_among(*proxies: ProxyServer) -> tuple[ProxyServer, ProxyServer]:
    """The proxy that serves the groups, and the other one."""
    found: list[ProxyServer] = []

    async def serves(proxy: ProxyServer) -> bool:
        async with client(proxy) as peer:
            return bool((await peer.ask(ListGroupsRequest(), 16, 4)).error_code == 0)

    for _ in range(3_000):
        found = [each for each in proxies if await serves(each)]
        if found:
            break
        await asyncio.sleep(0.02)
    [owner] = found
    return owner, next((each for each in proxies if each is not owner), owner)


async def test_proxies_on_one_log_name_the_one_that_serves_and_forward_both(database: str) -> None:
    log = {"log": database.replace("postgres:", "postgresql:", 1)}
    async with (
        cluster(4, 9) as brokers,
        proxying(brokers[4], **log) as one,
        proxying(brokers[9], **log) as another,
    ):
        owner, standby = await owner_among(one, another)
        host, _, port = owner.address.rpartition(":")
        listed = await ports_of(standby)
        async with client(standby) as peer:
            request = FindCoordinatorRequest(coordinator_keys=("g",))
            (found,) = (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators
            while found.error_code == CoordinatorNotAvailable.code:  # it has not read the owner yet
                await asyncio.sleep(0.02)
                (found,) = (await peer.ask(request, FIND_COORDINATOR, 4)).coordinators
            assert (found.host, found.port) == (host, int(port))
            assert found.node_id not in listed, "the address of a broker's node must not become that of the other proxy"
            assert (await peer.ask(join(), JOIN_GROUP, 3)).error_code == NotCoordinator.code
            refused = await peer.ask(commit(), TXN_OFFSET_COMMIT, 3)
            assert refused.topics[0].partitions[0].error_code == NotCoordinator.code
            peer.send(fetch(1))
            await peer.read()
        async with Admin.connect([one.address, another.address]) as admin:
            coordinators = (await admin.describe_coordinators()).coordinators
            assert {each.address for each in coordinators} == {one.address, another.address}
            assert coordinators[0].address == owner.address
        await owner.close()
        served, _ = await owner_among(standby)
        assert served is standby


async def test_proxy_refuses_a_log_of_several_partitions(database: str) -> None:
    """It is all brokers to Kafka's clients, which would take a list of its own groups for all of them."""
    url = database.replace("postgres:", "postgresql:", 1)
    log = log_from_url(url)
    assert isinstance(log, SharedLog)
    log.expect_partitions(2)
    await log.connect()
    await log.close()
    async with cluster(4) as brokers:
        with pytest.raises(ConfigError, match="log: got 'a log of 2 partitions'; allowed: a log of one partition"):
            async with proxying(brokers[4], log=url):
                pass


@ci_only("40 s, a broker and PostgreSQL; the test above has the addresses, tests/integration/test_failover fail-overs")
def test_consumers_behind_two_proxies_are_one_group_and_survive_the_end_of_the_one_that_serves(
    broker: Broker, database: str
) -> None:
    """librdkafka, which keeps an address for each node id and reads the metadata often here."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    from tests.integration.processes import Program, wait

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("side-by-side", 2)])["side-by-side"].result(60)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    log = database.replace("postgres:", "postgresql:", 1)
    command = "proxy", "--broker", broker.bootstrap, "--port", "0", "--log", log, "--initial-rebalance-delay-ms", "0"
    with ExitStack() as stack:
        programs = [stack.enter_context(Program(*command)) for _ in range(2)]
        addresses = [program.line_with("proxy at ").split()[2] for program in programs]
        settings = {
            "group.id": "side-by-side",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 300,
            "session.timeout.ms": 30_000,
            "bootstrap.servers": ",".join(addresses),
        }
        consumers = [Consumer(settings) for _ in programs]
        lost: list[object] = []
        try:
            for consumer in consumers:
                consumer.subscribe(["side-by-side"], on_lost=lambda _, partitions: lost.append(partitions))

            def read(count: int) -> None:
                found: list[bytes | None] = []

                def all_found() -> bool:
                    for consumer in consumers:
                        message = consumer.poll(0.1)
                        if message is not None and message.error() is None:
                            found.append(message.value())
                    return len(found) >= count

                wait(f"{count} records", all_found, lambda: f"{found}\n{[each.output() for each in programs]}")

            def produce(count: int) -> None:
                for number in range(count):
                    producer.produce("side-by-side", str(number).encode(), partition=number % 2)
                assert producer.flush(60) == 0

            def shared() -> bool:
                for consumer in consumers:
                    consumer.poll(0.1)
                return all(len(consumer.assignment()) == 1 for consumer in consumers)

            produce(4)
            wait("each consumer to have a partition", shared, lambda: str([each.output() for each in programs]))
            produce(20)
            read(20)
            owner = next(each for each in programs if any("serves its groups" in line for line in each.lines))
            consumers.pop().close()
            [consumer] = consumers
            owner.signal(signal.SIGTERM)
            assert owner.ended() == 0, owner.output()
            produce(20)
            read(20)
            assert len(consumer.assignment()) == 2
            assert not lost
        finally:
            for consumer in consumers:
                consumer.close()
