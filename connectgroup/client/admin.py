"""Requests of an operator: describe and delete groups, change connectors, restart connectors, tasks and workers.

The only code that builds these requests. The command line, the REST API, the supervisor and embedders use it, over any
transport. ``retrying`` says which requests are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from ..checks import check_call, check_methods, check_object, setting_texts
from ..errors import ConnectorAlreadyExists, ConnectorNotFound, GroupIdNotFound, TimedOut, UnitFailed
from ..protocol.messages.api import Handler
from ..protocol.messages.cluster import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse
from ..protocol.messages.common import (
    RestartRequest,
    RestartResponse,
    SetLoggerLevelRequest,
    SetLoggerLevelResponse,
    entries,
)
from ..protocol.messages.connectors import (
    ConfigPatch,
    ConnectorChange,
    ResetTopicsRequest,
    ResetTopicsResponse,
    RestartedUnit,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.messages.describe import (
    DeleteRequest,
    DeleteResponse,
    DescribedConnector,
    DescribedGroup,
    DescribedUnit,
    DescribeRequest,
    DescribeResponse,
)
from ..protocol.messages.offsets import FetchedTopic, GroupToFetch, OffsetFetchRequest, OffsetFetchResponse
from ..protocol.records.connect import TargetState
from ..protocol.units import CONNECTOR, Unit, printable
from ..transport.access import Access
from ..transport.base import Client
from ..transport.following import FollowingClient, parse_addresses
from ..transport.local import LocalClient
from .conditions import PutResult as PutResult, assignor_says, describe_failures, find_member, runs_all, shown
from .retrying import RetryingSender

POLL_S: Final = 0.1
"""Interval between two descriptions while a method waits for a state of the group."""

STATES: Final = ", ".join(f"TargetState.{state.name}" for state in TargetState)


class Admin:
    """Sends the requests of an operator to a coordinator.

    ``async with Admin.connect("127.0.0.1:8474") as admin:`` closes the connections at the end. All methods raise a
    ``GroupError`` if the coordinator rejects the request and ``TransportError`` if there is no response.
    """

    def __init__(self, clients: Sequence[Client], *, timeout_s: float = 10.0, retry_for_s: float = 5.0) -> None:
        """Use these clients, in this order.

        Args:
            clients: one per address of a coordinator, at least one. ``close`` closes them.
            timeout_s: timeout of one attempt, connecting included.
            retry_for_s: no retry starts later than this after the first attempt; 0 disables retries.

        Raises:
            ConfigError: ``clients`` are none.
        """
        allowed = 'a list of clients; Admin.connect("host:port") and Admin.local(coordinator) make them'
        check_object("clients", clients, Sequence, allowed)
        for client in clients:
            check_methods("clients", client, ("call", "close"), allowed)
        self._sender = RetryingSender(clients, timeout_s=timeout_s, retry_for_s=retry_for_s)

    @classmethod
    def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        client_id: str = "admin",
        timeout_s: float = 10.0,
        retry_for_s: float = 5.0,
        access: Access | None = None,
    ) -> Admin:
        """Use TCP connections, opened on first use.

        Args:
            addresses: ``host:port``, or several of them.
            access: how to authenticate, and TLS; ``None``: see ``Access``.

        Raises:
            ConfigError: an address is not of this form.
        """
        client = FollowingClient(parse_addresses("addresses", addresses), client_id, access=access)
        return cls([client], timeout_s=timeout_s, retry_for_s=retry_for_s)

    @classmethod
    def local(cls, coordinator: Handler, *, client_host: str = "local", access: Access | None = None) -> Admin:
        """Use a coordinator in this process.

        Args:
            access: how to connect to the one that serves while this one stands by; ``None``: it shares no log.
        """
        client = LocalClient(coordinator, client_host=client_host, client_id="admin")
        return cls([client if access is None else FollowingClient((), "admin", access=access, first=client)])

    def through(self, wrap: Callable[[Client], Client]) -> Admin:
        """An admin client whose requests go through ``wrap`` of each of these clients, which stay this one's."""
        admin = copy(self)
        admin._sender = self._sender.through(wrap)
        return admin

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The address that the next request is sent to, for messages."""
        return self._sender.address

    async def close(self) -> None:
        """Close all connections."""
        await self._sender.close()

    # ---------------------------------------------------------------------------------------------- coordinators

    async def describe_coordinators(self) -> DescribeCoordinatorsResponse:
        """Return the coordinators of the log: the one that serves first, then those that stand by.

        A coordinator that shares its log with no other has an empty address.

        Raises:
            CoordinatorNotAvailable: the log cannot be read.
        """
        request = DescribeCoordinatorsRequest()
        return await self._sender.send(request, DescribeCoordinatorsResponse, idempotent=True, reads=True)

    # ---------------------------------------------------------------------------------------------- groups

    async def list_groups(self, *, connectors: bool = False) -> tuple[DescribedGroup, ...]:
        """Return all groups, sorted by id.

        A group that the coordinator cannot read has its error in ``error_code`` and ``error_message``.

        Args:
            connectors: whether to describe the connectors as well.
        """
        request = DescribeRequest(connectors=None if connectors else ())
        return (await self._sender.send(request, DescribeResponse, idempotent=True, reads=True)).groups

    async def describe(
        self,
        group_id: str,
        *,
        connectors: Sequence[str] | None = None,
        task_configs: bool = False,
        connectors_only: bool = False,
        credentials: bool = False,
        assignor_input: bool = False,
        history_points: int = 0,
        events: bool = False,
    ) -> DescribedGroup:
        """Return the current description of a group.

        Args:
            connectors: names of the connectors to describe; ``None`` for all. Unknown names are ignored.
            task_configs: whether tasks are described with their configurations, credentials masked.
            connectors_only: whether to omit members, rebalances and delayed units.
            credentials: whether the configurations of connectors contain credentials. Never show them.
            assignor_input: whether to include what an assignor and the rules of the group read (``analysis.plan``).
            history_points: include the last hour of each connector in at most so many intervals.
            events: whether to include the last events of each connector: errors, dead letters, log lines.

        Raises:
            GroupIdNotFound: there is no such group.
        """
        request = DescribeRequest(
            group_ids=(group_id,),
            connectors=None if connectors is None else tuple(connectors),
            include_task_configs=task_configs,
            connectors_only=connectors_only,
            include_credentials=credentials,
            include_assignor_input=assignor_input,
            history_points=history_points,
            include_events=events,
        )
        return (await self._sender.send(request, DescribeResponse, idempotent=True, reads=True)).groups[0]

    async def committed_offsets(self, group_id: str) -> tuple[FetchedTopic, ...]:
        """Return the offsets that the members of a consumer or classic group have committed."""
        request = OffsetFetchRequest(groups=(GroupToFetch(group_id=group_id, topics=None),))
        return (await self._sender.send(request, OffsetFetchResponse, idempotent=True, reads=True)).first.topics

    async def delete_group(self, group_id: str) -> None:
        """Delete a group that has no members, with its connectors.

        Raises:
            GroupIdNotFound: there is no such group.
            NonEmptyGroup: the group has members.
        """
        await self._sender.send(DeleteRequest(group_ids=(group_id,)), DeleteResponse, idempotent=False)

    async def wait_until(
        self, group_id: str, condition: Callable[[DescribedGroup], bool], *, what: str, timeout_s: float = 30.0
    ) -> DescribedGroup:
        """Describe the group repeatedly until the condition holds; return that description.

        Args:
            what: the condition as text, for the error: ``"stable"``.

        Raises:
            TimedOut: the condition does not hold within ``timeout_s``; names a unit with an error, if there is one.
            GroupIdNotFound: there is no such group then.
            ConfigError: the condition is no function of the description.
        """
        check_call("condition", condition, ("group",), "a function of the description: lambda group: ...")
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while True:
            try:
                group = await self.describe(group_id)
            except GroupIdNotFound:
                # The group is created with its first connector or worker.
                if loop.time() >= give_up_at:
                    raise
            else:
                if condition(group):
                    return group
                if loop.time() >= give_up_at:
                    raise TimedOut(
                        f"group {printable(group_id)}: not {what} within {timeout_s:g} s; it is {group.state}"
                        f"{describe_failures(group)}"
                    )
            await asyncio.sleep(POLL_S)

    async def wait_stable(self, group_id: str, *, timeout_s: float = 30.0) -> DescribedGroup:
        """Wait until every member has reached the newest target assignment; return the description.

        A group without members is stable: to wait for a worker that has just been started, use ``wait_worker``.

        Raises:
            TimedOut: the group is not stable within ``timeout_s``.
        """
        return await self.wait_until(
            group_id, lambda group: group.state in ("Stable", "Empty"), what="stable", timeout_s=timeout_s
        )

    # ---------------------------------------------------------------------------------------------- connectors

    async def describe_connector(
        self, group_id: str, name: str, *, task_configs: bool = False, history_points: int = 0, events: bool = False
    ) -> DescribedConnector:
        """Return the current description of one connector; see ``describe``.

        Raises:
            GroupIdNotFound, ConnectorNotFound: there is no such group, or no such connector in it.
        """
        group = await self.describe(
            group_id,
            connectors=(name,),
            task_configs=task_configs,
            connectors_only=True,
            history_points=history_points,
            events=events,
        )
        if not group.connectors:
            known = [each.connector for each in (await self.describe(group_id, connectors_only=True)).connectors]
            raise ConnectorNotFound(
                f"connector {printable(name)} does not exist; connectors of this group: {shown(known)}"
            )
        return group.connectors[0]

    async def add_connector(
        self, group_id: str, name: str, config: Mapping[str, object], *, state: TargetState = TargetState.RUNNING
    ) -> int:
        """Create a connector; the group is created if it does not exist.

        Args:
            config: its settings; numbers and booleans become text, as in Kafka Connect.
            state: the initial wanted state (KIP-980).

        Returns:
            The connector's version.

        Raises:
            ConnectorAlreadyExists: the group has a connector of this name.
            ConfigError: a setting is neither text, a number nor a boolean.
            InvalidRequest: the name or a setting is invalid.
        """
        check_object("state", state, TargetState, STATES)
        texts = entries(setting_texts(name, config))
        change = ConnectorChange(connector=name, expected_version=0, config=texts, target_state=state)
        return await self.change(group_id, change, idempotent=False)

    async def put_connector(self, group_id: str, name: str, config: Mapping[str, object]) -> PutResult:
        """Create a connector, or replace its configuration; ``config`` and errors as ``add_connector``."""
        texts = entries(setting_texts(name, config))
        change = ConnectorChange(connector=name, expected_version=0, config=texts)
        try:
            return PutResult(version=await self.change(group_id, change), created=True)
        except ConnectorAlreadyExists:
            change = ConnectorChange(connector=name, config=texts)
            return PutResult(version=await self.change(group_id, change), created=False)

    async def patch_connector(self, group_id: str, name: str, patch: Mapping[str, object]) -> int:
        """Change some settings of a connector; ``None`` removes a setting (KIP-477). Returns the connector's version.

        Raises:
            ConnectorNotFound: the group has no such connector.
            ConfigError, InvalidRequest: as ``add_connector``.
        """
        texts = setting_texts(name, {setting: value for setting, value in patch.items() if value is not None})
        settings = tuple(ConfigPatch(name=setting, value=texts.get(setting)) for setting in sorted(patch))
        return await self.change(group_id, ConnectorChange(connector=name, config_patch=settings))

    async def set_state(self, group_id: str, name: str, state: TargetState) -> int:
        """Set the wanted state of a connector: run, pause or stop it. Returns the connector's version.

        Raises:
            ConfigError: ``state`` is no ``TargetState``.
            ConnectorNotFound: the group has no such connector.
        """
        check_object("state", state, TargetState, STATES)
        return await self.change(group_id, ConnectorChange(connector=name, target_state=state))

    async def delete_connector(self, group_id: str, name: str) -> None:
        """Delete a connector and its tasks.

        Raises:
            ConnectorNotFound: the group has no such connector.
        """
        await self.change(group_id, ConnectorChange(connector=name, delete=True), idempotent=False)

    async def restart_connector(
        self, group_id: str, name: str, *, include_tasks: bool = False, only_failed: bool = False
    ) -> tuple[int, ...]:
        """Restart a connector: its units are revoked and assigned again at a later owner epoch (KIP-745).

        Args:
            include_tasks: whether to restart its tasks as well.
            only_failed: whether to restart only units that have failed.

        Returns:
            The restarted units as task numbers, -1 for the connector itself. Units without an owner are not restarted.

        Raises:
            ConnectorNotFound: the group has no such connector.
        """
        connector = await self.describe_connector(group_id, name)
        chosen = [
            unit
            for unit in connector.units
            if (include_tasks or unit.task == CONNECTOR) and (not only_failed or unit.state == "FAILED")
        ]
        return await self._restart(group_id, name, chosen)

    async def restart_task(self, group_id: str, name: str, task: int) -> tuple[int, ...]:
        """Restart one task; see ``restart_connector``.

        Raises:
            ConnectorNotFound: the group has no such connector, or the connector has no such task.
        """
        connector = await self.describe_connector(group_id, name)
        chosen = [unit for unit in connector.units if unit.task == task != CONNECTOR]
        if not chosen:
            raise ConnectorNotFound(f"connector {printable(name)} has no task {task}")
        return await self._restart(group_id, name, chosen)

    async def _restart(self, group_id: str, name: str, units: Sequence[DescribedUnit]) -> tuple[int, ...]:
        grants = tuple(
            RestartedUnit(task=unit.task, owner_epoch=unit.owner_epoch) for unit in units if unit.owner_epoch >= 0
        )
        if grants:
            await self.change(group_id, ConnectorChange(connector=name, restart=grants))
        return tuple(grant.task for grant in grants)

    async def change(self, group_id: str, change: ConnectorChange, *, idempotent: bool = True) -> int:
        """Make one change to one connector. Returns the connector's version, 0 if it was deleted.

        Args:
            idempotent: whether the change may be retried although an earlier attempt may have made it.
        """
        request = UpdateConnectorsRequest(group_id=group_id, changes=(change,))
        response = await self._sender.send(request, UpdateConnectorsResponse, idempotent=idempotent)
        return response.results[0].version

    # ---------------------------------------------------------------------------------------------- workers

    async def restart_worker(self, group_id: str, member_id: str) -> bool:
        """Request that a worker restart; its units are delayed for it meanwhile.

        Returns:
            False if a restart of this worker was requested before and is pending.

        Raises:
            GroupIdNotFound, UnknownMemberId: there is no such group, or no such worker in it.
            InvalidRequest: the worker is draining.
        """
        request = RestartRequest(group_id=group_id, member_id=member_id)
        return not (await self._sender.send(request, RestartResponse, idempotent=True)).already_requested

    async def drain_worker(self, group_id: str, member_id: str) -> bool:
        """Request that a worker drain: other workers take its units, then it leaves for good.

        Returns:
            False if the worker is draining already.

        Raises:
            GroupIdNotFound, UnknownMemberId: there is no such group, or no such worker in it.
        """
        request = RestartRequest(group_id=group_id, member_id=member_id, drain=True)
        return not (await self._sender.send(request, RestartResponse, idempotent=True)).already_requested

    async def set_logger_level(self, group_id: str, logger: str, level: str) -> None:
        """Set the level of a logger, and of all loggers below it, on every worker of a group (KIP-976).

        Each worker process gets it with its next heartbeat response; one that joins later gets it then. The
        coordinator does not store levels: they end with the processes, as in Kafka Connect.

        Args:
            logger: the name of the logger; ``root`` for all.
            level: one of ``loggers.LEVELS``.

        Raises:
            GroupIdNotFound: there is no such group.
            InvalidRequest: there is no such level.
        """
        request = SetLoggerLevelRequest(group_id=group_id, logger=logger, level=level)
        await self._sender.send(request, SetLoggerLevelResponse, idempotent=True)

    async def reset_topics(self, group_id: str, name: str) -> None:
        """Forget the topics that a connector has used (KIP-558). ``DescribedConnector.topics`` has them: those that its
        tasks have used since then, or since the coordinator started.

        Raises:
            ConnectorNotFound: the group has no such connector.
        """
        request = ResetTopicsRequest(group_id=group_id, connector=name)
        await self._sender.send(request, ResetTopicsResponse, idempotent=True)

    async def wait_running(self, group_id: str, name: str, *, timeout_s: float = 30.0) -> DescribedConnector:
        """Wait until a connector and all of its tasks run; return its description. It has no tasks at first.

        Raises:
            UnitFailed: a unit has failed, and its worker does not try again; at once.
            TimedOut: not within ``timeout_s``; names a unit that does not run, its state, and the errors there are.
            ConnectorNotFound: the group has no such connector.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while True:
            connector = await self.describe_connector(group_id, name)
            waiting = next((unit for unit in connector.units if unit.state != "RUNNING"), None)
            if waiting is None and len(connector.units) > 1:
                return connector
            if any(unit.has_failed_for_good for unit in connector.units):
                # Until its worker has stopped it, a unit is described as it was before a change or a restart.
                group = await self.describe(group_id, connectors=(name,), connectors_only=True)
                units = group.connectors[0].units if group.state == "Stable" and group.connectors else ()
                if (failed := next((unit for unit in units if unit.has_failed_for_good), None)) is not None:
                    raise UnitFailed(
                        f"connector {printable(name)}: {Unit(name, failed.task)} has failed, and its worker does not"
                        f" try again: {failed.message or 'it gave no reason'}; restart it, or change the connector"
                    )
            if loop.time() >= give_up_at:
                unit = f"{Unit(name, waiting.task)} is {waiting.state}" if waiting else "it has no tasks"
                reason = f": {waiting.message}" if waiting and waiting.message else ""
                said = assignor_says(await self.describe(group_id, connectors=(), connectors_only=True))
                raise TimedOut(f"connector {printable(name)}: not running within {timeout_s:g} s; {unit}{reason}{said}")
            await asyncio.sleep(POLL_S)

    async def wait_worker(self, group_id: str, member_id: str, *, timeout_s: float = 60.0) -> DescribedGroup:
        """Wait until a worker is in the group and runs all units of its latest target assignment.

        Args:
            member_id: its member id, or its group instance id.

        Raises:
            TimedOut: not within ``timeout_s``.
        """
        what = f"running all tasks of worker {printable(member_id)}"
        try:
            return await self.wait_until(
                group_id, lambda group: runs_all(group, member_id), what=what, timeout_s=timeout_s
            )
        except TimedOut as error:
            group = await self.describe(group_id, connectors=())
            if find_member(group, member_id) is not None:
                raise
            raise TimedOut(f"{error}; workers of this group: {shown([m.member_id for m in group.members])}") from error
