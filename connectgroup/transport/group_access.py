"""Access of clients to groups and connectors: which operation each request needs, and the refusal of what is denied.

``NEEDS`` has the operation of each request, as in Kafka. Two sets of rules decide, and both must allow: the users of a
group (``GroupAccess``), who may do everything with it, and the rules by operation (``access_rules``). A request is
decided before anything is looked up: the response is the same whether the group or the connector exists. Lists have
only what the principal may describe.

Source: GROUP_AUTHORIZATION_FAILED, among the errors of each response in Connect on the new protocol; Kafka's
``KafkaApis``; prefixes: KIP-290.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from ..errors import GroupAuthorizationFailed
from ..protocol.messages.api import DirectHandler, Handler, Request, Response
from ..protocol.messages.assignment import InstallRequest, PrepareRequest
from ..protocol.messages.classic import GroupHeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from ..protocol.messages.cluster import (
    ApiVersionsRequest,
    DescribeCoordinatorsRequest,
    FindCoordinatorRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from ..protocol.messages.common import ConnectorTasks, RestartRequest, SetLoggerLevelRequest
from ..protocol.messages.connectors import (
    THOSE_THERE,
    ConnectorChange,
    ResetTopicsRequest,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
)
from ..protocol.messages.describe import (
    DeleteGroupsRequest,
    DeleteRequest,
    DescribedClassicGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeRequest,
    DescribeResponse,
    ListGroupsRequest,
)
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from ..protocol.messages.rejected import rejected
from ..protocol.records.connect import GROUP_TYPE
from ..protocol.units import printable
from .access_rules import AccessOperation, AccessRules, Resource
from .base import Client

CODE: Final = GroupAuthorizationFailed.code

NEEDS: Final[Mapping[type[Any], AccessOperation | None]] = {
    HeartbeatRequest: AccessOperation.READ,
    PrepareRequest: AccessOperation.READ,
    InstallRequest: AccessOperation.READ,
    JoinGroupRequest: AccessOperation.READ,
    SyncGroupRequest: AccessOperation.READ,
    GroupHeartbeatRequest: AccessOperation.READ,
    LeaveGroupRequest: AccessOperation.READ,
    ConsumerHeartbeatRequest: AccessOperation.READ,
    ConsumerPrepareRequest: AccessOperation.READ,
    ConsumerInstallRequest: AccessOperation.READ,
    OffsetCommitRequest: AccessOperation.READ,
    TxnOffsetCommitRequest: AccessOperation.READ,
    OffsetFetchRequest: AccessOperation.DESCRIBE,
    DescribeRequest: AccessOperation.DESCRIBE,
    ConsumerDescribeRequest: AccessOperation.DESCRIBE,
    DescribeGroupsRequest: AccessOperation.DESCRIBE,
    ListGroupsRequest: AccessOperation.DESCRIBE,
    FindCoordinatorRequest: AccessOperation.DESCRIBE,
    RestartRequest: AccessOperation.ALTER,
    SetLoggerLevelRequest: AccessOperation.ALTER,
    UpdateConnectorsRequest: AccessOperation.ALTER,  # of connectors; see ``needed``
    ResetTopicsRequest: AccessOperation.ALTER,  # of a connector
    DeleteRequest: AccessOperation.DELETE,
    DeleteGroupsRequest: AccessOperation.DELETE,
    OffsetDeleteRequest: AccessOperation.DELETE,
    ApiVersionsRequest: None,
    SaslHandshakeRequest: None,
    SaslAuthenticateRequest: None,
    DescribeCoordinatorsRequest: None,  # the addresses of servers, as Kafka's Metadata has them
}
"""The operation that each request needs; ``None``: any client may send it."""


class RequiredAccess(NamedTuple):
    """An operation on a resource."""

    operation: AccessOperation
    resource: Resource


def needed(request: Any) -> tuple[RequiredAccess, ...]:
    """What a request about one group or its connectors needs, all of it; empty: nothing, or it names no group."""
    group_id = getattr(request, "group_id", "")
    if isinstance(request, UpdateConnectorsRequest):
        if request.member_id is not None and all(map(_is_task_list, request.changes)):
            return (RequiredAccess(AccessOperation.READ, Resource(group_id)),)  # of the worker that owns the connector
        if not request.changes:
            return (RequiredAccess(AccessOperation.ALTER, Resource(group_id)),)
        return tuple(
            RequiredAccess(
                AccessOperation.DELETE if change.delete else AccessOperation.ALTER, Resource(group_id, change.connector)
            )
            for change in request.changes
        )
    operation = NEEDS.get(type(request), AccessOperation.ALTER)
    if operation is None or not group_id:
        return ()
    return (RequiredAccess(operation, Resource(group_id, getattr(request, "connector", None))),)


def _is_task_list(change: ConnectorChange) -> bool:
    """Whether a change is no more than what the connector's owner publishes: a list of tasks, names of credentials."""
    rest = replace(change, task_configs=None, credential_names=None, owner_epoch=-1, expected_version=-1)
    return rest == ConnectorChange(connector=change.connector)


