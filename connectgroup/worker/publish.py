"""Requests of a worker other than heartbeats: the task lists of its connectors, Prepare and Install.

They use a connection of their own: responses on one connection arrive in order, and a parked heartbeat would block
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ..checks import check_object, kind_of
from ..connector import Config, Connector
from ..errors import ConfigError, TransportError, from_code
from ..fault_points import fault_point
from ..member.state_machine import Member
from ..protocol.messages.api import Request, Response
from ..protocol.messages.common import entries
from ..protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.units import printable
from ..transport.base import Client
from .settings import WorkerSettings
from .waiting import TryAgain, backoff_s


class ControlRequests:
    """Sends one member's requests other than heartbeats."""

    def __init__(self, member: Member, client: Client, times: WorkerSettings) -> None:
        """``client``: connection to the coordinator for these requests only."""
        self._member, self._client, self._times = member, client, times

    async def send(self, request: Request) -> Response:
        """Send a request other than a heartbeat; retry retriable errors and transport errors, raise other errors.

        Retries end after ``assignor_timeout_s``.
        """
        loop, times, failures = asyncio.get_running_loop(), self._times, 0
        gives_up_at = loop.time() + times.assignor_timeout_s

        async def once() -> Response:
            try:
                response = await self._client.call(request, timeout_s=times.call_timeout_s)
            except TransportError as error:
                raise TryAgain(str(error)) from error
            if getattr(response, "coordinator_epoch", -1) < self._member.coordinator_epoch:
                # The state of a replaced coordinator is stale: it may reject a request that is now valid (PD-10).
                raise TryAgain("response from a coordinator that has been replaced")
            code = getattr(response, "error_code", 0)
            if code:
                refused = from_code(code, getattr(response, "error_message", None))
                if refused.retriable:
                    raise TryAgain(str(refused)) from refused
                raise refused
            if fault_point("a request is repeated after its response"):
                raise TryAgain("once more")
            return response

        while True:
            try:
                return await once()
            except TryAgain as error:
                failures += 1
                wait_s = backoff_s(failures, times.retry_initial_s, times.retry_max_s)
                if loop.time() >= gives_up_at:
                    raise TransportError(f"given up after {times.assignor_timeout_s:g} s: {error}") from error
            await asyncio.sleep(wait_s)

    async def publish_tasks(self, connector: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        """See ``Worker.publish_tasks``."""
        change = ConnectorChange(
            connector=connector,
            owner_epoch=owner_epoch,
            task_configs=tuple(TaskConfig(config=entries(config)) for config in configs),
        )
        settings = self._member.settings
        answer = await self.send(
            UpdateConnectorsRequest(
                group_id=settings.group_id,
                member_id=settings.member_id,
                changes=(change,),
                process_id=self._member.process_id,
            )
        )
        assert isinstance(answer, UpdateConnectorsResponse)


def check_task_configs(connector: Connector, configs: Sequence[Mapping[Any, Any]], limit: int) -> None:
    """Check what ``Connector.task_configs`` has returned.

    Raises:
        ConfigError: too few or too many tasks, or a configuration that does not consist of strings.
    """
    who = f"connector {connector.name}"
    if not 1 <= len(configs) <= limit:
        raise ConfigError(f"{who}: task_configs", f"{len(configs)} tasks", f"1 to {limit} (tasks.max)")
    check_configs(f"{who}: task_configs", configs)


def check_configs(field: str, configs: object) -> None:
    """Check that a task list is a list of configurations that consist of strings.

    Raises:
        ConfigError: it is not; names the task.
    """
    allowed = "a list with one dict of text for each task"
    if isinstance(configs, str) or not isinstance(configs, Sequence):
        raise ConfigError(field, kind_of(configs), allowed)
    for number, config in enumerate(configs):
        check_object(f"{field}[{number}]", config, Mapping, "a dict of text")
        for name, value in config.items():
            if not isinstance(name, str) or not isinstance(value, str):
                found = f"{printable(name)} of type {type(value).__name__}"
                raise ConfigError(f"{field}[{number}]", found, "strings on both sides")
