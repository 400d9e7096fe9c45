"""A worker ignores responses of a coordinator that has been replaced, on its control connection too: PD-10."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connectgroup.errors import StaleMemberEpoch
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest, UpdateConnectorsResponse

from .builders import World

pytestmark = pytest.mark.asyncio


async def test_task_list_rejected_by_a_replaced_coordinator_is_repeated(tmp_path: Path) -> None:
    """Its state is outdated. If its rejection counted, the connector would never get tasks."""
    async with World(tmp_path) as world:
        actor = world.make("a")
        refused: list[Request] = []

        async def outdated(request: Request) -> Response | None:
            if not isinstance(request, UpdateConnectorsRequest) or refused:
                return None
            refused.append(request)
            epoch = actor.worker.member.coordinator_epoch - 1
            return UpdateConnectorsResponse(error_code=StaleMemberEpoch.code, coordinator_epoch=epoch)

        actor.control.instead = outdated
        await world.add("c", 2)
        actor.task = asyncio.create_task(actor.worker.run())
        assert await world.settled() == {"a": ["c", "c-0", "c-1"]}
        assert refused
