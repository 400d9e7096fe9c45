"""What a fetch returns if librdkafka reports errors between records."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from confluent_kafka import KafkaError, KafkaException, Message

from connectgroup.consumer import fetching
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.fetching import FetchError
from connectgroup.consumer.offsets import ReadPosition
from connectgroup.consumer.reading import Reading
from connectgroup.consumer.records import Record
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.protocol.units import TopicPartition

REFUSED = Message(topic="t", partition=9, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
SETTINGS = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",))


class ScriptedConsumer:
    """Takes the place of librdkafka's consumer: returns these messages; an exception is raised in its turn."""

    def __init__(self, *arrived: Message | KafkaException) -> None:
        self._arrived = list(arrived)

    def poll(self, timeout: float) -> Message | None:
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int, timeout: float) -> list[Message]:
        taken: list[Message] = []
        while self._arrived and len(taken) < count:
            if isinstance(following := self._arrived[0], KafkaException):
                if taken:
                    break
                self._arrived.pop(0)
                raise following
            taken.append(following)
            self._arrived.pop(0)
        return taken

    def incremental_assign(self, partitions: object) -> None:
        pass

    def close(self) -> None:
        pass


def message(partition: int, offset: int) -> Message:
    return Message(topic="t", partition=partition, offset=offset, value=b"v")


def places(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


async def reading_of(monkeypatch: pytest.MonkeyPatch, *arrived: Message | KafkaException) -> Reading:
    """A reading of two partitions whose consumer has these messages."""
    monkeypatch.setattr(fetching, "make_consumer", lambda settings: ScriptedConsumer(*arrived))
    reading = Reading(SETTINGS, GroupClient("127.0.0.1:9", "g", "c"))
    both = {TopicPartition("t", 0): ReadPosition(0), TopicPartition("t", 1): ReadPosition(0)}
    reading.positions.update(both)
    reading.paused.update(both)
    await reading.resume(frozenset(both))
    return reading


async def test_records_beside_a_rejected_partition_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = await reading_of(monkeypatch, message(0, 0), message(0, 1), REFUSED, message(1, 0))
    reading.take_more()
    assert isinstance(reading.callback_error, FetchError)
    assert "t-9" in str(reading.callback_error)
    assert places(reading.take_records(10)) == [(0, 0), (0, 1), (1, 0)]
    await reading.close()


async def test_record_that_was_waited_for_is_returned_beside_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = await reading_of(monkeypatch, message(0, 0), REFUSED, message(1, 0))
    await reading.wait(asyncio.Event(), 10)
    assert isinstance(reading.callback_error, FetchError)
    assert places(reading.take_records(10)) == [(0, 0), (1, 0)]
    await reading.close()


async def test_first_record_is_returned_if_the_rest_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = KafkaException(KafkaError(KafkaError._FAIL))
    reading = await reading_of(monkeypatch, message(0, 0), failure)
    await reading.wait(asyncio.Event(), 10)
    assert isinstance(reading.callback_error, FetchError)
    assert places(reading.take_records(10)) == [(0, 0)]
    await reading.close()
