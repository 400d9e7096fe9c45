"""Files as people have them: delimiters, quotes, zones, encodings, compression, other columns. No Spark."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.dataplane.columns import Column, from_ddl, to_ddl
from connectgroup.dataplane.errors import BadLine, SourceError
from connectgroup.dataplane.ownership import Range
from connectgroup.errors import ConfigError
from connectgroup.spark.sources import parts
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.parts import inferred_columns, read_part
from connectgroup.spark.sources.planner import Planner


def read(
    root: Path, name: str, data: bytes, schema: str, *, tolerant: bool = False, **settings: str
) -> list[dict[str, Any]]:
    """All rows of a file that the settings of a configuration describe, over batches of 1 KiB."""
    (root / name).write_bytes(data)
    form = "jsonl" if "jsonl" in name else "text" if "txt" in name else "csv"
    config = {"path": str(root), "format": form} | {key.replace("_", "."): value for key, value in settings.items()}
    if schema and form != "text":
        config["schema"] = schema
    parsed = FileSettings.model_validate(config)
    columns = from_ddl(schema or "value STRING")
    plan, at, rows = Planner(root=root, task=0, tasks=1, max_bytes=1024, rules=parsed.rules), 0, []
    while (end := plan.advance({name: at} if at else {}).get(name, 0)) != at:
        wanted = Range(slice=name, start=at, end=end)
        for batch in read_part(root, wanted, columns, parsed.dialect, tolerant=tolerant):
            rows += batch.to_pylist()
        at = end
    return rows


def test_delimiter_decimal_point_and_quote_are_settings(tmp_path: Path) -> None:
    data = b"a;b\n'x;''y';1,5\nz;-0,25\n"
    rows = read(tmp_path, "f.csv", data, "a STRING, b DOUBLE", delimiter=";", decimal=",", quote="'")
    assert rows == [{"a": "x;'y", "b": 1.5}, {"a": "z", "b": -0.25}]
    rows = read(tmp_path, "f.csv", b'a\tb\n"x\ty"z\n', "a STRING, b STRING", delimiter="\\t", quote="none")
    assert rows == [{"a": '"x', "b": 'y"z'}]
    with pytest.raises(BadLine, match=r"line 2 \(byte 4\): b is '1\.5'; allowed: DOUBLE or null"):
        read(tmp_path, "f.csv", b"a;b\nx;1.5\n", "a STRING, b DOUBLE", delimiter=";", decimal=",")


def test_quoted_fields_may_have_line_feeds_on_request(tmp_path: Path) -> None:
    records = [f'{n},"first ""line""\n\nsecond, {"x" * (n % 50)}"\n' for n in range(200)]
    data = ("a,b\n" + "".join(records) + '7,"unfinished\n').encode()
    rows = read(tmp_path, "f.csv", data, "a INT, b STRING", multiline="true")
    assert [row["a"] for row in rows] == [*range(200)]
    assert rows[3]["b"] == 'first "line"\n\nsecond, xxx'
    bad = b'a,b\n1,"two\nlines"\nx,"three\nmore\nlines"\n'
    with pytest.raises(BadLine, match=r"line 4 \(byte 18\): a is 'x'; allowed: INT or null"):
        read(tmp_path, "f.csv", bad, "a INT, b STRING", multiline="true")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_timestamps_without_a_zone_are_of_the_configured_one(tmp_path: Path, form: str) -> None:
    times = ["2024-07-01 12:00:00", "2024-01-01T12:00:00.5", "2024-01-01T12:00:00Z", "2024-01-01T12:00:00+05:00", None]
    lines = [json.dumps({"t": t}) if form == "jsonl" else t or '""' for t in times]
    if form == "csv":
        lines = ["t", *lines[:-1]]
    data = ("\n".join(lines) + "\n").encode()
    rows = read(tmp_path, f"f.{form}", data, "t TIMESTAMP", timezone="Europe/Berlin")
    utc = datetime.UTC
    assert [row["t"] for row in rows][:4] == [
        datetime.datetime(2024, 7, 1, 10, tzinfo=utc),
        datetime.datetime(2024, 1, 1, 11, 0, 0, 500_000, tzinfo=utc),
        datetime.datetime(2024, 1, 1, 12, tzinfo=utc),
        datetime.datetime(2024, 1, 1, 7, tzinfo=utc),
    ]
    bad = b"t\nyesterday\n" if form == "csv" else b'{"t": "yesterday"}\n'
    with pytest.raises(BadLine, match=r"t is .yesterday.; allowed: TIMESTAMP \(ISO 8601\) or null"):
        read(tmp_path, f"f.{form}", bad, "t TIMESTAMP", timezone="Europe/Berlin")


def test_other_encodings_keep_byte_offsets(tmp_path: Path) -> None:
    data = "a,b\n1,\u00fc\u20ac\nx,\u00fc\n".encode("windows-1252")
    with pytest.raises(BadLine, match=r"line 3 \(byte 9\): a is 'x'"):
        read(tmp_path, "f.csv", data, "a INT, b STRING", encoding="windows-1252")
    assert read(tmp_path, "f.csv", data[:9], "a INT, b STRING", encoding="windows-1252") == [
        {"a": 1, "b": "\u00fc\u20ac"}
    ]
    assert read(tmp_path, "f.txt", b"\xe4\n", "", encoding="iso-8859-1") == [{"value": "\u00e4"}]


def test_columns_that_the_schema_lacks_are_an_error_or_ignored(tmp_path: Path) -> None:
    data = b"extra,b,a\n1,x,2\n3,y,4\n"
    with pytest.raises(BadLine, match=r"header 'extra,b,a'; allowed: exactly the columns 'a,b,c'"):
        read(tmp_path, "f.csv", data, "a INT, b STRING, c INT")
    rows = read(tmp_path, "f.csv", data, "a INT, b STRING, c INT", schema_drift="ignore")
    assert rows == [{"a": 2, "b": "x", "c": None}, {"a": 4, "b": "y", "c": None}]
    with pytest.raises(BadLine, match=r"line 2 \(byte 10\): a is 'no'; allowed: INT or null"):
        read(tmp_path, "f.csv", b"extra,b,a\n1,x,no\n", "a INT, b STRING", schema_drift="ignore")
    with pytest.raises(BadLine, match=r"header 'x,y'; allowed: at least one of a, b"):
        read(tmp_path, "f.csv", b"x,y\n", "a INT, b STRING", schema_drift="ignore")
    line = b'{"a": 1}\n{"a": 2, "more": 3}\n'
    assert len(read(tmp_path, "f.jsonl", line, "a INT")) == 2
    with pytest.raises(BadLine, match=r"line 2 \(byte 9\): field more; allowed: a, or source\.schema\.drift=ignore"):
        read(tmp_path, "f.jsonl", line, "a INT", schema_drift="error")


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "txt"])
def test_compressed_files_are_read(tmp_path: Path, codec: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CHUNK_BYTES", 1000)
    lines = {"csv": "{n},x\n", "jsonl": '{{"a": {n}, "b": "x"}}\n', "txt": "{n}\n"}[form]
    text = ("a,b\n" if form == "csv" else "") + "".join(lines.format(n=n) for n in range(1000))
    data = pa.Codec(codec).compress(text[:-1].encode(), asbytes=True)
    name = f"f.{form}.{'gz' if codec == 'gzip' else 'zst'}"
    rows = read(tmp_path, name, data, "a INT, b STRING" if form != "txt" else "")
    assert [row.get("a", row.get("value")) for row in rows] == [n if form != "txt" else str(n) for n in range(1000)]
    assert read(tmp_path, name, data[:-9], "a INT, b STRING" if form != "txt" else "") == []


def test_damaged_compressed_file_is_named_or_put_aside(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"a\n" + b"1\n" * 5000))
    data[20:24] = b"\xff\xff\xff\xff"
    with pytest.raises(SourceError, match=r"f\.csv\.gz: cannot be decompressed \(.*\); allowed: a complete gzip file"):
        read(tmp_path, "f.csv.gz", bytes(data), "a INT")
    rows = read(tmp_path, "f.csv.gz", bytes(data), "a INT", tolerant=True)
    error = json.loads(rows[-1]["connectgroup_error"])
    assert error["place"] == f"{tmp_path / 'f.csv.gz'}, bytes 0 to {len(data)}"
    assert error["reason"].startswith("cannot be decompressed")


def test_rows_of_a_file_with_another_header_are_put_aside_in_each_batch(tmp_path: Path) -> None:
    data = b"x,y\n" + b"1,2\n" * 400
    rows = read(tmp_path, "f.csv", data, "a INT, b INT", tolerant=True)
    errors = [json.loads(row["connectgroup_error"]) for row in rows]
    assert [error["place"] for error in errors] == [
        f"{tmp_path / 'f.csv'}, bytes 0 to 1024",
        f"{tmp_path / 'f.csv'}, bytes 1024 to 1604",
    ]
    assert all("header 'x,y'; allowed: exactly the columns 'a,b'" in error["reason"] for error in errors)
    assert {error["record"] for error in errors} == {"x,y"}


def test_columns_of_json_lines_are_inferred(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"n": 1, "x": 1, "on": True, "none": None, "s": "a"},
        {"n": -5, "x": 0.5, "on": None, "deep": {"y": [1, "\u00e9"]}, "mixed": 1},
        {"n": 1 << 62, "mixed": "1", "deep": [1]},
    ]
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "null\n" + '{"late": 1}')
    dialect = FileSettings.model_validate({"path": str(tmp_path), "format": "jsonl"}).dialect
    columns = inferred_columns(tmp_path, dialect)
    assert columns is not None
    assert to_ddl(columns) == (
        "`n` BIGINT, `x` DOUBLE, `on` BOOLEAN, `none` STRING, `s` STRING, `deep` STRING, `mixed` STRING"
    )
    (tmp_path / "f.jsonl").rename(tmp_path / "old")
    read_back = read(tmp_path, "f.jsonl", (json.dumps(rows[1]) + "\n").encode(), to_ddl(columns))
    assert read_back == [
        {"n": -5, "x": 0.5, "on": None, "none": None, "s": None, "deep": '{"y":[1,"\u00e9"]}', "mixed": "1"}
    ]
    later = b'{"none": true, "s": 19.90, "mixed": 12345678901234567890.12}\n'
    (row,) = read(tmp_path, "later.jsonl", later, to_ddl(columns))
    assert (row["none"], row["s"], row["mixed"]) == ("true", "19.90", "12345678901234567890.12")


def test_header_may_have_backticks_and_commas_but_no_control_characters(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b'a`b,"c,d"\n1,2\n')
    dialect = FileSettings.model_validate({"path": str(tmp_path), "format": "csv"}).dialect
    columns = inferred_columns(tmp_path, dialect)
    assert columns == (Column("a`b", "STRING"), Column("c,d", "STRING"))
    assert to_ddl(columns) == "`a``b` STRING, `c,d` STRING"
    assert from_ddl(to_ddl(columns)) == columns
    (tmp_path / "f.csv").write_bytes(b"a\0b\n1\n")
    with pytest.raises(BadLine, match=r"f\.csv, line 1 \(byte 0\): column 'a\\\\x00b'; allowed: column names without"):
        inferred_columns(tmp_path, dialect)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source.delimiter": "ab"}, "source.delimiter: got 'ab'; allowed: one ASCII character"),
        ({"source.delimiter": ",", "source.decimal": ","}, "source.delimiter: got ','"),
        ({"source.quote": ","}, "source.quote: got ','; allowed: one ASCII character"),
        ({"source.multiline": "true", "source.quote": "none"}, "source.multiline: got 'true'; allowed: false, or"),
        ({"source.timezone": "Mars/Base"}, "source.timezone: got 'Mars/Base'; allowed: the name of a time zone"),
        ({"source.encoding": "cp037"}, "source.encoding: got 'cp037'; allowed: the name of a codec of Python that has"),
        ({"source.encoding": "iso-2022-kr"}, "source.encoding: got 'iso-2022-kr'; allowed: the name of a codec"),
        ({"source.encoding": "rot13"}, "source.encoding: got 'rot13'; allowed: the name of a codec of Python"),
        ({"source.encoding": "unicode_escape"}, "source.encoding: got 'unicode_escape'; allowed: the name of a codec"),
        ({"source.encoding": "utf-8" + " " * 100}, "source.encoding: got 'utf-8  "),
        ({"source.file.pattern": "[" * 1001}, "; allowed: a glob for names of files"),
        ({"source.on.rewrite": "ignore"}, "source.on.rewrite: got 'ignore'; allowed: fail, read"),
        ({"source.final.newline": "skip"}, "source.final.newline: got 'skip'; allowed: wait, accept"),
        ({"source.schema.drift": "drop"}, "source.schema.drift: got 'drop'; allowed: error, ignore, evolve"),
    ],
)
def test_wrong_settings_are_refused_when_the_connector_is_put(settings: dict[str, str], message: str) -> None:
    base = {"source": "files", "source.path": "/in", "source.format": "csv", "sink": "parquet", "sink.path": "/out"}
    with pytest.raises(ConfigError) as caught:
        PipelineConnector("c", base | settings)
    assert message in str(caught.value)
