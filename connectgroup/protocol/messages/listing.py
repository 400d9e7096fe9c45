"""ListGroups, DescribeGroups and DeleteGroups: how Kafka's tools and clients see groups.

Source: Kafka's protocol guide; KIP-518 (states), KIP-848 (types), KIP-1043 (errors of DescribeGroups).
"""

from __future__ import annotations

from dataclasses import dataclass

NO_OPERATIONS = -(1 << 31)
"""The value of authorized operations that were not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsRequest:
    """List the groups of a coordinator.

    Attributes:
        states_filter: the states to list, in any case; empty: all. From version 4 on.
        types_filter: the group types to list, in any case; empty: all. From version 5 on.
    """

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """One group.

    Attributes:
        protocol_type: ``consumer`` or ``connect``.
        group_state: its state, from version 4 on.
        group_type: its type, from version 5 on.
    """

    group_id: str
    protocol_type: str = ""
    group_state: str = ""
    group_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsResponse:
    """The groups, sorted by id."""

    throttle_time_ms: int = 0
    error_code: int = 0
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsRequest:
    """Request the descriptions of groups in the form of classic groups.

    Attributes:
        include_authorized_operations: from version 3 on; there is no authorization here.
        expects_not_found: whether a group that does not exist is an error; from version 6 on. Not on the wire.
    """

    groups: tuple[str, ...] = ()
    include_authorized_operations: bool = False
    expects_not_found: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """One member.

    Attributes:
        member_metadata: its metadata for the assignor of the group; opaque.
        member_assignment: its assignment; opaque.
    """

    member_id: str
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedClassicGroup:
    """One group.

    Attributes:
        group_state: ``Dead`` if there is no such group and the request does not expect an error.
        protocol_data: the assignor.
    """

    error_code: int = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[ClassicMember, ...] = ()
    authorized_operations: int = NO_OPERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupsResponse:
    """One entry for each requested group."""

    throttle_time_ms: int = 0
    groups: tuple[DescribedClassicGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest:
    """Delete groups that have no members."""

    groups_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedResult:
    """The result for one group."""

    group_id: str
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """One entry for each requested group."""

    throttle_time_ms: int = 0
    results: tuple[DeletedResult, ...] = ()
