"""Random lines: rows, one per line, or an error that names the line.

One decoder; both formats share the inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.errors import BadLine
from connectgroup.dataplane.ownership import Range
from connectgroup.spark.sources.dialect import Format, LineDialect
from connectgroup.spark.sources.parts import read_range
from tests.fuzzing import attack, folder_in_memory, inputs_each

COLUMNS: Final = from_ddl("s STRING, i INT, d DOUBLE, at TIMESTAMP")
HEADER: Final = b"s,i,d,at\n"
VALID: Final[dict[Format, list[bytes]]] = {
    "csv": [
        b'"a, ""b"" \xc3\xa9",7,1e300,2020-01-01T00:00:00.123456+02:00\n',
        b"x,-1,0.5,\r\n",
        b",,,\n",
        b'"",2147483647,nan,\r\n\r\n\n,,,2020-02-29T00:00:00Z\n',
    ],
    "jsonl": [
        b'{"i": 7, "d": 1e300, "s": "a\\u00e9\xc3\xa9", "at": "2020-01-01T00:00:00Z"}\n',
        b'{"i": null, "more": [1, {"b": "x"}]}\r\n',
        b'{"d": 1, "s": ""}\n',
        b'{}\n\n{"s": "{}"}\r\n',
    ],
}


@pytest.mark.timeout(900)  # a minute, or several on a busy machine
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_any_lines_make_rows_or_name_the_invalid_one(form: Format) -> None:
    with folder_in_memory() as folder:
        # A read of CSV takes four times as long as one of JSON lines.
        inputs = inputs_each(4) if form == "csv" else 3 * inputs_each(4)
        attack(lambda data: read(folder, data, form), None, VALID[form], inputs, BadLine)


def read(folder: Path, data: bytes, form: Format) -> None:
    """Complete lines, as in every range: the rest after the last line feed is not available yet."""
    whole = data[: data.rfind(b"\n") + 1] or b"\n"
    header = HEADER if form == "csv" else b""
    (folder / "x").write_bytes(header + whole)
    rows = read_range(folder, Range(slice="x", start=len(header), end=len(header + whole)), COLUMNS, LineDialect(form))
    assert rows.num_rows == sum(1 for line in whole.split(b"\n") if line.strip(b"\r"))


def test_any_header_is_the_expected_one_or_an_invalid_line() -> None:
    def decode(data: bytes) -> None:
        whole = data[: data.find(b"\n")] + b"\n" + VALID["csv"][0]
        (folder / "x").write_bytes(whole)
        read_range(folder, Range(slice="x", start=0, end=len(whole)), COLUMNS, LineDialect("csv"))

    with folder_in_memory() as folder:
        attack(decode, None, [HEADER, b"\xef\xbb\xbf" + HEADER, HEADER[:-1] + b"\r\n"], inputs_each(10), BadLine)
