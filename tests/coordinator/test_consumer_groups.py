"""Consumer groups on a coordinator: a foreign client over TCP, topics that change, and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest
from kio.schema.consumer_group_describe.v1 import request as describing, response as described
from kio.schema.consumer_group_heartbeat.v1 import request as beating, response as beaten
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta

from connectgroup.coordinator.consumer_groups import ConsumerGroups
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.base import Log
from connectgroup.log.memory import MemoryLog
from connectgroup.protocol.messages.consumer import (
    ConsumerAssignment,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    TopicPartitions,
)
from connectgroup.topics.static import StaticTopics, topic_id
from connectgroup.transport.tcp_server import TcpServer

pytestmark = pytest.mark.asyncio

FOO = topic_id("foo")


@asynccontextmanager
async def serving(topics: StaticTopics | None, log: Log | None = None) -> AsyncIterator[Coordinator]:
    coordinator = Coordinator(log or MemoryLog(), GroupSettings(), consumers=ConsumerGroups(topics))
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()


def join(member_id: str, *names: str, **changes: Any) -> ConsumerHeartbeatRequest:
    return ConsumerHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=names,
        owned=(),
        **changes,
    )


def beat(member_id: str, epoch: int, **changes: Any) -> ConsumerHeartbeatRequest:
    return ConsumerHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **changes)


async def ask(coordinator: Coordinator, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
    response = await coordinator.handle(request, client_host="h", client_id="c")
    assert isinstance(response, ConsumerHeartbeatResponse)
    assert response.error_code == 0, response.error_message
    return response


def foo(*partitions: int) -> ConsumerAssignment:
    return ConsumerAssignment(topic_partitions=(TopicPartitions(topic_id=FOO, partitions=partitions),))


class ForeignClient:
    """A client whose bytes kio writes and reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def call(self, request: Any, response_class: type[Any]) -> Any:
        buffer = BytesIO()
        header = RequestHeader(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(7),
            client_id="kio",
        )
        entity_writer(RequestHeader)(buffer, header)
        entity_writer(type(request))(buffer, request)
        self._writer.write(len(buffer.getvalue()).to_bytes(4, "big") + buffer.getvalue())
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        data = await self._reader.readexactly(size)
        assert data[:5] == bytes([0, 0, 0, 7, 0])
        response, read = entity_reader(response_class)(data, 5)
        assert 5 + read == size
        return response


async def test_client_of_another_implementation_joins_over_tcp_and_gets_its_partitions() -> None:
    async with serving(StaticTopics({"foo": 3})) as coordinator:
        server = TcpServer(coordinator, host="127.0.0.1", port=0)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        client = ForeignClient(reader, writer)
        request = beating.ConsumerGroupHeartbeatRequest(
            group_id=GroupId("g"),
            member_id="a",
            member_epoch=i32(0),
            rebalance_timeout=i32Timedelta.parse(timedelta(minutes=5)),
            subscribed_topic_names=(TopicName("foo"),),
            topic_partitions=(),
        )
        joined = await client.call(request, beaten.ConsumerGroupHeartbeatResponse)
        assert (joined.error_code.value, joined.error_message, joined.member_epoch) == (0, None, 1)
        assert [(each.topic_id, each.partitions) for each in joined.assignment.topic_partitions] == [
            (UUID(FOO), (0, 1, 2))
        ]
        group = await client.call(
            describing.ConsumerGroupDescribeRequest(group_ids=(GroupId("g"),), include_authorized_operations=False),
            described.ConsumerGroupDescribeResponse,
        )
        assert [(each.group_state, each.assignor_name, each.group_epoch) for each in group.groups] == [
            ("Stable", "uniform", 1)
        ]
        writer.close()
        await server.close()
