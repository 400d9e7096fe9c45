"""The contents of a driver's requests: subscriptions, and fields that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from connectgroup.protocol.messages.consumer import by_topic
from connectgroup.protocol.units import TopicPartition

from ..driver import LISTS
from .model import BAD_REGEX

GROUP = "readers"
TOPICS = ("ab", "ac", "b")
SUBSCRIPTIONS: tuple[Mapping[str, Any], ...] = (
    {"subscribed_topic_names": ("ab", "ac")},
    {"subscribed_topic_names": ("ab", "ac")},
    {"subscribed_topic_names": ("b", "ab", "ab")},
    {"subscribed_topic_names": ("ac", "missing"), "subscribed_topic_regex": ""},
    {"subscribed_topic_names": (), "subscribed_topic_regex": "a.*"},
    {"subscribed_topic_regex": ".*b"},
    {"subscribed_topic_names": ("ab",), "subscribed_topic_regex": "a.*"},
    {"subscribed_topic_names": ()},
)
WRONG: tuple[Mapping[str, Any], ...] = (
    {"member_epoch": -3},
    {"instance_id": ""},
    {"instance_id": None, "member_epoch": -2},
    {"rack_id": ""},
    {"rebalance_timeout_ms": 0},
    {"rebalance_timeout_ms": 4_000_000},
    {"member_epoch": 0, "rebalance_timeout_ms": -1},
    {"member_epoch": 0, "owned": None},
    {"member_epoch": 0, "owned": by_topic([TopicPartition("ab0", 0)])},
    {"member_epoch": 0, "subscribed_topic_names": None, "subscribed_topic_regex": None},
    {"subscribed_topic_regex": BAD_REGEX},
    {"server_assignor": "shuffle", "client_assignors": LISTS[0]},
    {"server_assignor": "unheard of", "client_assignors": None},
    {"client_assignors": (*LISTS[0], *LISTS[0]), "server_assignor": None},
    {"client_assignors": (replace(LISTS[0][0], version=9),), "server_assignor": None},
    {"client_assignors": (replace(LISTS[0][0], minimum_version=2, version=2, maximum_version=1),)},
    {"owned": (*by_topic([TopicPartition("ab0", 0)]), *by_topic([TopicPartition("ab0", 0)]))},
    {"group_id": ""},
    {"member_id": "", "member_epoch": 1},
)


def matching(regex: str, names: tuple[str, ...]) -> frozenset[str]:
    """``x.*`` and ``.*x``."""
    return frozenset(
        name
        for name in names
        if (regex.startswith(".*") and name.endswith(regex[2:]))
        or (regex.endswith(".*") and name.startswith(regex[:-2]))
    )
