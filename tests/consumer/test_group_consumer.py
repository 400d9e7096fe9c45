"""A ``GroupConsumer`` on a real Kafka broker, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assignor import (
    PartitionAssignment,
    PartitionAssignor,
    PartitionGroup,
    Partitions,
    TopicPartition,
)
from connectgroup.consumer import (
    BrokerError,
    CommitRefused,
    ConsumerRebalanceListener,
    FetchError,
    GroupConsumer,
    Record,
)
from connectgroup.errors import FencedInstanceId, PluginError
from connectgroup.plugins import load_partition_assignor
from connectgroup.wire.kafka_messages import LeaveGroupRequest, LeavingMember

from .conftest import NewGroup

if TYPE_CHECKING:
    from .members import Group

PATIENCE_S = 60.0
HOUR_MS = 3_600_000
EXAMPLE = Path(__file__).parents[2] / "examples" / "group_consumer.py"


class Heard(ConsumerRebalanceListener):
    """Writes down what a consumer tells: event, partition numbers, generation."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int], int]] = []

    def on_assigned(self, partitions: Partitions, generation: int) -> None:
        self.note("assigned", partitions, generation)

    def on_revoked(self, partitions: Partitions, generation: int) -> None:
        self.note("revoked", partitions, generation)

    async def on_lost(self, partitions: Partitions, generation: int) -> None:
        self.note("lost", partitions, generation)

    def note(self, event: str, partitions: Partitions, generation: int) -> None:
        self.events.append((event, sorted(each.partition for each in partitions), generation))

    @property
    def names(self) -> list[str]:
        return [event for event, _, _ in self.events]


def member(group: Group, **settings: Any) -> GroupConsumer:
    """A consumer of the group; settings that are not given are quick ones."""
    quick: dict[str, Any] = {
        "assignors": ["cooperative-sticky"],
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 200,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": HOUR_MS,
    }
    return GroupConsumer(group.broker.bootstrap, group=group.name, topics=[group.name], **{**quick, **settings})


