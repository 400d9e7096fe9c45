"""``/admin/loggers`` (KIP-495, KIP-976): levels of the loggers of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.coordinator.builders import ask, beat

from .conftest import Api


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Three loggers below ``canary``, one with a level of its own; restores the root's level."""
    before = logging.root.level
    for name in ("canary.a", "canary.b"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    logging.getLogger("canary").setLevel(logging.WARNING)
    logging.getLogger("canary.a.x").setLevel(logging.ERROR)
    yield
    logging.root.setLevel(before)


async def test_loggers_with_a_level_are_listed(api: Api) -> None:
    listed = await api("GET", "/admin/loggers", 200)
    assert [*listed] == sorted(listed)
    assert {name: listed[name] for name in listed if name.startswith("canary")} == {
        "canary": {"level": "WARN", "last_modified": None},
        "canary.a.x": {"level": "ERROR", "last_modified": None},
    }
    assert listed["root"]["level"] == {30: "WARN", 20: "INFO", 10: "DEBUG"}[logging.root.level]


async def test_a_logger_without_a_level_has_the_effective_one(api: Api) -> None:
    assert await api("GET", "/admin/loggers/canary.b", 200) == {"level": "WARN", "last_modified": None}


@pytest.mark.parametrize(
    ("level", "number", "shown"),
    [
        ("DEBUG", 10, "DEBUG"),
        ("trace", 5, "TRACE"),
        ("Warning", 30, "WARN"),
        ("FATAL", 50, "FATAL"),
        ("OFF", 60, "OFF"),
        ("ALL", 1, "ALL"),
    ],
)
async def test_a_level_is_set_for_a_logger_and_those_below_it(
    api: Api, caplog: pytest.LogCaptureFixture, level: str, number: int, shown: str
) -> None:
    changed = await api("PUT", "/admin/loggers/canary?scope=worker", 200, {"level": level})
    assert changed == ["canary", "canary.a", "canary.a.x", "canary.b"]
    for name in changed:
        assert logging.getLogger(name).getEffectiveLevel() == number
        found = await api("GET", f"/admin/loggers/{name}", 200)
        assert found["level"] == shown
        assert found["last_modified"] > 1_700_000_000_000
    logging.getLogger("canary.b").log(number, "message at the level")
    logging.getLogger("canary.b").log(number - 1, "message below the level")
    assert [record.message for record in caplog.records if record.name == "canary.b"] == ["message at the level"]


async def test_root_sets_every_logger(api: Api) -> None:
    changed = await api("PUT", "/admin/loggers/root", 200, {"level": "ERROR"})
    assert {"root", "canary", "canary.a.x"} <= {*changed}
    assert logging.getLogger("canary").getEffectiveLevel() == logging.ERROR


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/admin/loggers/nosuch.logger", None, 404, "Logger nosuch.logger not found."),
        ("PUT", "/admin/loggers/nosuch..logger", {"level": "INFO"}, 400, "logger: got 'nosuch..logger'; allowed: "),
        ("PUT", "/admin/loggers/canary", {"level": "LOUD"}, 404, "invalid log level 'LOUD'."),
        ("PUT", "/admin/loggers/canary", {"level": 3}, 404, "invalid log level '3'."),
        ("PUT", "/admin/loggers/canary", {}, 400, "Desired 'level' parameter was not specified in request."),
        (
            "PUT",
            "/admin/loggers/canary?scope=world",
            {"level": "INFO"},
            400,
            "got 'world'; allowed: worker (the",
        ),
        ("PUT", "/admin/loggers/canary?scope=cluster", {"level": "LOUD"}, 404, "invalid log level 'LOUD'."),
    ],
)
async def test_a_bad_request_changes_no_level(
    api: Api, method: str, path: str, body: object, status: int, message: str
) -> None:
    assert message in await api(method, path, status, body)
    assert logging.getLogger("canary").level == logging.WARNING
    assert "nosuch.logger" not in logging.root.manager.loggerDict


async def test_scope_cluster_sets_the_level_on_every_worker_of_the_group(api: Api) -> None:
    """KIP-976. The process that serves the request sets it too, also if it does not have the logger yet."""
    joined = await ask(api.coordinator, beat("w"))
    assert await api("PUT", "/admin/loggers/canary?scope=Cluster", 204, {"level": "debug"}) is None
    assert logging.getLogger("canary").level == logging.DEBUG
    response = await ask(api.coordinator, beat("w", joined.member_epoch))
    assert [(each.logger, each.level) for each in response.logger_levels] == [("canary", "DEBUG")]
    await api("PUT", "/admin/loggers/nosuch.logger?scope=cluster", 204, {"level": "ERROR"})


async def test_logger_of_a_module_that_is_imported_later_is_created(api: Api) -> None:
    assert await api("PUT", "/admin/loggers/canary_later.module", 200, {"level": "DEBUG"}) == ["canary_later.module"]
    assert logging.getLogger("canary_later.module.part").getEffectiveLevel() == logging.DEBUG
    assert (await api("GET", "/admin/loggers/canary_later.module", 200))["level"] == "DEBUG"
