"""The topics of a Kafka broker: read at an interval, kept while the broker cannot be reached; and expressions."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping

import pytest

from connectgroup.errors import ConfigError
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.topics import MAX_COMPILED, BrokerTopics, regex_violation

pytestmark = pytest.mark.asyncio


def topic(name: str, partitions: int) -> TopicMetadata:
    return TopicMetadata(topic_id="0" * 32, topic_name=name, num_partitions=partitions)


class Reads:
    """The results of successive reads, and the changes that were reported."""

    def __init__(self, *results: Mapping[str, TopicMetadata] | Exception) -> None:
        self._results = list(results)
        self.changes: list[Mapping[str, TopicMetadata]] = []
        self.done = asyncio.Event()

    async def read(self) -> Mapping[str, TopicMetadata]:
        await asyncio.sleep(0)
        result = self._results.pop(0) if len(self._results) > 1 else self._results[0]
        if len(self._results) == 1:
            self.done.set()
        if isinstance(result, Exception):
            raise result
        return result


async def test_each_change_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """An added partition; while the broker cannot be reached the topics stay as they are, and it is logged once."""
    caplog.set_level(logging.INFO)
    one, two = {"foo": topic("foo", 1)}, {"foo": topic("foo", 2)}
    gone = OSError("no broker")
    reads = Reads(one, dict(one), gone, gone, dict(one), two, dict(two))
    source = BrokerTopics("broker:9092", interval_s=0.0, read=reads.read)
    changed = asyncio.Event()

    def on_change(topics: Mapping[str, TopicMetadata]) -> None:
        reads.changes.append(topics)
        if topics == two:
            changed.set()

    await source.start(on_change)
    assert reads.changes == [one], "the topics are known when start returns"
    await asyncio.wait_for(asyncio.gather(changed.wait(), reads.done.wait()), 10)
    await source.close()
    assert reads.changes == [one, two]
    assert [record.getMessage() for record in caplog.records] == [
        "broker:9092: the topics cannot be read, retrying: no broker",
        "broker:9092: the topics can be read again",
    ]


async def test_broker_that_cannot_be_reached_at_the_start_is_an_error() -> None:
    source = BrokerTopics("broker:9092", read=Reads(OSError("no broker")).read)
    with pytest.raises(ConfigError, match=r"topics_from: got 'broker:9092'; allowed: a reachable Kafka broker \(no"):
        await source.start(lambda topics: None)
    await source.close()


async def test_change_that_is_expected_is_noticed_before_the_interval_is_over() -> None:
    now = {"foo": topic("foo", 1)}

    async def read() -> Mapping[str, TopicMetadata]:
        return dict(now)

    source = BrokerTopics("broker:9092", interval_s=3_600.0, read=read)
    changes: asyncio.Queue[Mapping[str, TopicMetadata]] = asyncio.Queue()
    await source.start(changes.put_nowait)
    await changes.get()
    source.expect_change(30.0)
    await asyncio.sleep(0.2)
    now["bar"] = topic("bar", 1)
    assert set(await asyncio.wait_for(changes.get(), 10)) == {"foo", "bar"}
    await source.close()


async def test_few_expressions_of_strangers_stay_compiled() -> None:
    """Each may take 8 MB: those of a thousand consumers filled the memory of the coordinator."""
    re2 = pytest.importorskip("re2")
    for number in range(300):
        assert regex_violation(f"a{number}") == ""
    kind = type(re2.compile("a"))
    assert sum(isinstance(each, kind) for each in gc.get_objects()) <= 2 * MAX_COMPILED
