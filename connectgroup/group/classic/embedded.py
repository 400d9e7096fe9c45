"""The subscriptions and assignments of members that use the classic protocol, in terms of the cluster's topic ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ...errors import InconsistentGroupProtocol, WireError
from ...protocol.messages.classic import EmbeddedAssignment, OfferedProtocol, Subscription
from ...protocol.records.consumer import TopicMetadata
from ...protocol.units import Partitions, TopicPartition, printable

PROTOCOL_TYPE = "consumer"
"""The protocol type of the classic members that a consumer group can have."""


class EmbeddedFormat(Protocol):
    """The bytes in JoinGroup and SyncGroup: ``wire.embedded``."""

    def decode_subscription(self, data: bytes, /) -> Subscription: ...
    def decode_assignment(self, data: bytes, /) -> EmbeddedAssignment: ...
    def encode_assignment(self, assignment: EmbeddedAssignment, /) -> bytes: ...


class NoFormat:
    """A coordinator that cannot read what members exchange: no member of the classic protocol can join."""

    def decode_subscription(self, data: bytes) -> Subscription:
        raise WireError("Subscription: this coordinator does not read it")

    def decode_assignment(self, data: bytes) -> EmbeddedAssignment:
        raise WireError("Assignment: this coordinator does not read it")

    def encode_assignment(self, assignment: EmbeddedAssignment) -> bytes:
        raise WireError("Assignment: this coordinator does not write it")


def subscription_of(embedded: EmbeddedFormat, member_id: str, protocols: Iterable[OfferedProtocol]) -> Subscription:
    """The subscription of a member, from the assignor that it prefers.

    Raises:
        InconsistentGroupProtocol: it cannot be read.
    """
    preferred = next(iter(protocols), None)
    try:
        return embedded.decode_subscription(preferred.metadata if preferred else b"")
    except WireError as error:
        raise InconsistentGroupProtocol(
            f"the metadata of member {printable(member_id)} cannot be read: {error}"
        ) from error


def with_ids(named: Partitions, topics: Mapping[str, TopicMetadata]) -> Partitions:
    """Partitions by topic id instead of by topic name; those that do not exist are left out."""
    return frozenset(
        TopicPartition(topics[name].topic_id, number) for name, number in named if exists(name, number, topics)
    )


def exists(name: str, number: int, topics: Mapping[str, TopicMetadata]) -> bool:
    """Whether a topic of these has a partition of this number."""
    return name in topics and 0 <= number < topics[name].num_partitions


def with_names(partitions: Iterable[TopicPartition], names: Mapping[str, str]) -> Partitions:
    """Partitions by topic name instead of by topic id; those of deleted topics are left out."""
    return frozenset(TopicPartition(names[each], number) for each, number in partitions if each in names)
