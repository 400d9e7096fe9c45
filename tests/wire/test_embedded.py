"""Subscription and Assignment, byte for byte: golden bytes, kafka-python, kio, and invalid bytes."""

from __future__ import annotations

import importlib
import io
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from connectgroup.errors import WireError
from connectgroup.protocol.messages.classic import EmbeddedAssignment, Subscription
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.wire.embedded import (
    HIGHEST_VERSION,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tests.fuzzing import INPUTS, attack, cut_after, enlarged, one_line, peak_memory
from tests.volume import volume

VERSIONS = range(HIGHEST_VERSION + 1)


def its(**topics: list[int]) -> Partitions:
    return frozenset(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)


SUBSCRIPTION = Subscription(
    topics=frozenset({"foo", "b"}), user_data=b"\x00\xff", owned=its(foo=[10, 2], b=[0]), generation=7, rack="r1"
)
ASSIGNMENT = EmbeddedAssignment(partitions=its(foo=[10, 2], b=[0]), user_data=b"u")

TOPICS = "00000002 0001 62 0003 666f6f"
PARTITIONS = "00000002 0001 62 00000001 00000000 0003 666f6f 00000002 00000002 0000000a"
"""Sorted: b-0, foo-2, foo-10."""

BY_HAND = {
    0: f"0000 {TOPICS} 00000002 00ff",
    1: f"0001 {TOPICS} 00000002 00ff {PARTITIONS}",
    2: f"0002 {TOPICS} 00000002 00ff {PARTITIONS} 00000007",
    3: f"0003 {TOPICS} 00000002 00ff {PARTITIONS} 00000007 0002 7231",
}
LEFT_OUT: dict[int, dict[str, Any]] = {
    0: {"owned": frozenset(), "generation": -1, "rack": None},
    1: {"generation": -1, "rack": None},
    2: {"rack": None},
    3: {},
}


def carried(subscription: Subscription, version: int) -> Subscription:
    """The fields of the subscription that a version has."""
    values = {name: getattr(subscription, name) for name in ("topics", "user_data", "owned", "generation", "rack")}
    return Subscription(**(values | LEFT_OUT[version]))


# --------------------------------------------------------------------------------------------------
# Golden bytes


@pytest.mark.parametrize("version", VERSIONS)
def test_pr_01_pr_05_golden_bytes_of_a_sorted_subscription(version: int) -> None:
    """PR-01 round trip; PR-05 topics and owned partitions are sorted before they are written."""
    assert encode_subscription(SUBSCRIPTION, version) == bytes.fromhex(BY_HAND[version])
    assert decode_subscription(bytes.fromhex(BY_HAND[version])) == carried(SUBSCRIPTION, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_pr_01_golden_bytes_of_an_assignment(version: int) -> None:
    written = bytes.fromhex(f"000{version} {PARTITIONS} 00000001 75")
    assert encode_assignment(ASSIGNMENT, version) == written
    assert decode_assignment(written) == ASSIGNMENT


def test_highest_version_is_written_by_default() -> None:
    assert encode_subscription(SUBSCRIPTION) == bytes.fromhex(BY_HAND[3])
    assert encode_assignment(ASSIGNMENT)[:2] == b"\x00\x03"


def test_missing_user_data_and_rack_are_null() -> None:
    nothing = bytes.fromhex("0003 00000000 ffffffff 00000000 ffffffff ffff")
    assert encode_subscription(Subscription(topics=frozenset())) == nothing
    assert encode_subscription(Subscription(topics=frozenset(), rack="")) == nothing
    assert decode_subscription(nothing) == Subscription(topics=frozenset())
    assert decode_subscription(nothing[:-2] + b"\0\0").rack is None
    assert decode_subscription(bytes.fromhex("0000 00000000 00000000")).user_data == b""
    assert encode_assignment(EmbeddedAssignment(), 0) == bytes.fromhex("0000 00000000 ffffffff")


@pytest.mark.parametrize("written", VERSIONS)
@pytest.mark.parametrize("read", VERSIONS)
def test_pr_02_pr_03_old_and_new_versions_interoperate(written: int, read: int) -> None:
    """PR-02 a reader of an older version ignores the newer tail; PR-03 an older writer's absent fields are defaults.

    A reader that knows ``read`` sees the bytes under that number.
    """
    data = encode_subscription(SUBSCRIPTION, written)
    if read <= written:
        assert decode_subscription(read.to_bytes(2, "big") + data[2:]) == carried(SUBSCRIPTION, read)
    else:
        assert decode_subscription(data) == carried(SUBSCRIPTION, written)


@pytest.mark.parametrize("version", [HIGHEST_VERSION + 1, 100, 32767])
@pytest.mark.parametrize("tail", [b"", b"\0", b"a later field"])
def test_pr_04_future_version_is_read_as_the_highest_known(version: int, tail: bytes) -> None:
    prefix = version.to_bytes(2, "big")
    assert decode_subscription(prefix + encode_subscription(SUBSCRIPTION)[2:] + tail) == SUBSCRIPTION
    assert decode_assignment(prefix + encode_assignment(ASSIGNMENT)[2:] + tail) == ASSIGNMENT


@pytest.mark.parametrize("version", VERSIONS)
def test_pr_06_truncated_bytes_are_rejected(version: int) -> None:
    for whole, decode in (
        (encode_subscription(SUBSCRIPTION, version), decode_subscription),
        (encode_assignment(ASSIGNMENT, version), decode_assignment),
    ):
        for length in range(len(whole)):
            with pytest.raises(WireError) as refused:
                decode(whole[:length])
            one_line(refused.value, decode.__name__.removeprefix("decode_").capitalize())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "Subscription: version at byte 0: the bytes end before the value does"),
        ("ffff 00000000 ffffffff", "Subscription: version at byte 2: got -1; allowed: 0 or more"),
        ("0000 ffffffff", r"topics at byte 6: got null; allowed: 0 to 0: 0 bytes remain, 2 or more each"),
        ("0000 7fffffff 0001 62", "topics at byte 6: got 2147483647 elements; allowed: 0 to 1"),
        ("0000 00000001 ffff", "topics at byte 6: got null; allowed: 0 to the 0 bytes"),
        ("0000 00000001 0001 ff", "topics at byte 6: got bytes that are not UTF-8; allowed: UTF-8"),
        ("0000 00000000 fffffffe", "user_data at byte 10: got length -2; allowed: 0 to the 0 bytes"),
        ("0000 00000000 00000002 00", "user_data at byte 10: got length 2; allowed: 0 to the 1 bytes"),
        ("0001 00000000 ffffffff 00000001 0000 ffffffff", "owned at byte 20: got null"),
        ("0001 00000000 ffffffff 00000001 0000 00000001", "owned at byte 20: got 1 elements; allowed: 0 to 0"),
        ("0002 00000000 ffffffff 00000000 0000", "generation at byte 14: the bytes end before the value does"),
        ("0003 00000000 ffffffff 00000000 00000000 0002 61", "rack at byte 18: got length 2; allowed: 0 to the 1"),
    ],
)
def test_error_names_field_byte_and_allowed_values(data: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        decode_subscription(bytes.fromhex(data))


def test_member_without_an_assignment_keeps_its_partitions() -> None:
    with pytest.raises(WireError, match="Assignment: version at byte 0: the bytes end before the value does"):
        decode_assignment(b"")


def test_duplicate_topics_and_partitions_count_once() -> None:
    twice = bytes.fromhex("0000 00000002 0001 62 00000002 00000005 00000005 0001 62 00000001 00000006 ffffffff")
    assert decode_assignment(twice).partitions == its(b=[5, 6])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"topics": frozenset({"x" * 32768})},
            "v3: topics: got a value out of range; allowed: strings of at most 32767",
        ),
        ({"topics": frozenset({"\ud800"})}, "topics: got a string with a lone surrogate"),
        ({"topics": frozenset({5})}, "topics: got a value of another type; allowed: strings"),
        ({"user_data": "text"}, "user_data: got a value of another type; allowed: bytes or None"),
        ({"owned": its(t=[1 << 31])}, "owned: got a value out of range; allowed: .*int32 numbers"),
        ({"owned": frozenset({"t-1"})}, "owned: got a value of another type"),
        ({"generation": 1 << 31}, "generation: got a value out of range; allowed: an int32"),
        ({"rack": "r" * 40000}, "rack: got a value out of range"),
    ],
)
def test_value_that_does_not_fit_its_field_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message) as refused:
        encode_subscription(Subscription(**({"topics": frozenset()} | values)))
    one_line(refused.value, "Subscription v3: ")


