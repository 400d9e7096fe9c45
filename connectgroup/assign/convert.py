"""Conversion between wire messages and the input and result of an assignor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import PluginError
from ..protocol.messages.assignment import InstalledMember, PrepareResponse
from ..protocol.messages.common import AssignorInfo, grouped
from .api import ConnectAssignment, ConnectAssignor, ConnectGroup, Metadata, PartitionAssignor

if TYPE_CHECKING:
    pass
from .sandbox import _guarded, _metadata_violation, declaration_violation, who


def assignor_info(
    assignor: ConnectAssignor | PartitionAssignor, subscribed: frozenset[str] = frozenset()
) -> AssignorInfo:
    """Return the data that a member sends to the group about one of its assignors: name, versions, current metadata.

    Args:
        subscribed: the topics a consumer subscribes to, for a ``PartitionAssignor``.

    Raises:
        PluginError: ``metadata`` raised, or its result cannot be sent.
    """

    def ask() -> Metadata:
        return assignor.metadata(subscribed) if isinstance(assignor, PartitionAssignor) else assignor.metadata()

    said = _guarded(assignor, "metadata", ask)
    violation = declaration_violation(assignor) or _metadata_violation(assignor, said)
    if violation is not None:
        raise PluginError(f"{who(assignor)}: {violation}")
    return AssignorInfo(
        name=assignor.name,
        minimum_version=assignor.minimum_version,
        maximum_version=assignor.maximum_version,
        reason=said.reason,
        version=said.version,
        metadata=said.metadata,
    )


def group_from_prepare(response: PrepareResponse) -> ConnectGroup:
    """Return the assignor's input from the coordinator's message (``ConnectGroupPrepareAssignment``)."""
    from .columns import connect as assignor_columns

    return assignor_columns.group_from_prepare(response)


def members_for_install(assignment: ConnectAssignment) -> tuple[InstalledMember, ...]:
    """Convert a validated result to wire messages. Members and units are sorted: equal results are equal bytes."""
    if assignment.by_column is not None:
        from .columns.connect import wire_shares_of

        columns, owner, assignor_state = assignment.by_column
        shares = wire_shares_of(columns, owner)
        return tuple(
            InstalledMember(member_id=member_id, version=version, units=units, metadata=assignor_state)
            for member_id, version, units in zip(columns.member_ids, columns.member_versions, shares, strict=True)
        )
    return tuple(
        InstalledMember(
            member_id=member.member_id,
            error=member.error,
            units=grouped(member.units),
            version=member.version,
            metadata=member.metadata,
        )
        for member in sorted(assignment.members, key=lambda member: member.member_id)
    )
