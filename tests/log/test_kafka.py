"""The log in a Kafka topic, which several coordinators share: the contract of every log, on a real broker; fences,
outcomes that are unknown, orders that compaction leaves behind, and topics that are no log."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from connectgroup.errors import ConfigError, LogError
from connectgroup.log import leased
from connectgroup.log.base import MAX_BATCH_BYTES, AppendRefused, Log, LogAway, LogFenced, LogHeld, LogNotWritable
from connectgroup.log.leased import LeasedLog
from connectgroup.log.registry import log_from_url
from connectgroup.log.rows import Sums, Values
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record
from connectgroup.testing.contracts.log import LogContract, contents, member, newest, opened
from tests.integration.processes import call_command
from tests.volume import ci_only, volume

from .lease_contract import LeaseContract, ownership_with_standby
from .life import Acknowledged, batch, holds
from .sqlite_helpers import CHILD, ENVIRONMENT

if TYPE_CHECKING:
    from tests.consumer.broker import Broker

pytest.importorskip("confluent_kafka")
import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from connectgroup.log.kafka import store as kafka_store, topic as kafka_topic
from connectgroup.log.kafka.records import OWNER_KEY, OwnerState, Standby, encode_owner, encode_row, encode_standby
from connectgroup.log.kafka.store import FENCES, KafkaStore
from connectgroup.log.kafka.topic import Tail, check_settings

LEASE_S = 9.0
"""A renewal is a transaction, which may take more than a second on a busy machine."""

LONG_S = 600.0
"""Longer than a test."""


class TestKafkaLog(LogContract):
    """Each test has a topic of its own."""

    @pytest.fixture(autouse=True)
    def _broker(self, broker: Broker) -> None:
        self.servers = broker.bootstrap
        self.topic = new_topic()

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return LeasedLog(KafkaStore(self.servers, self.topic), max_batch_bytes=max_batch_bytes)

    @pytest.mark.parametrize("seed", range(volume(2, 4, 20)))
    async def test_no_order_of_appends_compactions_and_restarts_changes_the_state(self, place: Path, seed: int) -> None:
        await super().test_no_order_of_appends_compactions_and_restarts_changes_the_state(place, seed)


@ci_only("the contract a second time, 20 s; in a user's run, TestKafkaLog has it in a topic of one partition")
class TestPartitionOfKafkaLog(TestKafkaLog):
    """The second of two partitions."""

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        store = KafkaStore(self.servers, self.topic, partition=1)
        store.expected_partitions = 2
        return LeasedLog(store, max_batch_bytes=max_batch_bytes, lease_s=LEASE_S)


class Faulty(KafkaStore):
    """A store of which the answers are lost.

    Attributes:
        cut: renewals do not reach the broker.
        loses: what the next append loses: ``answer``.
    """

    cut = False
    loses = ""

    async def renew(self, holder: str, last: int) -> bool:
        if self.cut:
            raise LogError("no answer")
        return await super().renew(holder, last)

    async def append(self, epoch: int, last: int, rows: Sequence[Values], sums: Sums) -> bool:
        written = await super().append(epoch, last, rows, sums)
        loses, self.loses = self.loses, ""
        if loses == "answer":
            raise LogError("no answer")
        return written


def new_topic() -> str:
    return f"log-{uuid.uuid4().hex}"


def log_at(broker: Broker, topic: str, *, lease_s: float = LEASE_S) -> tuple[LeasedLog, Faulty]:
    store = Faulty(broker.bootstrap, topic)
    return LeasedLog(store, address=f"{uuid.uuid4().hex}:1", lease_s=lease_s), store


def partition_at(broker: Broker, topic: str) -> tuple[LeasedLog, Faulty]:
    """The second partition of a log of two."""
    store = Faulty(broker.bootstrap, topic, partition=1)
    store.expected_partitions = 2
    return LeasedLog(store, address=f"{uuid.uuid4().hex}:1", lease_s=LEASE_S), store


def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def create(broker: Broker, topic: str, *, partitions: int = 1, **settings: str) -> None:
    config = {"cleanup.policy": "compact", **{name.replace("_", "."): value for name, value in settings.items()}}
    asked = admin(broker)
    asked.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def configure(broker: Broker, topic: str, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in named.items()]
    resource, asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries), admin(broker)
    asked.incremental_alter_configs([resource])[resource].result(30)


def delete(broker: Broker, topic: str) -> None:
    asked = admin(broker)
    asked.delete_topics([topic])[topic].result(30)
    while topic in asked.list_topics(timeout=10).topics:
        time.sleep(0.05)


def produce(broker: Broker, topic: str, records: Sequence[tuple[bytes | None, bytes | None, Any]]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, "message.max.bytes": 20_000_000})
    for key, value, headers in records:
        producer.produce(topic, value, key, partition=0, headers=headers)
    assert producer.flush(30) == 0


def committed(broker: Broker, topic: str) -> list[tuple[bytes | None, bytes | None, Any]]:
    """Key, value and headers of all committed records."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append((message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def transactional(broker: Broker, name: str) -> Producer:
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0, "transactional.id": name}
    producer = Producer({**settings, "transaction.timeout.ms": 300_000})
    producer.init_transactions(30)
    return producer


