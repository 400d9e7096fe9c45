"""What reads text of strangers takes time linear in its length, whatever the text is.

Each reader gets texts that repeat a few characters, which is what makes a careless expression or loop quadratic: quotes
that do not end, separators, escapes, brackets, blanks. Counted is processor time, and the bound is many times what any
of them takes, so that a busy machine changes nothing; what is quadratic exceeds it by far.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from connectgroup.assign.placement import check_settings, placement_settings
from connectgroup.checks import parse_address
from connectgroup.config.connector_validation import validate
from connectgroup.config.secrets import Secrets, check_references
from connectgroup.connectors.transforms import parse_chain
from connectgroup.dataplane.columns import NUMBER_TEXT, from_ddl
from connectgroup.dataplane.postgres_store import parse_url
from connectgroup.dataplane.settings import unknown_setting
from connectgroup.errors import ConnectGroupError, WireError
from connectgroup.masking import masked_text, masked_value, without_secrets
from connectgroup.properties import parse_properties
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.units import name_violation, printable
from connectgroup.rest.bodies import parse_json
from connectgroup.rest.errors import RestError
from connectgroup.rest.guard import authority
from connectgroup.sasl import SaslError, ScramClient, ScramServer
from connectgroup.spark.avro import AvroCodec, columns_of as avro_columns
from connectgroup.spark.errors import root_cause
from connectgroup.spark.kafka_client import client_settings
from connectgroup.spark.sinks.kafka_offsets import Latest
from connectgroup.spark.sinks.tables import NUMBER
from connectgroup.spark.sources.any_spark import SparkSourceSettings
from connectgroup.spark.sources.catalog import is_slice_of
from connectgroup.spark.sources.dialect import (
    LineDialect,
    check_header,
    columns_of,
    columns_of_objects,
    columns_to_add,
    header_end,
    last_record_end,
    names_in,
    records_of,
)
from connectgroup.spark.sources.file_settings import MAX_PATTERN, FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.identity import Identity
from connectgroup.spark.sources.kafka import KafkaSourceSettings
from connectgroup.spark.sources.lines import LineParser, LinePlace
from connectgroup.spark.sources.listing import is_listed
from connectgroup.spark.transforms import expressions
from connectgroup.spark.transforms.expressions import other_nodes
from connectgroup.spark.transforms.fields import parse_pairs
from connectgroup.spark.transforms.routing import check_pattern
from connectgroup.transport.audit import AuditLog, record_request
from connectgroup.wire.apis import HEARTBEAT, decode_request
from connectgroup.wire.forwarded import METADATA, brokers_in, expects_response
from connectgroup.wire.primitives import FrameReader
from connectgroup.worker.scratch import file_name
from tests.volume import volume

SIZES: Final = (1 << 11, volume(1 << 14, 1 << 15, 1 << 20))
"""Characters of a text; the smaller one first, so that what is worse than quadratic ends."""

MAX_S: Final = 0.1
MAX_S_PER_CHARACTER: Final = 10e-6
"""Processor time of one call: a text takes a small part of it."""

SLOW: Final = {
    "lines of CSV": 2e-3,
    "lines of JSON": 1e-3,
    "settings of a connector": 1e-4,
    "many settings": 1e-3,
    "line of the audit log": 1e-5,
}
"""Readers that call much more than a parser, with their bounds for a character: they get some of the texts, of half
the size."""

_REFUSED: Final = (ConnectGroupError, RestError, SaslError, WireError, ValueError, RecursionError)
_COLUMNS: Final = from_ddl("a INT, b STRING")
_FILE: Final = Path("/data/a.csv")
_CSV: Final = LineDialect("csv", multiline=True)

REPEATED: Final = (
    *(
        '"',
        '\\"',
        "'",
        "`",
        "`a`",
        "`,`",
        ",",
        ":",
        "a:b,",
        "a=",
        "\\",
        " ",
        "\n",
        " \n",
        "\r\n",
        "\n\n\\",
        "a\\\n",
        "a=b\n",
    ),
    *(
        "[",
        "{",
        "[]",
        '{"a":',
        '{"a":1}\n',
        '"a",',
        '"a":1,',
        "(",
        "(a+)+",
        "a?",
        "(a|b",
        "0",
        ".",
        "/",
        "-",
        "-- ",
        "://",
        "://a@",
    ),
    *(
        "a",
        "a,",
        "a.",
        "#1",
        "#",
        "$",
        "${",
        "${a:",
        "${env:A}",
        "${env:",
        "%2F",
        "password",
        "password=x ",
        "password ",
    ),
    *(
        "'password':",
        "\\'password",
        " Traceback (most recent call last):\n",
        " a\n",
        "Caused by: ",
        "\x00",
        "\xff",
        "\x80",
    ),
)
"""Each is repeated to the length of the text, alone and behind a beginning."""

BEGINNINGS: Final = ("", '"', "Traceback (most recent call last):\n", "password='")


def _texts(size: int) -> Iterable[tuple[str, str]]:
    for beginning in BEGINNINGS:
        for part in REPEATED:
            yield f"{beginning!r} {part!r} ... '!'", beginning + part * (size // len(part)) + "!"


def _bytes(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def _words(text: str) -> str:
    """As many different words as a text of this length has room for."""
    return ",".join(f"w{number}" for number in range(len(text) // 7))


def _with_class(text: str) -> dict[str, str]:
    return {"name": "a", "connector.class": "pipeline", "source": "kafka", "sink": "sqlite", text[:60_000]: text}


def _file_settings(more: dict[str, str]) -> FileSettings:
    return FileSettings.model_validate({"path": "/", "format": "csv", **more})


def _state_of(key: bytes, value: bytes) -> None:
    latest = Latest("c")
    latest.add(key, value, 0)
    latest.state("topic")


def _many_settings(text: str) -> dict[str, str]:
    size = len(text) // 500
    return _with_class("") | {f"source.{text[at : at + size]}{at}": "1" for at in range(0, len(text), max(1, size))}


def _audited(text: str) -> None:
    """1,000 changes with this text: a request has up to 8 MB, most of which is in no line."""
    config = entries({"a": text})
    changes = tuple(ConnectorChange(connector=f"c{number}", config=config) for number in range(1_000))
    record_request(AuditLog(), UpdateConnectorsRequest(group_id="g", changes=changes), "alice", "host", "OK")


def _one_byte_at_a_time(text: str) -> None:
    reader = FrameReader()
    for each in _bytes(text):
        reader.feed(bytes((each,)))


def _bad_lines(form: Any, text: str) -> None:
    parser = LineParser(columns=_COLUMNS, dialect=LineDialect(form))
    for _ in parser.rows_and_errors(_bytes(text) + b"\n", LinePlace(path=_FILE)):
        pass


def _scram(text: str) -> None:
    with suppress(SaslError):
        ScramClient("a", "b", nonce="n" * 20).final(_bytes(text))
    ScramServer(nonce="n" * 20).name(b"n,,n=a,r=" + _bytes(text))


def _query_for_a_server(text: str) -> None:
    with suppress(expressions._Refused):
        expressions._read(text)


def _avro(kind: Any) -> Callable[[str], object]:
    """A reader of a record with one field of this type: 16 times the text, behind its length."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]}
    codec = AvroCodec(json.dumps(schema), "binary")

    def read(text: str) -> object:
        data, length = 16 * _bytes(text), bytearray()
        size = 2 * len(data)
        while size > 0x7F:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        return codec.decode(bytes((*length, size)) + data)

    return read


