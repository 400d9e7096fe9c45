"""A ``GroupConsumer`` on a real Kafka broker: reading, committing, and rebalances with other consumers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.assign.api import PartitionAssignment, PartitionAssignorInput
from connectgroup.assign.members import Metadata
from connectgroup.assignors.range import RangeAssignor
from connectgroup.consumer import CommitRefused, FetchError, GroupConsumer, Record
from connectgroup.plugins import load_partition_assignor
from connectgroup.protocol.units import TopicPartition

from .conftest import NewGroup
from .inside import PATIENCE_S, RecordingListener, eventually, member, places, poll_until, read, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .broker import Broker

EXAMPLE = Path(__file__).parents[2] / "examples" / "group_consumer.py"


# --------------------------------------------------------------------------------------------------
# Reading and committing


async def test_consumer_reads_everything_and_resumes_from_its_commit(new_group: NewGroup) -> None:
    with new_group("alone", partitions=4) as group:
        group.write(400)
        listener = RecordingListener()
        async with member(group, assignors=["range", "cooperative-sticky"], listener=listener) as consumer:
            first = await read(consumer, 150)
            assert (consumer.is_leader, consumer.assignor, consumer.generation) == (True, "range", 1)
            assert consumer.assignment() == {TopicPartition(group.name, number) for number in range(4)}
        assert listener.events == [("assigned", [0, 1, 2, 3], 1), ("revoked", [0, 1, 2, 3], 1)]
        async with member(group) as consumer:
            rest = await read(consumer, 250)
        both = places(first + rest)
        assert len(both) == 400
        assert set(both) == group.everything()
        for partition in range(4):
            assert [offset for number, offset in both if number == partition] == list(range(100))


async def test_records_are_complete(new_group: NewGroup) -> None:
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


async def test_iteration_yields_single_records(new_group: NewGroup) -> None:
    with new_group("one by one", partitions=2) as group:
        group.write(20)
        seen = []
        async with member(group) as consumer:
            async for record in consumer:
                seen.append(record)
                if len(seen) == 20:
                    break
        assert set(places(seen)) == group.everything()


async def test_record_whose_processing_failed_is_read_again(new_group: NewGroup) -> None:
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


async def test_manual_commits_alone_count_without_automatic_ones(new_group: NewGroup) -> None:
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


async def test_consumer_without_a_commit_starts_at_the_configured_offset(new_group: NewGroup) -> None:
    with new_group("begins", partitions=1) as group:
        group.write(5)
        async with member(group, auto_offset_reset="error") as consumer:
            with pytest.raises(FetchError, match="-0: the group has no offset and auto_offset_reset is error"):
                await read(consumer, 1)
        async with member(group, auto_offset_reset="latest") as consumer:
            await poll_until(lambda: consumer.assignment(), consumer)
        # Its position was the end offset at that time, and it has committed it: later records are not skipped.
        group.write(1)
        async with member(group, auto_offset_reset="latest") as consumer:
            assert places(await read(consumer, 1)) == [(0, 5)]


@pytest.fixture
def child_accepts_sigint() -> Iterator[None]:
    """A shell starts background jobs with SIGINT ignored, and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("child_accepts_sigint")
