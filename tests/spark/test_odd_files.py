"""Files that cannot be read as they are: none stalls its task without a sign. No Spark."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from connectgroup.dataplane.errors import BadLine, SourceError
from connectgroup.dataplane.ownership import ranges_between
from connectgroup.errors import ConfigError
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileBatches, FileSource


class Reader:
    """One task that reads a directory as over Spark Connect."""

    def __init__(self, root: Path, *, tolerant: bool = False, **more: Any) -> None:
        found = {"path": str(root), "format": "csv"} | {key.replace("_", "."): value for key, value in more.items()}
        source = FileSource.create(FileSettings.model_validate(found), task=0, tasks=1)
        self.source = source.tolerant() if tolerant else source
        self.batches = FileBatches(self.source, {})
        self.at: dict[str, int] = {}

    def read(self) -> tuple[list[list[Any]], list[dict[str, str]]]:
        """Read all batches; return the values of the rows, and the dead letters."""
        rows: list[list[Any]] = []
        errors: list[dict[str, str]] = []
        while (end := dict(self.batches.plan(self.at))) != self.at:
            for _, part in self.batches.parts(list(ranges_between(self.at, end))):
                for row in (row for batch in self.batches.read_part(part) for row in batch.to_pylist()):
                    error = row.pop("connectgroup_error", None)
                    if error is None:
                        rows.append(list(row.values()))
                    else:
                        errors.append(json.loads(error))
            self.at = {**self.at, **{name: at for name, at in end.items() if at != self.at.get(name)}}
        return rows, errors


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(path, (1, 1))
    return path


GOOD = "".join(f"{n},x\n" for n in range(50))


@pytest.mark.parametrize("line", ['7,"never closed', '7,stray" quote', '"7,x'])
@pytest.mark.parametrize("before", ["", GOOD])
def test_quote_that_is_not_closed_is_an_error_or_a_dead_letter(tmp_path: Path, line: str, before: str) -> None:
    path = write(tmp_path / "a.csv", f"a,b\n{before}{line}\n{GOOD}")
    number, at = 2 + before.count("\n"), 4 + len(before)
    strict = Reader(tmp_path, multiline=True, schema="a STRING, b STRING")
    message = rf"a\.csv, line {number} \(byte {at}\): a quote that is not closed in \d+ bytes; allowed: quotes that end"
    if before:
        with pytest.raises(SourceError, match=message):
            strict.read()
        assert strict.source.lag(strict.at).unreadable_files == 1
        assert len(strict.at) == 1, "the rows before it were read"
    tolerant = Reader(tmp_path, tolerant=True, multiline=True, schema="a STRING, b STRING")
    rows, errors = tolerant.read()
    if "stray" in line:  # Such a quote is text; only the end of its record was not known.
        assert (["7", 'stray" quote'] in rows, len(rows), errors) == (True, 51 + before.count("\n"), [])
    else:
        assert len(rows) == 50 + before.count("\n")
        assert [error["record"] for error in errors] == [line]
        assert errors[0]["place"] == f"{path}, line {number} (byte {at})"
    assert tolerant.source.lag(tolerant.at).files == 0


def test_record_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,"one\n')
    reader = Reader(tmp_path, multiline=True, schema="a STRING, b STRING")
    assert reader.read() == ([], [])
    lag = reader.source.lag(reader.at)
    assert (lag.files, lag.unfinished_files, lag.unreadable_files) == (1, 1, 0)
    with (tmp_path / "a.csv").open("a") as file:
        file.write('two"\n')
    assert reader.read() == ([["1", "one\ntwo"]], [])


@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
def test_line_longer_than_a_batch_is_a_dead_letter(tmp_path: Path, form: str) -> None:
    good = {"csv": "7,x\n", "jsonl": '{"a": 7, "b": "x"}\n', "text": "7\n"}[form]
    head = "a,b\n" if form == "csv" else ""
    long = "y" * 5_000
    path = write(tmp_path / "a", head + good + long + "\n" + good * 3)
    write(tmp_path / "b", head + good)
    schema: dict[str, Any] = {} if form == "text" else {"schema": "a INT, b STRING"}
    reader = Reader(tmp_path, tolerant=True, format=form, max_bytes_per_batch=1024, **schema)
    rows, errors = reader.read()
    assert len(rows) == 5
    (error,) = errors
    assert error["place"] == f"{path}, line {2 + bool(head)} (byte {len(head + good)})"
    assert error["reason"] == "the line has 5001 bytes; allowed: 1024 (source.max.bytes.per.batch)"
    assert error["record"] == "y" * 1024 + "..."
    assert reader.source.lag(reader.at).files == 0
    with pytest.raises(SourceError, match=r"a: the line at byte \d+ is longer than 1024 bytes"):
        Reader(tmp_path, format=form, max_bytes_per_batch=1024, **schema).read()


def test_long_line_that_has_no_end_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "a", "y" * 5_000)
    reader = Reader(tmp_path, tolerant=True, format="text", max_bytes_per_batch=1024)
    assert reader.read() == ([], [])
    assert reader.source.lag(reader.at).unreadable_files == 1


@pytest.mark.parametrize("deep", [False, True])
def test_name_that_is_not_utf_8_is_an_error_or_left_out(tmp_path: Path, deep: bool) -> None:
    name = b"b\xff.csv"
    if deep:
        os.mkdir(os.fsencode(tmp_path) + b"/d\xe9")
        name = b"d\xe9/b.csv"
    with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
        file.write(b"a\n2\n")
    write(tmp_path / "\u00e9.csv", "a\n1\n")
    shown = name.decode("utf-8", "backslashreplace").replace("\\", "\\\\")
    with pytest.raises(SourceError, match=rf"{shown}: is no name in UTF-8; allowed: names in UTF-8"):
        Reader(tmp_path, schema="a INT").read()
    reader = Reader(tmp_path, tolerant=True, schema="a INT")
    assert reader.read() == ([[1]], [])
    assert reader.source.lag(reader.at).unreadable_files == 1


@pytest.mark.parametrize("name", ["X.CSV.GZ", "x.csv.Gz", "x.gz"])
def test_compressed_files_are_known_by_their_ending_in_any_case(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, gzip.compress(b"a\n1\n"))
    write(tmp_path / "y.csv.TMP", "a\n2\n")
    assert Reader(tmp_path, schema="a INT").read() == ([[1]], [])


def test_delimiter_at_the_end_of_lines_is_explained(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a,b,\n1,2,\n")
    remedy = r"\. A delimiter ends the header: without it, or with source\.schema and source\.schema\.drift=ignore"
    with pytest.raises(ConfigError, match=rf"got 'a,b,'; allowed: column names that are not empty{remedy}"):
        Reader(tmp_path)
    with pytest.raises(BadLine, match=r"header 'a,b,'; allowed: exactly the columns 'a,b'.*drift=ignore"):
        Reader(tmp_path, schema="a INT, b INT").read()
    assert Reader(tmp_path, schema="a INT, b INT", schema_drift="ignore").read() == ([[1, 2]], [])
    write(tmp_path / "a.csv", "a,b\n1,2,\n")
    with pytest.raises(BadLine, match=r"3 fields; allowed: 2 \(a, b\), without a delimiter at the end of the line"):
        Reader(tmp_path, schema="a INT, b INT").read()
