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
from ..protocol.messages.consumer import ConsumerDescribeRequest, DescribedConsumerGroup
from ..protocol.messages.describe import DeletedGroup, DeleteRequest, DescribedGroup, DescribeRequest
from ..protocol.messages.listing import (
    ClassicGroup,
    DeletedResult,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from ..protocol.messages.offsets import (
    FetchedGroup,
    FetchedPartition,
    FetchedTopic,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommitted,
    TopicCommitted,
)
from ..protocol.units import printable
from ..wire.apis import refusal
from .base import API_OF

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
        denied = [each for each in asked if self._denies(getattr(each, "group_id", each))]
        errors = tuple(several.denied(getattr(each, "group_id", each)) for each in denied)
        if len(denied) == len(asked):
            make: Callable[..., Response] = API_OF[type(request)][1]
            return make(**{several.answered: errors})
        if denied:
            left: dict[str, Any] = {several.asked: tuple(each for each in asked if each not in denied)}
            request = cast(Request, replace(cast(Any, request), **left))
        response = await self._handler.handle(
            request, client_host=client_host, client_id=client_id, principal=principal
        )
        if not denied:
            return response
        found: dict[str, Any] = {several.answered: (*getattr(response, several.answered), *errors)}
        return replace(response, **found)

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
        denied: makes the entry of a group that the user may not use.
    """

    asked: str
    answered: str
    denied: Callable[[str], Any]


_OF_ALL: Final = (DescribeRequest, ListGroupsRequest)
"""These list all groups if they name none: of those only the user's own."""

_SEVERAL: Final[Mapping[type, _Several]] = {
    DescribeRequest: _Several(
        "group_ids",
        "groups",
        lambda group_id: DescribedGroup(group_id=group_id, error_code=CODE, error_message=_why(group_id)),
    ),
    ConsumerDescribeRequest: _Several(
        "group_ids",
        "groups",
        lambda group_id: DescribedConsumerGroup(group_id=group_id, error_code=CODE, error_message=_why(group_id)),
    ),
    DescribeGroupsRequest: _Several(
        "groups",
        "groups",
        lambda group_id: ClassicGroup(group_id=group_id, error_code=CODE, error_message=_why(group_id)),
    ),
    DeleteRequest: _Several(
        "group_ids",
        "results",
        lambda group_id: DeletedGroup(group_id=group_id, error_code=CODE, error_message=_why(group_id)),
    ),
    DeleteGroupsRequest: _Several(
        "groups_names", "results", lambda group_id: DeletedResult(group_id=group_id, error_code=CODE)
    ),
    OffsetFetchRequest: _Several("groups", "groups", lambda group_id: FetchedGroup(group_id=group_id, error_code=CODE)),
}


def _why(group_id: str) -> str:
    return f"not authorized to use group {printable(group_id)} (group_users of the coordinator)"


def _refused(request: Request, group_id: str) -> Response:
    """The response to a request about one group that the user may not use."""
    if isinstance(request, OffsetCommitRequest):
        return OffsetCommitResponse(
            topics=tuple(
                TopicCommitted(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        PartitionCommitted(partition_index=each.partition_index, error_code=CODE)
                        for each in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )
    if isinstance(request, OffsetFetchRequest):
        return OffsetFetchResponse(
            error_code=CODE,
            topics=tuple(
                FetchedTopic(
                    name=topic.name,
                    partitions=tuple(
                        FetchedPartition(partition_index=number, committed_offset=-1, metadata="", error_code=CODE)
                        for number in topic.partition_indexes
                    ),
                )
                for topic in request.topics or ()
            ),
        )
    return refusal(API_OF[type(request)][0], CODE, _why(group_id))
