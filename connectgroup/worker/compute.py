"""Computation of the group's target assignment on the chosen member: Prepare, the assignor in a thread, Install."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..assign.api import ConnectAssignor
from ..assign.convert import assignor_info, group_from_prepare, members_for_install
from ..assign.sandbox import describe, describe_assignor, run_assignor
from ..backoff import BackOff
from ..checks import check_object, kind_of
from ..connector import Config, Connector
from ..errors import ConfigError, GroupError, InvalidAssignment, PluginError, StaleGroupEpoch, TransportError, from_code
from ..fault_points import fault_point
from ..masking import masked_text
from ..member.actions import ComputeTarget
from ..member.state_machine import Member
from ..protocol.messages.api import Request, Response
from ..protocol.messages.assignment import InstallRequest, InstallResponse, PrepareRequest, PrepareResponse
from ..protocol.messages.common import entries, grouped
from ..protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.units import counted, printable
from ..telemetry.spans import ASSIGNOR, EPOCH, GROUP, MEMBER, MEMBER_EPOCH, Value, in_span, mark_failed
from ..threads import off_loop
from ..transport.base import Client
from .call_pool import TryAgain
from .metrics import WorkerMetrics
from .settings import FIRST_INTERVAL_MS, WorkerSettings

logger = logging.getLogger(__name__)

ASSIGNOR_FAILED = 1
"""``InstallRequest.error`` of an assignor that raised, or did not return in time."""


class Computations:
    """Runs the assignors of one member, one computation at a time."""

    def __init__(
        self,
        member: Member,
        requests: ControlRequests,
        assignors: Sequence[ConnectAssignor],
        times: WorkerSettings,
        notify: Callable[[], None],
        metrics: WorkerMetrics,
    ) -> None:
        """Create the computations; nothing runs until ``start``.

        Args:
            assignors: in order of preference.
            notify: called when the next heartbeat is due: after Prepare, and when a computation has ended.
            metrics: measures the runs of assignors.
        """
        self._metrics = metrics
        self._member, self._requests, self._times, self._notify = member, requests, times, notify
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._computing: asyncio.Task[None] | None = None  # the last computation
        self._calls: dict[str, asyncio.Future[Any]] = {}  # the last call of each assignor, also one given up
        self._rejections = 0  # computations in a row that the coordinator rejected; a success sets it to 0

    def start(self, action: ComputeTarget) -> None:
        """Compute in an asyncio task of its own, unless a computation is under way."""
        if self._computing is None or self._computing.done():
            work = in_span("compute", self._compute(action), self._traced())
            self._computing = asyncio.create_task(work, name="compute")

    def _traced(self) -> dict[str, Value]:
        settings = self._member.settings
        return {GROUP: settings.group_id, MEMBER: settings.member_id, MEMBER_EPOCH: self._member.epoch}

    def tasks(self) -> list[asyncio.Future[Any]]:
        """What runs now; a worker that ends cancels it."""
        return [*self._calls.values(), *([self._computing] if self._computing is not None else [])]

    async def _compute(self, action: ComputeTarget) -> None:
        """Prepare, run the assignor, Install. A failure is reported to the group, or the coordinator retries."""
        group_id, member_id = self._member.settings.group_id, self._member.settings.member_id
        try:
            prepare = PrepareRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=action.member_epoch,
                process_id=self._member.process_id,
            )
            prepared = await in_span("prepare", self._requests.send(prepare), self._traced())
            assert isinstance(prepared, PrepareResponse)
            self._notify()
            install = InstallRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=action.member_epoch,
                group_epoch=prepared.group_epoch,
                process_id=self._member.process_id,
            )
            traced = {**self._traced(), EPOCH: prepared.group_epoch, ASSIGNOR: prepared.assignor_name}
            began_s = time.monotonic()
            install = await in_span("assign", self._assign(prepared, install), traced)
            self._metrics.on_computed(
                time.monotonic() - began_s, failed=bool(install.error) and not install.keeps_target
            )
            answer = await in_span("install", self._requests.send(install), traced)
            assert isinstance(answer, InstallResponse)
            self._rejections = 0
            self._notify()
        except StaleGroupEpoch as error:
            # The group epoch advanced during the computation, so a new assignment is needed. The coordinator could
            # not request it from this member while this one was under way.
            logger.info("assignment is computed again, because the group has changed: %s", error)
            self._notify()
        except GroupError as error:
            # This member was fenced, or replaced by another member, and has not received its new state yet. A
            # heartbeat interval is a long time to wait with tasks to start: send a heartbeat sooner, with a back-off
            # that doubles on each consecutive rejection. An invalid assignment is the assignor's fault: log an error,
            # because its author needs the rule that was violated.
            level = logging.ERROR if isinstance(error, InvalidAssignment) else logging.INFO
            logger.log(level, "assignment not installed: %s", error)
            self._rejections += 1
            # Without jitter: no other member computes at the same time.
            await asyncio.sleep(BackOff(self._times.retry_initial_s, self._times.retry_max_s).limit_s(self._rejections))
            self._notify()
        except TransportError as error:
            logger.info("assignment not installed: %s", error)
        except Exception:
            # No code awaits this task: without this message the error would be lost while the group waits for Install.
            logger.exception("assignment not installed; the group selects another member after the rebalance timeout")

    async def _assign(self, prepared: PrepareResponse, install: InstallRequest) -> InstallRequest:
        name = prepared.assignor_name
        timeout_s = self._times.assignor_timeout_s
        started = time.monotonic()
        try:
            if name not in self._assignors:
                raise PluginError(f"assignor {printable(name)!r} is not one of {sorted(self._assignors)}")
            assignor, earlier = self._assignors[name], self._calls.get(name)
            if earlier is not None and not earlier.done():
                # Never run two calls at a time; waiting for a second call that hangs would not help.
                why = f"an earlier call did not return within {timeout_s:g} s, and still runs"
                raise PluginError(f"{describe_assignor(assignor)}: {why}")
            asked = off_loop(f"assignor {name}", run_assignor, assignor, group_from_prepare(prepared))
            self._calls[name] = call = asyncio.ensure_future(asked)
            # After the timeout no code awaits this call: retrieve its error.
            call.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            await asyncio.wait({call}, timeout=timeout_s)
            if not call.done():
                raise PluginError(f"{describe_assignor(assignor)}: did not return within {timeout_s:g} s")
            assignment = call.result()
        except PluginError as error:
            return _failed(install, str(error), location=error.location)
        except Exception as error:
            return _failed(install, f"assignor {printable(name)!r}: {describe(error)}")
        if assignment.error:
            said = f"{describe_assignor(assignor)}: {assignment.message or f'error {assignment.error}'}"
            message = printable(masked_text(said), limit=500)
            logger.warning("epoch %d: the target assignment is kept: %s", prepared.group_epoch, message)
            return replace(install, error=assignment.error, message=message, keeps_target=True)
        logger.info(
            "epoch %d: computed by %s for %s in %.1f ms",
            prepared.group_epoch,
            name,
            counted(len(prepared.members), "member"),
            (time.monotonic() - started) * 1000,
        )
        return replace(
            install,
            members=members_for_install(assignment),
            delayed=grouped(assignment.delayed),
            delay_ms=assignment.delay_ms,
            message=printable(masked_text(assignment.message), limit=500),
        )

    async def watch(self) -> None:
        """Poll the assignors that override ``metadata``, and report changes to the group (a ``reason``, CN-10)."""
        watched = [
            assignor for assignor in self._assignors.values() if type(assignor).metadata is not ConnectAssignor.metadata
        ]
        while watched:
            await asyncio.sleep((self._member.heartbeat_interval_ms or FIRST_INTERVAL_MS) / 1000)
            infos = {info.name: info for info in self._member.assignors}
            for assignor in watched:
                try:
                    infos[assignor.name] = await off_loop(f"metadata of {assignor.name}", assignor_info, assignor)
                except PluginError as error:
                    logger.error("%s", error.with_location())
            if self._member.set_assignors(list(infos.values())):
                self._notify()


def _failed(install: InstallRequest, message: str, *, location: str = "") -> InstallRequest:
    message = printable(masked_text(message), limit=500)
    mark_failed("PluginError")
    logger.error("%s", PluginError(message, location=location).with_location())
    return replace(install, error=ASSIGNOR_FAILED, message=message)


# --------------------------------------------------------------------------------------------------
# Requests of a worker other than heartbeats: the task lists of its connectors, Prepare and Install.
#
# They use a connection of their own: responses on one connection arrive in order, and a parked heartbeat would block
# them.


class ControlRequests:
    """Sends one member's requests other than heartbeats."""

    def __init__(self, member: Member, client: Client, times: WorkerSettings) -> None:
        """``client``: connection to the coordinator for these requests only."""
        self._member, self._client, self._times = member, client, times

    async def send(self, request: Request) -> Response:
        """Send a request other than a heartbeat; retry retriable errors and transport errors, raise other errors.

        Retries end after ``assignor_timeout_s``; the last one may begin a back-off later.
        """
        loop, times, failures = asyncio.get_running_loop(), self._times, 0
        back_off, gives_up_s = BackOff(times.retry_initial_s, times.retry_max_s), loop.time() + times.assignor_timeout_s

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
                wait_s = back_off.wait_s(failures)
                if loop.time() >= gives_up_s:
                    raise TransportError(f"given up after {times.assignor_timeout_s:g} s: {error}") from error
            await asyncio.sleep(wait_s)

    async def publish_tasks(
        self,
        connector: str,
        owner_epoch: int,
        configs: Sequence[Config] | None,
        credential_names: Sequence[str] | None = None,
    ) -> None:
        """See ``Worker.publish_tasks``."""
        change = ConnectorChange(
            connector=connector,
            owner_epoch=owner_epoch,
            task_configs=None if configs is None else tuple(TaskConfig(config=entries(each)) for each in configs),
            credential_names=None if credential_names is None else tuple(credential_names),
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
        ConfigError: too many tasks, or a configuration that does not consist of strings.
    """
    who = f"connector {connector.name}"
    if len(configs) > limit:
        raise ConfigError(f"{who}: task_configs", f"{len(configs)} tasks", f"at most {limit} (tasks.max)")
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