class GroupAccess:
    """Users by group: a group without a rule is open to all, and who may use a group may do everything with it.

    A rule names a group, or with a final ``*`` all groups whose names begin so. The rule of the group's own name
    decides, or else that of the longest beginning.

    Args:
        rules: names of users by group, or by a beginning of groups and ``*``.
    """

    def __init__(self, rules: Mapping[str, Collection[str]]) -> None:
        self._exact = {name: frozenset(users) for name, users in rules.items() if not name.endswith("*")}
        self._longest_first = sorted(
            ((name[:-1], frozenset(users)) for name, users in rules.items() if name.endswith("*")),
            key=lambda rule: -len(rule[0]),
        )

    def __bool__(self) -> bool:
        """Whether there is a rule."""
        return bool(self._exact or self._longest_first)

    def allows(self, user: str, group_id: str) -> bool:
        """Whether a user may use a group."""
        users = self._exact.get(group_id)
        if users is None:
            users = next((users for start, users in self._longest_first if group_id.startswith(start)), None)
        return users is None or user in users


class Authorization:
    """All rules of one server.

    Args:
        group_users: the users of groups; ``None``: none are limited.
        rules: the rules by operation; ``None``: everything is allowed.
        whose: the server that has the rules, for error messages.
    """

    def __init__(
        self,
        group_users: GroupAccess | None = None,
        rules: AccessRules | None = None,
        *,
        whose: str = "the coordinator",
    ) -> None:
        self._users, self.rules, self._whose = group_users or GroupAccess({}), rules, whose

    def __bool__(self) -> bool:
        """Whether anything may be denied."""
        return bool(self._users) or self.rules is not None

    def denial(self, principal: str, access: RequiredAccess) -> str:
        """The error message if an operation is denied; empty if it is allowed."""
        operation, resource = access
        if not self._users.allows(principal, resource.group):
            return f"not authorized to use group {printable(resource.group)} (group_users of {self._whose})"
        if self.rules is None or self.rules.allows(principal, operation, resource):
            return ""
        return f"not authorized to {operation.value.lower()} {resource} (access_rules of {self._whose})"

    def first_denial(self, principal: str, accesses: Iterable[RequiredAccess]) -> str:
        """The error message for the first operation that is denied; empty if all are allowed."""
        return next((denial for each in accesses if (denial := self.denial(principal, each))), "")

    def of_description(self, principal: str, request: DescribeRequest, group_id: str) -> str:
        """Why a group may not be described as requested; empty if it may."""
        access = RequiredAccess(AccessOperation.DESCRIBE, Resource(group_id))
        if self.rules is None:
            return self.denial(principal, access)
        # The configurations with credentials are for those who may change them.
        operation = AccessOperation.ALTER if request.include_credentials else AccessOperation.DESCRIBE
        if request.connectors:
            of_connectors = [RequiredAccess(operation, Resource(group_id, name)) for name in request.connectors]
            denial = self.first_denial(principal, of_connectors)
            return denial or ("" if request.connectors_only else self.denial(principal, access))
        every = request.connectors is None and not self.rules.allows_all(principal, operation, group_id)
        if every and request.include_credentials:
            what = f"alter every connector of group {printable(group_id)}"
            return f"not authorized to {what} (access_rules of {self._whose})"
        if request.connectors_only and self.rules.allows_some(principal, AccessOperation.DESCRIBE, group_id):
            return "" if self._users.allows(principal, group_id) else self.denial(principal, access)
        return self.denial(principal, access)

    def sees_all_connectors(self, principal: str, group_id: str) -> bool:
        """Whether every connector that a group has, or has had, may be described."""
        return self.rules is None or self.rules.allows_all(principal, AccessOperation.DESCRIBE, group_id)

    def visible(self, principal: str, group: DescribedGroup) -> DescribedGroup:
        """The description of a group without the connectors that the principal may not describe."""
        if group.group_type != GROUP_TYPE or self.sees_all_connectors(principal, group.group_id):
            return group

        def shown(connector: str) -> bool:
            return not self.denial(
                principal, RequiredAccess(AccessOperation.DESCRIBE, Resource(group.group_id, connector))
            )

        def of(units: tuple[ConnectorTasks, ...]) -> tuple[ConnectorTasks, ...]:
            return tuple(each for each in units if shown(each.connector))

        members = (
            replace(
                each,
                assigned=of(each.assigned),
                pending_revocation=of(each.pending_revocation),
                target=of(each.target),
                assignor_state=b"",
                classic_metadata=b"",
                classic_assignment=b"",
            )
            for each in group.members
        )
        rebalances = (
            replace(
                each,
                causes=(),  # texts with names of connectors
                moves=tuple(move for move in each.moves if shown(move.connector)),
                delayed=tuple(replace(delayed, units=of(delayed.units)) for delayed in each.delayed),
            )
            for each in group.rebalances
        )
        return replace(
            group,
            assignor_error="",  # a text with names of connectors
            members=tuple(members),
            connectors=tuple(each for each in group.connectors if shown(each.connector)),
            rebalances=tuple(rebalances),
            delayed=tuple(replace(each, units=of(each.units)) for each in group.delayed),
            starting=of(group.starting),
        )

    def visible_in_classic_form(self, principal: str, group: DescribedClassicGroup) -> DescribedClassicGroup:
        """The same for Kafka's DescribeGroups: assignments of workers are bytes with all of their connectors."""
        if group.protocol_type != "connect" or self.sees_all_connectors(principal, group.group_id):
            return group
        members = (replace(each, member_metadata=b"", member_assignment=b"") for each in group.members)
        return replace(group, members=tuple(members))


