"""TLS and SASL of a ``GroupConsumer``, on a real broker that requires them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.errors import ConfigError, NotAuthenticated

from .broker import PASSWORD, Broker
from .conftest import NewGroup
from .inside import member, places, poll_until, read


def sasl(broker: Broker, mechanism: str, **changes: Any) -> dict[str, Any]:
    """The settings of a consumer at the listener for SASL_SSL."""
    fetch = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.certificates / "server.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    return {"bootstrap": broker.sasl, "fetch": fetch | changes}


def mutual(broker: Broker, **files: str) -> dict[str, Any]:
    """The settings of a consumer at the listener for SSL, with a client certificate unless ``files`` differ."""
    names = {"ca": "server.pem", "certificate": "client.pem", "key": "client.key"} | files
    fetch = {f"ssl.{setting}.location": str(broker.certificates / name) for setting, name in names.items()}
    return {"bootstrap": broker.tls, "fetch": {"security.protocol": "ssl", **fetch}}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_consumer_authenticates_by_sasl_over_tls(new_group: NewGroup, broker: Broker, mechanism: str) -> None:
    protocol = "classic" if mechanism == "PLAIN" else "consumer"
    with new_group(f"sasl {mechanism}", partitions=2) as group:
        group.write(40)
        settings = sasl(broker, mechanism) | {"group_protocol": protocol, "assignors": None}
        async with member(group, **settings) as consumer:
            assert set(places(await read(consumer, 40))) == group.everything()
            await consumer.commit()
            assert sum((await consumer.committed()).values()) == 40


async def test_connections_are_renewed_before_the_broker_ends_their_sessions(
    new_group: NewGroup, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker closes a connection that sends a request after ``connections.max.reauth.ms``, here 3 s (KIP-368)."""
    with new_group("renewed", partitions=1) as group:
        async with member(group, **sasl(broker, "PLAIN")) as consumer:
            await poll_until(lambda: consumer.assignment(), consumer)
            generation = consumer.generation
            end = asyncio.get_running_loop().time() + 7
            await poll_until(lambda: asyncio.get_running_loop().time() > end, consumer)
            group.write(5)
            assert len(await read(consumer, 5)) == 5
            assert consumer.generation == generation
    assert [record.getMessage() for record in caplog.records if record.name.startswith("connectgroup.consumer")] == []


async def test_consumer_authenticates_by_its_certificate(new_group: NewGroup, broker: Broker) -> None:
    with new_group("mutual", partitions=1) as group:
        group.write(5)
        async with member(group, **mutual(broker)) as consumer:
            assert len(await read(consumer, 5)) == 5


async def test_rejected_password_is_raised_by_poll_and_not_shown(new_group: NewGroup, broker: Broker) -> None:
    with new_group("rejected", partitions=1) as group:
        settings = sasl(broker, "SCRAM-SHA-512", **{"sasl.password": "hunter2-wrong"})
        async with member(group, **settings) as consumer:
            with pytest.raises(NotAuthenticated) as caught:  # noqa: PT012 (a poll raises at its end)
                for _ in range(20):
                    await consumer.poll(1)
        text = str(caught.value)
        assert text.startswith(f"{broker.sasl}: rejects user 'alice': ")
        assert text.endswith("allowed: sasl.username and sasl.password in ``fetch`` that the brokers know")
        assert "hunter2" not in text


async def test_certificate_of_another_authority_is_reported(
    new_group: NewGroup, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with new_group("another authority", partitions=1) as group:
        async with member(group, **mutual(broker, ca="other.pem")) as consumer:
            assert await consumer.poll(1.0) == []
    [message] = [record.getMessage() for record in caplog.records if record.name.startswith("connectgroup.consumer")]
    assert f"{broker.tls}: " in message
    assert "TLS: self-signed certificate; allowed: " in message
    assert "ssl.ca.location" in message


async def test_plain_text_at_a_listener_for_tls_names_the_setting(
    new_group: NewGroup, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with new_group("plain text", partitions=1) as group:
        async with member(group, bootstrap=broker.sasl) as consumer:
            assert await consumer.poll(1.0) == []
    [message] = [record.getMessage() for record in caplog.records if record.name.startswith("connectgroup.consumer")]
    assert "allowed: another security.protocol" in message


def test_unusable_key_is_named(new_group: NewGroup, broker: Broker) -> None:
    with (
        new_group("unusable", partitions=1) as group,
        pytest.raises(ConfigError, match=r"^fetch\.ssl\.certificate\.location: got .*client\.pem"),
    ):
        member(group, **mutual(broker, key="other.key"))
