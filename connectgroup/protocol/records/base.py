"""Kinds, keys and tombstones of records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """Record kinds, as stored. Never reuse a number."""

    GROUP = 1
    MEMBER = 2
    TARGET = 3
    TARGET_MEMBER = 4
    CURRENT = 5
    CONNECTOR = 6
    COMPUTATION = 7
    STATUS = 8
    REBALANCE = 9
    DELAY = 10
    CLASSIC_GROUP = 21
    CLASSIC_MEMBER = 22
    CONSUMER_MEMBER = 31
    CONSUMER_TARGET_MEMBER = 32
    CONSUMER_CURRENT = 33
    CONSUMER_TOPICS = 34
    CONSUMER_REGEX = 35
    OFFSET = 41
    PENDING_OFFSET = 42


class MemberState(IntEnum):
    """A member's reconciliation state (Kafka's MemberState, same bytes)."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2
    UNKNOWN = 127


class Key(NamedTuple):
    """The key of a record; of records with equal keys the latest one is valid."""

    kind: Kind
    group_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Deletes the record with this key."""

    key: Key

    @property
    def group_id(self) -> str:
        return self.key.group_id