# ------------------------------------------------------------------------------------------- what is stored


def test_keys_have_these_bytes_for_ever() -> None:
    """Compaction compares keys: a tombstone with other bytes than its record would not delete it."""
    key, value, headers = encode_row((7, 5, 3, int(Kind.MEMBER), "gü".encode(), b"m\0", b"v", 2**32 - 1))
    assert key == b"\x01\x00\x02\x00\x00\x00\x03g\xc3\xbcm\x00"
    assert value == b"v"
    assert headers == [("row", bytes.fromhex("0000000000000007 0000000000000005 0000000000000003 00000000ffffffff"))]
    assert encode_row((8, 8, 3, int(Kind.PENDING_OFFSET), b"", b"", None, 0))[:2] == (
        b"\x01\x00*\x00\x00\x00\x00",
        None,
    )
    assert encode_owner(OwnerState())[0] == OWNER_KEY == b"\x00"
    assert encode_standby("a:1", Standby())[0] == b"\x02a:1"


async def test_topic_is_created_compacted_and_for_the_largest_batch(broker: Broker) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        large = member("large", host="x" * (MAX_BATCH_BYTES - 200))
        await log.append([large])
        assert await contents(log) == [large]
    async with opened(log):
        assert await contents(log) == [large]
    resource, asked = ConfigResource(ResourceType.TOPIC, topic), admin(broker)
    found = asked.describe_configs([resource])[resource].result(30)
    assert found["cleanup.policy"].value == "compact"
    assert found["unclean.leader.election.enable"].value == "false"


async def test_record_above_the_limit_of_the_topic_is_refused_before_it_is_sent(broker: Broker) -> None:
    """D9, KAFKA-19760: nothing else fails."""
    topic = new_topic()
    create(broker, topic, max_message_bytes="10000")
    log, _ = log_at(broker, topic)
    async with opened(log):
        outcomes = await asyncio.gather(
            log.append([member("a")]),
            log.append([member("b"), member("large", host="x" * 9_600)]),
            log.append([member("fits", host="x" * 9_300)]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [type(None), AppendRefused, type(None)], outcomes
        assert re.search(r"group g: member 'large': takes 9\d{3} bytes; allowed: up to 9488", str(outcomes[1]))
        assert len(await contents(log)) == 2
        # Together they are larger than a message may be.
        await log.append([member(str(number), host="x" * 5_000) for number in range(10)])
        assert len(await contents(log)) == 12


@pytest.mark.parametrize("seed", range(volume(3, 6, 20)))
async def test_state_is_the_same_in_every_order_that_compaction_leaves_behind(broker: Broker, seed: int) -> None:
    """D2: the cleaner has removed any of the records that a later one of the same key replaces, and old tombstones."""
    dice, topic, copy = random.Random(seed), new_topic(), new_topic()
    model: list[Record] = []
    log, _ = log_at(broker, topic)
    async with opened(log):
        for _ in range(30):
            records = [member(dice.choice("abcdef"), group=dice.choice("gh"), host=str(dice.random())) for _ in "123"]
            changes: list[Record] = [Tombstone(each.key) if dice.random() < 0.3 else each for each in records]
            await log.append(changes)
            model += changes
    stored = committed(broker, topic)
    cleaned_to = dice.randrange(len(stored))
    last = {key: at for at, (key, _, _) in enumerate(stored[:cleaned_to])}
    gone = {key for key, at in last.items() if stored[at][1] is None and dice.random() < 0.5}
    left = [
        each
        for at, each in enumerate(stored)
        if at >= cleaned_to
        or (each[0] not in gone and (last[each[0]] == at or dice.random() < 0.2))  # not all are removed at once
    ]
    create(broker, copy)
    produce(broker, copy, left)
    async with opened(log_at(broker, copy)[0]) as compacted:
        for group in "gh":
            expected = newest(record for record in model if record.group_id == group)
            found = newest(await contents(compacted, group))
            assert found == expected
            assert list(found) == list(expected), "order"
        assert compacted.epoch > log.epoch, "the epoch is that of the ownership, which compaction keeps"


async def test_copy_of_a_topic_is_recognized(broker: Broker) -> None:
    """It may lack the last records: it is served as a restored log, with new incarnations of its groups."""
    topic, copy = new_topic(), new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
        await log.mark_serving()
    create(broker, copy)
    produce(broker, copy, committed(broker, topic))
    other, _ = log_at(broker, copy)
    async with opened(other):
        assert "is on another server than before" in other.lost_records
        assert other.epoch > log.epoch + 100
        await other.mark_serving()
        assert not other.lost_records


async def test_recovered_log_continues_at_higher_epochs(broker: Broker) -> None:
    """``groups recover``, after a copy was put in the place of the topic."""
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([GroupRecord(group_id="g", epoch=3, created_ms=1_000), member("m")])
    done = await asyncio.to_thread(call_command, "groups", "recover", f"kafka://{broker.bootstrap}/{topic}")
    assert (done.code, done.out) == (0, "group g: recovered\n"), done.err
    async with opened(log):
        assert log.epoch > 1_000
        (group,) = (each for each in await contents(log) if isinstance(each, GroupRecord))
        assert group.epoch > 3


async def test_group_with_a_damaged_record_is_not_loaded(broker: Broker) -> None:
    """D7: other groups are."""
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        for group in "abc":
            await log.append([member("m", group=group)])
    (key, value, headers), *_ = (each for each in committed(broker, topic) if each[0] and each[0].endswith(b"am"))
    produce(broker, topic, [(key, (value or b"") + b"x", headers)])
    (key, *_), *_ = (each for each in committed(broker, topic) if each[0] and each[0].endswith(b"bm"))
    produce(broker, topic, [(key, None, [])])
    async with opened(log):
        loaded = await log.load()
        assert {group for group, found in loaded.items() if isinstance(found, LogError)} == {"a", "b"}
        assert "offset 1, group a: its checksum is" in str(loaded["a"])
        assert loaded["c"] == (member("m", group="c"),)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (None, b"x", "has no key"),
        (b"hello", b"x", "has an unknown key, which begins with 68 65 6c 6c 6f"),
        (b"\x01\x00\x02\x00\x00\x00\x09g", b"x", "has a key that was cut off"),
        (OWNER_KEY, b"x", "is no JSON object"),
        (OWNER_KEY, b'{"epoch": "x"}', "has an invalid epoch"),
    ],
)
async def test_record_of_another_program_is_named(
    broker: Broker, key: bytes | None, value: bytes, problem: str
) -> None:
    """D7: never skipped. A compacted topic rejects records without a key itself."""
    topic = new_topic()
    create(broker, topic, cleanup_policy="compact" if key else "delete")
    produce(broker, topic, [(key, value, [])])
    configure(broker, topic, cleanup_policy="compact")
    log, _ = log_at(broker, topic)
    for _ in range(2):
        with pytest.raises(LogError, match=f"{topic}: the record at offset 0 {problem}: newer software or another"):
            await log.open()
    await log.close()