READERS: Final[dict[str, Callable[[str], object]]] = {
    "body of a request": lambda text: parse_json(_bytes(text)),
    "columns in DDL": from_ddl,
    "number": NUMBER_TEXT.fullmatch,
    "number in a sink": lambda text: re.fullmatch(NUMBER, text),
    "masked text": masked_text,
    "masked value": lambda text: masked_value(text, text),
    "text without secrets": lambda text: without_secrets(text, {"password": "secret"}),
    "line of the audit log": _audited,
    "properties": lambda text: parse_properties(text, "file"),
    "references": lambda text: check_references({"a": text}),
    "secrets": lambda text: Secrets(env=("A",)).resolve({"a": text}, {}),
    "error of Spark": lambda text: root_cause(Exception(text)),
    "name of a slice": lambda text: is_slice_of(text, 0, 3),
    "offset of a file": lambda text: FileSource.slice_of({"file": text}, {"offset": 1}),
    "names of transforms": lambda text: parse_chain({"transforms": text}, frozenset()),
    "names of predicates": lambda text: parse_chain({"predicates": text}, frozenset()),
    "many transforms": lambda text: parse_chain({"transforms": _words(text)}, frozenset()),
    "pairs": lambda text: parse_pairs("renames", text, "pairs"),
    "name of a setting": lambda text: check_settings("a", {text: "1"}),
    "misspelt setting": lambda text: unknown_setting(text, placement_settings()),
    "placement": lambda text: check_settings("a", {"assignment.labels": text, "assignment.task.weight": text}),
    "settings of a connector": lambda text: validate(_with_class(text)),
    "many settings": lambda text: validate(_many_settings(text)),
    "name": name_violation,
    "printable text": printable,
    "address": lambda text: parse_address("coordinator", text),
    "SCRAM": _scram,
    "frames byte by byte": _one_byte_at_a_time,
    "request": lambda text: decode_request(b"\0\x70\0\0\0\0\0\1\xff\xff\0" + _bytes(text)),
    "heartbeat": lambda text: decode_request(HEARTBEAT.to_bytes(2, "big") + b"\0\0\0\0\0\1\xff\xff\0" + _bytes(text)),
    "forwarded request": lambda text: expects_response(b"\0\0\0\x09\0\0\0\1" + _bytes(text)),
    "forwarded response": lambda text: brokers_in(b"\0\0\0\1" + _bytes(text), METADATA, 9),
    "lines of CSV": partial(_bad_lines, "csv"),
    "lines of JSON": partial(_bad_lines, "jsonl"),
    "records of CSV": lambda text: records_of(_bytes(text), b'"') and last_record_end(_bytes(text), b'"'),
    "end of a CSV header": lambda text: header_end(b'"' + _bytes(text), _CSV),
    "CSV header": lambda text: columns_of(_FILE, _bytes(text), _CSV),
    "CSV header with columns": lambda text: check_header(
        _FILE, names_in(_FILE, _bytes(text), _CSV), _COLUMNS, LineDialect("csv", drift="ignore")
    ),
    "long CSV header": lambda text: check_header(
        _FILE,
        _words(text).split(","),
        from_ddl(_words(text).replace(",", " INT, ") + " INT"),
        LineDialect("csv", drift="ignore"),
    ),
    "fields of JSON": lambda text: columns_of_objects(_FILE, _bytes(text)),
    "new fields of JSON": lambda text: columns_to_add(_bytes(text)),
    "identity of a file": Identity.from_metadata,
    "Avro schema": lambda text: avro_columns(text, "schema"),
    "Avro text": _avro("string"),
    "Avro decimal": _avro({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    "plan of Spark": other_nodes,
    "query for a server": _query_for_a_server,
    "glob of files": lambda text: is_listed(
        "a" * 250 + ".csv", _file_settings({"file.pattern": "*".join(text[: MAX_PATTERN // 2])}).file_pattern
    ),
    "long glob of files": lambda text: _file_settings({"file.pattern": text}),
    "encoding": lambda text: _file_settings({"encoding": text[:100]}),
    "long encoding": lambda text: _file_settings({"encoding": text}),
    "options of Spark": lambda text: SparkSourceSettings.model_validate({"format": "text", "options": text}),
    "connection string": lambda text: parse_url("url", text),
    "key of offsets": lambda text: _state_of(_bytes(text), b"{}"),
    "value of offsets": lambda text: _state_of(b'["c", "slice", "a"]', _bytes(text)),
    "host of a request": authority,
    "name of a worker": file_name,
    "settings of a Kafka client": lambda text: client_settings("client", text),
    "expression for topics": lambda text: KafkaSourceSettings.model_validate(
        {"bootstrap.servers": "a:1", "topics.regex": text}
    ),
    "expression of a transform": lambda text: check_pattern("regex", text),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of a set in a regular expression
def test_time_is_linear_in_the_length_of_the_text(name: str) -> None:
    read, bound = READERS[name], SLOW.get(name, MAX_S_PER_CHARACTER)
    slowest = 0.0
    for size in SIZES:
        size, step = (size // 2, 15) if name in SLOW else (size, 1)
        for shown, text in list(_texts(size))[::step]:
            began = time.thread_time()
            with suppress(*_REFUSED):
                read(text)
            took_s = time.thread_time() - began
            assert took_s <= MAX_S + bound * len(text), f"{shown}: {len(text)} characters, {took_s:.1f} s"
            slowest = max(slowest, took_s / len(text))
    print(f"{name}: at most {slowest * 1e6:.2f} us for a character")
