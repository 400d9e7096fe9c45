"""ConsumerGroupHeartbeat and ConsumerGroupDescribe have Kafka's bytes.

kio is generated from Kafka's own definitions. It reads what we write, finds the same values in the same order, and
writes the same bytes again.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer

from connectgroup import wire
from connectgroup.protocol.messages.consumer import (
    ConsumerAssignment,
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedPartitions,
    TopicPartitions,
)

FOO = "00112233445566778899aabbccddeeff"
OWNED = (TopicPartitions(topic_id=FOO, partitions=(0, 2)),)
ASSIGNMENT = DescribedAssignment(
    topic_partitions=(DescribedPartitions(topic_id=FOO, topic_name="foo", partitions=(0, 2)),)
)
MEMBER = DescribedConsumer(
    member_id="m",
    instance_id="i",
    rack_id="r",
    member_epoch=3,
    client_id="c",
    client_host="h",
    subscribed_topic_names=("foo", "bar"),
    subscribed_topic_regex="b.*",
    assignment=ASSIGNMENT,
    target_assignment=DescribedAssignment(),
)
GROUP = DescribedConsumerGroup(
    group_id="g", group_state="Stable", group_epoch=4, assignment_epoch=3, assignor_name="uniform", members=(MEMBER,)
)
JOIN = ConsumerHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=0,
    instance_id="i",
    rack_id="r",
    rebalance_timeout_ms=5,
    subscribed_topic_names=("foo",),
    server_assignor="range",
    owned=OWNED,
)
MESSAGES = [
    (68, "consumer_group_heartbeat", "request", ConsumerHeartbeatRequest(group_id="g", member_id="m", member_epoch=7)),
    (68, "consumer_group_heartbeat", "request", JOIN),
    (68, "consumer_group_heartbeat", "response", ConsumerHeartbeatResponse(error_code=25, error_message="no")),
    (
        68,
        "consumer_group_heartbeat",
        "response",
        ConsumerHeartbeatResponse(
            member_id="m",
            member_epoch=3,
            heartbeat_interval_ms=5_000,
            assignment=ConsumerAssignment(topic_partitions=OWNED),
        ),
    ),
    (69, "consumer_group_describe", "request", ConsumerDescribeRequest(group_ids=("a", "b"))),
    (69, "consumer_group_describe", "response", ConsumerDescribeResponse(groups=(GROUP,))),
]


def values(message: Any) -> Iterator[Any]:
    """The plain values of a message in the order of its fields."""
    match message:
        case UUID():
            yield message.hex
        case Enum():
            yield message.value
        case timedelta():
            yield round(message.total_seconds() * 1000)
        case tuple():
            for each in message:
                yield from values(each)
        case _ if dataclasses.is_dataclass(message):
            for field in dataclasses.fields(message):
                yield from values(getattr(message, field.name))
        case _:
            yield message


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("key", "module", "kind", "message"), MESSAGES)
def test_kio_reads_and_writes_the_same_bytes(key: int, module: str, kind: str, message: Any, version: int) -> None:
    codecs = wire.APIS[key].requests if kind == "request" else wire.APIS[key].responses
    data = codecs[version].encode(message)
    schema = importlib.import_module(f"kio.schema.{module}.v{version}.{kind}")
    cls = getattr(schema, "".join(part.title() for part in module.split("_")) + kind.title())
    theirs, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    buffer = BytesIO()
    entity_writer(cls)(buffer, theirs)
    assert buffer.getvalue() == data

    # Null and default values may be absent on one side: our tagged fields, and fields of a later version.
    def present(value: Any) -> list[Any]:
        return [each for each in values(value) if each not in (None, "", b"", 0, -1)]

    assert present(theirs) == present(message)
