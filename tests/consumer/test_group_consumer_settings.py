"""Errors of invalid settings, and of servers that are not brokers: one line each. No broker is needed."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.placement import WorkerTraits
from connectgroup.errors import ConfigError, TransportError

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer import GroupConsumer
from connectgroup.consumer.client import BrokerConnection
from connectgroup.consumer.errors import BrokerError, Code, error_name
from connectgroup.consumer.fetching import make_consumer
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.protocol.messages.cluster import MetadataRequest

NOWHERE = "127.0.0.1:9"


class Nothing(PartitionAssignor):
    name = "nothing"

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        return PartitionAssignment()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bootstrap": "localhost"}, "bootstrap: got 'localhost'; allowed: host:port, port 1 to 65535"),
        ({"bootstrap": ","}, "bootstrap: got ','; allowed: host:port, several with commas"),
        ({"group": ""}, "group: got ''; allowed: a non-empty text"),
        *(
            (
                {"group": blank},
                f"group: got {shown}; allowed: a name with at least one character that is not white space",
            )
            for blank, shown in ((" ", "' '"), ("\t\n", "'\\t\\n'"))
        ),
        ({"topics": []}, "topics: got '()'; allowed: at least 1, or a pattern"),
        ({"topics": "orders"}, "topics: got 'orders'; allowed: a list"),
        (
            {"topics": ["a", "or*"]},
            "topics: got 'or*'; allowed: 1 to 249 of a-z A-Z 0-9 . _ -; a pattern is ``pattern``",
        ),
        ({"pattern": "a"}, "pattern: got 'a'; allowed: topics or a pattern, not both"),
        ({"topics": [], "pattern": "a("}, "pattern: got 'a('; allowed: RE2 syntax (missing ): a()"),
        (
            {"server_assignor": "range"},
            "server_assignor: got 'range'; allowed: nothing: in a classic group, a member assigns",
        ),
        (
            {"coordinator": "https://h:1"},
            "coordinator: got 'https://h:1'; allowed: host:port, ssl://host:port or plaintext://host:port",
        ),
        ({"coordinator": "ssl://h"}, "coordinator: got 'h'; allowed: host:port, port 1 to 65535"),
        ({"coordinator": "here"}, "coordinator: got 'here'; allowed: host:port, port 1 to 65535"),
        ({"assignors": []}, "assignors: got '[]'; allowed: a list of one or more names or PartitionAssignor objects"),
        (
            {"assignors": "range"},
            "assignors: got 'range'; allowed: a list of one or more names or PartitionAssignor objects",
        ),
        ({"assignors": [Nothing]}, "assignors: got 'ABCMeta'; allowed: names or PartitionAssignor objects"),
        ({"assignors": ["range", "range"]}, "assignors: got 'range, range'; allowed: each name once"),
        (
            {"heartbeat_interval_ms": 4_000, "session_timeout_ms": 10_000},
            "heartbeat_interval_ms: got '4000'; allowed: at most a third of session_timeout_ms (10000)",
        ),
        (
            {"max_poll_interval_ms": 0},
            "max_poll_interval_ms: got '0'; allowed: a whole number from 1 to 2147483647",
        ),
        (
            {"auto_offset_reset": "first"},
            "auto_offset_reset: got 'first'; allowed: 'earliest', 'latest' or 'error'",
        ),
        (
            {"fetch": {"security.protocol": "tls"}},
            "fetch.security.protocol: got 'tls'; allowed: one of plaintext, ssl, sasl_plaintext, sasl_ssl",
        ),
        (
            {"fetch": {"sasl.password": "secret"}},
            "fetch.sasl.password: got '[hidden]'; allowed: with security.protocol sasl_plaintext or sasl_ssl only",
        ),
        (
            {"fetch": {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}},
            "fetch.sasl.mechanism: got 'GSSAPI'; allowed: one of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN",
        ),
        (
            {"fetch": {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "a"}},
            "fetch.sasl.password: got '[hidden]'; allowed: a value, because security.protocol is sasl_ssl",
        ),
        (
            {"fetch": {"security.protocol": "ssl", "ssl.certificate.location": "mine.pem"}},
            "fetch.ssl.certificate.location: got 'mine.pem'; allowed: together with ssl.key.location",
        ),
        (
            {"fetch": {"security.protocol": "ssl", "ssl.ca.location": "/no/ca.pem"}},
            "fetch.ssl.ca.location: got '/no/ca.pem (No such file or directory)'; allowed: a PEM file of certificates",
        ),
        (
            {"fetch": {"group.id": "other"}},
            "fetch.group.id: got 'other'; allowed: settings of fetching only; this one the consumer makes itself",
        ),
    ],
    ids=str,
)
def test_invalid_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    usable: dict[str, Any] = {"bootstrap": NOWHERE, "group": "g", "topics": ["t"], "assignors": ["range"]}
    with pytest.raises(ConfigError) as caught:
        GroupConsumer(**{**usable, **settings})
    assert str(caught.value) == message


def test_unknown_assignor_lists_the_available_ones() -> None:
    with pytest.raises(ConfigError, match=r"^assignor: got 'fair'; allowed: cooperative-sticky, .*range, .*uniform$"):
        GroupConsumer(NOWHERE, group="g", topics=["t"], assignors=["fair"])


def test_librdkafka_error_of_a_setting_is_shown() -> None:
    with pytest.raises(ConfigError, match=r"^fetch: got .*No such configuration property: \"fetch.min.bite\"$"):
        GroupConsumer(NOWHERE, group="g", topics=["t"], fetch={"fetch.min.bite": 1})


def test_missing_confluent_kafka_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['confluent_kafka'] = None\nfrom connectgroup.consumer import GroupConsumer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "ConfigError: confluent-kafka: got 'not installed'; allowed: pip install 'connectgroup[kafka]'"
    )


def test_pure_modules_import_no_client() -> None:
    code = (
        "import sys\nfrom connectgroup.assign import api\nfrom connectgroup.consumer import rounds\n"
        "sys.exit(bool({'asyncio', 'confluent_kafka', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_error_code_is_shown_with_what_to_do() -> None:
    assert error_name(12345) == "error 12345"
    assert error_name(Code.REBALANCE_IN_PROGRESS) == "REBALANCE_IN_PROGRESS (27)"
    refused = BrokerError("JoinGroup of group 'g'", 81)
    assert str(refused) == "JoinGroup of group 'g': GROUP_MAX_SIZE_REACHED (81): the group has group.max.size members"


# --------------------------------------------------------------------------------------------------
# Servers that are not brokers


@asynccontextmanager
async def server(response: bytes) -> AsyncIterator[int]:
    """A server that sends these bytes and closes; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(response)
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield running.sockets[0].getsockname()[1]
    finally:
        running.close()
        await running.wait_closed()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"", "connection closed during ApiVersions"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "answered, but not as a Kafka broker: the response begins with "),  # TLS
        (b"\x00\x00\x00\x04\x00\x00\x00\x63", "answered, but not as a Kafka broker: "),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "answered, but not as a Kafka broker: the response begins with 'HTTP",
        ),
    ],
    ids=["nothing", "TLS", "too short", "HTTP"],
)
async def test_server_that_is_no_broker_is_named_with_a_hint(response: bytes, message: str) -> None:
    async with server(response) as port:
        connection = BrokerConnection("127.0.0.1", port, "c")
        with pytest.raises(TransportError) as caught:
            await connection.call(MetadataRequest(topics=()), timeout_s=10)
        text = str(caught.value)
        assert text.startswith(f"127.0.0.1:{port}: {message}")
        assert text.endswith(
            "; is it a Kafka broker's PLAINTEXT listener? allowed: another security.protocol in ``fetch``"
        )
        assert "\n" not in text


