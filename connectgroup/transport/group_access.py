"""Which users may use which groups: what Kafka's access control lists are for groups, as one list of users a group.

A rule names a group, or with a final ``*`` all groups whose names begin so. The rule of the group's own name decides,
or else that of the longest beginning; a group without a rule is open to every user. A user who may use a group may do
everything with it; another user sees and changes nothing of it.

Source: GROUP_AUTHORIZATION_FAILED, among the errors of each response in Connect on the new protocol; prefixes: KIP-290.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from ..errors import GroupAuthorizationFailed
from ..protocol.messages.api import DirectHandler, Handler, Request, Response
from ..protocol.messages.consumer import ConsumerDescribeRequest
from ..protocol.messages.describe import DeleteRequest, DescribeRequest
from ..protocol.messages.listing import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from ..protocol.messages.offsets import (
    OffsetFetchRequest,
)
from ..protocol.messages.rejected import rejected
from ..protocol.units import printable

CODE: Final = GroupAuthorizationFailed.code


class GroupAccess:
    """The rules.

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


class AuthorizedHandler:
    """The handler of one connection: passes on what its user may do.

    Args:
        handler: handles the requests of allowed groups.
        access: the rules.
        user: returns the authenticated user of the connection.
        on_denied: called with a line for the server's log.
    """

    def __init__(
        self, handler: Handler, access: GroupAccess, user: Callable[[], str], on_denied: Callable[[str], None]
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
        group_id = getattr(request, "group_id", "")
        if not group_id:
            return False
        if self._denies(group_id):
            respond(_refused(request, group_id))
            return True
        if self._begin is None:
            return False
        return self._begin(request, client_host=client_host, client_id=client_id, principal=principal, respond=respond)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """As ``Handler.handle``. Of several groups, those that the user may not use have an error each."""
        if group_id := getattr(request, "group_id", ""):
            if self._denies(group_id):
                return _refused(request, group_id)
            return await self._handler.handle(
                request, client_host=client_host, client_id=client_id, principal=principal
            )
        several = _SEVERAL.get(type(request))
        asked: tuple[Any, ...] = getattr(request, several.asked) if several is not None else ()
        if several is None or not asked:
            # Requests about all groups, and those that name none.
            response = await self._handler.handle(
                request, client_host=client_host, client_id=client_id, principal=principal
            )
            return self._without_denied(response) if isinstance(request, _OF_ALL) else response

        def about(*groups: Any) -> Any:
            return replace(cast(Any, request), **{several.asked: groups})

        denied = [each for each in asked if self._denies(getattr(each, "group_id", each))]
        allowed = [each for each in asked if each not in denied]
        responses: list[Any] = []
        if allowed:
            responses.append(
                await self._handler.handle(
                    about(*allowed), client_host=client_host, client_id=client_id, principal=principal
                )
            )
        responses += [_refused(about(each), getattr(each, "group_id", each)) for each in denied]
        entries = [entry for response in responses for entry in getattr(response, several.answered)]
        merged: Response = replace(responses[0], **{several.answered: tuple(entries)})
        return merged

    def _denies(self, group_id: str) -> bool:
        user = self._user()
        if self._access.allows(user, group_id):
            return False
        self._on_denied(f"user {printable(user)} may not use group {printable(group_id)}")
        return True

    def _without_denied(self, response: Any) -> Response:
        user = self._user()
        allowed = tuple(group for group in response.groups if self._access.allows(user, group.group_id))
        listed: Response = replace(response, groups=allowed)
        return listed


class _Several(NamedTuple):
    """How a request about several groups names them.

    Attributes:
        asked: the field of the request: group ids, or objects that have one.
        answered: the field of the response, with an entry for each.
    """

    asked: str
    answered: str


_OF_ALL: Final = (DescribeRequest, ListGroupsRequest)
"""These list all groups if they name none: of those only the user's own."""

_SEVERAL: Final[Mapping[type, _Several]] = {
    DescribeRequest: _Several("group_ids", "groups"),
    ConsumerDescribeRequest: _Several("group_ids", "groups"),
    DescribeGroupsRequest: _Several("groups", "groups"),
    DeleteRequest: _Several("group_ids", "results"),
    DeleteGroupsRequest: _Several("groups_names", "results"),
    OffsetFetchRequest: _Several("groups", "groups"),
}


def _refused(request: Request, group_id: str) -> Response:
    """The response to a request about one group that the user may not use."""
    return rejected(
        request, CODE, f"not authorized to use group {printable(group_id)} (group_users of the coordinator)"
    )
