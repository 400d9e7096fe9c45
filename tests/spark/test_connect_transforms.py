"""The transforms beside Kafka Connect's own, which run in Java: the same results, or a difference that is listed."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import math
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from connectgroup.connectors.transforms import parse_chain
from tests.volume import ci_only

Theirs = Callable[[str, dict[str, str], list[tuple[str, str, str | None]]], dict[str, Any]]
"""Type and settings of a transform, and the fields of a record: name, type, value as text."""

UTC: Final = datetime.UTC
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = datetime.timedelta(milliseconds=1)
TYPES: Final = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "boolean": "BOOLEAN",
    "string": "STRING",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "decimal": "DECIMAL(20,2)",
}
"""Kafka Connect's types, and Spark's."""
VALUES: Final = {
    "int8": ["0", "-128", "127"],
    "int16": ["0", "-32768", "32767", "100"],
    "int32": ["0", "-1", "2147483647", "-2147483648", "100"],
    "int64": ["0", "-1", "9223372036854775807", "4294967297", "1709209801500", "100"],
    "float32": ["0.0", "-0.0", "1.5", "-1.5", "0.1", "NaN"],
    "float64": ["0.0", "-0.0", "2.5", "-1.5", "0.1", "123456.125", "1.0E10", "NaN", "Infinity"],
    "boolean": ["true", "false"],
    "string": ["", "true", "FALSE", "yes", "7", "-7", "1.5", "abc", "1e3", "128", "2024-02-29 12:30:01"],
    "timestamp": ["0", "1709209801500", "-1"],
    "date": ["0", "1709164800000", "-86400000"],
    "decimal": ["1.50", "-0.01", "0.00", "12345678901234567.89"],
}
"""Times are milliseconds."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    """Kafka Connect's transforms, in one Java process."""
    from tests.consumer.broker import SMALL_JVM, Unavailable, fetched_transforms

    try:
        jars = fetched_transforms()
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"continuous integration has no Kafka Connect: {missing}")
        pytest.skip(str(missing))
    classes = tmp_path_factory.mktemp("classes")
    program = Path(__file__).with_name("ConnectTransforms.java")
    compiler = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(program)]
    subprocess.run(compiler, check=True, capture_output=True, timeout=120)
    path = f"{classes}{os.pathsep}{jars}/*"
    command = ["java", "-Xmx64m", *SMALL_JVM, "-Duser.timezone=UTC", "-cp", path, "ConnectTransforms"]
    log = classes / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as java,
    ):
        assert java.stdin is not None
        assert java.stdout is not None
        ask, answers = java.stdin, java.stdout

        def apply(kind: str, config: dict[str, str], fields: list[tuple[str, str, str | None]]) -> dict[str, Any]:
            ask.write(json.dumps({"type": kind, "config": config, "fields": fields}) + "\n")
            ask.flush()
            answer = answers.readline()
            assert answer, f"Java ended\n{log.read_text(errors='replace')[-3000:]}"
            found: dict[str, Any] = json.loads(answer)
            return found

        yield apply
        ask.close()


def value_of(kind: str, text: str | None) -> Any:
    """A value as Spark gets it."""
    if text is None or kind == "string":
        return text
    if kind.startswith("int"):
        return int(text)
    if kind.startswith("float"):
        return float(text)
    if kind == "boolean":
        return text == "true"
    if kind == "decimal":
        return decimal.Decimal(text)
    at = EPOCH + int(text) * MILLISECOND
    return at if kind == "timestamp" else at.date()


def same(ours: Any, found: str | None) -> bool:
    """Whether a value is what Java has printed: numbers are compared as numbers, times as milliseconds."""
    if ours is None or found is None:
        return ours is None and found is None
    if isinstance(ours, bool):
        return found == str(ours).lower()
    if isinstance(ours, datetime.datetime):
        return found == f"at {(ours - EPOCH) // MILLISECOND}"
    if isinstance(ours, datetime.date):
        return found == f"at {(ours - EPOCH.date()) // MILLISECOND}"
    if isinstance(ours, float):
        number = float(found)
        with contextlib.suppress(OverflowError):  # float32 as Python has it
            single = struct.unpack("f", struct.pack("f", number))[0]
            number = single if single == ours else number
        return (math.isnan(ours) and math.isnan(number)) or (
            ours == number and math.copysign(1, ours) == math.copysign(1, number)
        )
    if isinstance(ours, int | decimal.Decimal):
        return ours == decimal.Decimal(found)
    return bool(ours == found)