# ------------------------------------------------------------------------------------------- one owner


class TestLeaseInKafka(LeaseContract):
    @pytest.fixture(autouse=True)
    def _broker(self, broker: Broker) -> None:
        self.broker, self.topic = broker, new_topic()

    def coordinator(self) -> tuple[LeasedLog, Faulty]:
        return log_at(self.broker, self.topic)


@ci_only("the contract a second time, 15 s; in a user's run, TestLeaseInKafka has it in a topic of one partition")
class TestLeaseOfPartitionInKafka(TestLeaseInKafka):
    """The second of two partitions."""

    def coordinator(self) -> tuple[LeasedLog, Faulty]:
        return partition_at(self.broker, self.topic)


async def test_fence_decides_who_may_write_and_not_the_lease(broker: Broker) -> None:
    """D4, F12: the first owner takes its lease for valid; Kafka rejects its next batch."""
    topic = new_topic()
    (first, _), other = log_at(broker, topic, lease_s=60), KafkaStore(broker.bootstrap, topic)
    async with opened(first):
        await first.append([member("a")])
        await other.connect()
        taken = None
        while taken is None:  # the first one may have renewed its lease in between
            seen = await other.look("p", "b:1")
            taken = await other.take(seen, holder="p:1", address="b:1", lease_ms=1_000, epochs=1)
        assert taken == (first.epoch + 1, 1)
        # LogFenced; or, if its renewal has met the fence first, an unknown outcome.
        with pytest.raises(LogError, match="another coordinator has opened it"):
            await first.append([member("b")])
        rows, _ = await other.read(None)
        assert [row[5] for row in rows] == [b"a"]
    await other.close()


