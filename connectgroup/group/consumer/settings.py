"""Settings of consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...protocol.messages.consumer import ConsumerPrepareResponse, InstalledConsumer
from ..offsets import OffsetSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerServerAssignment:
    """The result of a server-side assignor: ``members`` and ``message`` as in Install.

    ``error`` is that of the assignor, 0 if it has set none: then nothing is installed, and the group keeps its target
    assignment.
    """

    members: tuple[InstalledConsumer, ...] = ()
    message: str = ""
    error: int = 0


ConsumerServerAssignor = Callable[[ConsumerPrepareResponse], ConsumerServerAssignment]
"""A server-side assignor. Its input is the response that a member gets to Prepare."""


def no_regex(pattern: str) -> str:
    """The check of a regular expression on a coordinator without a library for them."""
    return "no regular expression: this coordinator has no library for them (install the extra 'kafka')"


class MigrationPolicy(StrEnum):
    """Which groups with members are converted (``group.consumer.migration.policy``); empty groups always are."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def converts(self) -> bool:
        """Whether a group may have members of both protocols."""
        return self is not MigrationPolicy.DISABLED

    @property
    def upgrades(self) -> bool:
        """Whether a classic group becomes a consumer group when a member of the consumer protocol joins."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group becomes a classic group when its last member of the consumer protocol leaves."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Limits and times, in milliseconds; the defaults are those of Kafka's broker (``group.consumer.*``).

    Attributes:
        session_timeout_ms: a member without a heartbeat for this long is removed.
        heartbeat_interval_ms: interval between a member's heartbeats.
        max_rebalance_timeout_ms: upper bound on the rebalance timeout that a member may request.
        failures_before_fallback: number of failed client-side computations in a row after which the server-side
            assignor runs.
        server_assignor: the server-side assignor of members that request none.
        server_assignors: all server-side assignors, by name.
        max_members: maximum number of members in a group.
        max_partitions: maximum number of partitions that a group may be subscribed to.
        assignment_interval_ms: minimum time between two computations (``group.consumer.assignment.interval.ms``): the
            members that join within it get one target assignment together.
        max_classic_members: maximum number of members of a group that becomes a classic group.
        migration_policy: which groups with members are converted.
        offsets: limits on committed offsets.
        regex_violation: returns what is allowed instead of a regular expression, or an empty string if it is valid.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_rebalance_timeout_ms: int = 3_600_000
    failures_before_fallback: int = 3
    server_assignor: str = "uniform"
    server_assignors: Mapping[str, ConsumerServerAssignor] = field(default_factory=dict)
    max_members: int = 1_000
    max_partitions: int = 200_000
    assignment_interval_ms: int = 1_000
    max_classic_members: int = 1_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    offsets: OffsetSettings = field(default_factory=OffsetSettings)
    regex_violation: Callable[[str], str] = no_regex

    @property
    def max_wait_ms(self) -> int:
        """How long the heartbeat of a member is parked that waits for a target assignment or the revocations of others.

        Its partitions would otherwise be idle until its next heartbeat. librdkafka gives up a heartbeat after the
        heartbeat interval, repeats it as it was, and is fenced if the lost response had a new member epoch.
        """
        return self.heartbeat_interval_ms // 2

    @property
    def max_park_ms(self) -> int:
        """Upper bound on parking a heartbeat: a third of the session timeout, so that two may be lost in a row."""
        return self.session_timeout_ms // 3
