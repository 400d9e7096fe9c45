"""The words everything else is said in: what is shared out, and how one piece of it is named.

A *unit* is one indivisible piece of work: a connector, or one task of a connector. The group rules treat
units as opaque keys; only their order and equality matter to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

CONNECTOR: Final = -1
"""The task number that stands for the connector itself."""

JOIN_EPOCH: Final = 0
"""Sent by a member that joins, or joins again, and runs nothing."""

MAX_NAME_BYTES: Final = 249
"""UTF-8 bytes of an identifier: group, member, instance, connector or assignor name (Kafka's limit for topic names)."""

LEAVE_EPOCH: Final = -1
"""Sent by a member that leaves for good."""

STATIC_LEAVE_EPOCH: Final = -2
"""Sent by a static member that leaves for a while; the epoch it stands at until it is back (later Kafka)."""


class Unit(NamedTuple):
    """A connector (``task == CONNECTOR``) or one of its tasks (0, 1, ...).

    Sorts by connector name, the connector before its tasks.

    Source: Kafka's ``ConnectorTaskId``, widened by the connector itself.
    """

    connector: str
    task: int = CONNECTOR

    @property
    def is_connector(self) -> bool:
        """True for the connector itself, false for one of its tasks."""
        return self.task == CONNECTOR

    def __str__(self) -> str:
        return self.connector if self.task == CONNECTOR else f"{self.connector}-{self.task}"


Units = frozenset[Unit]
NO_UNITS: Final[Units] = frozenset()


def show(units: Iterable[Unit], *, most: int = 8) -> str:
    """Units as a person reads them: ``a, a-0, a-1``, sorted, cut after ``most`` with the number left out."""
    named = list(units)
    text = ", ".join(str(unit) for unit in nsmallest(most, named))
    return f"{text} and {len(named) - most} more" if len(named) > most else text or "nothing"


def printable(value: object, *, most: int = 80) -> str:
    """Somebody else's text made safe for one line of ours: control characters escaped, cut to ``most`` characters.

    The text is cut before it is escaped: the work does not grow with what a peer sent.
    """
    head = (value[: most + 1] if isinstance(value, (bytes, bytearray)) else str(value))[: most + 1]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii", "replace") for c in str(head))
    return text if len(text) <= most else text[: most - 3] + "..."


class TopicPartition(NamedTuple):
    """One partition of a topic; ``topic`` is whatever the group calls it, name or id. Sorts by both."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Partitions = frozenset[TopicPartition]