def ours(kind: str, config: dict[str, str], rows: list[Any], schema: str) -> list[dict[str, Any]]:
    """The rows after a transform."""
    from connectgroup.spark.session import spark_session
    from connectgroup.spark.transforms.chain import apply_chain

    settings = {"transforms": "t", "transforms.t.type": kind, **{f"transforms.t.{k}": v for k, v in config.items()}}
    frame = spark_session().createDataFrame(rows, schema)
    after: list[dict[str, Any]] = apply_chain(parse_chain(settings, frozenset()), frame).toArrow().to_pylist()
    return after


RECORD: Final[list[tuple[str, str, str | None]]] = [
    ("id", "int32", "7"),
    ("name", "string", "ann"),
    ("at", "timestamp", "1709209801500"),
    ("none", "float64", None),
]
FIELD_CASES: Final = [
    ("ReplaceField", {"exclude": "none,nope", "renames": "id:number,nope:x"}),
    ("ReplaceField", {"include": "name,id"}),
    ("ReplaceField", {"renames": "id:name,name:id"}),
    ("ReplaceField", {"renames": "id:name"}),
    ("InsertField", {"static.field": "x", "static.value": "y"}),
    ("InsertField", {"static.field": "name", "static.value": "y"}),
    ("HoistField", {"field": "all"}),
    ("MaskField", {"fields": "id,none,at"}),
    ("MaskField", {"fields": "name", "replacement": "***"}),
    ("MaskField", {"fields": "id", "replacement": "5"}),
    ("MaskField", {"fields": "id", "replacement": "no number"}),
    ("ValueToKey", {"fields": "id,name"}),
    ("Cast", {"spec": "id:string,none:string"}),
    ("TimestampConverter", {"field": "at", "target.type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"}),
]


@pytest.mark.parametrize(("kind", "config"), FIELD_CASES, ids=lambda value: str(value))
def test_fields_are_those_of_kafka_connect(spark: None, theirs: Theirs, kind: str, config: dict[str, str]) -> None:
    found = theirs(kind if kind == "ValueToKey" else f"{kind}$Value", config, RECORD)
    row = [tuple(value_of(each, text) for _, each, text in RECORD)]
    schema = ", ".join(f"{name} {TYPES[each]}" for name, each, _ in RECORD)
    if "error" in found:
        with pytest.raises(Exception, match=r"transforms\.t\."):
            ours(kind, config, row, schema)
        return
    (after,) = ours(kind, config, row, schema)
    expected = dict(found["value"])
    if kind == "ValueToKey":
        expected["key"] = found["key"]
    assert after.keys() == expected.keys()
    for name, value in after.items():
        inner = expected[name]
        pairs = [(value, inner)] if not isinstance(value, dict) else [(value[each], inner[each]) for each in inner]
        assert all(same(*pair) for pair in pairs), (name, value, inner)


@pytest.mark.parametrize("source", ["int64", "string", "timestamp", "date"])
@pytest.mark.parametrize("target", ["string", "unix", "Date", "Timestamp"])
def test_times_are_those_of_kafka_connect(spark: None, theirs: Theirs, source: str, target: str) -> None:
    """Connect's has no other types; here numbers of all types are times, too."""
    config = {"field": "x", "target.type": target, "format": "yyyy-MM-dd HH:mm:ss"}
    texts: list[str | None] = [*VALUES[source], None]
    if source == "int64":
        texts.remove("9223372036854775807")  # The year 292278994: an error, as Spark has no such time.
    if source == "string":
        texts = ["2024-02-29 12:30:01", "1969-12-31 23:59:59", None]
    compare("TimestampConverter", config, source, texts, theirs)


LIMITS: Final = {"int8": 2**7, "int16": 2**15, "int32": 2**31, "int64": 2**63}


