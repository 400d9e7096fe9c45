"""Units, their names and their display; the epochs with a special meaning; the partition of a group.

A *unit* is one indivisible piece of work: a connector, or one task of a connector. The group logic treats units as
opaque keys and depends only on their order and equality.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

CONNECTOR: Final = -1
"""The task number of the connector itself."""

JOIN_EPOCH: Final = 0
"""Member epoch in the heartbeat of a member that joins or rejoins and runs no units."""

MAX_NAME_BYTES: Final = 249
"""UTF-8 bytes of an identifier: group, member, instance, connector or assignor name (Kafka's limit for topic names)."""

LEAVE_EPOCH: Final = -1
"""Member epoch in the heartbeat of a member that leaves permanently."""

STATIC_LEAVE_EPOCH: Final = -2
"""Member epoch of a static member that leaves temporarily; its epoch until it returns (added to Kafka later)."""


NO_TOPIC_ID: Final = "0" * 32
"""The topic id of a topic that is not known, or that is named instead. Topic ids are 32 hexadecimal digits."""


class Unit(NamedTuple):
    """A connector (``task == CONNECTOR``) or one of its tasks (0, 1, ...).

    Sorts by connector name, the connector before its tasks.

    Source: Kafka's ``ConnectorTaskId``, extended by the connector itself.
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


def partition_of(group_id: str, partitions: int) -> int:
    """The partition of a log that has the records of a group: CRC-32 of the group id in UTF-8, modulo their number.

    Never change it: the records of a started log are where this function has put them.
    """
    return zlib.crc32(group_id.encode(errors="surrogatepass")) % partitions


def counted(count: int, noun: str) -> str:
    """Format a number of things: ``1 task``, ``2 tasks``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def show(units: Iterable[Unit | TopicPartition], *, limit: int = 8) -> str:
    """Format units for display: ``a, a-0, a-1``, sorted, truncated after ``limit`` with the number omitted."""
    named = list(units)
    text = ", ".join(str(unit) for unit in nsmallest(limit, named))
    return f"{text} and {len(named) - limit} more" if len(named) > limit else text or "nothing"


def printable(value: object, *, limit: int = 80) -> str:
    """Format untrusted text for one line of output: control characters escaped, at most ``limit`` characters.

    The text is truncated before it is escaped: the cost does not grow with the size of the peer's input.
    """
    text = escaped(str((value[: limit + 1] if isinstance(value, (bytes, bytearray)) else str(value))[: limit + 1]))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escaped(text: str) -> str:
    """Escape the control characters of untrusted text for one line of output, whatever its length."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii", "replace") for c in text)


MAX_NAMES: Final = 20
"""Names in one error message."""


def shown(names: list[str]) -> str:
    """Names for a message: sorted, shortened after ``MAX_NAMES``; ``none`` if there are none."""
    text = ", ".join(printable(name) for name in sorted(names)[:MAX_NAMES])
    return f"{text}, ..." if len(names) > MAX_NAMES else text or "none"


def name_violation(name: str) -> str | None:
    """Return the rule that an identifier violates, or ``None``: the one rule of the coordinator and of all settings.

    A name is 1 to 249 bytes of printable characters without blanks at its ends, and not ``.`` or ``..``.
    """
    if not name:
        return "a non-empty name"
    if len(name) > MAX_NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"at most {MAX_NAME_BYTES} bytes (it has {len(name)} characters)"
    if not name.isprintable() or name.strip() != name or name in (".", ".."):
        return "printable characters, no blanks at the ends, not '.' or '..'"
    return None


class TopicPartition(NamedTuple):
    """One partition of a topic; ``topic`` is the name or the id that the group uses. Sorts by both."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Partitions = frozenset[TopicPartition]
