"""The meaning of a broker's error codes for a member of a group, and the exceptions raised to its user.

    ConnectGroupError
    ├── BrokerError           a request was rejected and must not be retried: which, why, and how to resolve it
    │   └── CommitRefused     the member lost the partitions, or may have: another member continues at the last commit
    ├── TransportError        no broker responded in time
    ├── FencedInstanceId      another process has taken over this member's ``instance_id``
    ├── PluginError           the assignor or the listener
    └── ConfigError           a setting

Source: Kafka's ``Errors``; KIP-345, KIP-394.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from ..errors import ConfigError, ConnectGroupError
from ..protocol.units import printable


class Code(IntEnum):
    """The error codes handled here, by Kafka's numbers."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    SASL_AUTHENTICATION_FAILED = 58
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    UNSTABLE_OFFSET_COMMIT = 88
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128
    COMPUTE_ASSIGNMENT = 20480


COORDINATOR_MOVED = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Look the coordinator up again, then retry."""

ASK_AGAIN = COORDINATOR_MOVED | {Code.COORDINATOR_LOAD_IN_PROGRESS, Code.REQUEST_TIMED_OUT}
"""The same request may be retried."""

MEMBERSHIP_LOST = frozenset(
    {
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
        Code.FENCED_INSTANCE_ID,
        Code.FENCED_MEMBER_EPOCH,
        Code.GROUP_ID_NOT_FOUND,
    }
)
"""The sender is no longer a member of the current generation: its partitions may belong to another member."""

GENERATION_PASSED = frozenset({Code.REBALANCE_IN_PROGRESS, Code.STALE_MEMBER_EPOCH})
"""A commit came with the generation or member epoch before the current one."""

_ADVICE = {
    Code.INCONSISTENT_GROUP_PROTOCOL: "the members of this group have no assignor in common with this one, "
    "or it is a group of another kind; change assignors or the group's name",
    Code.INVALID_SESSION_TIMEOUT: "session_timeout_ms is outside group.min.session.timeout.ms .. "
    "group.max.session.timeout.ms of the broker",
    Code.GROUP_MAX_SIZE_REACHED: "the group has group.max.size members",
    Code.TOPIC_AUTHORIZATION_FAILED: "no right to read a topic: an ACL of the broker must allow it to the user",
    Code.GROUP_AUTHORIZATION_FAILED: "no right to the group: an ACL of the broker must allow it to the user",
    Code.INVALID_GROUP_ID: "the broker does not take this name for a group",
    Code.UNSUPPORTED_VERSION: "a group of the new consumer protocol that cannot be joined by classic members, "
    "or a broker older than Kafka 2.5",
}


@contextmanager
def with_extra() -> Iterator[None]:
    """Around an import of confluent-kafka: name the extra to install if it is missing.

    Raises:
        ConfigError: confluent-kafka is not installed.
    """
    try:
        yield
    except ImportError as missing:
        raise ConfigError("confluent-kafka", "not installed", "pip install 'connectgroup[kafka]'") from missing


class BrokerError(ConnectGroupError):
    """A broker rejected a request, and a retry does not help. ``code`` is Kafka's error code, None if absent."""

    def __init__(self, what: str, code: int | None = None, more: str = "") -> None:
        super().__init__((what if code is None else f"{what}: {error_name(code)}") + more)
        self.code = code


class CommitRefused(BrokerError):
    """The group rejected a commit: this member is no longer in the group, or no longer in that generation.

    Nothing was stored. The new owners of the partitions will read again all records since the last commit.
    """


def error_name(code: int) -> str:
    """Format an error code for users."""
    try:
        known = Code(code)
    except ValueError:
        return f"error {code}"
    advice = _ADVICE.get(known)
    return f"{known.name} ({code}): {printable(advice, limit=300)}" if advice else f"{known.name} ({code})"


# --------------------------------------------------------------------------------------------------
# Problems that last: logged once when they begin, and once when they are over, however often they are met.


logger = logging.getLogger(__name__)


class Problems:
    """The present problems of one consumer, by subject.

    Args:
        group: for the log.
    """

    def __init__(self, group: str) -> None:
        self._group = printable(group)
        self._since: dict[str, float] = {}

    def met(self, subject: str, text: str) -> None:
        """A problem occurred: a warning the first time, DEBUG until the subject is ``solved``."""
        level = logging.DEBUG if subject in self._since else logging.WARNING
        self._since.setdefault(subject, time.monotonic())
        logger.log(level, "group %s: %s", self._group, text)

    def solved(self, subject: str) -> None:
        """The subject has no problem; logged if it had one."""
        since = self._since.pop(subject, None)
        if since is not None:
            logger.info("group %s: %s: available after %.1f s", self._group, subject, time.monotonic() - since)
