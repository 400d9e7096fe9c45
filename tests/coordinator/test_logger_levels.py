"""Levels of loggers for all workers of a group (KIP-976): who gets them, and when they end."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from connectgroup.client.admin import Admin
from connectgroup.coordinator.progress import MAX_LOGGERS
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import GroupIdNotFound, InvalidRequest
from connectgroup.loggers import set_by_operator
from connectgroup.protocol.messages.common import LoggerLevel

from .builders import GROUP, ask, beat, serving

pytestmark = pytest.mark.asyncio


async def levels_for(coordinator: Coordinator, member_id: str, epoch: int, stamp: int = 0) -> tuple[LoggerLevel, ...]:
    return (await ask(coordinator, beat(member_id, epoch, logger_stamp=stamp))).logger_levels


async def test_each_member_gets_each_level_until_it_reports_its_stamp() -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        assert not await levels_for(coordinator, "a", epoch)
        for logger, level in (("x", "DEBUG"), ("y", "INFO"), ("x", "OFF")):
            await admin.set_logger_level(GROUP, logger, level)
        for _ in range(2):  # a response that is lost is repeated
            found = await levels_for(coordinator, "a", epoch)
            assert [(each.logger, each.level) for each in found] == [("y", "INFO"), ("x", "OFF")]
        assert [each.logger for each in await levels_for(coordinator, "a", epoch, found[0].stamp)] == ["x"]
        assert not await levels_for(coordinator, "a", epoch, found[1].stamp)
        assert len((await ask(coordinator, beat("later"))).logger_levels) == 2, "a worker that joins later"


async def test_the_number_of_levels_is_bounded() -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        for number in range(MAX_LOGGERS + 5):
            await admin.set_logger_level(GROUP, f"logger-{number}", "INFO")
        found = await levels_for(coordinator, "a", epoch)
        assert [each.logger for each in found] == [f"logger-{number}" for number in range(5, MAX_LOGGERS + 5)]


async def test_a_wrong_level_or_group_is_an_error_and_changes_nothing() -> None:
    async with serving() as coordinator, Admin.local(coordinator) as admin:
        epoch = (await ask(coordinator, beat("a"))).member_epoch
        with pytest.raises(InvalidRequest, match="Level: got 'LOUD'; allowed: ALL, TRACE, DEBUG"):
            await admin.set_logger_level(GROUP, "x", "LOUD")
        with pytest.raises(InvalidRequest, match="Logger: got ''; allowed: the name of a logger, or root"):
            await admin.set_logger_level(GROUP, "", "INFO")
        with pytest.raises(GroupIdNotFound):
            await admin.set_logger_level("nosuch", "x", "INFO")
        assert not await levels_for(coordinator, "a", epoch)


async def test_a_level_of_a_newer_version_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogger("canary").level
    set_by_operator("canary", "VERBOSE")
    assert logging.getLogger("canary").level == before
    assert "logger canary: level VERBOSE is not known here" in caplog.text


@pytest.fixture
def restored_levels() -> Iterator[None]:
    loggers = [
        logging.root,
        *(each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)),
    ]
    levels = [each.level for each in loggers]
    yield
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)
    for name in ("py4j", "py4j.clientserver"):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.usefixtures("restored_levels")
@pytest.mark.parametrize("name", ["root", "py4j", "py4j.clientserver"])
@pytest.mark.parametrize("before", [logging.NOTSET, logging.CRITICAL])
async def test_calls_to_spark_with_their_credentials_are_not_logged(name: str, before: int) -> None:
    """At DEBUG, py4j logs each call with its arguments. A session of Spark has set it to CRITICAL."""
    logger = logging.getLogger("py4j.clientserver")
    logging.getLogger("py4j").setLevel(before)
    set_by_operator(name, "DEBUG")
    assert logger.getEffectiveLevel() == logging.INFO
