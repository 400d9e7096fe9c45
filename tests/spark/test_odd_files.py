"""Files that cannot be read as they are: none stalls its task without a sign. No Spark."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectgroup.dataplane.errors import BadLine, SourceError
from connectgroup.dataplane.ownership import ranges_between
from connectgroup.errors import ConfigError
from connectgroup.spark.sources import parts
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.listing import read_bytes_of
from connectgroup.spark.sources.sliced import SlicedBatches


class Reader:
    """One task that reads a directory as over Spark Connect."""

    def __init__(self, root: Path, *, tolerant: bool = False, **more: Any) -> None:
        found = {"path": str(root), "format": "csv"} | {key.replace("_", "."): value for key, value in more.items()}
        source = FileSource.create(FileSettings.model_validate(found), task=0, tasks=1)
        self.source = source.tolerant() if tolerant else source
        self.batches = SlicedBatches(self.source, {})
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


def test_lines_of_a_file_with_many_bad_ones_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each batch, and not those of a file that had the inode before."""
    size, read = 0, read_bytes_of

    def counted(descriptor: int, path: Path, start: int, end: int) -> bytes:
        nonlocal size
        size += end - start
        return read(descriptor, path, start, end)

    monkeypatch.setattr(parts, "read_bytes_of", counted)
    for lines in (40, 30):
        batch = "".join(f"{n},{'x' * 20}\n" for n in range(lines)) + "bad\n"
        write(tmp_path / "a.csv", "a,b\n" + batch * 100)
        size = 0
        reader = Reader(tmp_path, tolerant=True, schema="a INT, b STRING", max_bytes_per_batch=1024)
        rows, errors = reader.read()
        assert len(rows) == 100 * lines
        numbers = [int(re.findall(r", line (\d+) ", error["place"])[0]) for error in errors]
        assert numbers == [1 + (lines + 1) * n for n in range(1, 101)]
        assert size < 4 * (tmp_path / "a.csv").stat().st_size


def test_long_line_that_has_no_end_is_counted(tmp_path: Path) -> None:
    write(tmp_path / "a", "y" * 5_000)
    reader = Reader(tmp_path, tolerant=True, format="text", max_bytes_per_batch=1024)
    assert reader.read() == ([], [])
    assert reader.source.lag(reader.at).unreadable_files == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,b\r1,x\r2,y\r", "its lines end with carriage returns alone; allowed: a line feed at the end of each line"),
        (b'a,b\r"1","x', "its lines end with carriage returns alone; allowed: a line feed at the end of each line"),
        (bz2.compress(b""), "is compressed with bzip2; allowed: text, or .gz and .zst"),
        (gzip.compress(b"", mtime=0), "is compressed with gzip; allowed: a name that ends in .gz"),
        (b"PK\x03\x04", "is a ZIP archive; allowed: text, or .gz and .zst"),
        (b"a,b\r", ""),
        (b"a,b", ""),
    ],
    ids=["carriage returns", "quotes", "bzip2", "gzip", "zip", "half of a line end", "text"],
)
def test_file_that_never_has_a_line_feed_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, reason: str
) -> None:
    """Nothing of it is read, with and without tolerance: it could be text that a program is writing."""
    write(tmp_path / "a.csv", data)
    write(tmp_path / "b.csv", "a,b\n1,x\n")
    reader = Reader(tmp_path, multiline=b'"' in data, schema="a STRING, b STRING")
    assert reader.read() == ([["1", "x"]], [])
    assert b"\n" not in data
    lag = reader.source.lag(reader.at)
    assert (lag.unfinished_files, lag.unreadable_files) == ((0, 1) if reason else (1, 0))
    wanted = [f"{tmp_path}/a.csv: {reason}; the task goes on with other files"] if reason else []
    assert [each.getMessage() for each in caplog.records] == wanted


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