async def test_example_reads_and_leaves_the_group(new_group: NewGroup) -> None:
    with new_group("example", partitions=2) as group:
        group.write(10)
        arguments = [sys.executable, str(EXAMPLE), group.broker.bootstrap, group.name, group.name]
        environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE, env=environment)
        try:
            assert process.stdout is not None
            lines: list[str] = []
            async with asyncio.timeout(PATIENCE_S):
                while sum("@" in line for line in lines) < 10:
                    lines.append((await process.stdout.readline()).decode())
                    assert lines[-1], lines
                process.send_signal(signal.SIGINT)
                while line := await process.stdout.readline():
                    lines.append(line.decode())
                assert await process.wait() == 0, lines
        except TimeoutError:
            process.send_signal(signal.SIGABRT)  # prints the stacks of its threads to the captured standard error
            await process.wait()
            pytest.fail(f"the example hangs after {lines}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        assert lines[0] == f"assigned in generation 1: {group.name}-0, {group.name}-1\n"
        assert f"{group.name}-1 @ 4: b'9'\n" in lines
        assert lines[-2:] == [f"revoked: {group.name}-0, {group.name}-1\n", "left\n"]
        group.write(2)
        async with member(group) as consumer:
            successors: list[Record] = []
            while not {(0, 5), (1, 5)} <= set(places(successors)):
                successors += await read(consumer, 1)


# --------------------------------------------------------------------------------------------------
# Rebalances


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_offsets_are_committed_before_partitions_are_revoked(new_group: NewGroup, assignor: str) -> None:
    """No automatic commit is due for an hour: only the commits on revocation keep records from being read twice."""
    with new_group("given on", partitions=6) as group:
        group.write(600)
        one, two = member(group, assignors=[assignor]), member(group, assignors=[assignor])
        async with running(one) as by_one:
            await eventually(lambda: len(by_one) == 600)
            async with running(two) as by_two:
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 3)
                group.write(600)
                await eventually(lambda: len(by_one) + len(by_two) >= 1200)
            await eventually(lambda: len(one.assignment()) == 6)
            group.write(60)
            await eventually(lambda: len(by_one) + len(by_two) >= 1260)
        assert by_two
        assert sorted(places(by_one + by_two)) == sorted(group.everything())


async def test_cooperative_members_keep_reading_partitions_that_stay(new_group: NewGroup) -> None:
    """KIP-429: the listener is called for partitions that move, and for no others."""
    with new_group("stays", partitions=4) as group:
        listener = RecordingListener()
        one, two = member(group, listener=listener), member(group)
        async with running(one):
            await eventually(lambda: len(one.assignment()) == 4)
            async with running(two):
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)
                kept = sorted(each.partition for each in one.assignment())
            await eventually(lambda: len(one.assignment()) == 4)
        moved = sorted({0, 1, 2, 3} - set(kept))
        assert [(event, numbers) for event, numbers, _ in listener.events] == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", moved),
            ("assigned", moved),
            ("revoked", [0, 1, 2, 3]),
        ]


@pytest.mark.parametrize("closes", [False, True], ids=["commit", "close"])
async def test_commit_during_a_rebalance_waits_for_its_end(new_group: NewGroup, closes: bool) -> None:
    """Between JoinGroup and SyncGroup the broker rejects commits; the commit of a cooperative member succeeds later."""
    begun, go_on = threading.Event(), threading.Event()

    class Held(load_partition_assignor("cooperative-sticky").__class__):  # type: ignore[misc]
        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            if len(group.members) > 1:
                begun.set()
                go_on.wait(PATIENCE_S)
            result: PartitionAssignment = super().assign(group)
            return result

    with new_group("held", partitions=2) as group:
        group.write(20)
        one, two = member(group, assignors=[Held()], auto_commit_interval_ms=3_600_000), member(group)
        try:
            first = await read(one, 20)
            async with running(two) as by_two:
                await poll_until(begun.is_set, one)
                committing = asyncio.create_task(one.close() if closes else one.commit())
                await asyncio.sleep(0.3)  # the broker rejects it meanwhile
                go_on.set()
                await committing
                if not closes:
                    await poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 1, one)
                    await one.close()
                await eventually(lambda: len(two.assignment()) == 2)
                group.write(2)
                await eventually(lambda: len(by_two) >= 2)
        finally:
            go_on.set()
            await one.close()
        assert sorted(places(first + by_two)) == sorted(group.everything())


async def test_leader_assignor_gets_claims_with_generations(new_group: NewGroup) -> None:
    """KIP-792: a claim carries the generation of the assignment it comes from, and the latest wins."""
    inputs: list[list[tuple[int, int, str | None]]] = []

    class RecordingAssignor(load_partition_assignor("cooperative-sticky").__class__):  # type: ignore[misc]
        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            inputs.append(sorted((len(each.owned), each.generation, each.rack) for each in group.members))
            assert [spec.racks for spec in group.topics] == [(frozenset({"here"}),) * 4]
            result: PartitionAssignment = super().assign(group)
            return result

    with new_group("claims", partitions=4) as group:
        one, two = member(group, assignors=[RecordingAssignor()], rack="a"), member(group, rack="b")
        async with running(one):
            await eventually(lambda: one.assignment())
            async with running(two):
                await eventually(lambda: len(two.assignment()) == 2)
    assert inputs[:3] == [[(0, -1, "a")], [(0, -1, "b"), (4, 1, "a")], [(0, 2, "b"), (2, 2, "a")]]


