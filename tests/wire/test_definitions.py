"""A definition and its class must agree; otherwise importing fails and names the field and message."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from connectgroup import wire
from connectgroup.errors import WireError
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.records.base import Kind
from connectgroup.protocol.records.connect import Value
from connectgroup.wire import record_codec
from connectgroup.wire.apis import APIS
from connectgroup.wire.codec import compile_codec
from connectgroup.wire.definition import bind
from connectgroup.wire.kafka_apis import BROKER_APIS
from connectgroup.wire.table import TABLE, Party, sent_by, served_by

from .every_message import CASES, Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str


class Colour(IntEnum):
    RED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    key: str
    number: int = 7
    maybe: str | None = None
    inner: tuple[Inner, ...] = ()
    colour: Colour = Colour.RED
    late: int = 0


def definition(**changes: Any) -> dict[str, Any]:
    """The definition of ``Sample``; ``changes`` replaces keys of a field, or with None the whole field."""
    fields: dict[str, dict[str, Any]] = {
        "Key": {"type": "string", "versions": "0+"},
        "Number": {"type": "int32", "versions": "0+", "default": "7"},
        "Maybe": {"type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
        "Inner": {
            "type": "[]Inner",
            "versions": "0+",
            "fields": [{"name": "Name", "type": "string", "versions": "0+"}],
        },
        "Colour": {"type": "int8", "versions": "0+", "default": "1"},
        "Late": {"type": "int32", "versions": "0+", "taggedVersions": "0+", "tag": 0},
    }
    for name, change in changes.items():
        fields[name] = {**fields.get(name, {}), **change} if change is not None else {}
    return {
        "type": "data",
        "name": "Sample",
        "validVersions": "0-1",
        "flexibleVersions": "0+",
        "fields": [{"name": name, **entry} for name, entry in fields.items() if entry],
    }


def test_sample_agrees_with_its_definition() -> None:
    codec = compile_codec(bind(definition(), Sample), 0)
    sample = Sample(key="k", maybe="m", inner=(Inner(name="i"),), late=3)
    assert codec.decode(codec.encode(sample), 0) == sample


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Number": None}, "Sample.number: in Sample, not in the definition"),
        ({"Extra": {"type": "int8", "versions": "0+"}}, "Sample.extra: in the definition, not in Sample"),
        ({"Number": {"default": "8"}}, "Sample.number: default 8 in the definition, 7 in the class"),
        ({"Number": {"default": None}}, "Sample.number: default 0 in the definition, 7 in the class"),
        ({"Key": {"default": "x"}}, "Sample.key: has a default in the definition, none in the class"),
        ({"Key": {"taggedVersions": "0+", "tag": 0}}, "Sample.key: has a default in the definition, none in the class"),
        ({"Number": {"type": "string"}}, "Sample.number: string in the definition, <class 'int'> in the class"),
        ({"Number": {"type": "[]int32"}}, "Sample.number: []int32 in the definition, <class 'int'> in the class"),
        ({"Number": {"type": "float64"}}, "Sample.number: float64 in the definition"),
        ({"Number": {"trueIn": "1+"}}, "Sample.number: needs either versions, or trueIn and the type bool"),
        ({"Number": {"versions": "none"}}, "Sample.number: needs either versions, or trueIn and the type bool"),
        ({"Inner": {"type": "[]string"}}, "Sample.inner: []string in the definition"),
        ({"Number": {"nullableVersions": "0+"}}, "Sample.number: nullable in one of class and definition only"),
        ({"Maybe": {"nullableVersions": "none"}}, "Sample.maybe: nullable in one of class and definition only"),
        ({"Late": {"tag": 1}}, "Sample: tags are [1]; allowed: 0, 1, ... in the order of the fields"),
        ({"Late": {"taggedVersions": "none"}}, "Sample.late: needs both tag and taggedVersions"),
        ({"Number": {"taggedVersions": "1+"}}, "Sample.number: needs both tag and taggedVersions"),
        ({"Number": {"nulableVersions": "0+"}}, "Sample.number: unknown key 'nulableVersions'"),
        ({"Again": {"attribute": "key", "type": "string", "versions": "0+"}}, "names a field twice"),
        ({"Inner": {"fields": [{"name": "Nom", "type": "string", "versions": "0+"}]}}, "Sample.inner.nom: in the def"),
        ({"Colour": {"taggedVersions": "0+", "tag": 0}}, "Sample.colour: the codec has no tagged struct"),
    ],
)
def test_definition_that_disagrees_with_its_class_is_rejected_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        bind(definition(**changes), Sample)
    assert message in str(caught.value)


def test_class_with_post_init_is_rejected() -> None:
    """The decoder never calls ``__init__``, so such a check would be bypassed."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked:
        key: str = field(default="")

        def __post_init__(self) -> None:
            raise AssertionError

    sample = {**definition(), "fields": [{"name": "Key", "type": "string", "versions": "0+"}]}
    with pytest.raises(AssertionError, match="without __post_init__"):
        bind(sample, Checked)


def test_messages_records_and_definitions_match() -> None:
    served = {cls for api in wire.APIS.values() for cls in (api.request_class, api.response_class)}
    assert served == set(Request.__args__) | set(Response.__args__)
    assert set(record_codec.CLASSES.values()) == set(Value.__args__)
    assert set(record_codec.CLASSES) == set(Kind)
    files = {file.name for file in resources.files("connectgroup.wire").joinpath("messages").iterdir()}
    assert files == {f"{case.definition.name}.json" for case in CASES}