ENCODINGS = (
    "utf-16",
    "utf-16-le",
    "utf-16-be",
    "utf-32",
    "UTF_32_LE",
    "latin-1",
    "cp1252",
    "gb18030",
    "shift_jis",
    "koi8-r",
)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_are_read_in_their_encoding_as_they_grow(tmp_path: Path, encoding: str, form: str, packed: bool) -> None:
    letter = {"koi8-r": "\u0436", "gb18030": "\U0001f600\u010a", "shift_jis": "\u8868\u80fd"}.get(encoding, "\u00fc")
    if "16" in encoding or "32" in encoding:
        letter = "\u0a0a\u0d0a\U0001f600\u010a\u0a00"  # bytes of line feeds inside characters
    values = [f"{letter * (n % 5)}{n}" for n in range(300)]
    lines = {
        "csv": ["a,b", *(f'{n},"{value}"' for n, value in enumerate(values))],
        "jsonl": [json.dumps({"a": n, "b": value}, ensure_ascii=False) for n, value in enumerate(values)],
        "text": values,
    }[form]
    data = "".join(f"{line}\r\n" for line in lines).encode(encoding)
    expected = [[value] if form == "text" else [n, value] for n, value in enumerate(values)]
    schema: dict[str, Any] = {} if form == "text" else {"schema": "a INT, b STRING"}
    path = tmp_path / ("a.gz" if packed else "a")
    write(path, gzip.compress(data) if packed else data[: len(data) // 2 - 1])
    reader = Reader(tmp_path, format=form, encoding=encoding, max_bytes_per_batch=2048, **schema)
    rows, _ = reader.read()
    if not packed:
        assert rows == expected[: len(rows)]
        assert 100 < len(rows) < 200
        write(path, data)
        rows += reader.read()[0]
    assert rows == expected
    assert reader.source.lag(reader.at).files == 0
    if form != "text":
        inferred = Reader(tmp_path, format=form, encoding=encoding)
        assert [str(row[0]) for row in inferred.read()[0]] == [str(n) for n in range(300)]


def test_bad_line_in_utf_16_is_a_dead_letter_with_its_place(tmp_path: Path) -> None:
    lines = ["a,b", "1,\u00fc", "x,\u00fc", "2,\u00fc"]
    data = "".join(f"{line}\n" for line in lines).encode("utf-16") + b"3\0,\0\0\xd8\n\0" + "4,y\n".encode("utf-16-le")
    path = write(tmp_path / "a.csv", data)
    rows, errors = Reader(tmp_path, tolerant=True, schema="a INT, b STRING", encoding="utf-16").read()
    assert rows == [[1, "\u00fc"], [2, "\u00fc"], [4, "y"]]
    assert [error["place"] for error in errors] == [f"{path}, line 3 (byte 18)", f"{path}, line 5 (byte 34)"]


def test_record_with_line_feeds_in_utf_16_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'a,b\n1,"x\ny"\n2,"open\n'.encode("utf-16"))
    reader = Reader(tmp_path, schema="a INT, b STRING", encoding="utf-16", multiline=True, final_newline_ms=604_800_000)
    os.utime(tmp_path / "a.csv")
    assert reader.read() == ([[1, "x\ny"]], [])


def tar_of(form: int) -> bytes:
    """An archive of one file of text."""
    archive, content = io.BytesIO(), b'{"a":1}\n'
    with tarfile.open(fileobj=archive, mode="w", format=form) as tar:
        entry = tarfile.TarInfo("a")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a\n1\n".encode("utf-16"), "begins with the byte order mark of UTF-16; allowed: source.encoding=utf-16"),
        *(
            ("a1\n2\n".encode(each), f"begins like text in {each.upper()} .*; allowed: source.encoding={each}")
            for each in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        ),
        (gzip.compress(b"a\n1\n", mtime=0), "is compressed with gzip; allowed: a name that ends in .gz"),
        (b"PK\x03\x04....\n", "is a ZIP archive; allowed: text"),
        (tar_of(tarfile.USTAR_FORMAT), "is a TAR archive; allowed: its files"),
        (tar_of(tarfile.GNU_FORMAT), "is a TAR archive; allowed: its files"),
        (b"PAR1\x15\x04\n", "is Parquet; allowed: text, or the source parquet"),
        (b"SQLite format 3\0\n", "is a database of SQLite; allowed: text, or the source sqlite"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
def test_file_of_another_kind_says_so(tmp_path: Path, data: bytes, message: str, form: str) -> None:
    write(tmp_path / "a", data + b"\n")
    for more in ({}, {"schema": "a INT"}):
        with pytest.raises(SourceError, match=rf"a, line 1 \(byte 0\): {message}"):
            Reader(tmp_path, format=form, **({} if form == "text" else more)).read()  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
def test_compressed_archive_has_no_rows(tmp_path: Path, form: str) -> None:
    write(tmp_path / "a.tar.gz", gzip.compress(tar_of(tarfile.USTAR_FORMAT)))
    schema = {} if form == "text" else {"schema": "a INT"}
    rows, errors = Reader(tmp_path, tolerant=True, format=form, **schema).read()
    assert rows == []
    assert ["is a TAR archive" in error["reason"] for error in errors] == [True]


@pytest.mark.parametrize("form", ["csv", "jsonl", "text"])
def test_file_of_another_kind_has_no_rows_in_any_batch(tmp_path: Path, form: str) -> None:
    write(tmp_path / "a", ("ab\n" * 1_000).encode("utf-16-le"))
    schema = {} if form == "text" else {"schema": "a STRING"}
    rows, errors = Reader(tmp_path, tolerant=True, format=form, max_bytes_per_batch=1024, **schema).read()
    assert rows == []
    assert len(errors) > 1
    assert all("begins like text in UTF-16-LE" in error["reason"] for error in errors)


@pytest.mark.parametrize("drift", ["ignore", "evolve"])
def test_column_whose_name_has_another_case_is_an_error(tmp_path: Path, drift: str) -> None:
    write(tmp_path / "a.csv", "ID,b\n1,2\n")
    with pytest.raises(BadLine, match=r"a\.csv, line 1 \(byte 0\): column 'ID'; allowed: id, in this case"):
        Reader(tmp_path, schema="id INT, b INT", schema_drift=drift).read()
    write(tmp_path / "a.csv", "ID,id,b\n1,3,2\n")
    if drift == "ignore":
        assert Reader(tmp_path, schema="id INT, b INT", schema_drift=drift).read() == ([[3, 2]], [])


def test_header_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,\xff\n1,2\n")
    with pytest.raises(BadLine, match=r"a\.csv, line 1 \(byte 0\): byte 3 of the header is not UTF-8; allowed: UTF-8"):
        Reader(tmp_path)
    rows, errors = Reader(tmp_path, tolerant=True, schema="a STRING, b STRING").read()
    assert rows == []
    assert [error["reason"] for error in errors] == [
        "line 1 (byte 0): byte 3 of the header is not UTF-8; allowed: UTF-8 text"
    ]


def test_file_that_begins_with_a_blank_line_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\na,b\n1,2\n")
    with pytest.raises(
        BadLine, match=r"a\.csv, line 1 \(byte 0\): header ''; allowed: column names; a blank line is none"
    ):
        Reader(tmp_path)


def test_field_whose_name_is_not_utf8_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":1,"\\ud800":2}\n')
    assert Reader(tmp_path, format="jsonl").read() == ([[1]], [])
    assert Reader(tmp_path, format="jsonl", schema_drift="evolve").read() == ([[1]], [])


def test_empty_text_in_quotes_is_no_number_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,b\n1,""\n')
    _, (error,) = Reader(tmp_path, tolerant=True, schema="a INT, b INT").read()
    assert error["reason"] == 'b is ""; allowed: INT or null, null without quotes'


JUNK = [b"junk" * 300, b"x", b"\0\0\0x", b"\n9,late\n"]


@pytest.mark.parametrize("tail", JUNK)
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_rows_of_a_compressed_file_are_read_and_what_follows_it_is_named(
    tmp_path: Path, codec: str, end: str, tail: bytes
) -> None:
    members = [f"a,b\n{GOOD}".encode(), f"50,y{end}".encode()]
    packed = b"".join(pa.Codec(codec).compress(each, asbytes=True) for each in members)
    path = write(tmp_path / ("a.csv.gz" if codec == "gzip" else "a.csv.zst"), packed + tail)
    at = len(packed) + len(tail) - len(tail.lstrip(b"\0")) if codec == "gzip" else 0
    reason = rf"cannot be decompressed \({f'from byte {at} on: ' if at else ''}.*\); allowed: a complete {codec} file"
    with pytest.raises(SourceError, match=rf"a\.csv\.(gz|zst): {reason}"):
        Reader(tmp_path).read()
    reader = Reader(tmp_path, tolerant=True)
    rows, (error,) = reader.read()
    assert rows == [*([str(n), "x"] for n in range(50)), ["50", "y"]]
    assert error["place"] == f"{path}, bytes {at} to {len(packed) + len(tail)}"
    assert re.fullmatch(reason, error["reason"])
    assert reader.read() == ([], [])


def test_zeros_behind_a_gzip_file_are_padding(tmp_path: Path) -> None:
    """As for gzip and Python: tapes and block devices pad files."""
    write(tmp_path / "a.csv.gz", gzip.compress(b"a\n1\n") + b"\0" * 700_000 + gzip.compress(b"2\n") + b"\0" * 512)
    assert Reader(tmp_path).read() == ([["1"], ["2"]], [])


@pytest.mark.parametrize("at", [-6, -2])
def test_rows_of_the_members_before_a_damaged_one_are_read(tmp_path: Path, at: int) -> None:
    first, second = gzip.compress(b"a,b\n1,x\n2,y\n3,"), bytearray(gzip.compress(b"x\n4,x\n" * 100))
    second[at] ^= 0xFF
    path = write(tmp_path / "a.csv.gz", first + bytes(second))
    with pytest.raises(SourceError, match=rf"a\.csv\.gz: cannot be decompressed \(from byte {len(first)} on: "):
        Reader(tmp_path).read()
    rows, (error,) = Reader(tmp_path, tolerant=True).read()
    assert rows == [["1", "x"], ["2", "y"]]
    assert error["place"] == f"{path}, bytes {len(first)} to {len(first) + len(second)}"
    assert error["record"] == "3,"


def packed(codec: str, data: bytes) -> bytes:
    return gzip.compress(data, mtime=0) if codec == "gz" else pa.compress(data, "zstd", asbytes=True)


@pytest.mark.parametrize("codec", ["gz", "zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
@pytest.mark.parametrize("quotes", [True, False])
def test_compressed_csv_that_grows_keeps_the_columns_of_its_header(
    tmp_path: Path, codec: str, encoding: str, quotes: bool
) -> None:
    path, wide = tmp_path / f"a.csv.{codec}", encoding.replace("16", "16-le")
    header, name = ('"b","a z",c\n', "`a z`") if quotes else ("b,a,c\n", "a")
    path.write_bytes(packed(codec, (header + "1,\u00e4,2\n").encode(encoding)))
    settings = {"encoding": encoding, "schema": f"{name} STRING, b INT", "schema_drift": "ignore", "multiline": quotes}
    reader = Reader(tmp_path, tolerant=True, **settings)
    assert reader.read() == ([["\u00e4", 1]], [])
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(packed(codec, "3,\u00f6,4\n5,x\n".encode(wide)))
    rows, (error,) = reader.read()
    assert rows == [["\u00f6", 3]]
    at = len("3,\u00f6,4\n".encode(wide))
    assert error["place"] == f"{path}, from byte {size} on, line 2 (byte {at})"


@pytest.mark.parametrize("codec", ["gz", "zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("final_newline", ["wait", "accept"])
def test_line_that_goes_on_in_a_compressed_file_after_it_was_read_is_an_error(
    tmp_path: Path, codec: str, encoding: str, final_newline: str
) -> None:
    path = tmp_path / f"a.{codec}"
    path.write_bytes(packed(codec, "one\ntw".encode(encoding)))
    reader = Reader(tmp_path, format="text", encoding=encoding, final_newline=final_newline, final_newline_ms=0)
    assert reader.read() == ([["one"], ["tw"]], [])
    with path.open("ab") as file:
        file.write(packed(codec, "o\n".encode(encoding.replace("16", "16-le"))))
    with pytest.raises(SourceError, match=rf"a\.{codec}: byte \d+ is not the start of a line: .* grow by whole lines"):
        reader.read()


def test_mark_at_the_start_of_a_later_row_is_text_wherever_a_batch_begins(tmp_path: Path) -> None:
    """As for Python's csv: files with byte order marks that were joined."""
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffa,b\nx,1\n".encode())
    reader = Reader(tmp_path)
    assert reader.read() == ([["x", "1"]], [])
    with path.open("ab") as file:
        file.write("\ufeffy,2\n\ufeffz,3\n".encode())
    assert reader.read() == ([["\ufeffy", "2"], ["\ufeffz", "3"]], [])
    assert Reader(tmp_path).read() == ([["x", "1"], ["\ufeffy", "2"], ["\ufeffz", "3"]], [])


SHORT_LINE = 10_000


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller limits than 256 and 8 MiB, and smaller blocks."""
    monkeypatch.setattr(parts, "CHUNK_BYTES", 1_000)
    monkeypatch.setattr(parts, "MAX_PACKED_LINE_BYTES", SHORT_LINE)
    monkeypatch.setattr(parts, "MAX_HEADER_BYTES", 5_000)


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("codec", ["gz", "zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("size", [SHORT_LINE + 2_000, 50 * SHORT_LINE])
@pytest.mark.parametrize("is_first", [True, False])
def test_line_of_a_compressed_file_takes_no_more_memory_than_allowed(
    tmp_path: Path, codec: str, encoding: str, size: int, is_first: bool
) -> None:
    before = "" if is_first else GOOD
    lines = [*before.splitlines(), "b" * size, "last"]
    path = write(tmp_path / f"a.{codec}", packed(codec, "".join(f"{line}\n" for line in lines).encode(encoding)))
    settings: dict[str, Any] = {"format": "text", "encoding": encoding}
    reason = f"the line has more than {SHORT_LINE} bytes; allowed: so many in a compressed file"
    at = len(before.encode(encoding)) if before else 0
    place = f"{path}, line {len(lines) - 1} (byte {at})"
    with pytest.raises(BadLine, match=f"^{re.escape(f'{place}: {reason}')}$"):
        Reader(tmp_path, **settings).read()
    rows, (error,) = Reader(tmp_path, tolerant=True, **settings).read()
    assert rows == [[line] for line in lines if len(line) < size]
    assert (error["place"], error["reason"]) == (place, reason)
    assert "bbb" in error["record"]
    assert len(error["record"]) < 2_000


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("codec", ["gz", "zst"])
@pytest.mark.parametrize("tolerant", [True, False])
def test_header_of_a_compressed_file_takes_no_more_memory_than_allowed(
    tmp_path: Path, codec: str, tolerant: bool
) -> None:
    write(tmp_path / f"a.csv.{codec}", packed(codec, b"a" * 50 * SHORT_LINE + b"\n1\n"))
    reader = Reader(tmp_path, tolerant=tolerant, schema="a INT")
    if tolerant:
        rows, (error,) = reader.read()
        assert (rows, error["reason"]) == ([], "line 1 (byte 0): the header has more than 5000 bytes; allowed: so many")
    else:
        with pytest.raises(BadLine, match=r"line 1 \(byte 0\): the header has more than 5000 bytes; allowed: so many$"):
            reader.read()


def test_file_without_an_end_of_its_header_is_not_read_whole(tmp_path: Path) -> None:
    """A hole takes no room on the disk."""
    with (tmp_path / "a.csv").open("wb") as file:
        file.truncate(1 << 40)
    assert Reader(tmp_path).source.columns == ()
    write(tmp_path / "b.csv", "a\n1\n")
    assert [column.name for column in Reader(tmp_path).source.columns] == ["a"]
    with pytest.raises(SourceError, match="the line at byte 0 is longer than 33554432 bytes"):
        Reader(tmp_path, schema="a STRING").read()