async def test_unresponsive_server_times_out() -> None:
    released = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = running.sockets[0].getsockname()[1]
    connection = BrokerConnection("127.0.0.1", port, "c")
    with pytest.raises(TransportError, match=rf"^127.0.0.1:{port}: no response to MetadataRequest within 0.2 s$"):
        await connection.call(MetadataRequest(topics=()), timeout_s=0.2)
    released.set()
    running.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_missing_broker_is_reported_once(caplog: pytest.LogCaptureFixture, protocol: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="connectgroup.consumer"):
        async with GroupConsumer(NOWHERE, group="g", topics=["t"], group_protocol=protocol) as consumer:
            assert await consumer.poll(1.5) == []
    [said] = caplog.messages
    assert re.fullmatch(r"group g: 127\.0\.0\.1:9: \w+Request: Connection refused; trying again", said)


def test_generic_is_another_name_of_the_classic_protocol() -> None:
    """KIP-848 introduces ``group.protocol`` with ``generic`` and ``consumer``; Kafka has released it as ``classic``."""
    with pytest.raises(ConfigError, match=r"^server_assignor: got 'uniform'; allowed: nothing: in a classic group"):
        GroupConsumer(NOWHERE, group="g", topics=["t"], group_protocol="generic", server_assignor="uniform")
    with pytest.raises(ConfigError, match=r"^group_protocol: got 'new'; allowed: 'classic' or 'consumer'"):
        GroupConsumer(NOWHERE, group="g", topics=["t"], group_protocol="new")  # type: ignore[arg-type]


def test_connection_errors_of_librdkafka_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="connectgroup.consumer"):
        consumer = make_consumer(GroupConsumerSettings(bootstrap=NOWHERE, group="g", topics=("t",)))
        while not caplog.records:
            consumer.poll(0.1)
        consumer.close()
    assert "Connection refused" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_assignor_of_a_consumer_is_configured_with_its_rack(protocol: Literal["classic", "consumer"]) -> None:
    racks = []

    class Racked(Nothing):
        def configure(self, traits: WorkerTraits) -> None:
            racks.append(traits.rack)

    GroupConsumer(NOWHERE, group="g", topics=["t"], rack="r1", assignors=[Racked()], group_protocol=protocol)
    assert racks == ["r1"]