async def test_leader_assigns_new_partitions_and_new_topics(new_group: NewGroup) -> None:
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
            await eventually(lambda: len(consumer.assignment()) == 3)
            group.add_partitions(4)
            await eventually(lambda: len(consumer.assignment()) == 5)
            group.add_topic(late, 2)
            await eventually(lambda: len(consumer.assignment()) == 7)


# --------------------------------------------------------------------------------------------------
# Topics that grow, or are deleted and created again


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_added_partitions_are_read_from_their_beginning(new_group: NewGroup, protocol: str) -> None:
    """With ``latest`` too: every record of a partition that was created after the subscription is a new one."""
    with new_group("grows", partitions=1) as group:
        settings = {"auto_offset_reset": "latest", "group_protocol": protocol, "metadata_max_age_ms": 500}
        if protocol == "consumer":
            settings["assignors"] = None
        async with member(group, **settings) as consumer:
            await poll_until(lambda: consumer.position(TopicPartition(group.name, 0)) is not None, consumer)
            group.add_partitions(3)
            group.write(30)
            records = await read(consumer, 30)
            assert sorted(places(records)) == sorted(group.everything())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("commits", ["automatic", "none"])
async def test_topic_that_is_created_again_is_read_from_its_beginning(
    new_group: NewGroup, protocol: str, commits: str
) -> None:
    with new_group("again", partitions=1) as group:
        group.write(40)
        settings = {
            "group_protocol": protocol,
            "assignors": None,
            "auto_commit_interval_ms": 300 if commits == "automatic" else None,
            "metadata_max_age_ms": 500,
        }
        async with member(group, **settings) as consumer:
            await read(consumer, 40)
            await consumer.poll(0.5)
            admin = group.admin()
            admin.delete_topics([group.name])[group.name].result(PATIENCE_S)
            await asyncio.to_thread(group.create_again, 60)
            seen: set[tuple[int, int]] = set()
            async with asyncio.timeout(PATIENCE_S):
                while seen != {(0, offset) for offset in range(60)}:
                    seen |= set(places(await consumer.poll(0.2)))


async def test_lag_is_zero_at_the_end_of_a_transactional_topic(new_group: NewGroup) -> None:
    from confluent_kafka import Producer

    with new_group("transactional", partitions=1) as group:
        producer = Producer({"bootstrap.servers": group.broker.bootstrap, "transactional.id": group.name})
        producer.init_transactions()
        for number in range(3):
            producer.begin_transaction()
            producer.produce(group.name, str(number).encode())
            producer.commit_transaction()
        partition = TopicPartition(group.name, 0)
        async with member(group) as consumer:
            await read(consumer, 3)
            await poll_until(lambda: consumer.position(partition) == 6, consumer)
            assert await consumer.lag() == {partition: 0}
            await consumer.seek(partition, 0)
            assert await consumer.lag() == {partition: 6}
            assert [record.value for record in await read(consumer, 3)] == [b"0", b"1", b"2"]
            await poll_until(lambda: consumer.position(partition) == 6, consumer)
        async with member(group) as consumer:
            assert await consumer.committed([partition]) == {partition: 6}


# --------------------------------------------------------------------------------------------------
# Rebalances that a member asks for


