"""Settings of the group type ``classic``."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..offsets.settings import OffsetSettings

JOIN_WAIT_MS = 1_000
"""How long JoinGroup waits in a consumer group for the target assignment that it causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """Settings of all classic groups. The defaults are Kafka's, except ``max_members``.

    Attributes:
        min_session_timeout_ms: the lowest session timeout of a member (``group.min.session.timeout.ms``).
        max_session_timeout_ms: the highest one (``group.max.session.timeout.ms``).
        initial_rebalance_delay_ms: how long the first rebalance of an empty group waits for more members; each new
            member extends it, up to the rebalance timeout (``group.initial.rebalance.delay.ms``).
        new_member_timeout_ms: how long a new member may wait in JoinGroup: its client may have disconnected.
        max_members: maximum number of members of a group (``group.max.size``).
        offsets: limits on committed offsets.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    new_member_timeout_ms: int = 300_000
    max_members: int = 1_000
    offsets: OffsetSettings = field(default_factory=OffsetSettings)
