"""Consumer groups on a coordinator: a foreign client over TCP, topics that change, and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.consumer_group_describe.v1 import request as describing, response as described
from kio.schema.consumer_group_heartbeat.v1 import request as beating, response as beaten
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import GroupId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta

from connectgroup import loggers
from connectgroup.assign.convert import assignor_info, consumers_for_install, partition_group_from_prepare
from connectgroup.assign.sandbox import run_assignor
from connectgroup.cli.errors import OptionNames
from connectgroup.cli.groups import _description
from connectgroup.cli.parser import build_parser
from connectgroup.coordinator.compute import group_assignors
from connectgroup.coordinator.election import ElectedCoordinator
from connectgroup.coordinator.listing import ConsumerGroups, with_group_assignors
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import (
    ComputeAssignment,
    ConfigError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InconsistentGroupProtocol,
    MemberIdRequired,
    UnknownMemberId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.log.base import Log, SharedLog
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.classic import JoinGroupRequest, JoinGroupResponse, OfferedProtocol
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import (
    ConsumerAssignment,
    ConsumerDescribeRequest,
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    TopicPartitions,
)
from connectgroup.protocol.messages.describe import DescribeRequest, DescribeResponse
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
)
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.topics import BrokerTopics, StaticTopics, Topics, topic_id
from connectgroup.transport.tcp_client import TcpClient
from connectgroup.transport.tcp_server import TcpServer
from tests.distribution import make_distribution

from .builders import FaultyLog, tick

pytestmark = pytest.mark.asyncio

FOO = topic_id("foo")


@asynccontextmanager
async def serving(
    topics: StaticTopics | None, log: Log | None = None, settings: ConsumerSettings | None = None
) -> AsyncIterator[Coordinator]:
    settings = settings or ConsumerSettings(assignment_interval_ms=0)
    coordinator = Coordinator(log or MemoryLog(), GroupSettings(), consumers=ConsumerGroups(topics, settings))
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


async def test_partition_that_is_added_is_assigned_to_a_parked_member() -> None:
    """Case study "Partition Added"; the members are notified through their long polls."""
    topics = StaticTopics({"foo": 1})
    async with serving(topics) as coordinator:
        assert (await ask(coordinator, join("a", "foo"))).assignment == foo(0)
        parked = asyncio.create_task(ask(coordinator, beat("a", 1, max_wait_ms=10_000)))
        await asyncio.sleep(0)
        topics.replace({"foo": 2, "bar": 7})
        response = await parked
        assert (response.member_epoch, response.assignment) == (2, foo(0, 1))


async def test_commit_on_the_connection_of_a_parked_heartbeat_does_not_wait_for_it() -> None:
    """Responses are in the order of the requests, and clients that did not ask for a long poll have one connection."""
    rare = ConsumerSettings(heartbeat_interval_ms=600_000, session_timeout_ms=3_600_000)
    async with serving(StaticTopics({"foo": 2}), settings=rare) as coordinator:
        server = TcpServer(coordinator, host="127.0.0.1", port=0)
        await server.start()
        await ask(coordinator, join("a", "foo"))
        client = TcpClient("127.0.0.1", server.port)
        parked = asyncio.create_task(client.call(join("b", "foo"), timeout_s=60))
        await asyncio.wait({parked}, timeout=0.2)
        assert not parked.done()
        commit = OffsetCommitRequest(group_id="g", member_id="b", generation_id_or_member_epoch=0, topics=())
        await asyncio.wait_for(client.call(commit, timeout_s=60), 5)
        joined = await parked
        assert isinstance(joined, ConsumerHeartbeatResponse)
        assert (joined.error_code, joined.assignment) == (0, ConsumerAssignment(topic_partitions=()))
        await client.close()
        await server.close()


async def test_consumer_that_goes_while_its_join_is_parked_is_removed() -> None:
    """Kafka's clients send no leave before the response to their join: they are no members yet, to themselves."""
    rare = ConsumerSettings(heartbeat_interval_ms=600_000, session_timeout_ms=3_600_000, assignment_interval_ms=0)
    async with serving(StaticTopics({"foo": 4}), settings=rare) as coordinator:
        await ask(coordinator, join("a", "foo"))  # owns all partitions until its next heartbeat
        joins = [join("b", "foo"), join("c", "foo"), join("d", "foo", instance_id="d")]
        parked = [asyncio.create_task(ask(coordinator, each)) for each in joins]
        await asyncio.wait(parked, timeout=0.2)
        assert not any(each.done() for each in parked)

        async def after_loss_of(
            request: ConsumerHeartbeatRequest, of: Coordinator | ElectedCoordinator = coordinator
        ) -> list[str]:
            of.on_connection_lost(request, "")
            await asyncio.sleep(0.1)
            described = await coordinator.handle(ConsumerDescribeRequest(group_ids=("g",)), client_host="test")
            assert isinstance(described, ConsumerDescribeResponse)
            return sorted(member.member_id for group in described.groups for member in group.members)

        assert await after_loss_of(joins[0]) == ["a", "c", "d"]
        assert await after_loss_of(joins[2]) == ["a", "c", "d"], "a static member is expected to return"
        assert await after_loss_of(join("c", "foo")) == ["a", "c", "d"], "an earlier join, on another connection"
        assert await after_loss_of(beat("a", 1)) == ["a", "c", "d"], "a member with a response leaves by itself"
        elected = ElectedCoordinator(cast(SharedLog, MemoryLog()), lambda: coordinator)
        elected.serving = coordinator
        assert await after_loss_of(joins[1], elected) == ["a", "d"], "of a coordinator that shares its log"
        for each in parked:
            each.cancel()