async def test_changed_metadata_and_enforce_rebalance_lead_to_a_rebalance(
    new_group: NewGroup, caplog: pytest.LogCaptureFixture
) -> None:
    class Reports(RangeAssignor):
        data = b""

        def metadata(self, subscribed: frozenset[str]) -> Metadata:
            return Metadata(version=self.maximum_version, metadata=self.data)

    assignor = Reports()
    with new_group("metadata", partitions=1) as group:
        async with member(group, assignors=[assignor]) as consumer:
            await poll_until(lambda: consumer.generation == 1, consumer)
            assignor.data = b"new"
            await poll_until(lambda: consumer.generation == 2, consumer)
            consumer.enforce_rebalance("an operator asks")
            await poll_until(lambda: consumer.generation == 3, consumer)
            await consumer.poll(1.0)
            assert consumer.generation == 3
            other = member(group, assignors=["sticky", assignor])
            async with running(other):
                await poll_until(lambda: consumer.generation == 4, consumer)
                assert "the group uses range, not sticky, range" in caplog.text


# --------------------------------------------------------------------------------------------------
# Closing


@pytest.mark.parametrize("how", ["finally", "except", "block", "cancelled", "iteration"])
async def test_records_that_were_not_processed_are_not_committed_on_close(new_group: NewGroup, how: str) -> None:
    with new_group("half", partitions=1) as group:
        group.write(10)
        partition = TopicPartition(group.name, 0)

        async def work(consumer: GroupConsumer) -> None:
            if how == "iteration":
                async for record in consumer:
                    if record.offset == 5:
                        raise RuntimeError("processing failed")
            records = await read(consumer, 10)
            assert len(records) == 10
            if how == "cancelled":
                await asyncio.sleep(PATIENCE_S)
            raise RuntimeError("processing failed")

        async def run() -> None:
            consumer = member(group)
            if how == "block":
                async with consumer:
                    await work(consumer)
            elif how == "except":
                try:
                    await work(consumer)
                except RuntimeError:
                    await consumer.close()
                    raise
            else:
                try:
                    await work(consumer)
                finally:
                    await consumer.close()

        running_one = asyncio.create_task(run())
        if how == "cancelled":
            await asyncio.sleep(5)
            running_one.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancelled" else RuntimeError):
            await running_one
        async with member(group) as consumer:
            committed = await consumer.committed([partition])
            assert committed.get(partition, 0) <= (5 if how == "iteration" else 0)
            assert committed.get(partition, 0) + len(await read(consumer, 10 - committed.get(partition, 0))) == 10


async def test_offsets_that_the_program_committed_itself_stay_when_it_fails(new_group: NewGroup) -> None:
    with new_group("own commits", partitions=1) as group:
        group.write(10)
        partition = TopicPartition(group.name, 0)

        async def fail() -> None:
            async with member(group) as consumer:
                records = await read(consumer, 10)
                await consumer.commit({partition: records[5].offset})
                raise RuntimeError("the sixth record cannot be processed")

        with pytest.raises(RuntimeError, match="the sixth"):
            await fail()
        async with member(group) as consumer:
            assert await consumer.committed([partition]) == {partition: 5}


@pytest.mark.parametrize(("commit", "expected"), [(None, 10), (True, 10), (False, None)])
async def test_close_commits_as_requested(new_group: NewGroup, commit: bool | None, expected: int | None) -> None:
    with new_group("told", partitions=1) as group:
        group.write(10)
        partition = TopicPartition(group.name, 0)
        consumer = member(group)
        await read(consumer, 10)
        if commit:
            try:
                raise RuntimeError("an error that the program handles")
            except RuntimeError:
                await consumer.close(commit=True)
        else:
            await consumer.close(commit=commit)
        async with member(group) as other:
            assert (await other.committed([partition])).get(partition) == expected


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_close_ends_while_the_broker_hangs(
    broker: Broker, new_group: NewGroup, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    with new_group("hung", partitions=1) as group:
        group.write(10)
        consumer = member(group, session_timeout_ms=60_000)
        await read(consumer, 10)
        with broker.paused():
            async with asyncio.timeout(PATIENCE_S):
                if how == "timeout":
                    await consumer.close(timeout_s=0.5)
                else:
                    closing = asyncio.create_task(consumer.close(timeout_s=3600))
                    await asyncio.sleep(0.2)
                    closing.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await closing
        assert "closed without leaving the group" in caplog.text
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll(0)
