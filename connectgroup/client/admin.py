"""Requests of an operator: describe and delete groups, change connectors, restart connectors, tasks and workers.

The only code that builds these requests. The command line, the REST API, the supervisor and embedders use it, over any
transport.

Requests are retried with back-off, at the next address if there are several, until a time limit:

- any request that was not processed: no connection, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR;
- an idempotent request whose outcome is unknown: the response is lost, or the log failed.

A creation or a deletion with an unknown outcome is not retried, because the retry could not distinguish its own earlier
success from a conflict. The error of a change says that it may have been made if the outcome of any attempt is unknown,
also of one before the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ..backoff import Attempts, BackOff
from ..checks import check_call, check_methods, check_object, setting_texts
from ..errors import (
    ConnectorAlreadyExists,
    ConnectorNotFound,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    NotAuthenticated,
    NotCoordinator,
    NotSent,
    TimedOut,
    TransportError,
    UnitFailed,
    from_code,
)
from ..protocol.messages.api import Handler, Request, Response
from ..protocol.messages.cluster import DescribeCoordinatorsRequest, DescribeCoordinatorsResponse
from ..protocol.messages.common import (
    RestartRequest,
    RestartResponse,
    SetLoggerLevelRequest,
    SetLoggerLevelResponse,
    entries,
)
from ..protocol.messages.connectors import (
    THOSE_THERE,
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
    DescribedMember,
    DescribedUnit,
    DescribeRequest,
    DescribeResponse,
)
from ..protocol.messages.offsets import FetchedTopic, GroupToFetch, OffsetFetchRequest, OffsetFetchResponse
from ..protocol.messages.rejected import error_of
from ..protocol.records.connect import TargetState
from ..protocol.units import CONNECTOR, Unit, counted, printable, shown
from ..transport.access import Access
from ..transport.base import Client
from ..transport.following import FollowingClient, parse_addresses
from ..transport.local import LocalClient

POLL_S: Final = 0.1
"""Interval between two descriptions while a method waits for a state of the group."""

POLLS_WITHOUT_TASKS: Final = 30
"""A connector that runs is described without tasks this often before it counts as one that has none: a program may
publish its task list a while after it has reported the connector as running.
"""

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

    async def allowed_paths(self, group_id: str) -> dict[str, set[Path]]:
        """Return, by machine, the files and directories that connectors may use on any worker there.

        Returns:
            Empty: not known, since there is no worker, or one has not reported its list yet.
        """
        try:
            members = (await self.describe(group_id, connectors=())).members
        except GroupIdNotFound:
            return {}
        found: dict[str, set[Path]] = {}
        for each in members:
            if each.allowed_paths is None:
                return {}
            found.setdefault(each.host, set()).update(map(Path, each.allowed_paths))
        return found

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
            raise ConnectorNotFound(f"connector {printable(name)} does not exist{THOSE_THERE}{shown(known)}")
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
            only_failed: whether to restart only units that are FAILED or STALLED.

        Returns:
            The restarted units as task numbers, -1 for the connector itself. Units without an owner are not restarted.

        Raises:
            ConnectorNotFound: the group has no such connector.
        """
        connector = await self.describe_connector(group_id, name)
        chosen = [
            unit
            for unit in connector.units
            if (include_tasks or unit.task == CONNECTOR) and (not only_failed or unit.has_failed)
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
            tasks = counted(sum(unit.task != CONNECTOR for unit in connector.units), "task")
            raise ConnectorNotFound(f"connector {printable(name)} has no task {task}: it has {tasks}")
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
        """Wait until a connector and all of its tasks run; return its description.

        It has no tasks until its worker has published them. One that runs without tasks for three seconds, or at the
        end of ``timeout_s``, has none.

        Raises:
            UnitFailed: a unit has failed, and its worker does not try again; at once.
            TimedOut: not within ``timeout_s``; names a unit that does not run, its state, and the errors there are.
            ConnectorNotFound: the group has no such connector.
        """
        loop = asyncio.get_running_loop()
        give_up_at, without_tasks = loop.time() + timeout_s, 0
        while True:
            connector = await self.describe_connector(group_id, name)
            waiting = next((unit for unit in connector.units if unit.state != "RUNNING"), None)
            if waiting is None and len(connector.units) > 1:
                return connector
            # Until its worker has stopped it, a connector is described as it was before a change.
            is_new = (
                waiting is None
                and (await self.describe(group_id, connectors=(), connectors_only=True)).state == "Stable"
            )
            without_tasks = without_tasks + 1 if is_new else 0
            if without_tasks >= POLLS_WITHOUT_TASKS or (without_tasks and loop.time() >= give_up_at):
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


_NOT_PROCESSED: Final = (NotSent, CoordinatorLoadInProgress, NotCoordinator)
_UNKNOWN_OUTCOME: Final = (TransportError, CoordinatorNotAvailable)

BACK_OFF: Final = BackOff(first_s=0.1, max_s=1.0)

R = TypeVar("R", bound=Response)


class RetryingSender:
    """Sends requests to a coordinator that has one or more addresses."""

    def __init__(self, clients: Sequence[Client], *, timeout_s: float, retry_for_s: float) -> None:
        """See ``Admin``."""
        if not clients:
            raise ValueError("clients: got none; allowed: one or more")
        self._clients = list(clients)
        self._timeout_s, self._retry_for_s = timeout_s, retry_for_s

    def through(self, wrap: Callable[[Client], Client]) -> RetryingSender:
        """A sender with the same limits whose requests go through ``wrap`` of each client."""
        clients = [wrap(each) for each in self._clients]
        return RetryingSender(clients, timeout_s=self._timeout_s, retry_for_s=self._retry_for_s)

    @property
    def address(self) -> str:
        """The address that the next request is sent to."""
        return self._clients[0].address

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()

    async def send(self, request: Request, expected: type[R], *, idempotent: bool, reads: bool = False) -> R:
        """Return the response; an error code in it becomes its exception.

        Args:
            expected: the class of the response.
            idempotent: whether the request may be retried although an earlier attempt may have been processed.
            reads: whether it changes nothing.

        Raises:
            GroupError: the coordinator rejects the request.
            TransportError: there is no response.
        """
        retried = (*_NOT_PROCESSED, *_UNKNOWN_OUTCOME) if idempotent else _NOT_PROCESSED
        attempts, may_have_changed = Attempts(BACK_OFF, for_s=self._retry_for_s), False
        while True:
            try:
                response = await self._attempt(request)
                break
            except (*_NOT_PROCESSED, *_UNKNOWN_OUTCOME) as error:
                again = isinstance(error, retried) and not isinstance(error, NotAuthenticated)
                may_have_changed |= not (reads or isinstance(error, _NOT_PROCESSED))
                if not (again and await attempts.pause()):
                    if not may_have_changed:
                        raise
                    raise type(error)(f"{error}; the change may have been made") from error
                # The next address, unless this coordinator is about to serve the group.
                if not isinstance(error, CoordinatorLoadInProgress):
                    self._clients.append(self._clients.pop(0))
        assert isinstance(response, expected)
        return response

    async def _attempt(self, request: Request) -> Response:
        response = await self._clients[0].call(request, timeout_s=self._timeout_s)
        code, message = error_of(request, response)
        if code:
            raise from_code(code, message)
        return response


def runs_all(group: DescribedGroup, member_id: str) -> bool:
    """Whether a worker is in the group and runs all units of its latest target assignment.

    Args:
        member_id: its member id, or its group instance id.
    """
    member = find_member(group, member_id)
    if member is None or member.state in ("RESTARTING", "AWAY") or group.state == "Assigning":
        return False
    units = [unit for each in group.connectors for unit in each.units if unit.member_id == member.member_id]
    return member.assigned == member.target and not any(unit.state == "STARTING" for unit in units)


def restart_error(group: DescribedGroup, member_id: str) -> str:
    """Why the last requested restart of a worker has not happened; empty if there is no such error."""
    member = find_member(group, member_id)
    return member.restart_error if member is not None else ""


def find_member(group: DescribedGroup, member_id: str) -> DescribedMember | None:
    """The member with this member id or group instance id."""
    return next((each for each in group.members if member_id in (each.member_id, each.instance_id)), None)


def no_unit_starts(group: DescribedGroup, members: Container[str]) -> bool:
    """Whether no unit of these members is STARTING: each runs, or has failed."""
    units = (unit for each in group.connectors for unit in each.units)
    return not any(unit.state == "STARTING" and unit.member_id in members for unit in units)


def has_started_all(group: DescribedGroup) -> bool:
    """Whether the group has a member, and every unit runs or has failed.

    A connector of a worker process that runs has published its tasks, if it has any.
    """
    states = {unit.state for each in group.connectors for unit in each.units}
    return bool(group.members) and states.isdisjoint(("STARTING", "UNASSIGNED"))


def assignor_says(group: DescribedGroup) -> str:
    """The assignor's error, for the end of a message; empty without one."""
    return f"; the assignor says: {group.assignor_error}" if group.assignor_error else ""


def describe_failures(group: DescribedGroup) -> str:
    """The units with an error, for a message: the first one, and how many there are; then the assignor's error.

    Returns:
        Text that begins with a semicolon; empty if there is no error.
    """
    failed = [(each.connector, unit) for each in group.connectors for unit in each.units if unit.message]
    said = assignor_says(group)
    if not failed:
        return said
    connector, unit = failed[0]
    more = f" ({len(failed)} units have errors)" if len(failed) > 1 else ""
    return f"; {Unit(connector, unit.task)} is {unit.state}: {unit.message}{more}{said}"


# --------------------------------------------------------------------------------------------------
# Results of an operator's requests, and the error in a response.


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResult:
    """The result of ``Admin.put_connector``.

    Attributes:
        version: the connector's version: the group epoch of its last change.
        created: whether the connector did not exist before.
    """

    version: int
    created: bool
