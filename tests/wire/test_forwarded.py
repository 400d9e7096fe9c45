"""What a proxy reads and replaces in forwarded messages, with kafka-python's messages as the reference."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kafka.protocol import admin, metadata, producer

from connectgroup.errors import WireError
from connectgroup.wire.forwarded import (
    DESCRIBE_CLUSTER,
    FETCH,
    METADATA,
    PRODUCE,
    brokers_in,
    endpoint,
    expects_response,
    read_header,
    with_addresses,
    with_endpoints,
)

FLEXIBLE = {METADATA: 9, DESCRIBE_CLUSTER: 0, PRODUCE: 9}


def at(host: str, port: int) -> Callable[[int, tuple[str, int]], tuple[str, int]]:
    """Every broker at the same address."""
    return lambda node, address: (host, port)


def response(cls: Any, version: int, flexible: bool, **fields: Any) -> bytes:
    body = cls._struct.encode(fields, version=version, compact=flexible, tagged=flexible)
    return bytes.fromhex("00000007") + (b"\0" if flexible else b"") + bytes(body)


def metadata_response(version: int, host: str, port: int) -> bytes:
    flexible = version >= FLEXIBLE[METADATA]
    brokers = [
        {"node_id": node, "host": host, "port": port, "rack": rack} for node, rack in ((1, "a" * 200), (5, None))
    ]
    partition = {
        "error_code": 0,
        "partition_index": 3,
        "leader_id": 5,
        "leader_epoch": 2,
        "replica_nodes": [1, 5],
        "isr_nodes": [1],
        "offline_replicas": [5],
    }
    topic = {
        "error_code": 0,
        "name": "t" * 130,
        "topic_id": None,
        "is_internal": False,
        "partitions": [partition],
        "authorized_operations": set(),
    }
    fields: dict[str, Any] = {
        "throttle_time_ms": 0,
        "brokers": brokers,
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [topic],
        "authorized_operations": set(),
        "error_code": 0,
    }
    return response(metadata.MetadataResponse, version, flexible, **fields)


@pytest.mark.parametrize("version", range(14))
def test_metadata_lists_other_addresses_and_is_unchanged_otherwise(version: int) -> None:
    theirs = metadata_response(version, "broker.example", 9092)
    nodes = brokers_in(theirs, METADATA, version)
    assert nodes == dict.fromkeys((1, 5), ("broker.example", 9092))
    assert with_addresses(theirs, METADATA, version, at("proxy", 19092)) == metadata_response(version, "proxy", 19092)
    different = with_addresses(theirs, METADATA, version, lambda node, address: (f"{address[0]}-{node}", node))
    assert brokers_in(different, METADATA, version) == {1: ("broker.example-1", 1), 5: ("broker.example-5", 5)}
    assert with_addresses(different, METADATA, version, at("broker.example", 9092)) == theirs


def cluster_response(version: int, host: str, port: int) -> bytes:
    brokers: Any = [{"broker_id": 4, "host": host, "port": port, "rack": None, "is_fenced": False}]
    fields: dict[str, Any] = {
        "throttle_time_ms": 0,
        "error_code": 0,
        "error_message": None,
        "endpoint_type": 1,
        "cluster_id": "c",
        "controller_id": 1,
        "brokers": brokers,
        "authorized_operations": set(),
    }
    return response(admin.DescribeClusterResponse, version, True, **fields)


@pytest.mark.parametrize("version", range(3))
def test_description_of_a_cluster_lists_one_address(version: int) -> None:
    theirs = cluster_response(version, "broker.example", 9092)
    assert brokers_in(theirs, DESCRIBE_CLUSTER, version) == {4: ("broker.example", 9092)}
    ours = with_addresses(theirs, DESCRIBE_CLUSTER, version, at("p" * 140, 1))
    assert ours == cluster_response(version, "p" * 140, 1)


def request(cls: Any, version: int, **fields: Any) -> bytes:
    message = cls[version](**fields)
    message.with_header(correlation_id=7, client_id="client")
    return bytes(message.encode(header=True))


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("transaction", ["t" * 200, None])
def test_produce_without_acknowledgement_has_no_response(version: int, acks: int, transaction: str | None) -> None:
    data = request(
        producer.ProduceRequest, version, transactional_id=transaction, acks=acks, timeout_ms=1, topic_data=[]
    )
    assert expects_response(data) == (acks != 0)


def test_every_other_request_has_a_response() -> None:
    assert expects_response(bytes.fromhex("0001 0004 00000007 ffff"))


def test_header_of_a_request() -> None:
    assert read_header(bytes.fromhex("0003 0009 00000007 ffff 00")) == (METADATA, 9, 7)
    assert read_header(bytes(7)) is None


@given(data=st.binary(max_size=100), version=st.integers(0, 13))
def test_any_bytes_are_a_message_or_a_wire_error(data: bytes, version: int) -> None:
    for api_key in (METADATA, DESCRIBE_CLUSTER):
        with contextlib.suppress(WireError):
            with_addresses(data, api_key, version, at("p", 1))
    with contextlib.suppress(WireError):
        expects_response(bytes((0, PRODUCE, 0, version, 0, 0, 0, 7)) + data)


@pytest.mark.parametrize("version", [1, 9, 13])
def test_damaged_metadata_is_a_wire_error_or_ends_elsewhere(version: int) -> None:
    rng = random.Random(1)
    whole = metadata_response(version, "broker.example", 9092)
    for _ in range(2000):
        data = bytearray(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.3 else whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(WireError):
            with_addresses(bytes(data), METADATA, version, at("p", 1))


def produced(version: int, nodes: bytes) -> bytes:
    """A response of Produce with one error of a record and a current leader."""
    topic = bytes(range(16)) if version >= 13 else b"\2t"
    errors = b"\2" + struct.pack(">i", 7) + b"\2m" + b"\0"
    leader = b"\1\0\x09" + struct.pack(">ii", 5, 2) + b"\0"
    partition = struct.pack(">ihqqq", 3, 6, -1, -1, -1) + errors + b"\0" + leader
    return bytes(4) + b"\0" + b"\2" + topic + b"\2" + partition + b"\0" + struct.pack(">i", 9) + nodes


def fetched(nodes: bytes) -> bytes:
    """A response of Fetch with an aborted transaction and records, and with null in their place."""
    full = struct.pack(">ihqqq", 3, 6, 1, 2, 3) + b"\2" + bytes(16) + b"\0" + struct.pack(">i", -1) + b"\4abc" + b"\0"
    empty = struct.pack(">ihqqq", 4, 0, 1, 2, 3) + b"\0" + struct.pack(">i", -1) + b"\0" + b"\0"
    topic = bytes(range(16)) + b"\3" + full + empty + b"\0"
    return bytes(4) + b"\0" + struct.pack(">ihi", 0, 0, 1) + b"\2" + topic + nodes


def new_leaders(host: str, port: int) -> bytes:
    """Tagged fields: two nodes, and a later field."""
    nodes = b"\3" + b"".join(
        struct.pack(">i", node) + endpoint(host, port) + rack + b"\0" for node, rack in ((1, b"\0"), (5, b"\2r"))
    )
    return b"\2" + b"\0" + bytes((len(nodes),)) + nodes + b"\7\2xy"


@pytest.mark.parametrize("version", range(10, 14))
def test_new_leaders_in_a_response_of_produce_have_one_address(version: int) -> None:
    """KIP-951: otherwise a client would go past the proxy after NOT_LEADER_OR_FOLLOWER."""
    theirs = produced(version, new_leaders("broker.example", 9092))
    assert with_endpoints(theirs, PRODUCE, version, lambda node: ("p", 1)) == produced(version, new_leaders("p", 1))
    assert with_endpoints(produced(version, b"\0"), PRODUCE, version, lambda node: ("p", 1)) == produced(version, b"\0")


@pytest.mark.parametrize("version", range(16, 19))
def test_new_leaders_in_a_response_of_fetch_have_one_address(version: int) -> None:
    theirs = fetched(new_leaders("broker.example", 9092))
    assert with_endpoints(theirs, FETCH, version, lambda node: ("p", 1)) == fetched(new_leaders("p", 1))
    assert with_endpoints(fetched(b"\0"), FETCH, version, lambda node: ("p", 1)) == fetched(b"\0")


@pytest.mark.parametrize("version", [12, 13])
def test_damaged_response_of_produce_or_fetch_is_a_wire_error_or_a_response(version: int) -> None:
    rng = random.Random(2)
    for api_key, whole in (
        (PRODUCE, produced(version, new_leaders("broker.example", 9092))),
        (FETCH, fetched(new_leaders("broker.example", 9092))),
    ):
        with pytest.raises(WireError):
            with_endpoints(whole[:-1], api_key, 18 if api_key == FETCH else version, lambda node: ("p", 1))
        for _ in range(2000):
            data = bytearray(whole[: rng.randrange(1, len(whole))] if rng.random() < 0.3 else whole)
            data[rng.randrange(len(data))] = rng.randrange(256)
            with contextlib.suppress(WireError):
                with_endpoints(bytes(data), api_key, 18 if api_key == FETCH else version, lambda node: ("p", 1))