def places(records: list[Record]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


async def read(consumer: GroupConsumer, count: int) -> list[Record]:
    """Just this many records."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(records) < count:
            records += await consumer.poll(1.0, most=count - len(records))
    return records


async def poll_until(until: Callable[[], object], *consumers: GroupConsumer) -> list[Record]:
    """Poll them in turn until something holds; what they gave meanwhile."""
    records: list[Record] = []
    async with asyncio.timeout(PATIENCE_S):
        while not until():
            for consumer in consumers:
                records += await consumer.poll(0.05)
    return records


@contextlib.asynccontextmanager
async def running(consumer: GroupConsumer) -> AsyncIterator[list[Record]]:
    """Polls a consumer while the block lasts, and closes it then; what it was given."""
    records: list[Record] = []
    stopping = False

    async def run() -> None:
        async with consumer:
            while not stopping:
                records.extend(await consumer.poll(0.1))

    task = asyncio.create_task(run())
    try:
        yield records
    finally:
        stopping = True
        await task


async def eventually(until: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.02)


# --------------------------------------------------------------------------------------------------
# Reading and committing


async def test_it_reads_everything_and_begins_again_where_it_has_committed(new_group: NewGroup) -> None:
    with new_group("alone", partitions=4) as group:
        group.write(400)
        heard = Heard()
        async with member(group, assignors=["range", "cooperative-sticky"], listener=heard) as consumer:
            first = await read(consumer, 150)
            assert (consumer.is_leader, consumer.assignor, consumer.generation) == (True, "range", 1)
            assert consumer.assignment == {TopicPartition(group.name, number) for number in range(4)}
        assert heard.events == [("assigned", [0, 1, 2, 3], 1), ("revoked", [0, 1, 2, 3], 1)]
        async with member(group) as consumer:
            rest = await read(consumer, 250)
        both = places(first + rest)
        assert len(both) == 400
        assert set(both) == group.everything()
        for partition in range(4):
            assert [offset for number, offset in both if number == partition] == list(range(100))


async def test_records_are_handed_out_whole(new_group: NewGroup) -> None:
    from confluent_kafka import Producer

    with new_group("whole", partitions=1) as group:
        producer = Producer({"bootstrap.servers": group.broker.bootstrap})
        producer.produce(group.name, b"value", b"key", timestamp=1234567, headers=[("a", b"1"), ("a", None)])
        producer.produce(group.name, None, "ключ")
        producer.flush()
        async with member(group) as consumer:
            first, second = await read(consumer, 2)
        assert (first.topic, first.partition, first.offset) == (group.name, 0, 0)
        assert (first.timestamp_ms, first.key, first.value) == (1234567, b"key", b"value")
        assert first.headers == (("a", b"1"), ("a", None))
        assert first.leader_epoch >= 0
        assert (second.offset, second.key, second.value, second.headers) == (1, "ключ".encode(), None, ())


async def test_iterating_gives_the_records_one_by_one(new_group: NewGroup) -> None:
    with new_group("one by one", partitions=2) as group:
        group.write(20)
        seen = []
        async with member(group) as consumer:
            async for record in consumer:
                seen.append(record)
                if len(seen) == 20:
                    break
        assert set(places(seen)) == group.everything()


async def test_a_record_whose_handling_failed_is_read_again_and_those_before_it_are_not(new_group: NewGroup) -> None:
    with new_group("failed", partitions=1) as group:
        group.write(10)

        async def fail_at_six() -> None:
            async with member(group) as consumer:
                async for record in consumer:
                    _ = 1 / (6 - record.offset)

        with pytest.raises(ZeroDivisionError):
            await fail_at_six()
        async with member(group) as consumer:
            assert places(await read(consumer, 4)) == [(0, 6), (0, 7), (0, 8), (0, 9)]


async def test_without_automatic_commits_only_what_is_committed_counts(new_group: NewGroup) -> None:
    with new_group("by hand", partitions=2) as group:
        group.write(20)
        async with member(group, auto_commit_interval_ms=None) as consumer:
            await read(consumer, 20)
            await consumer.commit({TopicPartition(group.name, 1): 7})
            with pytest.raises(
                CommitRefused, match="-9: got a partition this consumer does not have; allowed: its own"
            ):
                await consumer.commit({TopicPartition(group.name, 9): 7})
        async with member(group, auto_commit_interval_ms=None) as consumer:
            again = await read(consumer, 13)
            assert set(places(again)) == group.everything() - {(1, offset) for offset in range(7)}
            await consumer.commit()
        async with member(group) as consumer:
            group.write(2)
            assert set(places(await read(consumer, 2))) == {(0, 10), (1, 10)}


async def test_where_nothing_was_committed_it_begins_where_it_is_told_to(new_group: NewGroup) -> None:
    with new_group("begins", partitions=1) as group:
        group.write(5)
        async with member(group, auto_offset_reset="error") as consumer:
            with pytest.raises(FetchError, match="-0: the group has no offset and auto_offset_reset is error"):
                await read(consumer, 1)
        async with member(group, auto_offset_reset="latest") as consumer:
            await poll_until(lambda: consumer.assignment, consumer)
        # Its position was the end as it was then, and it has committed that: what came since is not passed over.
        group.write(1)
        async with member(group, auto_offset_reset="latest") as consumer:
            assert places(await read(consumer, 1)) == [(0, 5)]


async def test_the_example_reads_and_leaves_in_good_order(new_group: NewGroup) -> None:
    with new_group("example", partitions=2) as group:
        group.write(10)
        words = [sys.executable, str(EXAMPLE), group.broker.bootstrap, group.name, group.name]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            assert process.stdout is not None
            lines: list[str] = []
            async with asyncio.timeout(PATIENCE_S):
                while sum("@" in line for line in lines) < 10:
                    lines.append((await process.stdout.readline()).decode())
                    assert lines[-1], lines
                process.send_signal(signal.SIGINT)
                lines += (await process.stdout.read()).decode().splitlines()
                assert await process.wait() == 0, lines
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert lines[0] == f"given in generation 1: {group.name}-0, {group.name}-1\n"
        assert f"{group.name}-1 @ 4: b'9'\n" in lines
        assert lines[-2:] == [f"given up: {group.name}-0, {group.name}-1", "left"]
        group.write(2)
        async with member(group) as consumer:
            successors: list[Record] = []
            while not {(0, 5), (1, 5)} <= set(places(successors)):
                successors += await read(consumer, 1)


# --------------------------------------------------------------------------------------------------
# Sharing


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_what_was_read_is_committed_before_it_is_given_on(new_group: NewGroup, assignor: str) -> None:
    """No automatic commit is due for an hour: those of revocations alone keep records from being read twice."""
    with new_group("given on", partitions=6) as group:
        group.write(600)
        one, two = member(group, assignors=[assignor]), member(group, assignors=[assignor])
        async with running(one) as by_one:
            await eventually(lambda: len(by_one) == 600)
            async with running(two) as by_two:
                await eventually(lambda: len(one.assignment) == len(two.assignment) == 3)
                group.write(600)
                await eventually(lambda: len(by_one) + len(by_two) >= 1200)
            await eventually(lambda: len(one.assignment) == 6)
            group.write(60)
            await eventually(lambda: len(by_one) + len(by_two) >= 1260)
        assert by_two
        assert sorted(places(by_one + by_two)) == sorted(group.everything())


async def test_cooperative_members_keep_reading_what_stays_with_them(new_group: NewGroup) -> None:
    """KIP-429: the listener hears of what moves and of nothing else."""
    with new_group("stays", partitions=4) as group:
        heard = Heard()
        one, two = member(group, listener=heard), member(group)
        async with running(one):
            await eventually(lambda: len(one.assignment) == 4)
            async with running(two):
                await eventually(lambda: len(one.assignment) == len(two.assignment) == 2)
                kept = sorted(each.partition for each in one.assignment)
            await eventually(lambda: len(one.assignment) == 4)
        moved = sorted({0, 1, 2, 3} - set(kept))
        assert [(event, numbers) for event, numbers, _ in heard.events] == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", moved),
            ("assigned", moved),
            ("revoked", [0, 1, 2, 3]),
        ]


async def test_the_leaders_assignor_is_told_what_everybody_has_and_since_when(new_group: NewGroup) -> None:
    """KIP-792: a claim has the generation of the assignment it comes from, and the latest counts."""
    asked: list[list[tuple[int, int, str | None]]] = []

    class Asking(load_partition_assignor("cooperative-sticky").__class__):  # type: ignore[misc]
        def assign(self, group: PartitionGroup) -> PartitionAssignment:
            asked.append(sorted((len(each.owned), each.generation, each.rack) for each in group.members))
            assert [spec.racks for spec in group.topics] == [(frozenset({"here"}),) * 4]
            answer: PartitionAssignment = super().assign(group)
            return answer

    with new_group("told", partitions=4) as group:
        one, two = member(group, assignors=[Asking()], rack="a"), member(group, rack="b")
        async with running(one):
            await eventually(lambda: one.assignment)
            async with running(two):
                await eventually(lambda: len(two.assignment) == 2)
    assert asked[:3] == [[(0, -1, "a")], [(0, -1, "b"), (4, 1, "a")], [(0, 2, "b"), (2, 2, "a")]]


async def test_the_leader_shares_out_new_partitions_and_topics_that_were_not_there(new_group: NewGroup) -> None:
    with new_group("grows", partitions=2) as group, new_group("other", partitions=1) as other:
        late = f"{group.name}-late"
        consumer = GroupConsumer(
            group.broker.bootstrap,
            group=group.name,
            topics=[group.name, other.name, late],
            heartbeat_interval_ms=200,
            metadata_max_age_ms=200,
        )
        async with running(consumer):
            await eventually(lambda: len(consumer.assignment) == 3)
            group.add_partitions(4)
            await eventually(lambda: len(consumer.assignment) == 5)
            group.add_topic(late, 2)
            await eventually(lambda: len(consumer.assignment) == 7)


# --------------------------------------------------------------------------------------------------
# Losing


async def remove(group: Group, consumer: GroupConsumer) -> None:
    """Have the coordinator remove a member behind its back, as it does when a session is over."""
    from connectgroup.consumer.client import GroupClient

    client = GroupClient(group.broker.bootstrap, group.name, "test")
    leaving = LeavingMember(member_id=consumer.member_id)
    answer = await client.ask_coordinator(LeaveGroupRequest(group_id=group.name, members=(leaving,)))
    assert [each.error_code for each in answer.members] == [0]
    await client.close()


async def test_a_member_that_was_removed_cannot_commit_and_has_lost_everything_and_joins_again(
    new_group: NewGroup,
) -> None:
    with new_group("removed", partitions=2) as group:
        group.write(20)
        heard = Heard()
        # So rare that the commit is what finds out.
        slow: dict[str, Any] = {"heartbeat_interval_ms": 20_000, "session_timeout_ms": 60_000}
        async with member(group, listener=heard, **slow) as consumer:
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
        assert heard.names == ["assigned", "lost", "assigned", "revoked"]


async def test_a_heartbeat_finds_out_too(new_group: NewGroup) -> None:
    with new_group("found out", partitions=2) as group:
        heard = Heard()
        async with member(group, listener=heard) as consumer:
            await poll_until(lambda: heard.names == ["assigned"], consumer)
            await remove(group, consumer)
            await poll_until(lambda: heard.names == ["assigned", "lost", "assigned"], consumer)


async def test_a_commit_in_a_generation_that_has_passed_is_refused_by_the_broker(new_group: NewGroup) -> None:
    """What a member that slept through a rebalance would say: its own id, and the generation before."""
    from connectgroup.consumer.client import GroupClient
    from connectgroup.consumer.errors import Code
    from connectgroup.consumer.offsets import Position, send_commit

    with new_group("stale", partitions=1) as group:
        partition = TopicPartition(group.name, 0)
        async with member(group) as consumer:
            await poll_until(lambda: consumer.generation == 1, consumer)
            client = GroupClient(group.broker.bootstrap, group.name, "test")
            for generation, expected in ((0, Code.ILLEGAL_GENERATION), (1, Code.NONE), (2, Code.ILLEGAL_GENERATION)):
                codes = await send_commit(
                    client,
                    {partition: Position(0)},
                    group_id=group.name,
                    member_id=consumer.member_id,
                    instance_id=None,
                    generation=generation,
                    timeout_s=PATIENCE_S,
                )
                assert codes == {partition: expected}
            await client.close()


async def test_who_does_not_come_back_to_poll_is_out_and_comes_in_again(new_group: NewGroup) -> None:
    """KIP-62: heartbeats show that the process lives, ``poll`` that its work goes on."""
    with new_group("slow", partitions=2) as group:
        heard = Heard()
        slow, other = member(group, listener=heard, max_poll_interval_ms=1_000), member(group)
        async with slow:
            await poll_until(lambda: slow.assignment, slow)
            async with running(other):
                await eventually(lambda: len(other.assignment) == 2)  # nobody polls the slow one
                assert heard.names == ["assigned"]
                await poll_until(lambda: len(slow.assignment) == 1, slow)
                assert heard.names == ["assigned", "lost", "assigned"]


async def test_a_static_member_that_restarts_within_its_session_disturbs_nobody(new_group: NewGroup) -> None:
    """KIP-345: same name, same share, same generation."""
    with new_group("static", partitions=4) as group:
        heard = Heard()
        one, two = member(group, instance="one"), member(group, instance="two", listener=heard)
        async with running(two):
            async with running(one):
                await eventually(lambda: len(one.assignment) == len(two.assignment) == 2)
                share, generation = one.assignment, one.generation
                told = list(heard.events)
            one = member(group, instance="one")
            async with running(one):
                await eventually(lambda: one.assignment)
                assert (one.assignment, one.generation) == (share, generation)
            assert heard.events == told


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_static_leader_that_restarts_leaves_everything_as_it_is(new_group: NewGroup, assignor: str) -> None:
    """KIP-814: it is told not to assign, and must all the same know that it leads and watch the topics."""
    asked = 0

    class Counting(load_partition_assignor(assignor).__class__):  # type: ignore[misc]
        def assign(self, group: PartitionGroup) -> PartitionAssignment:
            nonlocal asked
            asked += 1
            answer: PartitionAssignment = super().assign(group)
            return answer

    with new_group("static leader", partitions=4) as group:
        async with member(group, assignors=[Counting()], instance="one") as one:
            await poll_until(lambda: one.assignment, one)
        async with member(group, assignors=[Counting()], instance="one", metadata_max_age_ms=200) as one:
            await poll_until(lambda: one.assignment, one)
            assert (len(one.assignment), one.is_leader, one.generation, asked) == (4, True, 1, 1)
            group.add_partitions(5)
            await poll_until(lambda: len(one.assignment) == 5, one)
            assert asked == 2


async def test_of_two_members_of_one_static_name_the_first_is_at_its_end(new_group: NewGroup) -> None:
    with new_group("twins", partitions=2) as group:
        heard = Heard()
        async with member(group, instance="one", listener=heard) as first:
            await poll_until(lambda: first.assignment, first)
            second = member(group, instance="one")
            async with running(second):
                await eventually(lambda: second.assignment)
                with pytest.raises(FencedInstanceId, match="another process has joined as instance 'one'"):
                    await poll_until(lambda: False, first)
                assert not first.assignment
                assert heard.names == ["assigned", "lost"]
                with pytest.raises(FencedInstanceId):
                    await first.poll(0)


async def test_it_outlives_a_broker_that_is_killed_and_started_again(
    new_group: NewGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Unheard for a whole session it gives up what it has, by its own clock: nobody is there to tell it to."""
    with new_group("outlives", partitions=2) as group:
        group.write(20)
        heard = Heard()
        consumer = member(group, listener=heard, auto_commit_interval_ms=100, session_timeout_ms=2_000)
        async with running(consumer) as records:
            await eventually(lambda: len(records) == 20)
            with caplog.at_level(logging.WARNING):
                group.broker.kill()
                await eventually(lambda: heard.names == ["assigned", "lost"])
                assert "trying again" in caplog.text
                assert "lost: no answer from the coordinator for session_timeout_ms" in caplog.text
            await asyncio.to_thread(group.broker.start)
            await asyncio.to_thread(group.write, 20)
            await eventually(lambda: group.everything() <= set(places(records)))
        assert heard.names == ["assigned", "lost", "assigned", "revoked"]


# --------------------------------------------------------------------------------------------------
# Other people's code


async def test_a_callback_that_raises_is_raised_from_poll_and_the_consumer_goes_on(new_group: NewGroup) -> None:
    class Breaks(Heard):
        def on_assigned(self, partitions: Partitions, generation: int) -> None:
            super().on_assigned(partitions, generation)
            raise ValueError("no room\nleft")

    with new_group("breaks", partitions=1) as group:
        group.write(3)
        async with member(group, listener=Breaks()) as consumer:
            text = r"^listener Breaks: on_assigned of .*-0 raised ValueError: no room\\nleft$"
            with pytest.raises(PluginError, match=text):
                await poll_until(lambda: consumer.assignment, consumer)
            assert len(await read(consumer, 3)) == 3


async def test_committing_works_inside_the_callback(new_group: NewGroup) -> None:
    class Commits(Heard):
        async def on_revoked(self, partitions: Partitions, generation: int) -> None:  # type: ignore[override]
            await consumer.commit()
            self.note("committed", partitions, generation)

    with new_group("commits", partitions=1) as group:
        group.write(5)
        heard = Commits()
        consumer = member(group, auto_commit_interval_ms=None, listener=heard)
        async with consumer:
            await read(consumer, 3)
        assert heard.names == ["assigned", "committed"]
        async with member(group) as successor:
            assert places(await read(successor, 2)) == [(0, 3), (0, 4)]


class Fails(PartitionAssignor):
    """Does not assign: says so, gives nothing to anybody, or never answers."""

    name = "fails"

    def __init__(self, how: str) -> None:
        self.how, self.over = how, threading.Event()

    def assign(self, group: PartitionGroup) -> PartitionAssignment:
        if self.how == "hangs":
            self.over.wait()
        return PartitionAssignment(error=7 if self.how == "says so" else 0, message="not\ntoday")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("says so", r"assignor 'fails': error 7: not\ntoday"),
        ("is incomplete", r"assignor 'fails' (tests.consumer.test_group_consumer.Fails): TOPIC-0 is given to nobody"),
        ("hangs", "assignor 'fails': no answer within 0.5 s"),
    ],
)
async def test_an_assignor_that_fails_is_told_in_one_line_and_the_consumer_is_out(
    new_group: NewGroup, how: str, said: str
) -> None:
    with new_group("bad assignor", partitions=1) as group:
        assignor = Fails(how)
        async with member(group, assignors=[assignor], max_poll_interval_ms=1_000) as consumer:
            for _ in range(2):
                with pytest.raises(PluginError) as caught:
                    await poll_until(lambda: False, consumer)
                assert str(caught.value) == said.replace("TOPIC", group.name)
            assert consumer.member_id == ""
        assignor.over.set()


