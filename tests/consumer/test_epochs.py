"""The heartbeats of a member of a KIP-848 group, against a scripted coordinator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assign.api import PartitionAssignor
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.epochs import RETRY_S, EpochMembership
from connectgroup.consumer.errors import BrokerError, Code, Problems
from connectgroup.consumer.settings import GroupConsumerSettings
from connectgroup.errors import TransportError
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.consumer import (
    ConsumerAssignment,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    by_topic,
)
from connectgroup.protocol.units import LEAVE_EPOCH, Partitions, TopicPartition

FIRST: Partitions = frozenset({TopicPartition("id", 0)})
BOTH: Partitions = FIRST | {TopicPartition("id", 1)}


class ScriptedCoordinator:
    """Takes the place of a ``GroupClient``: the test receives each heartbeat, and responds to it."""

    def __init__(self) -> None:
        self.problems = Problems("g")
        self.options: dict[str, Any] = {}
        self._requests = asyncio.Queue[tuple[Any, asyncio.Future[Any]]]()

    async def send_to_coordinator(
        self, request: Any, *, timeout_s: float = 0.0, each_s: float = 0.0, **options: Any
    ) -> Any:
        self.options = options
        response = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request, response))
        return await response

    async def coordinator_serves(self, request_class: type) -> bool:
        return True

    async def heartbeat(
        self, response: ConsumerHeartbeatResponse | Exception | None = None
    ) -> ConsumerHeartbeatRequest:
        """Return the next heartbeat, after this response to it; by default, nothing has changed."""
        return cast("ConsumerHeartbeatRequest", await self.respond(response))

    async def respond(self, response: Any = None) -> Any:
        """Return the next request of any type, after this response to it."""
        async with asyncio.timeout(60):
            request, responded = await self._requests.get()
        if isinstance(response, Exception):
            responded.set_exception(response)
        else:
            responded.set_result(response or accepted())
        return request


def accepted(partitions: Partitions | None = None) -> ConsumerHeartbeatResponse:
    assignment = None if partitions is None else ConsumerAssignment(topic_partitions=by_topic(partitions))
    return ConsumerHeartbeatResponse(member_epoch=1, heartbeat_interval_ms=1, assignment=assignment)


@asynccontextmanager
async def joining(*assignors: PartitionAssignor) -> AsyncIterator[tuple[EpochMembership, ScriptedCoordinator]]:
    coordinator = ScriptedCoordinator()
    settings = GroupConsumerSettings(bootstrap="127.0.0.1:9", group="g", topics=("t",), group_protocol="consumer")
    membership = EpochMembership(cast("GroupClient", coordinator), settings, assignors)
    membership.begin_to_join()
    beating = asyncio.create_task(membership.beat())
    try:
        yield membership, coordinator
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def changed(membership: EpochMembership) -> None:
    async with asyncio.timeout(60):
        await membership.changed.wait()
    membership.changed.clear()


async def test_revocation_of_a_partition_that_was_never_applied_is_acknowledged() -> None:
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(accepted(FIRST))
        await changed(membership)
        assert membership.take_assigned() is not None
        membership.report(FIRST)
        while (await coordinator.heartbeat()).owned != by_topic(FIRST):
            pass
        # Assigned and revoked between two polls.
        await coordinator.heartbeat(accepted(BOTH))
        await coordinator.heartbeat(accepted(FIRST))
        assert (await coordinator.heartbeat()).owned is None
        assert (assigned := membership.take_assigned()) is not None
        assert assigned.partitions == FIRST
        membership.report(FIRST)
        # One heartbeat may be on its way already.
        assert by_topic(FIRST) in [(await coordinator.heartbeat()).owned for _ in range(2)]
        assert (await coordinator.heartbeat()).owned is None


async def test_heartbeat_after_one_without_response_is_full_and_a_new_request() -> None:
    """The lost response may have advanced the member: the coordinator then fences a heartbeat without partitions."""
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(accepted(FIRST))
        await changed(membership)
        assert membership.take_assigned() is not None
        membership.report(FIRST)
        while (await coordinator.heartbeat()).owned != by_topic(FIRST):
            pass
        assert (await coordinator.heartbeat(TransportError("no response"))).owned is None
        again = await coordinator.heartbeat()
        assert (again.member_epoch, again.owned, again.subscribed_topic_names) == (1, by_topic(FIRST), ("t",))
        assert coordinator.options == {"once": True}


async def test_join_of_a_group_that_cannot_be_converted_is_an_error_with_the_brokers_message() -> None:
    refused = ConsumerHeartbeatResponse(error_code=Code.GROUP_ID_NOT_FOUND, error_message="g is a classic group")
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(refused)
        await changed(membership)
        assert isinstance(membership.fatal, BrokerError)
        assert membership.fatal.code == Code.GROUP_ID_NOT_FOUND
        assert "g is a classic group" in str(membership.fatal)
        assert not membership.may_join


async def test_member_of_a_deleted_group_joins_again() -> None:
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(accepted())
        await coordinator.heartbeat(ConsumerHeartbeatResponse(error_code=Code.GROUP_ID_NOT_FOUND))
        while membership.in_group:
            await changed(membership)
        assert membership.fatal is None
        assert membership.may_join


async def test_second_consumer_with_a_group_instance_id_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async with joining() as (membership, coordinator):
        for _ in range(3):
            await coordinator.heartbeat(ConsumerHeartbeatResponse(error_code=Code.UNRELEASED_INSTANCE_ID))
        await coordinator.heartbeat(accepted())
        await changed(membership)
        assert membership.in_group
    [line] = [each.getMessage() for each in caplog.records if "belongs to another member" in each.getMessage()]
    assert line.startswith("group g: group.instance.id")


async def test_join_is_retried_while_the_coordinator_does_not_know_the_member() -> None:
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(ConsumerHeartbeatResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        await coordinator.heartbeat(accepted())
        await changed(membership)
        assert membership.in_group


async def test_member_at_epoch_0_waits_while_another_one_computes() -> None:
    """Prepare says that it is not this member: the next heartbeat is not sent at once, and so on without an end."""
    async with joining(load_partition_assignor("range")) as (_, coordinator):
        await coordinator.heartbeat(ConsumerHeartbeatResponse(member_epoch=0, heartbeat_interval_ms=10_000))
        prepare = await coordinator.respond(ConsumerPrepareResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        assert isinstance(prepare, ConsumerPrepareRequest)
        began_s = time.monotonic()
        await coordinator.heartbeat()
        assert time.monotonic() - began_s > RETRY_S / 2


async def test_unauthorized_group_ends_the_consumer() -> None:
    unauthorized = BrokerError("coordinator of group 'g'", Code.GROUP_AUTHORIZATION_FAILED)
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(unauthorized)
        await changed(membership)
        assert membership.fatal is unauthorized
        assert not membership.may_join


async def test_member_ends_although_the_coordinator_rejects_its_leave_request() -> None:
    async with joining() as (membership, coordinator):
        await coordinator.heartbeat(accepted())
        await changed(membership)
        leaving = asyncio.create_task(membership.leave("closed"))
        rejected = BrokerError("coordinator of group 'g'", Code.GROUP_AUTHORIZATION_FAILED)
        while (await coordinator.heartbeat(rejected)).member_epoch != LEAVE_EPOCH:
            pass
        await leaving
        assert not membership.in_group