async def test_members_that_join_together_get_one_target_assignment() -> None:
    """``group.consumer.assignment.interval.ms``: the first member has its partitions at once."""
    settings = ConsumerSettings(assignment_interval_ms=300)
    async with serving(StaticTopics({"foo": 12}), settings=settings) as coordinator:
        first = await ask(coordinator, join("m0", "foo"))
        assert first.assignment == foo(*range(12))
        joins = [asyncio.create_task(ask(coordinator, join(f"m{number}", "foo"))) for number in range(1, 6)]
        await tick()
        kept = (await ask(coordinator, beat("m0", 1))).assignment
        assert kept is not None
        await ask(coordinator, beat("m0", 1, owned=kept.topic_partitions))
        await asyncio.gather(*joins)
        described = await coordinator.handle(ConsumerDescribeRequest(group_ids=("g",)), client_host="h")
        assert isinstance(described, ConsumerDescribeResponse)
        [group] = described.groups
        assert (group.group_epoch, group.assignment_epoch) == (6, 6)
        assert {len(each.assignment.topic_partitions[0].partitions) for each in group.members} == {2}


async def test_subscription_by_regular_expression_is_resolved_before_the_join_is_answered() -> None:
    async with serving(StaticTopics({"foo": 2, "bar": 1})) as coordinator:
        request = join("a")
        response = await ask(coordinator, replace(request, subscribed_topic_names=None, subscribed_topic_regex="fo+"))
        assert response.assignment == foo(0, 1)


async def test_group_survives_a_restart_and_sees_the_topics_of_meanwhile() -> None:
    storage = MemoryStorage()
    async with serving(StaticTopics({"foo": 1, "bar": 1}), MemoryLog(storage)) as coordinator:
        joined = await ask(coordinator, join("a", subscribed_topic_regex="fo+"))
        assert joined.assignment == foo(0)
    async with serving(StaticTopics({"foo": 2, "bar": 1}), MemoryLog(storage)) as coordinator:
        response = await ask(coordinator, beat("a", joined.member_epoch, max_wait_ms=10_000))
        assert response.assignment == foo(0, 1)