async def test_members_with_nothing_in_common_are_refused_in_one_line(new_group: NewGroup) -> None:
    with new_group("in common", partitions=1) as group:
        first, other = member(group, assignors=["range"]), member(group, assignors=["roundrobin"])
        async with running(first), other:
            await eventually(lambda: first.assignment)
            with pytest.raises(BrokerError, match=r"INCONSISTENT_GROUP_PROTOCOL \(23\): .*change assignors"):
                await poll_until(lambda: False, other)


async def test_a_session_outside_the_brokers_bounds_is_refused_in_one_line(new_group: NewGroup) -> None:
    with new_group("bounds", partitions=1) as group:
        async with member(group, session_timeout_ms=600, heartbeat_interval_ms=100) as consumer:
            with pytest.raises(BrokerError, match=r"INVALID_SESSION_TIMEOUT \(26\): session_timeout_ms is outside"):
                await poll_until(lambda: False, consumer)


async def test_a_poll_that_is_cancelled_leaves_no_rebalance_half_done(new_group: NewGroup) -> None:
    class Slow(Heard):
        async def on_assigned(self, partitions: Partitions, generation: int) -> None:  # type: ignore[override]
            self.note("begun", partitions, generation)
            await asyncio.sleep(0.3)
            self.note("assigned", partitions, generation)

    with new_group("cancelled", partitions=2) as group:
        group.write(10)
        heard = Slow()
        async with member(group, listener=heard) as consumer:
            while not heard.events:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(consumer.poll(5), 0.05)
            assert heard.names == ["begun"]
            assert set(places(await read(consumer, 10))) == group.everything()
        assert heard.names == ["begun", "assigned", "revoked"]


async def test_poll_is_called_by_one_at_a_time_and_not_after_close(new_group: NewGroup) -> None:
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
