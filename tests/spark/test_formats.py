"""CSV, JSON and times beside Python's own readers and pandas: the same values, or an error. No Spark."""

from __future__ import annotations

import csv
import io
import json
import math
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import assume, example, given, settings as hypothesis_settings, strategies as st

from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.errors import BadLine
from connectgroup.dataplane.ownership import Range
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.parts import read_part, read_range
from tests.volume import volume

MANY = hypothesis_settings(max_examples=volume(100, 1_000), deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=12)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("in")


def read(root: Path, data: bytes, dialect: LineDialect, ddl: str) -> list[dict[str, Any]]:
    (root / "f").write_bytes(data)
    rows: list[dict[str, Any]] = read_range(root, Range(slice="f", start=0, end=len(data)), from_ddl(ddl), dialect)
    return rows.to_pylist()  # type: ignore[attr-defined, no-any-return]


def dead_letters(root: Path, data: bytes, dialect: LineDialect, ddl: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows, and the records of the dead letters."""
    (root / "f").write_bytes(data)
    whole = Range(slice="f", start=0, end=len(data))
    rows = [row for part in read_part(root, whole, from_ddl(ddl), dialect, tolerant=True) for row in part.to_pylist()]
    errors = [json.loads(error)["record"] for row in rows if (error := row["connectgroup_error"]) is not None]
    return [row for row in rows if row["connectgroup_error"] is None], errors


PIECES = [
    '{"a":1',
    '{"a":[{}',
    "}",
    "},{",
    "{}]}",
    '"b":2}',
    ",",
    "null",
    '{"a":"x}',
    '"}',
    "]}",
    '{"a":3}',
    '{"a":{"b":1}}',
]


@MANY
@given(lines=st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join), min_size=1, max_size=5))
@example(lines=['{"a":1', '"b":2},{"a":3}'])
@example(lines=['{"a":[{}', "{}]}", '{"a":3},{"a":3}'])
@example(lines=['{"a":"x}', '"}', '{"a":3},{"a":3}'])
def test_each_line_is_one_object_of_json_by_itself(root: Path, lines: list[str]) -> None:
    """All lines are parsed in one call, so that some might be JSON only together."""

    def is_object(line: str) -> bool:
        try:
            return isinstance(json.loads(line), dict)
        except ValueError:
            return False

    data = "".join(f"{line}\n" for line in lines).encode()
    rows, errors = dead_letters(root, data, LineDialect("jsonl"), "z STRING")
    assert errors == [line for line in lines if not is_object(line)]
    assert len(rows) == len(lines) - len(errors)


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**9), 10**9, places=3).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True),
)


@MANY
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=4), in_text=st.booleans())
@example(numbers=["-0", "1.50", "1E5", "0.00001", "1234567890.123456789", "-0.0"], in_text=False)
def test_nested_numbers_are_the_texts_that_were_written(root: Path, numbers: list[str], in_text: bool) -> None:
    words = [*numbers, '"1.50 e5 -0"'] if in_text else numbers
    text = f"[{','.join(words)}]"
    (row,) = read(root, f'{{"a":{text}}}\n'.encode(), LineDialect("jsonl"), "a STRING")
    assert row["a"] == text


DECIMALS = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))


@MANY
@given(kind=DECIMALS, digits=st.integers(-(10**39), 10**39), places=st.integers(0, 39), form=st.sampled_from("fE"))
@example(kind=(20, 2), digits=1990, places=2, form="f")
@example(kind=(38, 0), digits=10**38 - 1, places=0, form="f")
@example(kind=(38, 38), digits=-1, places=38, form="E")
@example(kind=(36, 0), digits=3, places=39, form="E")
@example(kind=(2, 0), digits=25 * 10**37, places=38, form="E")
def test_decimal_is_read_with_all_its_digits_or_is_an_error(
    root: Path, kind: tuple[int, int], digits: int, places: int, form: str
) -> None:
    """From CSV, from a number and a text of JSON, and from SQLite's text: the same value as Python's."""
    precision, scale = kind
    value = Decimal(digits).scaleb(-places, Context(prec=60))
    text = format(value, form)
    fits = value == value.quantize(Decimal(1).scaleb(-scale), context=Context(prec=99)) and value.copy_abs() < (
        Decimal(10) ** (precision - scale)
    )
    ddl = f"id INT, a NUMERIC( {precision} , {scale} )"
    for data, dialect in (
        (f"id,a\n1,{text}\n", LineDialect("csv")),
        (f"id;a\n1;{text.replace('.', ',')}\n", LineDialect("csv", delimiter=";", decimal=",")),
        (f'{{"id":1,"a":{text}}}\n', LineDialect("jsonl")),
        (f'{{"id":1,"a":"{text}"}}\n', LineDialect("jsonl")),
    ):
        if fits:
            (row,) = read(root, data.encode(), dialect, ddl)
            assert row["a"] == value
        else:
            with pytest.raises(BadLine, match=rf"a is .*; allowed: DECIMAL\({precision},{scale}\) or null"):
                read(root, data.encode(), dialect, ddl)


@pytest.mark.parametrize("text", ["abc", "", "1_0", "0x10", "nan", "Infinity", "1,5", "true", "[1]", "{}"])
def test_value_that_is_no_decimal_is_an_error(root: Path, text: str) -> None:
    for json_text in (text, json.dumps(text)):
        with pytest.raises(BadLine):
            read(root, f'{{"a":{json_text}}}\n'.encode(), LineDialect("jsonl"), "a DECIMAL(10,2)")
    if text and "," not in text:
        with pytest.raises(BadLine):
            read(root, f"a\n{text}\n".encode(), LineDialect("csv"), "a DECIMAL(10,2)")


@MANY
@given(line=st.text(alphabet='"",,a\\ ;', max_size=14), multiline=st.booleans())
@example(line='"He said \\"hi\\""', multiline=False)
@example(line='"a" ,b', multiline=False)
@example(line='5" pipe,"x"', multiline=True)
def test_line_of_csv_is_read_as_by_python_or_is_a_dead_letter(root: Path, line: str, multiline: bool) -> None:
    """Python's reader is strict here. A difference: in an empty field without quotes, Python has no null."""
    assume(line)
    try:
        expected = next(csv.reader([line], strict=True))
    except csv.Error:
        expected = []
    names = ["abcdefghijklmnop"[at] for at in range(max(len(expected), 1))]
    data = f"{','.join(names)}\n{line}\n".encode()
    rows, errors = dead_letters(
        root, data, LineDialect("csv", multiline=multiline), ", ".join(f"{n} STRING" for n in names)
    )
    if expected:
        assert [[value or "" for value in list(row.values())[:-1]] for row in rows] == [expected], errors
        assert errors == []
    else:
        assert (rows, errors) == ([], [line])


@MANY
@given(lines=st.text(alphabet='"",a\r\n\n', min_size=1, max_size=20), multiline=st.booleans())
@example(lines='x\r"y\r', multiline=True)
@example(lines='x\n\n\ry\r"z,', multiline=True)
def test_lines_of_csv_are_those_that_python_reads_or_an_error(root: Path, lines: str, multiline: bool) -> None:
    """Also with quotes and carriage returns where they are not expected: no line is lost. Blank lines are no rows."""
    try:
        rows = read(root, f"a\n{lines}\n".encode(), LineDialect("csv", multiline=multiline), "a STRING")
    except BadLine:
        return
    expected = [line for line in csv.reader(io.StringIO(f"{lines}\n", newline=""), strict=True) if line]
    assert [[row["a"] or ""] for row in rows] == expected


@MANY
@given(
    rows=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    delimiter=st.sampled_from(",;|\t"),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_csv_of_python_is_read_as_by_python_and_pandas(
    root: Path, rows: list[tuple[str, str, str]], quoting: Any, delimiter: str, end: str, encoding: str
) -> None:
    """A difference: a record of one empty field without quotes is a blank line, so there are three fields."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=quoting, delimiter=delimiter, lineterminator=end)
    writer.writerows([("a", "b", "c"), *rows])
    data = text.getvalue().encode(encoding)
    dialect = LineDialect("csv", delimiter=delimiter, multiline=True)
    found = [
        tuple(value or "" for value in row.values())
        for row in read(root, data, dialect, "a STRING, b STRING, c STRING")
    ]
    assert found == rows
    assert (
        found
        == [tuple(row) for row in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), delimiter=delimiter)][
            1:
        ]
    )
    frame = pd.read_csv(io.BytesIO(data), sep=delimiter, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    assert found == [tuple(row) for row in frame.itertuples(index=False)]


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from(
        ["1e400", "-1e999", "1e-400", "inf", "-Infinity", "nan", "0x10", "1_000", "", " 1", "1.", ".5", "+5"]
    ),
)


@MANY
@given(texts=st.lists(NUMBERS, min_size=1, max_size=6))
def test_numbers_of_csv_are_those_of_python_or_dead_letters(root: Path, texts: list[str]) -> None:
    """Differences: a number beyond the range of its type is a dead letter, in Python infinity or 0; so is 1_000."""
    data = ("a,b\n" + "".join(f"{text},x\n" for text in texts)).encode()
    rows, errors = dead_letters(root, data, LineDialect("csv"), "a DOUBLE, b STRING")
    good = [text for text in texts if f"{text},x" not in errors]
    assert len(good) == len(rows)
    for text, row in zip(good, rows, strict=True):
        if text == "":
            assert row["a"] is None
        else:
            assert row["a"] == float(text) or math.isnan(row["a"]) == math.isnan(float(text)) is True
            assert math.isfinite(row["a"]) or "n" in text.lower()
    for record in errors:
        text = record.removesuffix(",x")
        assert text in ("1e400", "-1e999", "1e-400", "0x10", "0XfF", "-0x1", "1_000", "+5"), text
    rows, errors = dead_letters(root, data, LineDialect("csv"), "a BIGINT, b STRING")
    good = [text for text in texts if f"{text},x" not in errors]
    assert [row["a"] for row in rows] == [int(text) if text else None for text in good]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@MANY
@given(
    values=st.lists(
        st.dictionaries(TEXT, JSON, min_size=1, max_size=3) | st.lists(JSON, max_size=3), min_size=1, max_size=4
    )
)
@example(values=[{"n": 19.90, "fdd0": "\ufdd0", "x": "\ufdd1"}])
def test_nested_json_is_read_as_by_python(root: Path, values: Sequence[Any]) -> None:
    data = "".join(json.dumps({"a": value}) + "\n" for value in values).encode()
    rows = read(root, data, LineDialect("jsonl"), "a STRING")
    assert [json.loads(row["a"]) for row in rows] == values


@pytest.mark.parametrize(
    "number", ["19.90", "12345678901234567890.12", "1e400", "1E5", "-0.0", "100000000000000000000000"]
)
def test_numbers_in_nested_json_stay_as_they_are(root: Path, number: str) -> None:
    rows = read(root, f'{{"a": [{number}, "{number}"]}}\n'.encode(), LineDialect("jsonl"), "a STRING")
    assert rows == [{"a": f'[{number},"{number}"]'}]


SMALL = f"-0.{'0' * 330}1"


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        *(("DOUBLE", each) for each in ("1e400", "-1e400", "1e-400", "-2.0E-324", SMALL)),
        *(("FLOAT", each) for each in ("1e39", "-4e38", "1e-50", "-7e-46", f"0.{'0' * 45}1", "1e-400")),
    ],
)
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_number_beyond_the_range_of_its_column_is_an_error(root: Path, form: Any, kind: str, number: str) -> None:
    data = f'{{"a": {number}}}\n' if form == "jsonl" else f"a\n{number}\n"
    with pytest.raises(BadLine, match=rf"a is .*; allowed: {kind} or null"):
        read(root, data.encode(), LineDialect(form), f"a {kind}")


@pytest.mark.parametrize("kind", ["DOUBLE", "FLOAT"])
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_zero_in_any_notation_and_the_smallest_number_are_themselves(root: Path, form: Any, kind: str) -> None:
    smallest = "1.401298464324817e-45" if kind == "FLOAT" else "5e-324"
    numbers = ["0", "0.0", "-0.0", "0e-5", "0.000E-400", f"0.{'0' * 330}", "0.10", smallest]
    numbers += [] if form == "jsonl" else ["", ".0", "00e-1", " 0e-3 "]
    lines = [f'{{"a": {each}}}' for each in numbers] if form == "jsonl" else ["a,b", *(f"{each},x" for each in numbers)]
    ddl = f"a {kind}" if form == "jsonl" else f"a {kind}, b STRING"
    found = [row["a"] for row in read(root, ("\n".join(lines) + "\n").encode(), LineDialect(form), ddl)]
    assert found[:6] == [0.0] * 6
    assert found[6] == pytest.approx(0.1)
    assert found[7] == float(smallest)
    assert found[8:] == ([] if form == "jsonl" else [None, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("line", ['{"a": {"\\ud800": 1}}', '{"a": ["\\udfff"]}', '{"\\ud800": 1}', '{"a": "\\ud800"}'])
def test_lone_surrogate_in_json_is_a_dead_letter(root: Path, line: str) -> None:
    rows, errors = dead_letters(
        root, f'{{"a": "x"}}\n{line}\n'.encode(), LineDialect("jsonl", drift="error"), "a STRING"
    )
    assert ([row["a"] for row in rows], errors) == (["x"], [line])


ZONES = sorted(zoneinfo.available_timezones() - {"Factory", "localtime"})


@hypothesis_settings(max_examples=volume(150, 1_500), deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    times=st.lists(
        st.datetimes(datetime(1850, 1, 1), datetime(2100, 12, 31))
        | st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31)),
        min_size=1,
        max_size=10,
    ),
)
@example(
    zone="Europe/Berlin", times=[datetime(2038, 7, 15, 12), datetime(2050, 3, 27, 2, 30), datetime(2050, 10, 30, 2, 30)]
)
@example(zone="Europe/Berlin", times=[datetime(2024, 3, 31, 2, 10), datetime(2024, 3, 31, 2, 50), datetime(2024, 7, 1)])
@example(zone="Australia/Lord_Howe", times=[datetime(2060, 10, 3, 2, 15), datetime(2024, 10, 6, 2, 15)])
@example(zone="Europe/Dublin", times=[datetime(1890, 1, 1), datetime(2099, 7, 1)])
def test_local_times_of_each_zone_are_those_of_python(root: Path, zone: str, times: list[datetime]) -> None:
    """Java, Spark and PostgreSQL have the same for a time that a clock omits: 02:30 is 03:30."""
    texts = [time.isoformat() for time in times]
    expected = [time.replace(tzinfo=zoneinfo.ZoneInfo(zone)).astimezone(UTC) for time in times]
    rows = read(
        root, "".join(f"{t}\n" for t in ["a", *texts]).encode(), LineDialect("csv", timezone=zone), "a TIMESTAMP"
    )
    assert [row["a"] for row in rows] == expected
    lines = "".join(json.dumps({"a": text}) + "\n" for text in texts).encode()
    rows = read(root, lines, LineDialect("jsonl", timezone=zone), "a TIMESTAMP")
    assert [row["a"] for row in rows] == expected


@pytest.mark.parametrize(
    ("form", "zone"), [("csv", ""), ("csv", "Europe/Berlin"), ("jsonl", ""), ("jsonl", "Europe/Berlin")]
)
def test_zeros_behind_the_microseconds_of_a_time_are_no_digits_that_are_lost(root: Path, form: Any, zone: str) -> None:
    """SQL Server and .NET write seven digits of a second, others nine."""
    start = datetime(2024, 2, 29, 12, tzinfo=UTC)
    times = {f"{start:%Y-%m-%dT%H:%M:%S}.{digits}Z": int(digits[:6]) for digits in ("0000000", "1230000", "000001000")}
    times |= {
        "2024-02-29 13:00:00.1234560+01:00": 123_456,
        "2024-02-29T12:00:00Z": 0,
        "2024-02-29T12:00:00.5Z": 500_000,
    }
    if zone:
        times |= {"2024-02-29 13:00:00.1230000": 123_000}
    header = ["a,b"] if form == "csv" else []
    dialect = LineDialect(form, timezone=zone)

    def lines(texts: Sequence[str]) -> bytes:
        written = [f"{text},x" if form == "csv" else json.dumps({"a": text}) for text in texts]
        return "".join(f"{line}\n" for line in [*header, *written]).encode()

    rows = read(root, lines([*times]), dialect, "a TIMESTAMP, b STRING")
    assert [row["a"] for row in rows] == [start + timedelta(microseconds=each) for each in times.values()]
    for other in ("2024-02-29T12:00:00.1234567Z", "2024-02-29T12:00:00.00000001Z"):
        with pytest.raises(BadLine, match=r"a is .*; allowed: TIMESTAMP"):
            read(root, lines([*times, other]), dialect, "a TIMESTAMP, b STRING")


@pytest.mark.parametrize("text", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"])
def test_time_in_another_year_than_1_to_9999_is_an_error(root: Path, text: str) -> None:
    """In UTC: Python, PostgreSQL's client and JSON Schema's times have no others."""
    for data, dialect, timezone in (
        (f"a\n{text}\n", "csv", ""),
        (f"a\n{text}\n", "csv", "Europe/Berlin"),
        (json.dumps({"a": text}) + "\n", "jsonl", ""),
    ):
        with pytest.raises(BadLine, match=r"a is .*; allowed: TIMESTAMP"):
            read(root, data.encode(), LineDialect(dialect, timezone=timezone), "a TIMESTAMP")  # type: ignore[arg-type]
    for data, form in (("a\n0000-12-31\n", "csv"), ('{"a":"0000-12-31"}\n', "jsonl")):
        with pytest.raises(BadLine, match=r"a is .*; allowed: DATE"):
            read(root, data.encode(), LineDialect(form), "a DATE")  # type: ignore[arg-type]