class AuthorizedHandler:
    """The handler of one connection: passes on what its principal may do.

    Args:
        handler: handles what is allowed.
        access: the rules.
        user: returns the principal of the connection.
        on_denied: called with a denied request and the error message.
    """

    def __init__(
        self,
        handler: Handler,
        access: Authorization,
        user: Callable[[], str],
        on_denied: Callable[[Request, str], None],
    ) -> None:
        self._handler, self._access, self._user, self._on_denied = handler, access, user, on_denied
        self._begin = handler.begin if isinstance(handler, DirectHandler) else None

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        """As ``DirectHandler.begin``; requests about several groups are left to ``handle``."""
        if not getattr(request, "group_id", ""):
            return False
        if denial := self._denies(request, needed(request)):
            respond(rejected(request, CODE, denial))
            return True
        if self._begin is None:
            return False
        return self._begin(request, client_host=client_host, client_id=client_id, principal=principal, respond=respond)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """As ``Handler.handle``. Of several groups, those that the principal may not use have an error each."""

        async def allowed(request: Request) -> Any:
            return await self._handler.handle(
                request, client_host=client_host, client_id=client_id, principal=principal
            )

        if group_id := getattr(request, "group_id", ""):
            denial = self._denies(request, needed(request))
            return rejected(request, CODE, denial) if denial else self._nameless(await allowed(request), group_id)
        if not (asked := groups_asked(request)):
            # Requests about all groups, and those that name none.
            response = await allowed(request)
            return self._listed(request, response) if isinstance(request, OF_ALL) else response

        several = SEVERAL[type(request)]

        def about(*groups: Any) -> Any:
            return replace(cast(Any, request), **{several.asked: groups})

        # The audit log has a line for each denied group: each is checked as a request about it alone.
        denials = {each: self._denial_of(about(each), group_of(each)) for each in asked}
        permitted = [each for each in asked if not denials[each]]
        responses: list[Any] = []
        if permitted:
            responses.append(self._visible(await allowed(about(*permitted))))
        responses += [rejected(about(each), CODE, denials[each]) for each in asked if denials[each]]
        entries = [entry for response in responses for entry in getattr(response, several.answered)]
        merged: Response = replace(responses[0], **{several.answered: tuple(entries)})
        return merged

    def _denial_of(self, request: Any, group_id: str) -> str:
        if isinstance(request, DescribeRequest):
            denial = self._access.of_description(self._user(), request, group_id)
            if denial:
                self._on_denied(request, denial)
            return denial
        operation = NEEDS.get(type(request)) or AccessOperation.ALTER
        return self._denies(request, (RequiredAccess(operation, Resource(group_id)),))

    def _denies(self, request: Request, accesses: tuple[RequiredAccess, ...]) -> str:
        denial = self._access.first_denial(self._user(), accesses)
        if denial:
            self._on_denied(request, denial)
        return denial

    def _listed(self, request: Any, response: Any) -> Response:
        """A list of all groups: those that the principal may describe."""
        user = self._user()
        asked = request if isinstance(request, DescribeRequest) else DescribeRequest()
        groups = [
            each
            for each in response.groups
            # One without a group is the error of the whole list.
            if not (each.group_id and self._access.of_description(user, asked, each.group_id))
        ]
        return self._visible(replace(response, groups=tuple(groups)))

    def _nameless(self, response: Any, group_id: str) -> Response:
        """A response about one group: a refused change names no connector that the principal may not describe."""
        shown = response
        is_refused = isinstance(response, UpdateConnectorsResponse) and response.error_code
        if is_refused and not self._access.sees_all_connectors(self._user(), group_id):
            results = tuple(
                replace(each, error_message=_without_names(each.error_message)) for each in response.results
            )
            shown = replace(response, error_message=_without_names(response.error_message), results=results)
        result: Response = shown
        return result

    def _visible(self, response: Any) -> Response:
        user, shown = self._user(), response
        if isinstance(response, DescribeResponse):
            shown = replace(response, groups=tuple(self._access.visible(user, each) for each in response.groups))
        elif isinstance(response, DescribeGroupsResponse):
            groups = tuple(self._access.visible_in_classic_form(user, each) for each in response.groups)
            shown = replace(response, groups=groups)
        result: Response = shown
        return result


