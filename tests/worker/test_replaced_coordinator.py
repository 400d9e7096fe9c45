"""A worker ignores responses of a coordinator that has been replaced, on its control connection too: PD-10."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import StaleMemberEpoch, TransportError
from connectgroup.member.settings import GroupProtocol
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.classic import GroupHeartbeatRequest, SyncGroupRequest
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


@pytest.mark.parametrize("protocol", GroupProtocol)
async def test_unit_that_a_replaced_coordinator_assigns_again_is_not_started(
    tmp_path: Path, protocol: GroupProtocol
) -> None:
    """D5: the worker has stopped the unit, and another worker runs it. ``World`` checks that no unit runs twice."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", group_protocol=protocol)
        await world.settled()
        await asyncio.sleep(5)
        replaced = world.coordinator
        world.coordinator = Coordinator(world.log(world.storage), world.group)
        await world.coordinator.start()
        await asyncio.sleep(5)
        late: list[Request] = []

        async def outdated(request: Request) -> Response | None:
            if late:
                late.append(request)
                return await replaced.handle(request, client_host="local")
            if len(a.units) == 4 or isinstance(request, GroupHeartbeatRequest):
                return None
            late.append(request)
            await world.coordinator.handle(request, client_host="local")
            raise TransportError("the response to the report that units have stopped was lost")

        a.heartbeats.instead = outdated
        world.start("b")
        await world.until(lambda: len(late) > 3)
        a.heartbeats.instead = None
        assert all((await world.settled()).values())
        await replaced.close()


async def test_sync_group_answered_by_another_coordinator_than_join_group_is_lost(tmp_path: Path) -> None:
    """It may hold the response to an earlier JoinGroup of the same generation."""
    async with World(tmp_path) as world:
        a = world.make("a", group_protocol=GroupProtocol.CLASSIC)
        outdated: list[Response] = []
        followed: list[int] = []

        async def answered_by_another(request: Request) -> Response | None:
            if outdated:
                followed.append(a.worker.member.coordinator_epoch)
            if not isinstance(request, SyncGroupRequest) or outdated:
                return None
            response: Any = await world.coordinator.handle(request, client_host="local")
            outdated.append(replace(response, coordinator_epoch=response.coordinator_epoch - 1))
            return outdated[0]

        a.heartbeats.instead = answered_by_another
        a.task = asyncio.create_task(a.worker.run())
        await world.add("c", 2)
        assert await world.settled() == {"a": ["c", "c-0", "c-1"]}
        assert followed[0] == -1, "it has taken no response"