@pytest.mark.parametrize("version", [-1, HIGHEST_VERSION + 1])
def test_unknown_version_is_not_written(version: int) -> None:
    with pytest.raises(WireError, match=f"Subscription: version: got {version}; allowed: 0 to 3"):
        encode_subscription(SUBSCRIPTION, version)
    with pytest.raises(WireError, match=f"Assignment: version: got {version}; allowed: 0 to 3"):
        encode_assignment(ASSIGNMENT, version)


# --------------------------------------------------------------------------------------------------
# Other implementations

names = st.sampled_from(["t", "topic-1", "größe", "数据", "x" * 200]) | st.text(
    st.characters(codec="utf-8"), max_size=9
)
numbers = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 20)
partitions = st.frozensets(st.builds(TopicPartition, names, numbers), max_size=12)
data = st.none() | st.binary(max_size=40)
subscriptions = st.builds(
    Subscription,
    topics=st.frozensets(names, max_size=6),
    user_data=data,
    owned=partitions,
    generation=numbers,
    rack=st.none() | names.filter(bool),
)
assignments = st.builds(EmbeddedAssignment, partitions=partitions, user_data=data)


def by_topic(partitions: Partitions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


@settings(deadline=None)
@given(subscriptions, st.sampled_from(VERSIONS))
def test_kafka_python_writes_the_same_subscription_and_reads_ours(subscription: Subscription, version: int) -> None:
    entry = ConsumerProtocolSubscription.TopicPartition
    owned = [entry(topic=topic, partitions=its) for topic, its in by_topic(subscription.owned).items()]
    theirs = ConsumerProtocolSubscription(
        version=version,
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=owned,
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    ).encode()
    ours = encode_subscription(subscription, version)
    assert theirs == ours
    assert decode_subscription(theirs) == carried(subscription, version)
    read = ConsumerProtocolSubscription.decode(ours)
    expected = carried(subscription, version)
    assert (frozenset(read.topics), read.user_data) == (expected.topics, expected.user_data)
    if version >= 1:
        assert {each.topic: each.partitions for each in read.owned_partitions} == by_topic(expected.owned)
    if version >= 2:
        assert read.generation_id == expected.generation
    if version >= 3:
        assert read.rack_id == expected.rack


@settings(deadline=None)
@given(assignments, st.sampled_from(VERSIONS))
def test_kafka_python_writes_the_same_assignment_and_reads_ours(assignment: EmbeddedAssignment, version: int) -> None:
    entry = ConsumerProtocolAssignment.TopicPartition
    given_out = [entry(topic=topic, partitions=its) for topic, its in by_topic(assignment.partitions).items()]
    theirs = ConsumerProtocolAssignment(
        version=version, assigned_partitions=given_out, user_data=assignment.user_data
    ).encode()
    ours = encode_assignment(assignment, version)
    assert theirs == ours
    assert decode_assignment(theirs) == assignment
    read = ConsumerProtocolAssignment.decode(ours)
    assert read.user_data == assignment.user_data
    assert {each.topic: each.partitions for each in read.assigned_partitions} == by_topic(assignment.partitions)


def kio(name: str, version: int) -> tuple[Callable[[Any, Any], None], Any]:
    """kio's writer of a message and its module."""
    module = importlib.import_module(f"kio.schema.{name}.v{version}.data")
    cls = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return importlib.import_module("kio.serial").entity_writer(cls), module


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=volume(20, 50))
@given(subscription=subscriptions)
def test_kio_writes_the_same_subscription(version: int, subscription: Subscription) -> None:
    write, module = kio("consumer_protocol_subscription", version)
    values: dict[str, Any] = {"topics": tuple(sorted(subscription.topics)), "user_data": subscription.user_data}
    if version >= 1:
        values["owned_partitions"] = in_kio_words(module, by_topic(subscription.owned))
    if version >= 2:
        values["generation_id"] = subscription.generation
    if version >= 3:
        values["rack_id"] = subscription.rack
    out = io.BytesIO()
    write(out, module.ConsumerProtocolSubscription(**values))
    assert version.to_bytes(2, "big") + out.getvalue() == encode_subscription(subscription, version)


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None, max_examples=volume(20, 50))
@given(assignment=assignments)
def test_kio_writes_the_same_assignment(version: int, assignment: EmbeddedAssignment) -> None:
    write, module = kio("consumer_protocol_assignment", version)
    out = io.BytesIO()
    entries = in_kio_words(module, by_topic(assignment.partitions))
    write(out, module.ConsumerProtocolAssignment(assigned_partitions=entries, user_data=assignment.user_data))
    assert version.to_bytes(2, "big") + out.getvalue() == encode_assignment(assignment, version)