async def test_coordinator_that_is_overtaken_before_its_fence_does_not_take_the_log(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may serve reads until its lease ends: the second one has fenced it, and must not serve as well."""
    topic, loop = new_topic(), asyncio.get_running_loop()
    first, second = KafkaStore(broker.bootstrap, topic), KafkaStore(broker.bootstrap, topic)
    await first.connect()
    await second.connect()
    seen = await first.look("p", "a:1")
    again = await second.look("q", "b:1")
    real, calls, taken = KafkaStore._caught_up, 0, None

    def caught_up(asked: KafkaStore, end: int, *, with_rows: bool = True) -> Tail:
        """When the second one has looked for the second time who owns the topic, the first one takes the log."""
        nonlocal calls, taken
        found = real(asked, end, with_rows=with_rows)
        calls += asked is second
        if asked is second and calls == 2:
            take = first.take(seen, holder="p:1", address="a:1", lease_ms=1_000, epochs=1)
            taken = asyncio.run_coroutine_threadsafe(take, loop).result(60)
        return found

    monkeypatch.setattr(KafkaStore, "_caught_up", caught_up)
    assert await second.take(again, holder="q:1", address="b:1", lease_ms=1_000, epochs=1) is None
    assert taken == (1, 0)
    assert await first.renew("p:1", 0), "the topic names it: the fence of the second one ends nothing"
    seen = await second.look("q", "b:1")
    assert (seen.holder, seen.epoch, seen.renewals) == ("p:1", 1, 2)
    await asyncio.gather(first.close(), second.close())


class Fences(list[str]):
    """What happens to the next transactions of the owner: others, which try to take the log and lose, fence it
    ``before`` or ``after`` the commit; ``low``: their records are at an offset that others had.

    Attributes:
        readers: how often a reader of the topic was made.
        read: how many records were read.
    """

    def __init__(self, broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.readers = self.read = 0
        fences = self

        def fence() -> None:
            settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"connectgroup-log-{topic}"}
            Producer(settings).init_transactions(30)

        class Fenced(Producer):
            def begin_transaction(self) -> None:
                self.fenced = fences.pop(0) if fences else ""
                if self.fenced == "before":
                    fence()
                super().begin_transaction()

            def produce(self, *given: Any, **named: Any) -> None:
                if (report := named.get("on_delivery")) and self.fenced == "low":
                    named["on_delivery"] = lambda error, _: report(error, SimpleNamespace(offset=lambda: 0))
                super().produce(*given, **named)

            def commit_transaction(self, *timeout: float) -> None:
                super().commit_transaction(*timeout)
                if self.fenced == "after":
                    fence()
                    raise KafkaException(KafkaError(KafkaError._FENCED))

        class Reader(Consumer):
            def __init__(self, *given: Any, **named: Any) -> None:
                fences.readers += 1
                super().__init__(*given, **named)

            def consume(self, *given: Any, **named: Any) -> list[Any]:
                found = super().consume(*given, **named)
                fences.read += len(found)
                return found

        monkeypatch.setattr(confluent_kafka, "Producer", Fenced)
        monkeypatch.setattr(confluent_kafka, "Consumer", Reader)
        monkeypatch.setattr(leased, "RENEW_S", LONG_S)  # no transaction but those of the test
        monkeypatch.setattr(leased, "ANSWER_S", 60.0)  # of a busy machine


@pytest.mark.parametrize(
    "fences",
    [
        pytest.param(["before", "after"], id="before and after"),
        pytest.param(["after", "before"], id="after and before", marks=ci_only("the other order of the same, 3 s")),
    ],
)
async def test_owner_that_was_fenced_by_others_that_did_not_take_the_log_goes_on(
    broker: Broker, fences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several that try when a lease has expired, all but one do not; tasks would wait for the next lease."""
    topic = new_topic()
    log, store = log_at(broker, topic, lease_s=LONG_S)
    upcoming = Fences(broker, topic, monkeypatch)
    async with opened(log):
        readers = upcoming.readers
        upcoming[:] = fences
        await log.mark_serving()
        upcoming[:] = fences
        await log.append([member("a")])
        upcoming[:] = fences
        await log.check_writable()
        await log.append([member("b")])
        assert (log.epoch, upcoming.readers) == (1, readers)
        assert await contents(log) == [member("a"), member("b")]
        store.loses = "answer"
        with pytest.raises(LogError, match="no answer"):
            await log.append([member("c")])
        upcoming[:] = fences
        assert await contents(log) == [member("a"), member("b"), member("c")]
        upcoming[:] = fences
    upcoming.clear()
    again, _ = log_at(broker, topic)
    async with opened(again):  # it does not wait for the lease
        assert await contents(again) == [member("a"), member("b"), member("c")]


async def test_owner_whose_records_are_at_offsets_of_others_reads_the_whole_topic(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was truncated, by an unclean election: only a reader of all knows whether a row is missing."""
    topic = new_topic()
    log, _ = log_at(broker, topic, lease_s=LONG_S)
    upcoming = Fences(broker, topic, monkeypatch)
    async with opened(log):
        await log.append([member("a")])
        upcoming[:] = ["low"]
        with pytest.raises(LogNotWritable, match=r"offset 0, where .* was expected: .* truncated"):
            await log.append([member("b")])
        readers = upcoming.readers
        await log.append([member("c")])
        assert upcoming.readers > readers
        assert await contents(log) == [member("a"), member("c")]


async def test_owner_of_long_standing_reads_what_is_new(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its renewals of some days would take longer than its lease, when someone asks who stands by."""
    topic = new_topic()
    (log, _), (standby, _) = log_at(broker, topic, lease_s=LONG_S), log_at(broker, topic)
    upcoming = Fences(broker, topic, monkeypatch)
    async with opened(log):
        await log.append([member("a")])
        renewal = [each for each in committed(broker, topic) if each[0] == OWNER_KEY][-1]
        produce(broker, topic, [renewal] * 1_000)
        monkeypatch.setattr(kafka_store, "SKIPPED", 500)
        monkeypatch.setattr(kafka_store, "KNOWN_S", 0.0)
        for _ in range(2):
            await log.check_writable()
        upcoming.read = 0
        with pytest.raises(LogHeld):
            await standby.open()
        read_by_standby, upcoming.read = upcoming.read, 0
        found = await ownership_with_standby(log)
        assert [(each.address, each.epoch) for each in found.coordinators] == [(log.address, 1), (standby.address, -1)]
        upcoming[:] = ["before"]
        await log.append([member("b")])
        assert upcoming.read < 50 < 500 < read_by_standby
        assert await contents(log) == [member("a"), member("b")]
    await standby.close()


async def test_outcome_of_a_batch_is_unknown_when_the_owner_is_fenced_again_and_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: it is neither acknowledged nor taken for one that was not made, and the group is read again."""
    topic = new_topic()
    log, _ = log_at(broker, topic, lease_s=LONG_S)
    upcoming = Fences(broker, topic, monkeypatch)
    async with opened(log):
        await log.append([member("a")])
        upcoming += ["before"] * FENCES
        with pytest.raises(LogError, match="outcome of a change is unknown") as error:
            await log.append([member("b")])
        assert not isinstance(error.value, LogFenced | LogNotWritable)
        assert await contents(log) == [member("a")]
        await log.append([member("c")])
        assert await contents(log) == [member("a"), member("c")]


async def test_owner_that_is_stopped_after_a_batch_that_failed_hands_over_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic, lease_s=LONG_S)
    upcoming = Fences(broker, topic, monkeypatch)
    async with opened(log):
        await log.append([member("a")])
        upcoming += ["before"] * FENCES
        with pytest.raises(LogError, match="outcome of a change is unknown"):
            await log.append([member("b")])
    again, _ = log_at(broker, topic)
    async with opened(again):  # it does not wait for the lease
        assert await contents(again) == [member("a")]


async def test_of_coordinators_that_start_together_one_opens_the_log(broker: Broker) -> None:
    """The topic is missing, too. Those that lose against each other's fence take the log again."""
    topic = new_topic()
    logs = [log_at(broker, topic)[0] for _ in range(3)]

    async def serve(log: LeasedLog) -> LeasedLog:
        await log.connect()
        while True:
            await log.stand_by()
            try:
                await log.open()
                await log.append([member(log.address)])
                await log.mark_serving()
                return log
            except LogError:
                await log.close()

    waiting = {asyncio.ensure_future(serve(log)) for log in logs}
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        owner = done.pop().result()
        try:
            await owner.append([member("b")])
            break
        except LogError:  # one that had read the topic before this one took it has fenced it
            await owner.close()
            waiting |= {asyncio.ensure_future(serve(owner))}
    assert [each.member_id for each in await contents(owner)][-2:] == [owner.address, "b"]  # type: ignore[union-attr]
    found = await owner.ownership()
    assert [(each.address, each.epoch) for each in found.coordinators][:1] == [(owner.address, owner.epoch)]
    for campaign in waiting:
        campaign.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.gather(*(log.close() for log in logs))


# ------------------------------------------------------------------------------------------- unknown outcomes


async def test_transaction_that_a_killed_owner_left_open_is_aborted_by_its_successor(broker: Broker) -> None:
    """F8: at once, and not after the timeout of the transaction, which is 300 s here."""
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
    killed = transactional(broker, f"connectgroup-log-{topic}")
    killed.begin_transaction()
    killed.produce(topic, b"v", encode_row((9, 9, 9, int(Kind.MEMBER), b"g", b"open", b"v", 0))[0], partition=0)
    assert killed.flush(30) == 0
    async with opened(log):
        assert await contents(log) == [member("a")]
        await log.append([member("b")])
        with pytest.raises(KafkaException):
            killed.commit_transaction(30)
        assert await contents(log) == [member("a"), member("b")]


def open_transaction(broker: Broker, topic: str) -> Producer:
    """Another program, which has written a record to the topic, and neither commits nor aborts."""
    other = transactional(broker, new_topic())
    other.begin_transaction()
    other.produce(topic, b"v", b"k", partition=0)
    assert other.flush(30) == 0
    return other


async def test_log_waits_for_no_transaction_of_another_program(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "ANSWER_S", 60.0)  # of a busy machine
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
    other = open_transaction(broker, topic)
    with pytest.raises(LogError, match=f"{topic}: a transaction of another program is open since offset"):
        await log.open()
    other.abort_transaction(30)
    async with opened(log):
        assert await contents(log) == [member("a")]


async def test_renewal_that_cannot_be_read_does_not_extend_the_lease(broker: Broker) -> None:
    """D5: a successor would not see it. A broker that is killed now may forget a commit that it has accepted."""
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
        other = open_transaction(broker, topic)
        assert "the lease has expired, it could not be renewed" in await asyncio.wait_for(log.wait_lost(), 60)
        other.abort_transaction(30)


async def test_owner_of_which_the_broker_is_silent_acknowledges_nothing(broker: Broker) -> None:
    """F29: the batch is there whole or not at all, and the lease is over."""
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
        with broker.paused():
            with pytest.raises(LogError) as error:
                await log.append([member("b-0"), member("b-1")])
            assert not isinstance(error.value, AppendRefused)
            assert "the lease has expired" in await log.wait_lost()
    successor, _ = log_at(broker, topic)
    await successor.stand_by()
    async with opened(successor):
        names = [each.member_id for each in await contents(successor)]  # type: ignore[union-attr]
        assert names in (["a"], ["a", "b-0", "b-1"])
        await successor.append([member("c")])
        assert (await contents(successor))[-1] == member("c")


@ci_only("a broker twice, 20 s; in a user's run, the tests above end connections and transactions")
async def test_log_goes_on_after_a_restart_of_the_broker(broker: Broker) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic)
    await log.open()
    await log.append([member("a")])
    await asyncio.to_thread(broker.kill)
    with pytest.raises(LogError) as error:
        await log.append([member("b")])
    assert not isinstance(error.value, AppendRefused)
    await log.wait_lost()
    await log.close()
    with pytest.raises(LogError, match="allowed: the address of a running Kafka broker"):
        await log.connect()
    await asyncio.to_thread(broker.start)
    async with asyncio.timeout(120):
        while True:  # as a coordinator does: the broker may still have to read its transactions
            await log.stand_by()
            with suppress(LogError):
                await log.open()
                break
    assert (await contents(log))[:1] == [member("a")]
    await log.append([member("c")])
    await log.close()


async def test_batches_of_a_killed_process_are_whole_and_all_that_it_acknowledged(broker: Broker) -> None:
    """D3, F7, F8: SIGKILL during appends."""
    topic, acknowledged = new_topic(), Acknowledged()
    url = f"kafka://{broker.bootstrap}/{topic}"
    for turn in range(2):
        first = turn * 1_000_000
        process = await asyncio.create_subprocess_exec(
            *CHILD, "share", url, str(first), stdout=subprocess.PIPE, env=ENVIRONMENT
        )
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        lines += (await process.stdout.read()).splitlines()
        await process.wait()
        numbers = [int(line) for line in lines if line.strip()]
        assert numbers
        acknowledged.begun |= {*numbers, max(numbers) + 1}
        acknowledged.kept |= {*numbers}
    log, _ = log_at(broker, topic)
    await log.stand_by()
    async with opened(log):
        await holds(log, acknowledged)
        await log.append(batch(9_000_000))


# ------------------------------------------------------------------------------------------- topics that are no log


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"cleanup_policy": "delete"},
            "has cleanup.policy=delete, which deletes groups that are in use; allowed: compact",
        ),
        ({"cleanup_policy": "delete,compact"}, "has cleanup.policy=compact,delete, which deletes groups"),
    ],
)
async def test_topic_that_may_lose_records_is_refused(broker: Broker, settings: dict[str, Any], problem: str) -> None:
    topic = new_topic()
    create(broker, topic, **settings)
    log, _ = log_at(broker, topic)
    with pytest.raises(LogError, match=f"{topic}: the topic {problem}"):
        await log.connect()
    await log.close()