async def test_members_share_the_partitions_with_the_server_side_assignor_of_their_choice() -> None:
    async with serving(StaticTopics({"foo": 3})) as coordinator:
        await ask(coordinator, join("a", "foo", server_assignor="range"))
        joining = asyncio.create_task(ask(coordinator, join("b", "foo", server_assignor="range")))
        await tick()
        assert (await ask(coordinator, beat("a", 1))).assignment == foo(0, 1), "parked until there is a new target"
        assert (await ask(coordinator, beat("a", 1, owned=foo(0, 1).topic_partitions))).member_epoch == 2
        assert (await joining).assignment == foo(2), "parked until a has revoked it"
        described = await coordinator.handle(DescribeRequest(group_ids=("g",)), client_host="h")
        assert isinstance(described, DescribeResponse)
        [group] = described.groups
        assert (group.group_type, group.state, group.assignor_name) == ("consumer", "Stable", "range")
        assert list(_description(group, OptionNames(build_parser()))) == [
            "group g of type consumer: Stable, epoch 2, target 2",
            "assignor: range",
            "member a (h): STABLE, epoch 2",
            "  client id c, joined at epoch 1",
            "  assigned foo-0, foo-1",
            "member b (h): STABLE, epoch 2",
            "  client id c, joined at epoch 2",
            "  assigned foo-2",
        ]


OWN_ASSIGNORS = """
from connectgroup.assign.api import PartitionAssignment, PartitionAssignor
from connectgroup.assign.members import PartitionMemberAssignment

class ToTheLast(PartitionAssignor):
    name = "to-the-last"
    def assign(self, group):
        last = max(member.member_id for member in group.members)
        shares = {member.member_id: frozenset() for member in group.members} | {last: frozenset(group.partitions)}
        return PartitionAssignment(
            members=[PartitionMemberAssignment(member_id=name, partitions=share) for name, share in shares.items()]
        )

class Vetoes(ToTheLast):
    name = "vetoes"
    def assign(self, group):
        if len(group.members) == 1:
            return super().assign(group)
        return PartitionAssignment(error=7, message="enough for today")

class Fails(PartitionAssignor):
    name = "fails"
    def assign(self, group):
        raise ValueError("not today")
"""


@pytest.fixture
def own_assignors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"to_the_last": ":ToTheLast", "fails": ":Fails", "vetoes": ":Vetoes"}
    make_distribution(tmp_path, "owngroup", "connectgroup.partition_assignors", OWN_ASSIGNORS, **entries)
    monkeypatch.syspath_prepend(str(tmp_path))


async def test_first_named_server_side_assignor_is_the_default(own_assignors: None) -> None:
    """``group.consumer.assignors``: entry points beside those of Kafka; a name of connect groups is passed over."""
    named = ("balanced", "to-the-last", "org.apache.kafka.coordinator.group.assignor.RangeAssignor")
    settings = with_group_assignors(ConsumerSettings(assignment_interval_ms=0), named)
    async with serving(StaticTopics({"foo": 3}), settings=settings) as coordinator:
        await ask(coordinator, join("a", "foo"))
        joining = asyncio.create_task(ask(coordinator, join("b", "foo")))
        await tick()
        assert (await ask(coordinator, beat("a", 1))).assignment == ConsumerAssignment(topic_partitions=())
        await ask(coordinator, beat("a", 1, owned=()))
        assert (await joining).assignment == foo(0, 1, 2)
        response = await coordinator.handle(join("c", "foo", server_assignor="uniform"), client_host="h")
        assert isinstance(response, ConsumerHeartbeatResponse)
        assert response.error_code == UnsupportedAssignor.code
        assert response.error_message == "ServerAssignor: got 'uniform'; allowed: range, to-the-last"


