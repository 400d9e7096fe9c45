"""The responses that carry an error: those to every request that is rejected are made here, and read.

Most responses have an error code, and those of connectgroup's own requests a message. The others report the error for
each group, partition, member or key that the request names.

Source: ``getErrorResponse`` of Kafka's requests.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from .api import Request, Response
from .classic import JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, LeaveGroupResponse, LeftMember
from .cluster import FindCoordinatorRequest, FindCoordinatorResponse, FoundCoordinator
from .consumer import ConsumerDescribeRequest, ConsumerDescribeResponse, DescribedConsumerGroup
from .describe import (
    DeletedGroup,
    DeletedResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRequest,
    DeleteResponse,
    DescribedClassicGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeRequest,
    DescribeResponse,
)
from .offsets import (
    FetchedGroup,
    FetchedPartition,
    FetchedTopic,
    GroupToFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionCommitted,
    TopicCommit,
    TopicCommitted,
    TopicToFetch,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

RESPONSE_OF: Final[dict[type[Any], type[Any]]] = dict(zip(get_args(Request), get_args(Response), strict=True))
"""The class of the response by the class of the request."""

UNNAMED: Final = ("",)
"""In place of what a request does not name: otherwise, its response could not carry the error."""

_UNKNOWN_MEMBER_ID: Final = 25
"""``errors.UnknownMemberId``, which is above this package."""


def rejected(request: Request, code: int, message: str | None = None) -> Response:
    """The response of the request's own type that carries an error.

    Args:
        message: ``None`` for none. Most of Kafka's own responses have no field for it.
    """
    match request:
        case DescribeRequest():
            described = [
                DescribedGroup(group_id=each, error_code=code, error_message=message)
                for each in request.group_ids or UNNAMED
            ]
            return DescribeResponse(groups=tuple(described))
        case ConsumerDescribeRequest():
            return ConsumerDescribeResponse(
                groups=tuple(
                    DescribedConsumerGroup(group_id=each, error_code=code, error_message=message, group_state="Dead")
                    for each in request.group_ids or UNNAMED
                )
            )
        case DescribeGroupsRequest():
            groups = [
                DescribedClassicGroup(group_id=each, error_code=code, error_message=message)
                for each in request.groups or UNNAMED
            ]
            return DescribeGroupsResponse(groups=tuple(groups))
        case DeleteRequest():
            deleted = [
                DeletedGroup(group_id=each, error_code=code, error_message=message)
                for each in request.group_ids or UNNAMED
            ]
            return DeleteResponse(results=tuple(deleted))
        case DeleteGroupsRequest():
            results = [DeletedResult(group_id=each, error_code=code) for each in request.groups_names or UNNAMED]
            return DeleteGroupsResponse(results=tuple(results))
        case FindCoordinatorRequest():
            found = [
                FoundCoordinator(key=each, node_id=-1, host="", port=-1, error_code=code, error_message=message)
                for each in request.coordinator_keys or UNNAMED
            ]
            return FindCoordinatorResponse(error_code=code, error_message=message, coordinators=tuple(found))
        case OffsetCommitRequest():
            return OffsetCommitResponse(topics=_committed(request, code))
        case TxnOffsetCommitRequest():
            return TxnOffsetCommitResponse(topics=_committed(request, code))
        case OffsetFetchRequest():
            return OffsetFetchResponse(
                # Version 1 has no other place for an error; from version 8 on there are only the groups.
                topics=tuple(_fetched(topic, code) for topic in request.topics or ()),
                error_code=code,
                groups=tuple(FetchedGroup(group_id=each.group_id, error_code=code) for each in request.groups),
            )
        case JoinGroupRequest():
            return JoinGroupResponse(error_code=code, error_message=message, member_id=request.member_id)
        case LeaveGroupRequest(members=members) if members and code == _UNKNOWN_MEMBER_ID:
            left = [
                LeftMember(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code)
                for each in members
            ]
            return LeaveGroupResponse(error_code=0, members=tuple(left))
        case _:
            return _plain(type(request), code, message)


def rejected_unread(request_class: type[Request], code: int, message: str) -> Response:
    """The response to a request that cannot be decoded: as ``rejected``, for one group or partition without a name."""
    unnamed = _UNNAMED.get(request_class)
    return _plain(request_class, code, message) if unnamed is None else rejected(unnamed, code, message)


def error_of(request: Request, response: Response) -> tuple[int, str | None]:
    """The error code of a response, 0 for success, and its message.

    Describe, Delete and OffsetFetch have none at the top level.
    """
    if isinstance(response, DescribeResponse) and response.groups:
        group = response.groups[0]
        if not group.group_id or (isinstance(request, DescribeRequest) and request.group_ids):
            return group.error_code, group.error_message
    if isinstance(response, DeleteResponse) and response.results:
        return response.results[0].error_code, response.results[0].error_message
    if isinstance(response, OffsetFetchResponse):
        return response.first.error_code, None
    return getattr(response, "error_code", 0), getattr(response, "error_message", None)


def _plain(request_class: type[Request], code: int, message: str | None) -> Response:
    response_class = RESPONSE_OF[request_class]
    with_message = {"error_message": message} if hasattr(response_class, "error_message") else {}
    response: Response = response_class(error_code=code, **with_message)
    return response


def _committed(request: OffsetCommitRequest | TxnOffsetCommitRequest, code: int) -> tuple[TopicCommitted, ...]:
    return tuple(
        TopicCommitted(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                PartitionCommitted(partition_index=each.partition_index, error_code=code) for each in topic.partitions
            ),
        )
        for topic in request.topics
    )


def _fetched(topic: TopicToFetch, code: int) -> FetchedTopic:
    partitions = [
        FetchedPartition(partition_index=each, committed_offset=-1, metadata="", error_code=code)
        for each in topic.partition_indexes
    ]
    return FetchedTopic(name=topic.name, partitions=tuple(partitions))


_NAMELESS: Final = (
    TopicCommit(partitions=(PartitionCommit(partition_index=-1, committed_offset=-1, committed_metadata=None),)),
)

_UNNAMED: Final[dict[type[Any], Request]] = {
    type(request): request
    for request in (
        DescribeRequest(),
        ConsumerDescribeRequest(group_ids=()),
        DescribeGroupsRequest(),
        DeleteRequest(group_ids=()),
        DeleteGroupsRequest(),
        FindCoordinatorRequest(),
        OffsetCommitRequest(group_id="", member_id="", topics=_NAMELESS),
        TxnOffsetCommitRequest(transactional_id="", group_id="", producer_id=-1, producer_epoch=-1, topics=_NAMELESS),
        OffsetFetchRequest(
            topics=(TopicToFetch(partition_indexes=(-1,)),), groups=(GroupToFetch(group_id="", topics=None),)
        ),
    )
}
"""Of each request whose response reports errors for what the request names: one that names nothing."""
