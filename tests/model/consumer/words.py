"""The data types of the model of consumer groups, besides those of ``tests.model.words``.

A partition is a ``Unit`` of the model: the topic id and the partition number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from connectgroup.protocol.messages.assignment import InstalledMember
from connectgroup.protocol.messages.classic import OfferedProtocol
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest, InstalledConsumer, TopicPartitions
from connectgroup.protocol.units import Unit

from ..words import AssignorInput, Expected, Member, Proposal

Topic = tuple[str, int]
"""Topic id and number of partitions."""


class Subscription(NamedTuple):
    """What the target assignment depends on besides the assignors of a member: its ``traits``."""

    names: frozenset[str]
    regex: str
    rack: str | None


def subscription(member: Member) -> Subscription:
    """The subscription of a member."""
    assert isinstance(member.traits, Subscription)
    return member.traits


@dataclass(kw_only=True)
class ConsumerMember(Member):
    """A member of a consumer group.

    Attributes:
        offers: the assignors that a member of the classic protocol offers, in its order.
        session_ms: the session timeout of such a member, which it chooses itself.
    """

    offers: tuple[OfferedProtocol, ...] = ()
    session_ms: int = 0

    def differs(self, other: Member) -> bool:
        """A member that returns with the other protocol needs a new target too."""
        return super().differs(other) or self.classic != other.classic


def known_member(member: Member) -> ConsumerMember:
    """A member of a consumer group, as one."""
    assert isinstance(member, ConsumerMember)
    return member


@dataclass(frozen=True, kw_only=True)
class ConsumerInput(AssignorInput):
    """The input of an assignor; the topics are its ``connectors``.

    Attributes:
        subscriptions: topic ids and rack, by member.
    """

    subscriptions: dict[str, tuple[frozenset[str], str | None]]


@dataclass(frozen=True, kw_only=True)
class Reply(Expected):
    """The expected response.

    Attributes:
        member_id: of a heartbeat: a member id that the coordinator may have generated.
        assignor: of a heartbeat: the client-side assignor whose metadata the response contains, or empty.
        parks: of a heartbeat: whether it may be parked.
        codes: of an OffsetCommit: the error of each partition.
    """

    member_id: str = ""
    assignor: str = ""
    parks: bool = False
    codes: dict[tuple[str, int], int] = field(default_factory=dict)


def partitions(topics: Iterable[TopicPartitions]) -> list[Unit]:
    """Every partition listed, duplicates included."""
    return [Unit(topic.topic_id, number) for topic in topics for number in topic.partitions]


def reported(request: ConsumerHeartbeatRequest) -> frozenset[Unit] | None:
    """The partitions that a heartbeat reports; ``None``: it reports none and acknowledges nothing."""
    return None if request.owned is None else frozenset(partitions(request.owned))


def proposal(members: Iterable[InstalledConsumer]) -> Proposal:
    """The result of an assignor."""
    return Proposal(
        members=tuple(
            InstalledMember(
                member_id=each.member_id,
                error=each.error,
                units=grouped(partitions(each.topic_partitions)),
                version=each.version,
                metadata=each.metadata,
            )
            for each in members
        )
    )