def test_private_apis_have_their_numbers_and_versions() -> None:
    assert {key: (api.name, api.versions) for key, api in wire.APIS.items()} == {
        8: ("OffsetCommit", range(2, 11)),
        9: ("OffsetFetch", range(1, 11)),
        10: ("FindCoordinator", range(7)),
        11: ("JoinGroup", range(10)),
        12: ("Heartbeat", range(5)),
        13: ("LeaveGroup", range(6)),
        14: ("SyncGroup", range(6)),
        15: ("DescribeGroups", range(7)),
        16: ("ListGroups", range(6)),
        17: ("SaslHandshake", range(1, 2)),
        18: ("ApiVersions", range(5)),
        28: ("TxnOffsetCommit", range(6)),
        36: ("SaslAuthenticate", range(3)),
        42: ("DeleteGroups", range(3)),
        47: ("OffsetDelete", range(1)),
        68: ("ConsumerGroupHeartbeat", range(2)),
        69: ("ConsumerGroupDescribe", range(2)),
        20480: ("ConnectGroupHeartbeat", range(1)),
        20481: ("ConnectGroupPrepareAssignment", range(1)),
        20482: ("ConnectGroupInstallAssignment", range(1)),
        20483: ("ConnectGroupDescribe", range(1)),
        20484: ("ConnectGroupUpdateConnectors", range(1)),
        20485: ("ConnectGroupDelete", range(1)),
        20486: ("ConnectGroupRestartMember", range(1)),
        20487: ("ConsumerGroupPrepareAssignment", range(1)),
        20488: ("ConsumerGroupInstallAssignment", range(1)),
        20489: ("ConnectGroupSetLoggerLevel", range(1)),
        20490: ("ConnectGroupResetTopics", range(1)),
        20491: ("ConnectGroupDescribeCoordinators", range(1)),
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tagged_fields_of_classes_are_tagged_in_definitions(case: Case) -> None:
    """``protocol.messages`` marks them *(tagged)*; ``coordinator_epoch`` and ``session_timeout_ms`` always are."""

    def check(struct: Any) -> None:
        marked = {
            line.split(":")[0].strip() for line in (struct.cls.__doc__ or "").splitlines() if ": *(tagged)*" in line
        }
        tagged = {field.attribute for field in struct.fields if field.tag is not None}
        marked |= {"coordinator_epoch"} & {field.attribute for field in struct.fields}
        if str(case).startswith("ConsumerMemberRecord"):
            marked &= tagged  # kafka-python, an oracle, reads no tagged field within a tagged one
        assert marked | ({"session_timeout_ms"} & tagged) == tagged
        for inner in struct.fields:
            if inner.struct is not None:
                check(inner.struct)

    check(case.definition.body)


def test_wire_is_pure_and_not_imported_by_default() -> None:
    """Only the standard library and the shared words; and ``import connectgroup`` does not load it."""
    package = Path(str(resources.files("connectgroup.wire")))
    for file in package.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= sys.stdlib_module_names
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module is not None
                assert node.module.split(".")[0] in sys.stdlib_module_names
            elif isinstance(node, ast.ImportFrom) and node.level == 2:
                assert node.module is not None
                assert node.module.split(".")[0] in {"errors", "protocol"}
    check = "import connectgroup, sys; sys.exit('connectgroup.wire' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=package.parents[1])


def test_uuid_is_text_of_32_hexadecimal_digits() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Topic:
        id: str
        others: tuple[str, ...] = ()

    fields = [
        {"name": "Id", "type": "uuid", "versions": "0+"},
        {"name": "Others", "type": "[]uuid", "versions": "0+"},
    ]
    of = {"type": "data", "name": "Topic", "validVersions": "0", "flexibleVersions": "0+", "fields": fields}
    codec = compile_codec(bind(of, Topic), 0)
    topic = Topic(id="00112233445566778899aabbccddeeff", others=("ff" * 16,))
    data = bytes.fromhex("00112233445566778899aabbccddeeff02" + "ff" * 16 + "00")
    assert (codec.encode(topic), codec.decode(data, 0)) == (data, topic)
    for broken in (data[:10], data[:-1], bytes(16) + b"\3" + bytes(17)):
        with pytest.raises(WireError):
            codec.decode(broken, 0)
    for wrong in ("ff", "x" * 32, None):
        with pytest.raises(WireError, match="id"):
            codec.encode(Topic(id=wrong))  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------
# The table of APIs: each API once, served and sent by a party.


def test_each_api_has_one_key_one_name_and_one_request_class() -> None:
    for name in ("key", "name", "request_class", "response_class"):
        values = [getattr(entry, name) for entry in TABLE]
        assert len(set(values)) == len(values), name
    assert [entry.key for entry in TABLE] == sorted(entry.key for entry in TABLE)


def test_each_api_is_served_and_sent() -> None:
    assert all(entry.servers and entry.clients for entry in TABLE)


def test_apis_of_each_party_match_the_table() -> None:
    assert APIS.keys() == {entry.key for entry in served_by(Party.COORDINATOR)}
    assert {api.key for api in BROKER_APIS.values()} == {entry.key for entry in sent_by(Party.CONSUMER)}
