"""The metrics of group consumers on a real Kafka broker (KIP-429)."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.telemetry import metrics

from .conftest import NewGroup
from .inside import RecordingListener, eventually, member, poll_until


def values(group: str, member_id: str) -> dict[str, float]:
    """The values of a consumer, by Kafka's names."""
    return {
        metric.name: sample.value
        for metric, samples in metrics.snapshot().items()
        for sample in samples
        if metric.scope == "consumer" and dict(sample.labels) == {"group": group, "consumer": member_id}
    }


async def test_rebalances_heartbeats_and_callbacks(new_group: NewGroup) -> None:
    metrics.forget()
    with new_group("measured", partitions=4) as group:
        async with member(group, listener=RecordingListener()) as first:
            await poll_until(lambda: len(first.assignment()) == 4, first)
            alone = values(group.name, first.member_id)
            assert (alone["rebalance-total"], alone["failed-rebalance-total"]) == (1, 0)
            assert alone["rebalance-latency-max"] >= alone["join-time-max"] > 0
            assert alone["partition-assigned-latency-max"] >= 0
            assert "partition-revoked-latency-max" not in alone
            async with member(group) as second:
                await poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 2, first, second)
                await eventually(lambda: values(group.name, second.member_id)["heartbeat-total"] > 0)
                assert values(group.name, first.member_id)["rebalance-total"] >= 2
                assert values(group.name, first.member_id)["partition-revoked-latency-max"] >= 0
                assert 0 <= values(group.name, second.member_id)["last-heartbeat-seconds-ago"] < 60
                left = second.member_id
            assert values(group.name, left) == {}
        assert not any(samples for metric, samples in metrics.snapshot().items() if metric.scope == "consumer")
