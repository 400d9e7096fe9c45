"""The coordinator with a failing disk: requests get retriable errors, and succeed once the disk works again (F10)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.coordinator.builders import add, ask, beat, change, look, memory_is_log, serving

from .faulty_vfs import Call, FaultyVfs
from .life import NAME
from .test_faulty_disk import Failing, a_change, any_call, growth

ASK_AGAIN = {CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code}


async def until_served(coordinator: Coordinator, request: HeartbeatRequest) -> tuple[HeartbeatResponse, int]:
    """Retry while the response is retriable, as a worker does. The response, and the number of retries."""
    for retries in itertools.count():
        response = await ask(coordinator, request)
        if response.error_code not in ASK_AGAIN:
            return response, retries
        assert "\n" not in (response.error_message or "")
        await asyncio.sleep(0.05)
    raise AssertionError


@pytest.mark.parametrize(
    ("may", "full", "half"),
    [(any_call, False, False), (a_change, False, True), (growth, True, True)],
    ids=["not done", "done, or half of it", "full after half"],
)
async def test_single_failed_disk_call_costs_one_retry(
    directory: Path, may: Callable[[Call], bool], full: bool, half: bool
) -> None:
    """For each call that a join makes: the group is unchanged or the join is durable; earlier members stay."""
    felt = 0
    for number in itertools.count(1):
        folder = directory / str(number)
        folder.mkdir()
        failing = Failing(number, may, full=full, half=half, ill=False)
        log = SqliteLog(folder / NAME)
        with FaultyVfs(folder, failing):
            async with serving(log) as coordinator:
                await change(coordinator, add())
                first = await ask(coordinator, beat("a"))
                failing.ill = True
                joined, retries = await until_served(coordinator, beat("b"))
                assert joined.error_code == 0
                felt += retries > 0
                stays, _ = await until_served(coordinator, beat("a", first.member_epoch))
                assert stays.error_code == 0
                failing.ill = False
                assert {member.member_id for member in (await look(coordinator)).members} == {"a", "b"}
                await memory_is_log(coordinator, log)
        if failing.failed is None:
            break
    assert felt > 5


@pytest.mark.parametrize(
    ("may", "full"),
    [(growth, True), (a_change, False), (any_call, False)],
    ids=["full", "cannot be written", "gone"],
)
async def test_no_request_succeeds_while_the_disk_fails_and_all_do_afterwards(
    directory: Path, may: Callable[[Call], bool], full: bool
) -> None:
    """F10: retriable responses, the same state afterwards, no restart."""
    failing = Failing(1, may, full=full, lasting=True, ill=False)
    log = SqliteLog(directory / NAME)
    with FaultyVfs(directory, failing):
        async with serving(log) as coordinator:
            await change(coordinator, add())
            first = await ask(coordinator, beat("a"))
            failing.ill = True
            for _ in range(5):
                response = await ask(coordinator, beat("b"))
                assert response.error_code in ASK_AGAIN
                assert response.coordinator_epoch == log.epoch
                await asyncio.sleep(0.1)
            assert failing.failed is not None
            failing.ill = False
            joined, _ = await until_served(coordinator, beat("b"))
            assert joined.error_code == 0
            stays, _ = await until_served(coordinator, beat("a", first.member_epoch))
            assert stays.error_code == 0
            await memory_is_log(coordinator, log)
    async with serving(SqliteLog(directory / NAME)) as coordinator:
        group = await look(coordinator)
        assert {member.member_id for member in group.members} == {"a", "b"}
        assert [connector.connector for connector in group.connectors] == ["c"]