def is_listed(source: str, target: str, text: str | None) -> bool:
    """Whether a cast is an error here and not in Kafka Connect.

    A number that the target does not hold, NaN and infinities among them: Java makes another number of it. A text that
    is no boolean: Java takes every text but true for false. A time as a boolean.
    """
    if text is None:
        return False
    if source in ("timestamp", "date") and target == "boolean":
        return True
    if source == "string":
        return target == "boolean" and text.lower() not in ("true", "false")
    if target not in LIMITS or source == "boolean":
        return False
    number = decimal.Decimal(text)
    if source == "date":
        number //= 86_400_000
    if not number.is_finite():
        return True
    return not -LIMITS[target] - 1 < number < LIMITS[target]


@ci_only("some 90 queries of Spark; the cases of fields above cast, too")
@pytest.mark.parametrize("target", [*LIMITS, "float32", "float64", "boolean", "string"])
@pytest.mark.parametrize("source", VALUES)
def test_casts_are_those_of_kafka_connect(spark: None, theirs: Theirs, source: str, target: str) -> None:
    texts: list[str | None] = [*VALUES[source], None]
    listed = [text for text in texts if is_listed(source, target, text)]
    if target == "boolean":
        # Every number but 0 is true; Java takes what is left without its fraction.
        texts = [text for text in texts if text not in ("0.1", "-0.01", "NaN")]
        texts = [text for text in texts if text is not None or source not in ("timestamp", "date")]
    if target == "string" and source in ("timestamp", "date"):
        texts = [None]  # The texts are Spark's.
    config = {"spec": f"x:{target}"}
    compare("Cast", config, source, [text for text in texts if text not in listed], theirs)
    for text in listed[:1]:
        with pytest.raises(Exception, match=r"CAST|is no boolean"):
            ours("Cast", config, [(value_of(source, text),)], f"x {TYPES[source]}")


def test_bytes_as_text_are_those_of_kafka_connect(spark: None, theirs: Theirs) -> None:
    texts = ["", "6869", "ff00", "00" * 100, None]
    found = [theirs("Cast$Value", {"spec": "x:string"}, [("x", "bytes", text)])["value"]["x"] for text in texts]
    rows = [(None if text is None else bytearray.fromhex(text),) for text in texts]
    assert [row["x"] for row in ours("Cast", {"spec": "x:string"}, rows, "x BINARY")] == found


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("yyyy-MM-dd HH:mm:ss.S", "2024-02-29 12:30:01.5", datetime.datetime(2024, 2, 29, 12, 30, 1, 500_000, UTC)),
        (
            "yyyy-MM-dd HH:mm:ss.SSSSSS",
            "2024-02-29 12:30:01.123456",
            datetime.datetime(2024, 2, 29, 12, 30, 1, 123_456, UTC),
        ),
        ("yy-MM-dd", "70-02-28", datetime.datetime(2070, 2, 28, tzinfo=UTC)),
    ],
)
def test_patterns_of_fractions_and_short_years_are_those_of_spark(
    spark: None, theirs: Theirs, pattern: str, text: str, expected: datetime.datetime
) -> None:
    """A difference that the documentation lists: in Kafka Connect, a fraction is a number of milliseconds."""
    config = {"field": "x", "target.type": "Timestamp", "format": pattern}
    found = theirs("TimestampConverter$Value", config, [("x", "string", text)])["value"]["x"]
    (after,) = ours("TimestampConverter", config, [(text,)], "x STRING")
    assert after["x"] == expected
    assert not same(expected, found)


def compare(kind: str, config: dict[str, str], source: str, texts: list[str | None], theirs: Theirs) -> None:
    """Check that all values of a column ``x`` have the same results; those that are an error in Java are one here."""
    found = {text: theirs(f"{kind}$Value", config, [("x", source, text)]) for text in texts}
    good = [text for text, each in found.items() if "error" not in each]
    rows = [(value_of(source, text),) for text in good]
    after = ours(kind, config, rows, f"x {TYPES[source]}") if rows else []
    different = [
        (text, row["x"], found[text]["value"]["x"])
        for text, row in zip(good, after, strict=True)
        if not same(row["x"], found[text]["value"]["x"])
    ]
    assert not different
    for text in [text for text in texts if text not in good][:2]:
        with pytest.raises(Exception, match=r"."):
            ours(kind, config, [(value_of(source, text),)], f"x {TYPES[source]}")
