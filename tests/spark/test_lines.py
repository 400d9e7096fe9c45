"""Lines to typed columns, and the error for the first invalid line; no Spark."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest

from connectgroup.dataplane.columns import from_ddl, to_arrow, to_ddl
from connectgroup.dataplane.errors import BadLine
from connectgroup.dataplane.ownership import Range
from connectgroup.errors import ConfigError
from connectgroup.spark.sources.dialect import Format, LineDialect
from connectgroup.spark.sources.lines import InvalidLine, LineParser, LinePlace
from connectgroup.spark.sources.parts import inferred_columns, read_range
from tests.volume import volume

ALL = from_ddl("b BOOLEAN, h SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, day DATE, at TIMESTAMP")
AB = from_ddl("a INT, b STRING")
CSV_HEADER = b"a,b\n"


def read(tmp_path: Path, data: bytes, form: Format, columns: Any = AB, start: int = 0) -> list[dict[str, Any]]:
    (tmp_path / "x").write_bytes(data)
    rows: list[dict[str, Any]] = read_range(
        tmp_path, Range(slice="x", start=start, end=len(data)), columns, LineDialect(form)
    ).to_pylist()
    return rows


def test_every_type_is_read_from_csv_and_from_json(tmp_path: Path) -> None:
    utc = datetime.UTC
    row = {
        "b": True,
        "h": -5,
        "i": 7,
        "l": 1 << 40,
        "f": 0.5,
        "d": 1e300,
        "s": 'a, "b" \u00e9',
        "day": datetime.date(2020, 2, 29),
        "at": datetime.datetime(2019, 12, 31, 22, 0, 0, 123456, utc),
    }
    nothing = dict.fromkeys(row)
    csv = (
        b"b,h,i,l,f,d,s,day,at\n"
        b'true,-5,7,1099511627776,0.5,1e300,"a, ""b"" \xc3\xa9",2020-02-29,2020-01-01T00:00:00.123456+02:00\n'
        b",,,,,,,,\n"
    )
    jsonl = (
        b'{"b": true, "h": -5, "i": 7, "l": 1099511627776, "f": 0.5, "d": 1e300, "s": "a, \\"b\\" \xc3\xa9",'
        b' "day": "2020-02-29", "at": "2020-01-01T00:00:00.123456+02:00"}\n'
        b"{}\n"
    )
    assert read(tmp_path, csv, "csv", ALL) == [row, nothing]
    assert read(tmp_path, jsonl, "jsonl", ALL) == [row, nothing]


def test_empty_field_is_null_and_a_quoted_one_is_an_empty_string(tmp_path: Path) -> None:
    assert read(tmp_path, CSV_HEADER + b'1,\n2,""\n3,NA\n', "csv") == [
        {"a": 1, "b": None},
        {"a": 2, "b": ""},
        {"a": 3, "b": "NA"},
    ]


def test_null_word_is_null_in_every_type(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(CSV_HEADER + b'NA,NA\n1,"NA"\n')
    found = read_range(tmp_path, Range(slice="x", start=4, end=17), AB, LineDialect("csv", "NA")).to_pylist()
    assert found == [{"a": None, "b": None}, {"a": 1, "b": "NA"}]
    with pytest.raises(BadLine, match="a is 'NA'; allowed: INT or null"):
        read_range(tmp_path, Range(slice="x", start=4, end=17), AB, LineDialect("csv"))
    (tmp_path / "y").write_bytes(CSV_HEADER + b'"NA",x\n')
    with pytest.raises(BadLine, match=r'a is "NA"; allowed: INT or null, null without quotes$'):
        read_range(tmp_path, Range(slice="y", start=4, end=11), AB, LineDialect("csv", "NA"))


def test_header_is_read_once_at_the_start_of_a_file(tmp_path: Path) -> None:
    data = CSV_HEADER + b"1,x\n" + b"2,y\n"
    assert len(read(tmp_path, data, "csv")) == 2
    assert read(tmp_path, data, "csv", start=8) == [{"a": 2, "b": "y"}]
    assert read(tmp_path, CSV_HEADER, "csv") == []
    assert read(tmp_path, b"\xef\xbb\xbf" + data, "csv")[0] == {"a": 1, "b": "x"}


def test_blank_lines_and_windows_line_ends_are_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path, b"a,b\r\n1,x\r\n\r\n\n2,y\r\n", "csv") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert read(tmp_path, b'{"a":1}\r\n\n\r\n{"a":2}\n', "jsonl") == [{"a": 1, "b": None}, {"a": 2, "b": None}]
    assert read(tmp_path, b"\n\n", "jsonl") == []
    assert read(tmp_path, CSV_HEADER + b"\n\n", "csv", start=4) == []


def test_json_line_may_have_keys_outside_the_schema(tmp_path: Path) -> None:
    assert read(tmp_path, b'{"z": [1, {"y": null}], "b": "x"}\n', "jsonl") == [{"a": None, "b": "x"}]


CSV_FAULTS = [
    (b"1", "1 fields; allowed: 2 (a, b)"),
    (b"1,2,3", "3 fields; allowed: 2 (a, b)"),
    (b"x,1", "a is 'x'; allowed: INT or null"),
    (b"1.5,1", "a is '1.5'; allowed: INT or null"),
    (b"99999999999,1", "a is '99999999999'; allowed: INT or null"),
    (b"1,\xff", "byte 3 of the line is not UTF-8; allowed: UTF-8 text"),
    (b'1,"open', "not CSV"),
    (b'1,"two\nlines"', "not CSV"),
    (b"1,a\rb", "not CSV"),
    (b'x"y,"z', "not CSV"),
    (b"\x1b[31m,1", r"a is '\\x1b[31m'; allowed: INT"),
]
JSON_FAULTS = [
    (b"{", "not JSON ("),
    (b"null", "null is not an object; allowed: one JSON object a line"),
    (b"[1]", "[1] is not an object"),
    (b"7", "7 is not an object"),
    (b'{"a": 1}{"a": 2}', "not JSON (Extra data at column 9)"),
    (b'{"a": 1} {"a": 2}', "not JSON (Extra data at column 10)"),
    (b'{"a": 1,\n"b": "x"}', "not JSON ("),
    (b'{"a": "1"}', 'a is "1"; allowed: INT or null'),
    (b'{"a": 1.0}', "a is 1.0; allowed: INT or null"),
    (b'{"a": true}', "a is true; allowed: INT or null"),
    (b'{"a": 99999999999}', "a is 99999999999; allowed: INT or null"),
    (b'{"a": NaN}', "not JSON (NaN is not JSON)"),
    (b'{"b": "\xff"}', "byte 8 of the line is not UTF-8"),
    (b'{"b": "\\ud800"}', "allowed: STRING or null"),
    (b'{"b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON ("),
]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("before", [0, 1, 700])
def test_invalid_line_is_named_with_file_line_byte_and_allowed_values(
    tmp_path: Path, form: Format, before: int
) -> None:
    good = b"1,x\n" if form == "csv" else b'{"a": 1}\n'
    header = CSV_HEADER if form == "csv" else b""
    for bad, expected in CSV_FAULTS if form == "csv" else JSON_FAULTS:
        at = len(header) + len(good) * before
        for start, after in ((0, 0), (at, 0), (0, 3), (at, 3)):
            data = header + good * before + bad + b"\n" + good * after
            with pytest.raises(BadLine) as caught:
                read(tmp_path, data, form, start=start)
            message = str(caught.value)
            assert message.startswith(f"{tmp_path / 'x'}, line {before + (2 if header else 1)} (byte {at}): "), message
            assert expected in message, (bad, message)
            assert "\n" not in message
            assert "; allowed: " in message
            assert len(message) < 400


@pytest.mark.parametrize(
    ("ddl", "csv", "jsonl"),
    [
        ("a DATE", b"2020-02-30", b'"2020-02-30"'),
        ("a DATE", b"1.1.2020", b'"1.1.2020"'),
        ("a TIMESTAMP", b"2020-01-01T00:00:00", b'"2020-01-01T00:00:00"'),
        ("a TIMESTAMP", b"yesterday", b'"yesterday"'),
        ("a TIMESTAMP", b"17", b"17"),
        ("a BOOLEAN", b"yes", b"1"),
        ("a SMALLINT", b"40000", b"40000"),
        ("a DOUBLE", b"1,5", b'"1.5"'),
    ],
)
def test_value_of_another_type_is_rejected_and_not_converted(
    tmp_path: Path, ddl: str, csv: bytes, jsonl: bytes
) -> None:
    with pytest.raises(BadLine, match="; allowed: "):
        read(tmp_path, b"a\n" + csv + b"\n", "csv", from_ddl(ddl))
    with pytest.raises(BadLine, match=r"a is .*; allowed: "):
        read(tmp_path, b'{"a": ' + jsonl + b"}\n", "jsonl", from_ddl(ddl))


def test_different_header_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(BadLine, match=r"x, line 1 \(byte 0\): header 'b,a'; allowed: exactly the columns 'a,b'"):
        read(tmp_path, b"b,a\n1,2\n", "csv")


def test_missing_and_surplus_rows_are_both_found(tmp_path: Path) -> None:
    """One row too few and one too many: three lines and three rows, all wrong."""
    with pytest.raises(BadLine, match=r"line 2 \(byte 4\): not CSV"):
        read(tmp_path, CSV_HEADER + b'1,"x\ny"\n1,a\r2,b\n', "csv")


def test_first_of_several_invalid_lines_is_named(tmp_path: Path) -> None:
    lines = [b"1,x\n"] * 1000
    for at in (900, 501, 333):
        lines[at] = b"bad,x\n"
    with pytest.raises(BadLine, match=r"line 335 \(byte 1336\)"):
        read(tmp_path, CSV_HEADER + b"".join(lines), "csv")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_any_bytes_make_rows_or_an_invalid_line(tmp_path: Path, form: Format) -> None:
    """A small fuzz test: valid lines with bytes changed, doubled, dropped."""
    chance = random.Random(7)
    good = b'1,x\n-20,"a b"\n3,\n' if form == "csv" else b'{"a": 1, "b": "x"}\n{"a": null}\n{"b": "\\u00e9"}\n'
    refused, inputs = 0, volume(500, 3_000)
    for _ in range(inputs):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(data))
            match chance.randrange(3):
                case 0:
                    data[at] = chance.choice(b'\x00\r\n",{}[]:ntu\\0-.e \xff\xc3')
                case 1:
                    del data[at]
                case 2:
                    data[at:at] = data[at : at + chance.randint(1, 6)]
        body = (CSV_HEADER if form == "csv" else b"") + bytes(data).rstrip(b"\n") + b"\n"
        try:
            rows = read(tmp_path, body, form)
        except BadLine as error:
            refused += "\n" not in str(error)
        else:
            assert len(rows) == sum(1 for line in bytes(data).split(b"\n") if line.strip(b"\r")), body
    assert refused > inputs // 10


@pytest.mark.parametrize("kind", ["INT", "STRING", "DECIMAL(10,2)"])
@pytest.mark.parametrize("brackets", ["[]", '{"x":}'])
def test_value_of_any_depth_is_a_row_or_an_invalid_line(kind: str, brackets: str) -> None:
    """How many levels Python parses and writes depends on its version, and on how deep the calls are."""
    parser = LineParser(columns=from_ddl(f"a {kind}"), dialect=LineDialect("jsonl"))
    refused: dict[int, str] = {}
    for depth in (*range(900, 1_050), 1_400, 5_000, 100_000):
        value = brackets[:-1] * depth + "1.50" + brackets[-1] * depth
        line = f'{{"a":{value}}}\n'.encode()
        (rows,) = parser.rows_and_errors(line, LinePlace(path=Path("/x")))
        try:
            assert parser.rows(line).to_pylist() == [{"a": value}]
        except InvalidLine as error:
            refused[depth] = error.reason
            assert json.loads(rows["connectgroup_error"][0].as_py())["stage"] == "source"
    assert all("; allowed: " in reason for reason in refused.values())


def test_columns_without_a_schema_are_strings_named_by_the_first_header(tmp_path: Path) -> None:
    assert inferred_columns(tmp_path, LineDialect("csv")) is None
    (tmp_path / "b.csv").write_bytes(b"x,y z\n1,2\n")
    (tmp_path / "a.csv").write_bytes(b"unfin")
    columns = inferred_columns(tmp_path, LineDialect("csv"))
    assert columns is not None
    assert to_ddl(columns) == "`x` STRING, `y z` STRING"
    (tmp_path / "a.csv").write_bytes(b"x,X\n")
    assert inferred_columns(tmp_path, LineDialect("csv")) == columns, "the task that owns the bad file reports it"
    (tmp_path / "b.csv").unlink()
    with pytest.raises(ConfigError, match=r"a\.csv.*allowed: column names that are not empty and stand once"):
        inferred_columns(tmp_path, LineDialect("csv"))


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1, -(1 << 63) - 1, 10**38 - 1])
def test_whole_number_beyond_64_bits_is_of_a_type_that_holds_it(tmp_path: Path, number: int) -> None:
    """DOUBLE, as which it was inferred, has not all of its digits: the file was an error."""
    data = f'{{"a": 7, "b": 1.5}}\n{{"a": {number}, "b": 2}}\n'.encode()
    (tmp_path / "x").write_bytes(data)
    columns = inferred_columns(tmp_path, LineDialect("jsonl"))
    assert columns is not None
    assert to_ddl(columns) == "`a` DECIMAL(38,0), `b` DOUBLE"
    rows = read_range(tmp_path, Range(slice="x", start=0, end=len(data)), columns, LineDialect("jsonl"))
    assert rows.to_pylist() == [{"a": 7, "b": 1.5}, {"a": number, "b": 2.0}]


def test_names_of_types_are_those_of_spark() -> None:
    found = from_ddl(
        "a decimal, b DEC(5), `c,(d` Numeric(38, 38), e: DECIMAL ( 4 , 2 ) , f BYTE, g long, h TIMESTAMP_LTZ, i REAL"
    )
    assert to_ddl(found) == (
        "`a` DECIMAL(10,0), `b` DECIMAL(5,0), `c,(d` DECIMAL(38,38), `e` DECIMAL(4,2), `f` TINYINT, `g` BIGINT,"
        " `h` TIMESTAMP, `i` FLOAT"
    )
    assert from_ddl(to_ddl(found)) == found
    assert [str(kind) for kind in to_arrow(found).types][:5] == [
        "decimal128(10, 0)",
        "decimal128(5, 0)",
        "decimal128(38, 38)",
        "decimal128(4, 2)",
        "int8",
    ]


@pytest.mark.parametrize(
    ("ddl", "allowed"),
    [
        ("", "columns as NAME TYPE"),
        ("a", "columns as NAME TYPE"),
        ("a INT,", "columns as NAME TYPE"),
        ("a BLOB", "types BOOLEAN, TINYINT, SMALLINT"),
        ("a INT(3)", "types BOOLEAN"),
        ("a DECIMAL(39,2)", r"DECIMAL\(P,S\): P from 1 to 38, S from 0 to P"),
        ("a DECIMAL(0)", r"DECIMAL\(P,S\): P from 1 to 38"),
        ("a DECIMAL(4,5), b INT", r"DECIMAL\(P,S\): P from 1 to 38"),
        ("a DECIMAL(4,", "columns as NAME TYPE"),
        ("a DECIMAL(4,-2)", "columns as NAME TYPE"),
        ("a INT, A STRING", "stand once"),
        ("a INT; DROP TABLE t", "columns as NAME TYPE"),
    ],
)
def test_invalid_schema_is_a_one_line_error(ddl: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"source.schema: got .*; allowed: .*{allowed}"):
        from_ddl(ddl)


def test_carriage_return_in_a_line_of_csv_is_an_error_that_names_it_or_part_of_a_quoted_field(tmp_path: Path) -> None:
    data = CSV_HEADER + b'1,"x\ry"\r\n'
    with pytest.raises(BadLine, match=r"line 2 \(byte 4\): not CSV .a carriage return in .*; allowed: .*multiline"):
        read(tmp_path, data, "csv", start=4)
    wanted = Range(slice="x", start=4, end=len(data))
    rows = read_range(tmp_path, wanted, AB, LineDialect("csv", multiline=True)).to_pylist()
    assert rows == [{"a": 1, "b": "x\ry"}]
    data = CSV_HEADER + b'1,x\r"y\r\n'
    (tmp_path / "x").write_bytes(data)
    wanted, dialect = Range(slice="x", start=4, end=len(data)), LineDialect("csv", quote="'", multiline=True)
    with pytest.raises(BadLine, match=r"line 2 \(byte 4\): not CSV .a carriage return in the line"):
        read_range(tmp_path, wanted, AB, dialect)
