"""The data that consumers exchange in JoinGroup and SyncGroup; ``wire.embedded`` has their bytes.

Source: Kafka's ``ConsumerProtocolSubscription`` and ``ConsumerProtocolAssignment``; KIP-429, KIP-792, KIP-881.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..units import Partitions

UNKNOWN_GENERATION: Final = -1
"""Generation of a member without an assignment, or of one too old to send it; older than any other (KIP-792)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The topics a member subscribes to, and the partitions it owns.

    Attributes:
        topics: names of the topics from which it may be assigned partitions.
        user_data: assignor user data; None is null, which differs from empty bytes.
        owned: partitions it owns while it joins; empty if it revoked everything first (EAGER). From version 1.
        generation: of the rebalance that assigned ``owned``. From version 2.
        rack: the member's rack, None if it has none; an empty name is the same as none. From version 3.
    """

    topics: frozenset[str]
    user_data: bytes | None = None
    owned: Partitions = frozenset()
    generation: int = UNKNOWN_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedAssignment:
    """The assignment that the leader sends to a member.

    Attributes:
        partitions: the complete assignment, not a difference.
        user_data: assignor user data; None is null.
    """

    partitions: Partitions = frozenset()
    user_data: bytes | None = None
