"""A join costs the same in a group of any size: mass starts, and a user's joins, delay no heartbeats."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

from connectgroup.coordinator.compute import server_assignors
from connectgroup.coordinator.listing import built_in_assignors
from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.connect.group_type import ConnectGroupType
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import JoinGroupRequest, OfferedProtocol
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.wire import embedded

FEW, MANY = 100, 4_000
MORE_AT_MOST = 8
"""Times the cost with ``FEW`` members: a join that looks at all of 40 times as many costs 20 times as much."""
MAX_MEMBERS = 10_000


def _connect() -> tuple[Any, Callable[[int], Any]]:
    settings = GroupSettings(max_members=MAX_MEMBERS, server_assignors=server_assignors(["balanced"]))

    def join(number: int) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id="g",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            server_assignor="balanced",
            owned=(),
            process_id=number,
        )

    return ConnectGroupType(settings, embedded), join


def _consumer() -> tuple[Any, Callable[[int], Any]]:
    group_type = ConsumerGroupType(
        ConsumerSettings(max_members=MAX_MEMBERS, server_assignors=built_in_assignors()),
        new_id=lambda: "id",
    )
    group_type.topics = {"t": TopicMetadata(topic_id="0" * 32, topic_name="t", num_partitions=10)}

    def join(number: int) -> ConsumerHeartbeatRequest:
        return ConsumerHeartbeatRequest(
            group_id="g",
            member_id=f"member-{number}",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=("t",),
            owned=(),
        )

    return group_type, join


def _classic() -> tuple[Any, Callable[[int], Any]]:
    ids = itertools.count()
    offered = (OfferedProtocol(name="range", metadata=b"m"),)

    def join(number: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="other",
            protocols=offered,
        )

    return ClassicGroupType(ClassicSettings(max_members=MAX_MEMBERS), new_id=lambda: f"id-{next(ids)}"), join


@pytest.mark.parametrize("kind", [_connect, _consumer, _classic], ids=["connect", "consumer", "classic"])
def test_join_costs_about_the_same_in_a_group_of_any_size(kind: Callable[[], tuple[Any, Callable[[int], Any]]]) -> None:
    """CPU time of this thread, the least of several batches: other processes on the machine hardly change it."""
    group_type, join = kind()
    group = group_type.new("g")
    joined = itertools.count()

    def join_until(size: int) -> None:
        while len(group.members) < size:
            outcome = group_type.step(group, join(next(joined)), 1_000_000, ClientInfo("host", "client", ""))
            assert not getattr(outcome.response, "error_code", 0), outcome.response

    def cost_at(size: int) -> float:
        join_until(size)
        costs = []
        for batch in range(1, 6):
            began_s = time.thread_time()
            join_until(size + 20 * batch)
            costs.append(time.thread_time() - began_s)
        return min(costs)

    gc.disable()
    try:
        few = cost_at(FEW)
        many = cost_at(MANY)
    finally:
        gc.enable()
    assert many < MORE_AT_MOST * few, f"20 joins: {few * 1e3:.2f} ms at {FEW} members, {many * 1e3:.2f} ms at {MANY}"