def _without_names(message: str | None) -> str | None:
    return message and message.partition(THOSE_THERE)[0]


class AuthorizedClient:
    """A client that sends what one principal may send, for a server that has the principal's connection itself.

    Args:
        client: sends the requests; ``close`` leaves it open.
        access, user, on_denied: see ``AuthorizedHandler``.
    """

    def __init__(
        self, client: Client, access: Authorization, user: str, on_denied: Callable[[Request, str], None]
    ) -> None:
        self._client, self._access, self._user, self._on_denied = client, access, user, on_denied

    @property
    def address(self) -> str:
        return self._client.address

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        sender = _Sender(self._client, timeout_s)
        handler = AuthorizedHandler(sender, self._access, lambda: self._user, self._on_denied)
        return await handler.handle(request, client_host="")

    async def close(self) -> None:
        """The client belongs to others."""


class _Sender:
    """A handler that sends what it gets."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        return await self._client.call(request, timeout_s=self._timeout_s)


class Several(NamedTuple):
    """How a request about several groups names them.

    Attributes:
        asked: the field of the request: group ids, or objects that have one.
        answered: the field of the response, with an entry for each.
    """

    asked: str
    answered: str


OF_ALL: Final = (DescribeRequest, ListGroupsRequest)
"""These list all groups if they name none: of those only the principal's own."""

SEVERAL: Final[Mapping[type, Several]] = {
    DescribeRequest: Several("group_ids", "groups"),
    ConsumerDescribeRequest: Several("group_ids", "groups"),
    DescribeGroupsRequest: Several("groups", "groups"),
    DeleteRequest: Several("group_ids", "results"),
    DeleteGroupsRequest: Several("groups_names", "results"),
    OffsetFetchRequest: Several("groups", "groups"),
    FindCoordinatorRequest: Several("coordinator_keys", "coordinators"),
}
"""The requests about several groups."""


def groups_asked(request: Request) -> tuple[Any, ...]:
    """The entries of a request about several groups, see ``group_of``; none: it names none."""
    several = SEVERAL.get(type(request))
    return () if several is None else getattr(request, several.asked)


def group_of(entry: Any) -> str:
    """The group that an entry names: an id, or an object that has one."""
    return str(getattr(entry, "group_id", entry))