def wait_for_partitions(broker: Broker, topic: str, count: int) -> None:
    asked = admin(broker)
    while len(asked.list_topics(topic, timeout=10).topics[topic].partitions) < count:
        time.sleep(0.05)


async def test_topic_keeps_the_number_of_partitions_of_its_first_start(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """With more of them, groups would be in other partitions than before: the log goes on without those added later."""
    topic = new_topic()
    first, same, other, later = (log_at(broker, topic)[0] for _ in range(4))
    first.expect_partitions(3)
    async with opened(first):
        assert first.partitions == 3
        await first.append([member("a")])
        async with opened(first.partition(2)) as last:
            await last.append([member("b")])
            assert await contents(last) == [member("b")]
        assert await contents(first) == [member("a")]
    await same.connect()
    assert same.partitions == 3
    other.expect_partitions(1)
    with pytest.raises(LogError, match=r"started with 3 partitions, not 1: .*; allowed: --partitions 3, or none"):
        await other.connect()

    asked = admin(broker)
    asked.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    await asyncio.to_thread(wait_for_partitions, broker, topic, 4)
    other.expect_partitions(4)
    with pytest.raises(LogError, match=r"started with 3 partitions, not 4: .*; allowed: --partitions 3, or none"):
        await other.connect()
    for log in same, later:
        caplog.clear()
        async with opened(log):
            assert log.partitions == 3
            assert await contents(log) == [member("a")]
            async with opened(log.partition(2)) as last:
                assert await contents(last) == [member("b")]
        warnings = [each for each in caplog.messages if "the log goes on with the first 3" in each]
        assert len(warnings) == 1, caplog.messages
    for log in same, other:
        await log.close()


async def test_one_broker_is_warned_about(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        assert (
            "replication factor 1: acknowledged changes may be lost with a broker. The cluster has one" in caplog.text
        )


@pytest.mark.parametrize(
    ("changed", "replicas", "problem"),
    [
        ({}, 1, "replication factor 1: .*; allowed: 2 or more, 3 recommended"),
        ({"min.insync.replicas": "1"}, 3, "min.insync.replicas=1: .*; allowed: 2 or more"),
        ({"unclean.leader.election.enable": "true"}, 3, "unclean.leader.election.enable=true: .*; allowed: false"),
        ({"cleanup.policy": "delete"}, 3, "cleanup.policy=delete, .*; allowed: compact"),
    ],
)
def test_topic_that_loses_changes_with_one_broker_is_refused_where_there_are_more(
    changed: dict[str, str], replicas: int, problem: str
) -> None:
    safe = {"cleanup.policy": "compact", "min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
    assert check_settings("log", safe, brokers=3, replicas=3) == []
    with pytest.raises(LogError, match=f"log: the topic has {problem}"):
        check_settings("log", safe | changed, brokers=2, replicas=replicas)


async def test_topic_that_was_truncated_is_refused(broker: Broker) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
    configure(broker, topic, cleanup_policy="delete")
    at, asked = TopicPartition(topic, 0, 2), admin(broker)
    asked.delete_records([at])[at].result(30)
    configure(broker, topic, cleanup_policy="compact")
    for again in log, log_at(broker, topic)[0]:
        with pytest.raises(LogError, match=f"{topic}: begins at offset 2: the records before were deleted"):
            await again.open()
        await again.close()


async def test_topic_that_was_created_again_is_refused_by_owner_and_standby(broker: Broker) -> None:
    topic = new_topic()
    (owner, _), (standby, _) = log_at(broker, topic), log_at(broker, topic)
    async with opened(owner):
        await owner.append([member("a")])
        with pytest.raises(LogHeld):
            await standby.open()
        delete(broker, topic)
        create(broker, topic)
        with pytest.raises(LogError):
            await owner.append([member("b")])
        assert "was deleted and created again" in await owner.wait_lost()
    for log in owner, standby:
        with pytest.raises(LogError, match=f"{topic}: the topic was deleted and created again: its id is"):
            await log.open()
        await log.close()


async def test_topic_that_was_deleted_is_not_created_again(broker: Broker) -> None:
    topic = new_topic()
    log, _ = log_at(broker, topic)
    async with opened(log):
        await log.append([member("a")])
    delete(broker, topic)
    with pytest.raises(LogError, match=f"{topic}: the topic was deleted, and the state of all groups with it"):
        await log.open()
    await log.close()


# ------------------------------------------------------------------------------------------- connections


async def test_broker_that_does_not_answer_is_named() -> None:
    log = log_from_url("kafka://127.0.0.1:9/topic")
    with pytest.raises(LogError, match=r"kafka://127\.0\.0\.1:9/topic: .*; allowed: the address of a running Kafka"):
        await log.open()
    await log.close()


def wait_for_no_leader(asked: AdminClient, topic: str) -> None:
    while asked.list_topics(topic, timeout=10).topics[topic].partitions[0].leader != -1:
        time.sleep(0.1)


def wait_for_one_in_sync(asked: AdminClient, topic: str) -> None:
    while len(asked.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs) > 1:
        time.sleep(0.1)


@ci_only("two brokers, 20 s; in a user's run, test_election has a database that is away")
async def test_topic_without_a_leader_or_with_too_few_replicas_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when all machines start again: a coordinator that starts waits, and does not end."""
    from tests.consumer.broker import running_broker

    monkeypatch.setattr(kafka_topic, "check_settings", lambda *given, **named: [])  # one replica, of two brokers
    with running_broker() as first, running_broker(node_id=2, first=first) as second:
        asked, topic = admin(first), new_topic()
        create_on_second = NewTopic(topic, 1, replica_assignment=[[2]], config={"cleanup.policy": "compact"})
        asked.create_topics([create_on_second])[topic].result(30)
        on_both = new_topic()
        settings = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
        asked.create_topics([NewTopic(on_both, 1, replica_assignment=[[1, 2]], config=settings)])[on_both].result(30)
        log, replicated = (log_at(first, name)[0] for name in (topic, on_both))
        for each in log, replicated:
            await each.connect()
        await asyncio.to_thread(second.kill)
        await asyncio.to_thread(wait_for_no_leader, asked, topic)
        for each in log, log_at(first, topic)[0]:
            with pytest.raises(LogAway):
                await each.connect()
            await each.close()
        await asyncio.to_thread(wait_for_one_in_sync, asked, on_both)
        for each in replicated, log_at(first, on_both)[0]:
            with pytest.raises(LogAway, match=r"1 of the topic's replicas are in sync, .* requires 2"):
                await each.connect()
            await each.close()


RIGHTS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.CREATE,
)
"""On the topic, as the guide lists them."""


def log_of_user(broker: Broker, topic: str, rights: Sequence[AclOperation]) -> LeasedLog:
    """A log for which the user has these rights on the topic, those of the guide on the transactional id, and none on
    the group that librdkafka asks about."""
    from tests.consumer.broker import PASSWORD

    transactional_id, group = f"connectgroup-log-{topic}", f"connectgroup-{topic}"
    rules = [
        *((ResourceType.TOPIC, topic, each, AclPermissionType.ALLOW) for each in rights),
        (ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.WRITE, AclPermissionType.ALLOW),
        (ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.DESCRIBE, AclPermissionType.ALLOW),
        (ResourceType.GROUP, group, AclOperation.ALL, AclPermissionType.DENY),
    ]
    bindings = [
        AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)
        for kind, name, operation, permission in rules
    ]
    asked = admin(broker)
    for created in asked.create_acls(bindings).values():
        created.result(30)
    of_any = ResourceType.ANY, None, ResourcePatternType.ANY
    of_user = AclBindingFilter(*of_any, "User:alice", None, AclOperation.ANY, AclPermissionType.ANY)  # type: ignore[arg-type]
    while not {*bindings} <= {*asked.describe_acls(of_user).result(30)}:
        time.sleep(0.05)
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        "ssl.ca.location": f"{broker.certificates}/server.pem",
    }
    return LeasedLog(KafkaStore(broker.sasl, topic, client=client), lease_s=LEASE_S)


async def test_user_needs_the_rights_that_the_guide_lists_and_no_others(broker: Broker) -> None:
    topic = new_topic()
    owner, standby = (log_of_user(broker, topic, RIGHTS) for _ in range(2))
    written = [member(f"{number:02}") for number in range(20)]
    async with opened(owner):
        for each in written:  # the answer about the group comes some time after the first record
            await owner.append([each])
            with pytest.raises(LogHeld):
                await standby.open()
    async with opened(standby):
        assert await contents(standby) == written


@pytest.mark.parametrize("missing", [AclOperation.READ, AclOperation.WRITE])
async def test_missing_right_is_named(broker: Broker, missing: AclOperation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "ANSWER_S", 60.0)  # of a busy machine
    topic = new_topic()
    async with opened(log_at(broker, topic)[0]):
        pass
    log = log_of_user(broker, topic, [each for each in RIGHTS if each is not missing])
    with pytest.raises(LogError, match=r"authorization failed.*; allowed: a user with Read, Write, Describe and"):
        await log.open()
    await log.close()


async def test_connections_with_tls_and_a_login(broker: Broker, tmp_path: Path) -> None:
    from tests.consumer.broker import PASSWORD

    config = tmp_path / "client.properties"
    topic, certificates = new_topic(), broker.certificates
    login = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\n"
    authority = f"ssl.ca.location={certificates}/server.pem\n"
    by_certificate = f"ssl.certificate.location={certificates}/client.pem\nssl.key.location={certificates}/client.key\n"
    for address, settings in (
        (broker.sasl, f"{login}{authority}sasl.password={PASSWORD}\n"),
        (broker.tls, f"security.protocol=SSL\n{authority}{by_certificate}"),
    ):
        config.write_text(settings)
        async with opened(log_from_url(f"kafka://{address}/{topic}?config={config}")) as log:
            await log.append([member("a")])
    config.write_text(f"{login}{authority}sasl.password=wrong-password-x\n")
    log = log_from_url(f"kafka://{broker.sasl}/{topic}?config={config}")
    with pytest.raises(LogError) as error:
        await log.open()
    assert "wrong-password-x" not in str(error.value)
    assert "\n" not in str(error.value)
    await log.close()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("acks=1", "log: got 'acks'; allowed: settings of connections, TLS and logins; the log sets this one itself"),
        ("transactional.id=x", "log: got 'transactional.id'; allowed: settings of connections"),
        ("no.such.setting=1", r"config: got '.*'; allowed: settings of librdkafka \(.*no.such.setting"),
        ("security.protocol=NONE", "config: got"),
        (None, "a readable file"),
    ],
)
async def test_file_of_settings_that_cannot_be_used(tmp_path: Path, content: str | None, problem: str) -> None:
    config = tmp_path / "client.properties"
    if content is not None:
        config.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        log_from_url(f"kafka://127.0.0.1:9092/topic?config={config}")


async def test_log_that_takes_no_writes_says_that_nothing_was_written(broker: Broker) -> None:
    """The topic takes smaller messages than it did when the log was opened."""
    topic = new_topic()
    log, _ = log_at(broker, topic, lease_s=10)
    async with opened(log):
        await log.append([member("a")])
        configure(broker, topic, max_message_bytes="2000")
        with pytest.raises(LogNotWritable, match="too large"):
            await log.append([member("b", host="x" * 5_000)])
        await log.append([member("c")])
        assert await contents(log) == [member("a"), member("c")]
