"""The records of a classic group, besides its ``GroupRecord``, whose epoch is the generation.

Source: Kafka's ``GroupMetadataValue``, divided into one record for the group and one for each member.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ..messages.classic import OfferedProtocol
from .base import Key, Kind


class ClassicState(IntEnum):
    """The state of a classic group (Kafka's ClassicGroupState)."""

    EMPTY = 0
    PREPARING_REBALANCE = 1
    COMPLETING_REBALANCE = 2
    STABLE = 3

    @property
    def shown(self) -> str:
        """The name that Kafka's tools know."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupRecord:
    """The state of a classic group.

    Attributes:
        protocol_type: ``consumer`` or ``connect``; empty before the first member.
        protocol_name: the assignor of the current generation; empty: none.
        leader: the member that computes the assignment; empty: none.
        since_ms: the coordinator's wall clock when the group entered the state.
    """

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    protocol_type: str = ""
    protocol_name: str = ""
    leader: str = ""
    since_ms: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CLASSIC_GROUP, self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberRecord:
    """A member of a classic group.

    Attributes:
        number: counts the members in the order in which they joined.
        protocols: the assignors that the member supports, in order of preference, with its metadata.
        assignment: its assignment in the current generation; opaque.
        former_epoch: *(tagged)* the member's epoch when a consumer group became this group, if that is not the
            generation: the member sends it until it joins again, or until a generation begins without it. -1: the
            member has no other epoch than the generation.
        assignment_version: *(tagged)* the version of the assignor user data in ``assignment``, -1 if unknown.
        assignment_error: *(tagged)* the assignor's own error number for the member, 0 if there is none.
    """

    group_id: str
    member_id: str
    number: int = 0
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = 0
    protocols: tuple[OfferedProtocol, ...] = ()
    assignment: bytes = b""
    former_epoch: int = -1
    assignment_version: int = -1
    assignment_error: int = 0

    @property
    def key(self) -> Key:
        return Key(Kind.CLASSIC_MEMBER, self.group_id, self.member_id)
