"""When an automatic commit is due."""

from __future__ import annotations

from typing import cast

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.commits import Commits
from connectgroup.consumer.membership import Membership
from connectgroup.consumer.offsets import Position
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.settings import ConsumerSettings
from connectgroup.protocol.units import TopicPartition


class Rebalancing:
    """A membership during a rebalance."""

    is_rebalancing = True


class OneReturned:
    """A reading of which one record was returned, and is not committed."""

    def uncommitted(self) -> dict[TopicPartition, Position]:
        return {TopicPartition("t", 0): Position(1)}


@pytest.mark.parametrize(("interval_ms", "due"), [(0, True), (1, False), (None, False)])
def test_only_an_interval_of_zero_commits_during_a_rebalance(interval_ms: int | None, due: bool) -> None:
    settings = ConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), auto_commit_interval_ms=interval_ms)
    client = GroupClient("127.0.0.1:9", "g", "c")
    commits = Commits(client, settings, cast("Membership", Rebalancing()), cast("Reading", OneReturned()))
    assert commits.is_due() is due
