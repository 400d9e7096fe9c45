"""Kafka's ListGroups, DescribeGroups and DeleteGroups, from the description that all group types have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import GroupIdNotFound
from ..protocol.messages.describe import DeleteResponse, DescribedGroup, DescribeRequest
from ..protocol.messages.listing import (
    ClassicGroup,
    ClassicMember,
    DeletedResult,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ..protocol.units import printable

SUMMARY: Final = DescribeRequest(connectors=(), connectors_only=True)
"""Describes a group without members and connectors."""

CLASSIC: Final = DescribeRequest(connectors=(), include_classic=True)
"""Describes a group and its members, without connectors."""

DEAD: Final = "Dead"
"""The state of a group that does not exist."""


def listed(groups: Iterable[DescribedGroup], request: ListGroupsRequest) -> ListGroupsResponse:
    """The groups that pass the filters; groups that cannot be described are left out."""
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    return ListGroupsResponse(
        groups=tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups
            if not group.error_code
            and (not states or group.state.lower() in states)
            and (not types or group.group_type.lower() in types)
        )
    )


def in_classic_form(group: DescribedGroup, request: DescribeGroupsRequest) -> ClassicGroup:
    """A group in the form of a classic group; as one that does not exist if it has no such form."""
    code, message = group.error_code, group.error_message
    if not code and not group.classic_state:
        code = GroupIdNotFound.code
        message = f"group {printable(group.group_id)} is of type {group.group_type!r}, not a classic group"
    if code == GroupIdNotFound.code and not request.expects_not_found:
        return ClassicGroup(group_id=group.group_id, group_state=DEAD)
    if code:
        return ClassicGroup(group_id=group.group_id, group_state=DEAD, error_code=code, error_message=message)
    return ClassicGroup(
        group_id=group.group_id,
        group_state=group.classic_state,
        protocol_type=group.protocol_type,
        protocol_data=group.assignor_name,
        members=tuple(
            ClassicMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.classic_metadata,
                member_assignment=member.classic_assignment,
            )
            for member in group.members
        ),
    )


def deleted(response: DeleteResponse) -> DeleteGroupsResponse:
    """The results of a deletion."""
    results = (DeletedResult(group_id=each.group_id, error_code=each.error_code) for each in response.results)
    return DeleteGroupsResponse(results=tuple(results))
