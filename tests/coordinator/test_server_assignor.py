"""The coordinator computes for groups whose workers list no assignor: ``group.remote.assignor``, PD-06."""

from __future__ import annotations

import asyncio
import logging

import pytest

from connectgroup.errors import UnsupportedAssignor
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.protocol.messages.common import AssignorInfo

from .builders import add, ask, beat, change, look, serving

pytestmark = pytest.mark.asyncio


async def test_default_settings_assign_workers_that_list_no_assignor() -> None:
    """``balanced`` is found by its entry point."""
    async with serving(group=GroupSettings()) as coordinator:
        await change(coordinator, add())
        joined = await ask(coordinator, beat())
        assert joined.assignment is not None
        assert joined.assignment.units
        assert (await look(coordinator)).assignor_name == "balanced"


@pytest.mark.parametrize("name", ["", "no-such-assignor"])
async def test_group_that_nothing_can_compute_is_logged_once_for_each_epoch(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(group=GroupSettings(server_assignor=name)) as coordinator:
        await change(coordinator, add())

        def lines() -> list[str]:
            return [record.message for record in caplog.records if "no assignment for epoch" in record.message]

        epoch = (await ask(coordinator, beat())).member_epoch
        assert len(lines()) == 1
        assert "group workers: no assignment for epoch 2" in lines()[0]
        assert "group.remote.assignor" in lines()[0]
        for _ in range(3):
            await ask(coordinator, beat(epoch=epoch))
        await asyncio.sleep(0)
        assert len(lines()) == 1
        await ask(coordinator, beat("b"))
        assert len(lines()) == 2
        assert all(record.levelno == logging.WARNING for record in caplog.records if record.message in lines())


async def test_member_may_ask_for_the_default_assignor_by_name() -> None:
    async with serving(group=GroupSettings()) as coordinator:
        assert (await ask(coordinator, beat(server_assignor="balanced"))).error_code == 0
        assert (await ask(coordinator, beat("b", server_assignor="other"))).error_code == UnsupportedAssignor.code


async def test_worker_without_assignors_in_a_group_with_client_side_assignors_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The coordinator then assigns, without the constraints of the other workers' assignor."""
    async with serving(group=GroupSettings()) as coordinator:
        await change(coordinator, add())
        info = AssignorInfo(name="weighted", minimum_version=0, maximum_version=0, reason=0, version=0, metadata=b"")
        await ask(coordinator, beat("a", client_assignors=(info,)))
        assert not caplog.records
        epoch = (await ask(coordinator, beat("b"))).member_epoch
        await ask(coordinator, beat("b", epoch=epoch))
        [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.startswith("group workers: the coordinator assigns with 'balanced': b list no assignor")
