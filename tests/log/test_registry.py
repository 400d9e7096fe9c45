"""Logs by URL: the scheme chooses the back end, and an invalid URL is a ``ConfigError``."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from connectgroup.config.base import checked
from connectgroup.config.coordinator import CoordinatorConfig, ProxyConfig
from connectgroup.errors import ConfigError
from connectgroup.log.memory import MemoryLog
from connectgroup.log.registry import log_from_url, sqlite_url


def test_memory_url() -> None:
    assert isinstance(log_from_url("memory:"), MemoryLog)


def test_sqlite_url_opens_the_file_of_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a b?#%41.sqlite"

    async def open_and_close() -> None:
        log = log_from_url(sqlite_url(path))
        await log.open()
        await log.close()

    asyncio.run(open_and_close())
    assert path.exists()


POSTGRESQL = "postgresql://USER@HOST:PORT/DATABASE"
KAFKA = "kafka://HOST:PORT/TOPIC"
ALL = f"{KAFKA}, memory:, {POSTGRESQL}, sqlite:///path"


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("", ALL),
        ("groups.sqlite", ALL),
        ("redis://broker:9092/topic", ALL),
        ("kafka:", KAFKA),
        ("kafka://broker:9092", KAFKA),
        ("kafka:///topic", KAFKA),
        ("kafka://broker/topic", KAFKA),
        ("kafka://broker:9092,other/topic", KAFKA),
        ("kafka://broker:x/topic", KAFKA),
        ("kafka://broker:9092/topic/1", KAFKA),
        ("kafka://broker:9092/topic#1", KAFKA),
        ("kafka://broker:9092/topic?replication=0", KAFKA),
        ("kafka://broker:9092/topic?replication=x", KAFKA),
        ("sqlite://[", ALL),
        ("postgresql://host:port/db", POSTGRESQL),
        ("postgresql://host/db?schema=", POSTGRESQL),
        ("postgresql://host/db#fragment", POSTGRESQL),
        ("memory:x", "memory:"),
        ("memory://host", "memory:"),
        ("sqlite:", "sqlite:///path"),
        ("sqlite:///", "sqlite:///path"),
        ("sqlite://host/path", "sqlite:///path"),
        ("sqlite:///path?mode=ro", "sqlite:///path"),
    ],
)
def test_invalid_url_names_the_allowed_ones(url: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as error:
        log_from_url(url)
    assert (error.value.field, error.value.allowed) == ("log", allowed)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://host/db?shema=x", r"log: got '?shema='; allowed: ?schema= (did you mean that?)"),
        ("postgresql://host/db?sslmode=require&ssl_mod=x", r"log: got '?ssl_mod='; allowed: ?sslmode= (did you mean "),
        ("kafka://broker:9092/topic?x=1", "log: got '?x='; allowed: the parameters config, replication"),
    ],
)
def test_unknown_parameter_of_a_url_is_named(url: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(error)}"):
        log_from_url(url)


def test_password_in_a_url_is_not_shown() -> None:
    for url in (
        "postgresql://me:hunter2@host/db?nonsense=1",
        "postgresql://host/db?password=hunter2&nonsense=1",
        "kafka://me:hunter2@host:9092/topic",
        "kafka://host:9092/topic?sasl.password=hunter2",
    ):
        with pytest.raises(ConfigError) as error:
            log_from_url(url)
        assert "hunter2" not in str(error.value)


def test_coordinator_takes_a_file_or_a_url_or_neither() -> None:
    assert checked(CoordinatorConfig, {}).log_url == "memory:"
    assert checked(CoordinatorConfig, {"data": "groups.sqlite"}).log_url == "sqlite:///groups.sqlite"
    assert checked(CoordinatorConfig, {"data": "/var/groups.sqlite"}).log_url == "sqlite:////var/groups.sqlite"
    assert checked(CoordinatorConfig, {"log": "sqlite:///groups.sqlite"}).log_url == "sqlite:///groups.sqlite"
    with pytest.raises(ConfigError, match="a URL without data, or data without a URL"):
        checked(CoordinatorConfig, {"log": "memory:", "data": "groups.sqlite"})
    with pytest.raises(ConfigError, match=f"log: got 'redis:x'; allowed: {ALL}"):
        checked(CoordinatorConfig, {"log": "redis:x"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_coordinator_of_a_shared_log_at_all_addresses_needs_one_that_others_reach(host: str) -> None:
    """The others, and the clients that follow, would be sent to 0.0.0.0."""
    values = {"host": host, "log": "postgresql://db/groups", "authentication": False}
    with pytest.raises(ConfigError, match=r"^advertised: missing; allowed: host:port at which "):
        checked(CoordinatorConfig, values)


@pytest.mark.parametrize("advertised", ["0.0.0.0:8474", "[::]:8474", "host a:8474", "a:8474,b:8474"])
def test_advertised_address_is_that_of_one_machine(advertised: str) -> None:
    values = {"advertised": advertised, "log": "postgresql://db/groups"}
    with pytest.raises(ConfigError, match=r"^advertised: got '.*'; allowed: host:port"):
        checked(CoordinatorConfig, values)


def test_advertised_host_of_a_proxy_is_that_of_one_machine() -> None:
    with pytest.raises(
        ConfigError, match=r"^advertised_host: got '0\.0\.0\.0'; allowed: a host that other machines reach"
    ):
        checked(ProxyConfig, {"broker": "kafka:9092", "advertised_host": "0.0.0.0"})
