"""Effects as values: work that a step requests and that must not run inside it.

A step is pure. Plug-in code may block, raise, or never return, so a step only describes the call. The shard performs
the effects of a step after its records are durable. The result of a computation re-enters the shard's queue as an
input of the same group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Compute a target assignment with a server-side assignor.

    Attributes:
        group_id: the group.
        group_type: the name of its type, which runs the assignor (``registry.GroupType.run_assignor``).
        epoch: the group epoch of ``input``.
        assignor: the name of the assignor.
        input: the input of the assignor; the group type defines its class.
    """

    group_id: str
    group_type: str
    epoch: int
    assignor: str
    input: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The result of a ``Compute``, an input of the group.

    Attributes:
        group_id, epoch, assignor: as in the effect.
        result: the assignment, of a class that the group type defines; ``None`` if the computation failed.
        error: why it failed, on one line; empty if it succeeded.
    """

    group_id: str
    epoch: int
    assignor: str
    result: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Log a warning to the operator, once per group, epoch and message."""

    group_id: str
    epoch: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Find the topics that match a regular expression: a search through all topics, so it runs off the event loop.

    Attributes:
        group_id: the group.
        group_type: the name of its type, which runs the search (``PatternMatcher``).
        pattern: the regular expression.
    """

    group_id: str
    group_type: str
    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The result of a ``Match``, an input of the group.

    Attributes:
        group_id, pattern: as in the effect.
        topics: the names of the topics that match.
    """

    group_id: str
    pattern: str
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """An input of a group: the topics of the cluster may have changed (KIP-848, case study "Partition Added")."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """What the broker has committed of one partition with pending offsets of transactions.

    Attributes:
        token: of the offset that was committed last; of an offset that is not pending, or empty, otherwise.
        is_stable: whether no transaction with an offset of the partition was open.
        asked: the tokens of the offsets that were pending when the broker was asked.
    """

    token: str
    is_stable: bool
    asked: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsEnded:
    """An input of a group: the outcome of transactions, by topic and partition."""

    group_id: str
    outcomes: Mapping[tuple[str, int], TransactionOutcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOffsets:
    """An input of a group: remove the offsets that no member has used for the retention time."""

    group_id: str


class PatternMatcher(Protocol):
    """A group type whose groups return ``Match``."""

    def match(self, effect: Match) -> frozenset[str]:
        """The names of the topics that match. Runs in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Queue an input of the group: a group that was loaded may have missed it."""

    group_id: str
    what: Any


Effect = Compute | Warn | Match | Repeat