def in_kio_words(module: Any, partitions: Mapping[str, list[int]]) -> tuple[Any, ...]:
    return tuple(module.TopicPartition(topic=topic, partitions=tuple(its)) for topic, its in partitions.items())


# --------------------------------------------------------------------------------------------------
# Invalid bytes

VALID_SUBSCRIPTIONS = [encode_subscription(SUBSCRIPTION, version) for version in VERSIONS]
VALID_ASSIGNMENTS = [encode_assignment(ASSIGNMENT, version) for version in VERSIONS]


def test_any_bytes_decode_to_a_subscription_or_raise_wire_error() -> None:
    attack(decode_subscription, encode_subscription, VALID_SUBSCRIPTIONS, INPUTS, WireError)


def test_any_bytes_decode_to_an_assignment_or_raise_wire_error() -> None:
    attack(decode_assignment, encode_assignment, VALID_ASSIGNMENTS, INPUTS, WireError)


def test_length_is_checked_against_the_remaining_bytes() -> None:
    tracemalloc.start()
    try:
        for decode, valid in ((decode_subscription, VALID_SUBSCRIPTIONS), (decode_assignment, VALID_ASSIGNMENTS)):
            for data in valid:
                for attacked in (*enlarged(data), *cut_after(data)):
                    assert peak_memory(decode, attacked, WireError) < 100_000, attacked.hex()
    finally:
        tracemalloc.stop()


def test_subscription_and_assignment_of_a_large_group_round_trip() -> None:
    """10,000 partitions of one member survive a round trip."""
    many = frozenset(TopicPartition(f"topic-{number % 50}", number) for number in range(10_000))
    assert decode_subscription(encode_subscription(Subscription(topics=frozenset(), owned=many))).owned == many
    assert decode_assignment(encode_assignment(EmbeddedAssignment(partitions=many))).partitions == many
