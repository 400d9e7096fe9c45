"""A ``GroupConsumer`` on a real Kafka broker: losing membership, and failing callbacks and assignors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assign.api import PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.consumer import BrokerError, CommitRefused, GroupConsumer
from connectgroup.consumer.client import GroupClient
from connectgroup.consumer.errors import Code
from connectgroup.consumer.offsets import ReadPosition, send_commit
from connectgroup.errors import ConfigError, FencedInstanceId, PluginError
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.messages.classic import LeaveGroupRequest, LeavingMember
from connectgroup.protocol.units import Partitions, TopicPartition
from tests.volume import ci_only

from .conftest import NewGroup
from .inside import PATIENCE_S, RecordingListener, eventually, member, places, poll_until, read, running

if TYPE_CHECKING:
    from .members import BrokerGroup


# --------------------------------------------------------------------------------------------------
# Losing membership


async def remove(group: BrokerGroup, consumer: GroupConsumer) -> None:
    """Remove a member on the broker, as an expired session does."""
    client = GroupClient(group.broker.bootstrap, group.name, "test")
    leaving = LeavingMember(member_id=consumer.member_id)
    response = await client.send_to_coordinator(LeaveGroupRequest(group_id=group.name, members=(leaving,)))
    assert [each.error_code for each in response.members] == [0]
    await client.close()


async def test_removed_member_cannot_commit_and_rejoins(
    new_group: NewGroup,
) -> None:
    with new_group("removed", partitions=2) as group:
        group.write(20)
        listener = RecordingListener()
        # Rare heartbeats, so that the commit detects the removal.
        slow: dict[str, Any] = {"heartbeat_interval_ms": 20_000, "session_timeout_ms": 60_000}
        async with member(group, listener=listener, **slow) as consumer:
            await read(consumer, 20)
            first_id = consumer.member_id
            await remove(group, consumer)
            with pytest.raises(CommitRefused, match=r"UNKNOWN_MEMBER_ID \(25\)"):
                await consumer.commit()
            with pytest.raises(CommitRefused, match="no longer in it: OffsetCommit: UNKNOWN_MEMBER_ID"):
                await consumer.commit()
            again = await read(consumer, 20)
            assert set(places(again)) == group.everything()
            assert consumer.member_id not in ("", first_id)
        assert listener.names == ["assigned", "lost", "assigned", "revoked"]


async def test_heartbeat_detects_the_removal(new_group: NewGroup) -> None:
    with new_group("found out", partitions=2) as group:
        listener = RecordingListener()
        async with member(group, listener=listener) as consumer:
            await poll_until(lambda: listener.names == ["assigned"], consumer)
            await remove(group, consumer)
            await poll_until(lambda: listener.names == ["assigned", "lost", "assigned"], consumer)


async def test_commit_of_a_passed_generation_is_rejected(new_group: NewGroup) -> None:
    """A commit as from a member that was paused during a rebalance: its own id, and the generation before."""
    with new_group("stale", partitions=1) as group:
        partition = TopicPartition(group.name, 0)
        async with member(group) as consumer:
            await poll_until(lambda: consumer.generation == 1, consumer)
            client = GroupClient(group.broker.bootstrap, group.name, "test")
            for generation, expected in ((0, Code.ILLEGAL_GENERATION), (1, Code.NONE), (2, Code.ILLEGAL_GENERATION)):
                codes = await send_commit(
                    client,
                    {partition: ReadPosition(0)},
                    group_id=group.name,
                    member_id=consumer.member_id,
                    instance_id=None,
                    generation=generation,
                    timeout_s=PATIENCE_S,
                )
                assert codes == {partition: expected}
            await client.close()


async def test_member_that_exceeds_max_poll_interval_leaves_and_rejoins(new_group: NewGroup) -> None:
    """KIP-62: heartbeats prove that the process is alive, ``poll`` that it makes progress."""
    with new_group("slow", partitions=2) as group:
        listener = RecordingListener()
        slow, other = member(group, listener=listener, max_poll_interval_ms=1_000), member(group)
        async with slow:
            await poll_until(lambda: slow.assignment(), slow)
            async with running(other):
                await eventually(lambda: len(other.assignment()) == 2)  # the slow one is not polled
                assert listener.names == ["assigned"]
                await poll_until(lambda: len(slow.assignment()) == 1, slow)
                assert listener.names == ["assigned", "lost", "assigned"]


async def test_static_member_that_restarts_within_its_session_causes_no_rebalance(new_group: NewGroup) -> None:
    """KIP-345: same instance id, same assignment, same generation."""
    with new_group("static", partitions=4) as group:
        listener = RecordingListener()
        one, two = member(group, instance="one"), member(group, instance="two", listener=listener)
        async with running(two):
            async with running(one):
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)
                share, generation = one.assignment(), one.generation
                before = list(listener.events)
            one = member(group, instance="one")
            async with running(one):
                await eventually(lambda: one.assignment())
                assert (one.assignment(), one.generation) == (share, generation)
            assert listener.events == before


async def test_static_member_that_leaves_permanently_is_removed_at_once(new_group: NewGroup) -> None:
    with new_group("static leaves", partitions=2) as group:
        one, two = member(group, instance="one", session_timeout_ms=60_000), member(group)
        async with running(two):
            await poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 1, one)
            await one.close(leave=True)
            await eventually(lambda: len(two.assignment()) == 2)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_static_leader_that_restarts_causes_no_reassignment(new_group: NewGroup, assignor: str) -> None:
    """KIP-814: it skips the assignment, but knows that it is the leader and watches the topics."""
    calls = 0

    class Counting(load_partition_assignor(assignor).__class__):  # type: ignore[misc]
        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            nonlocal calls
            calls += 1
            result: PartitionAssignment = super().assign(group)
            return result

    with new_group("static leader", partitions=4) as group:
        async with member(group, assignors=[Counting()], instance="one") as one:
            await poll_until(lambda: one.assignment(), one)
        async with member(group, assignors=[Counting()], instance="one", metadata_max_age_ms=200) as one:
            await poll_until(lambda: one.assignment(), one)
            assert (len(one.assignment()), one.is_leader, one.generation, calls) == (4, True, 1, 1)
            group.add_partitions(5)
            await poll_until(lambda: len(one.assignment()) == 5, one)
            assert calls == 2


async def test_second_member_with_the_same_instance_id_fences_the_first(new_group: NewGroup) -> None:
    with new_group("twins", partitions=2) as group:
        listener = RecordingListener()
        async with member(group, instance="one", listener=listener) as first:
            await poll_until(lambda: first.assignment(), first)
            second = member(group, instance="one")
            async with running(second):
                await eventually(lambda: second.assignment())
                with pytest.raises(FencedInstanceId, match="another process has joined as instance 'one'"):
                    await poll_until(lambda: False, first)
                assert not first.assignment()
                assert listener.names == ["assigned", "lost"]
                with pytest.raises(FencedInstanceId):
                    await first.poll(0)


@ci_only("a broker twice, 20 s; in a user's run, the other tests here take partitions away")
async def test_consumer_survives_a_broker_restart(new_group: NewGroup, caplog: pytest.LogCaptureFixture) -> None:
    """Without a response for a whole session timeout it loses its partitions, by its own clock."""
    with new_group("outlives", partitions=2) as group:
        group.write(20)
        listener = RecordingListener()
        consumer = member(group, listener=listener, auto_commit_interval_ms=100, session_timeout_ms=2_000)
        async with running(consumer) as records:
            await eventually(lambda: len(records) == 20)
            with caplog.at_level(logging.WARNING):
                group.broker.kill()
                await eventually(lambda: listener.names == ["assigned", "lost"])
                assert "trying again" in caplog.text
                assert "lost: no response from the coordinator for session_timeout_ms" in caplog.text
            await asyncio.to_thread(group.broker.start)
            await asyncio.to_thread(group.write, 20)
            await eventually(lambda: group.everything() <= set(places(records)))
        assert listener.names == ["assigned", "lost", "assigned", "revoked"]


# --------------------------------------------------------------------------------------------------
# Failing callbacks and assignors


async def test_exception_of_a_callback_is_raised_from_poll(new_group: NewGroup) -> None:
    class Breaks(RecordingListener):
        def on_assigned(self, partitions: Partitions, generation: int) -> None:
            super().on_assigned(partitions, generation)
            raise ValueError("no room\nleft")

    with new_group("breaks", partitions=1) as group:
        group.write(3)
        async with member(group, listener=Breaks()) as consumer:
            text = r"^listener Breaks: on_assigned of .*-0 raised ValueError: no room\\nleft$"
            with pytest.raises(PluginError, match=text):
                await poll_until(lambda: consumer.assignment(), consumer)
            assert len(await read(consumer, 3)) == 3


async def test_commit_works_inside_a_callback(new_group: NewGroup) -> None:
    class Commits(RecordingListener):
        async def on_revoked(self, partitions: Partitions, generation: int) -> None:  # type: ignore[override]
            await consumer.commit()
            self.note("committed", partitions, generation)

    with new_group("commits", partitions=1) as group:
        group.write(5)
        listener = Commits()
        consumer = member(group, auto_commit_interval_ms=None, listener=listener)
        async with consumer:
            await read(consumer, 3)
        assert listener.names == ["assigned", "committed"]
        async with member(group) as successor:
            assert places(await read(successor, 2)) == [(0, 3), (0, 4)]


class Fails(PartitionAssignor):
    """An assignor that returns an error, assigns nothing, or never returns."""

    name = "fails"

    def __init__(self, how: str) -> None:
        self.how, self.over = how, threading.Event()

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        if self.how == "hangs":
            self.over.wait()
        return PartitionAssignment(error=7 if self.how == "error" else 0, message="not\ntoday")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("error", r"assignor 'fails': error 7: not\ntoday"),
        ("is incomplete", f"assignor 'fails' ({__name__}.Fails): TOPIC-0 is not assigned"),
        ("hangs", "assignor 'fails': no response within 0.5 s"),
    ],
)
async def test_failing_assignor_is_one_line_and_the_consumer_leaves(
    new_group: NewGroup, how: str, message: str
) -> None:
    with new_group("bad assignor", partitions=1) as group:
        assignor = Fails(how)
        async with member(group, assignors=[assignor], max_poll_interval_ms=1_000) as consumer:
            for _ in range(2):
                with pytest.raises(PluginError) as caught:
                    await poll_until(lambda: False, consumer)
                assert str(caught.value) == message.replace("TOPIC", group.name)
            assert consumer.member_id == ""
        assignor.over.set()


async def test_incompatible_members_are_rejected_with_one_line(new_group: NewGroup) -> None:
    with new_group("in common", partitions=1) as group:
        first, other = member(group, assignors=["range"]), member(group, assignors=["roundrobin"])
        async with running(first), other:
            await eventually(lambda: first.assignment())
            with pytest.raises(BrokerError, match=r"INCONSISTENT_GROUP_PROTOCOL \(23\): .*change assignors"):
                await poll_until(lambda: False, other)


async def test_invalid_session_timeout_is_rejected_with_one_line(new_group: NewGroup) -> None:
    with new_group("bounds", partitions=1) as group:
        async with member(group, session_timeout_ms=600, heartbeat_interval_ms=100) as consumer:
            with pytest.raises(BrokerError, match=r"INVALID_SESSION_TIMEOUT \(26\): session_timeout_ms is outside"):
                await poll_until(lambda: False, consumer)


async def test_cancelled_poll_does_not_interrupt_a_rebalance(new_group: NewGroup) -> None:
    proceed = asyncio.Event()

    class Slow(RecordingListener):
        async def on_assigned(self, partitions: Partitions, generation: int) -> None:  # type: ignore[override]
            self.note("begun", partitions, generation)
            await proceed.wait()
            self.note("assigned", partitions, generation)

    with new_group("cancelled", partitions=2) as group:
        group.write(10)
        listener = Slow()
        async with member(group, listener=listener) as consumer:
            while not listener.events:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.poll(5), 0.05)
            assert listener.names == ["begun"]
            proceed.set()
            assert set(places(await read(consumer, 10))) == group.everything()
        assert listener.names == ["begun", "assigned", "revoked"]


async def test_seek_waits_for_the_revocation_of_a_cancelled_poll(new_group: NewGroup) -> None:
    begun, proceed = asyncio.Event(), asyncio.Event()
    revoked: list[TopicPartition] = []

    class Slow(RecordingListener):
        async def on_revoked(self, partitions: Partitions, generation: int) -> None:  # type: ignore[override]
            revoked.extend(partitions)
            begun.set()
            await proceed.wait()

    with new_group("sought", partitions=2) as group:
        both = [TopicPartition(group.name, number) for number in range(2)]
        async with member(group, listener=Slow()) as first:
            await poll_until(lambda: all(first.position(each) is not None for each in both), first)
            async with running(member(group)):
                while not begun.is_set():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(first.poll(5), 0.05)
                [sought] = revoked
                seeking = asyncio.create_task(first.seek(sought, 0))
                await asyncio.sleep(0)
                proceed.set()
                with pytest.raises(ConfigError, match="allowed: a partition that this consumer owns and reads"):
                    await seeking
                assert first.position(sought) is None


async def test_concurrent_poll_and_poll_after_close_are_rejected(new_group: NewGroup) -> None:
    with new_group("one at a time", partitions=1) as group:
        consumer = member(group)
        waiting = asyncio.create_task(consumer.poll(5))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one at a time"):
            await consumer.poll(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        await consumer.close()
        await consumer.close()
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll(0)