async def test_failure_of_an_own_server_side_assignor_is_logged_with_its_line(
    own_assignors: None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = with_group_assignors(ConsumerSettings(assignment_interval_ms=0), ["fails"])
    async with serving(StaticTopics({"foo": 3}), settings=settings) as coordinator:
        await ask(coordinator, join("a", "foo"))
        assert "server-side assignor 'fails'" in caplog.text
        assert "not today" in caplog.text


async def test_error_of_a_server_side_assignor_keeps_the_target(
    own_assignors: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A decision, and no failure; its reason is in the log and in the description."""
    settings = with_group_assignors(ConsumerSettings(assignment_interval_ms=0), ["vetoes"])
    async with serving(StaticTopics({"foo": 3}), settings=settings) as coordinator:
        assert (await ask(coordinator, join("a", "foo"))).assignment == foo(0, 1, 2)
        await ask(coordinator, join("b", "foo"))
        why = "the target assignment is kept: server-side assignor 'vetoes': enough for today"
        described = await coordinator.handle(DescribeRequest(group_ids=("g",)), client_host="h")
        assert isinstance(described, DescribeResponse)
        [group] = described.groups
        assert (group.group_epoch, group.assignment_epoch, group.assignor_error) == (2, 1, why)
    assert [each.message for each in caplog.records if "enough" in each.message] == [f"group g: epoch 2: {why}"]


async def test_unknown_group_assignor_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"group_assignors: got 'rang'; allowed: .*uniform"):
        with_group_assignors(ConsumerSettings(), ["range", "rang"])


async def test_group_assignors_are_for_workers_too() -> None:
    assert [*group_assignors("balanced", ("uniform", "incremental-cooperative"))] == [
        "balanced",
        "incremental-cooperative",
    ]


async def test_group_of_another_type_is_not_found() -> None:
    """Kafka's admin client then describes it as a classic group."""
    async with serving(StaticTopics({"foo": 3})) as coordinator:
        change = ConnectorChange(connector="c", config=entries({"connector.class": "idle"}))
        await coordinator.handle(UpdateConnectorsRequest(group_id="g", changes=(change,)), client_host="h")
        response = await coordinator.handle(join("a", "foo"), client_host="h")
        assert isinstance(response, ConsumerHeartbeatResponse)
        assert response.error_code == GroupIdNotFound.code
        described = await coordinator.handle(ConsumerDescribeRequest(group_ids=("g", "x", "g")), client_host="h")
        assert isinstance(described, ConsumerDescribeResponse)
        assert [(each.group_id, each.error_code) for each in described.groups] == [("g", 69), ("x", 69)]


async def test_coordinator_without_topics_tells_consumers_to_use_the_classic_protocol() -> None:
    async with serving(None) as coordinator:
        response = await coordinator.handle(join("a", "foo"), client_host="h")
        assert isinstance(response, ConsumerHeartbeatResponse)
        assert response.error_code == UnsupportedVersion.code
        assert response.error_message is not None
        assert "group.protocol=classic" in response.error_message


async def test_failed_append_is_retriable_and_changes_nothing() -> None:
    log = FaultyLog()
    async with serving(StaticTopics({"foo": 2}), log) as coordinator:
        assert (await ask(coordinator, join("a", "foo"))).assignment == foo(0, 1)
        log.faults.append("before")
        response = await coordinator.handle(join("b", "foo"), client_host="h")
        assert isinstance(response, ConsumerHeartbeatResponse)
        assert response.error_code in (CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code)
        await tick()
        assert (await ask(coordinator, join("b", "foo"))).member_epoch == 2
        assert (await ask(coordinator, beat("a", 1))).assignment == foo(0)


async def test_partition_assignor_of_the_members_computes_the_assignment() -> None:
    """KIP-848 with client-side assignors: an assignor plug-in runs in a member, on the input of Prepare."""
    assignor = load_partition_assignor("sticky")
    listed = (assignor_info(assignor, frozenset({"foo"})),)
    async with serving(StaticTopics({"foo": 4})) as coordinator:

        async def compute(member_id: str, epoch: int) -> None:
            prepare = ConsumerPrepareRequest(group_id="g", member_id=member_id, member_epoch=epoch)
            prepared = await coordinator.handle(prepare, client_host="h")
            assert isinstance(prepared, ConsumerPrepareResponse)
            assert (prepared.error_code, prepared.assignor_name) == (0, "sticky")
            result = run_assignor(assignor, partition_group_from_prepare(prepared))
            install = ConsumerInstallRequest(
                group_id="g",
                member_id=member_id,
                member_epoch=epoch,
                group_epoch=prepared.group_epoch,
                members=consumers_for_install(prepared, result),
            )
            installed = await coordinator.handle(install, client_host="h")
            assert isinstance(installed, ConsumerInstallResponse)
            assert installed.error_code == 0, installed.error_message

        await ask(coordinator, join("a", "foo", client_assignors=listed))
        await compute("a", 0)
        assert (await ask(coordinator, join("a", "foo", client_assignors=listed))).assignment == foo(0, 1, 2, 3)
        await ask(coordinator, join("b", "foo", client_assignors=listed))
        asked = await coordinator.handle(beat("a", 1), client_host="h")
        assert isinstance(asked, ConsumerHeartbeatResponse)
        assert asked.error_code == ComputeAssignment.code
        await compute("a", 1)
        kept = (await ask(coordinator, beat("a", 1))).assignment
        assert kept is not None
        [topic] = kept.topic_partitions
        assert len(topic.partitions) == 2, "sticky keeps two of its four"
        told = await ask(coordinator, beat("a", 1, owned=kept.topic_partitions))
        assert (told.member_epoch, told.assignor_name) == (2, "sticky")
        rest = sorted({0, 1, 2, 3} - set(topic.partitions))
        assert (await ask(coordinator, beat("b", 1))).assignment == foo(*rest)


def classic_join(**changes: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=(OfferedProtocol(name="range", metadata=b""),),
        **changes,
    )


async def offsets_of(coordinator: Coordinator) -> dict[int, int]:
    found = await coordinator.handle(OffsetFetchRequest(group_id="g", topics=None), client_host="h")
    assert isinstance(found, OffsetFetchResponse)
    return {each.partition_index: each.committed_offset for topic in found.topics for each in topic.partitions}


async def type_of(coordinator: Coordinator) -> str:
    described = await coordinator.handle(DescribeRequest(group_ids=("g",)), client_host="h")
    assert isinstance(described, DescribeResponse)
    return described.groups[0].group_type


COMMIT = OffsetCommitRequest(
    group_id="g",
    member_id="",
    topics=(
        TopicCommit(
            name="foo", partitions=(PartitionCommit(partition_index=0, committed_offset=7, committed_metadata=""),)
        ),
    ),
)


async def test_empty_group_is_replaced_by_one_of_the_other_protocol_with_its_offsets() -> None:
    """GT-01, MG-14: consumers are stopped, and start again with another ``group.protocol``; and back."""
    storage = MemoryStorage()
    async with serving(StaticTopics({"foo": 1}), MemoryLog(storage)) as coordinator:
        await coordinator.handle(COMMIT, client_host="h")
        assert await type_of(coordinator) == "classic"
        assert (await ask(coordinator, join("a", "foo"))).assignment == foo(0)
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("consumer", {0: 7})
        refused = await coordinator.handle(classic_join(), client_host="h")
        assert isinstance(refused, JoinGroupResponse)
        assert refused.error_code == InconsistentGroupProtocol.code, "the group has a member"
    async with serving(StaticTopics({"foo": 1}), MemoryLog(storage)) as coordinator:
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("consumer", {0: 7})
        await ask(coordinator, beat("a", -1))
        joined = await coordinator.handle(classic_join(), client_host="h")
        assert isinstance(joined, JoinGroupResponse)
        assert joined.error_code in (0, MemberIdRequired.code)
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("classic", {0: 7})
    async with serving(StaticTopics({"foo": 1}), MemoryLog(storage)) as coordinator:
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("classic", {0: 7})


async def test_member_id_of_the_classic_protocol_is_unknown_once_all_consumers_have_left() -> None:
    """A second JoinGroup comes after the last consumer left: the client must join again, not end."""
    async with serving(StaticTopics({"foo": 1})) as coordinator:
        await ask(coordinator, join("a", "foo"))
        await ask(coordinator, beat("a", -1))
        second = await coordinator.handle(replace(classic_join(), member_id="m"), client_host="h")
        assert isinstance(second, JoinGroupResponse)
        assert second.error_code == UnknownMemberId.code
        first = await coordinator.handle(classic_join(), client_host="h")
        assert isinstance(first, JoinGroupResponse)
        assert first.error_code in (0, MemberIdRequired.code)


async def test_failed_replacement_leaves_the_group_as_it_was() -> None:
    """HB-17: the group's type included."""
    log = FaultyLog()
    async with serving(StaticTopics({"foo": 1}), log) as coordinator:
        await coordinator.handle(COMMIT, client_host="h")
        log.faults.append("before")
        await coordinator.handle(join("a", "foo"), client_host="h")
        await tick()
        assert (await type_of(coordinator), await offsets_of(coordinator)) == ("classic", {0: 7})


async def test_second_consumer_with_a_group_instance_id_gets_an_error_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """UNRELEASED_INSTANCE_ID, as from a broker; its clients repeat the join."""
    async with serving(StaticTopics({"foo": 1})) as coordinator:
        await ask(coordinator, join("a", "foo", instance_id="one"))
        for _ in range(3):
            second: Any = await coordinator.handle(join("b", "foo", instance_id="one"), client_host="h")
            assert second.error_code == 111
    [line] = [each.getMessage() for each in caplog.records if "group.instance.id" in each.getMessage()]
    assert line == (
        "group g: two consumers have the same group.instance.id: InstanceId: 'one' is in use: member a has not left; "
        "give each its own"
    )


async def test_warnings_about_groups_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two consumers may repeat the mistake for ever, each time at another epoch and in other words."""
    monkeypatch.setattr(loggers, "LINES_PER_S", 0)  # a busy machine would have time for more of them
    async with serving(StaticTopics({"foo": 1})) as coordinator:
        for number in range(3 * loggers.BURST):
            member = f"a{number}"
            await ask(coordinator, join(member, "foo", instance_id="one"))
            await coordinator.handle(join("b", "foo", instance_id="one"), client_host="h")
            await ask(coordinator, ConsumerHeartbeatRequest(
                group_id="g", member_id=member, member_epoch=-1, instance_id="one"
            ))  # fmt: skip
    lines = [each for each in caplog.messages if "group.instance.id" in each]
    assert len(lines) == loggers.BURST


class UnwatchedTopics(StaticTopics):
    """A topic source that sees a change only when it is asked to read: the next read has not been due yet.

    Attributes:
        found: what a read finds.
        reads: the number of reads.
    """

    def __init__(self, partitions: dict[str, int]) -> None:
        super().__init__(partitions)
        self.found: Topics = {}
        self.reads = 0
        self._told: Callable[[Topics], None] = lambda topics: None

    async def start(self, on_change: Callable[[Topics], None]) -> None:
        self._told = on_change
        await super().start(on_change)

    async def refresh(self) -> None:
        self.reads += 1
        await asyncio.sleep(0.1)
        self._told(self.found)


def topic(name: str, incarnation: int, partitions: int = 1) -> dict[str, TopicMetadata]:
    return {name: TopicMetadata(topic_id=f"{incarnation:032x}", topic_name=name, num_partitions=partitions)}


async def test_fetch_of_offsets_sees_that_a_topic_was_created_again_a_moment_ago() -> None:
    source = UnwatchedTopics({"foo": 1})
    async with serving(source) as coordinator:
        await coordinator.handle(COMMIT, client_host="h")
        assert source.reads == 0, "a commit to a known partition waits for nothing"
        source.found = topic("foo", 2)
        found = await asyncio.gather(*(offsets_of(coordinator) for _ in range(5)))
        assert (found, source.reads) == ([{}] * 5, 1), "requests share a read"


async def test_commit_to_a_topic_that_was_created_a_moment_ago_is_accepted() -> None:
    source = UnwatchedTopics({})
    async with serving(source) as coordinator:
        source.found = topic("foo", 1)
        committed: Any = await coordinator.handle(COMMIT, client_host="h")
        assert committed.topics[0].partitions[0].error_code == 0
        assert await offsets_of(coordinator) == {0: 7}


async def test_offsets_are_fetched_and_committed_without_the_broker() -> None:
    """Groups are served without it; the topics are those of the last read."""

    class Unreachable(UnwatchedTopics):
        async def refresh(self) -> None:
            await asyncio.sleep(1_000)

    async with serving(Unreachable({"foo": 1})) as coordinator:
        await coordinator.handle(COMMIT, client_host="h")
        assert await offsets_of(coordinator) == {0: 7}


async def test_coordinator_that_cannot_read_the_topics_at_its_start_leaves_nothing_that_runs() -> None:
    """One of several that share a log tries again every half second, for as long as the brokers are away."""

    async def read() -> Topics:
        raise OSError("no broker")

    before = asyncio.all_tasks()
    consumers = ConsumerGroups(BrokerTopics("broker:9092", read=read))
    with pytest.raises(ConfigError, match="no broker"):
        await Coordinator(MemoryLog(), GroupSettings(), consumers=consumers).start()
    assert asyncio.all_tasks() == before
