"""Cutting a directory of growing files into batches of whole lines; no Spark."""

from __future__ import annotations

import gzip
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from connectgroup.dataplane.errors import SourceError
from connectgroup.dataplane.ownership import Range, ranges_between
from connectgroup.spark.sources.catalog import is_slice_of
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.listing import divided, last_line_end, list_inodes, read_bytes
from connectgroup.spark.sources.parquet import ParquetSource, ParquetSourceSettings
from connectgroup.spark.sources.planner import Planner


def planner(root: Path, *, max_bytes: int = 1000, task: int = 0, tasks: int = 1) -> Planner:
    return Planner(root=root, task=task, tasks=tasks, max_bytes=max_bytes)


def test_incomplete_line_is_left_for_later(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one\ntw")
    assert planner(tmp_path).advance({}) == {"a": 4}
    assert planner(tmp_path).advance({"a": 4}) == {"a": 4}
    file.write_bytes(b"one\ntwo\n")
    assert planner(tmp_path).advance({"a": 4}) == {"a": 8}


def test_batch_holds_no_more_bytes_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456789\n" * 10)
    (tmp_path / "b").write_bytes(b"123456789\n" * 10)
    plan, at = planner(tmp_path, max_bytes=35), dict[str, int]()
    sizes = []
    while (end := plan.advance(at)) != at:
        sizes.append(sum(r.end - r.start for r in ranges_between(at, end)))
        at = end
    assert at == {"a": 100, "b": 100}
    assert max(sizes) <= 35


def test_first_batch_is_small_and_the_next_ones_larger(tmp_path: Path) -> None:
    """The first rows of a backlog arrive soon."""
    line = b"x" * 1023 + b"\n"
    (tmp_path / "a").write_bytes(line * (150 << 10))
    plan, at, sizes = planner(tmp_path, max_bytes=68 << 20), dict[str, int](), list[int]()
    while (end := plan.advance(at)) != at:
        sizes.append((end["a"] - at.get("a", 0)) >> 20)
        at = end
    assert sizes == [16, 64, 68, 2]


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_range_are_whole_lines_and_together_the_range(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(b"x" * chance.choice([0, 1, 10, 90, 300]) + b"\n" for _ in range(40))
    (tmp_path / "a").write_bytes(data)
    start = data.index(b"\n") + 1
    parts = divided(tmp_path, "a", start, len(data), 100)
    assert [at for at, _ in parts] == [start, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == len(data)
    assert all(data[end - 1 : end] == b"\n" for _, end in parts)
    for at, end in parts:
        assert end - at <= 100 or data[at:end].index(b"\n") >= 100, "only a longer line makes a longer part"


def test_fast_growing_file_does_not_starve_the_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123456789\n" * 1000)
    (tmp_path / "b").write_bytes(b"1\n")
    plan, at = planner(tmp_path, max_bytes=50), dict[str, int]()
    for _ in range(3):
        at = plan.advance(at)
    assert at["b"] == 2


def packed(form: str, text: str) -> bytes:
    return gzip.compress(text.encode()) if form == "gz" else pa.compress(text.encode(), codec="zstd", asbytes=True)


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_members_that_are_appended_to_a_compressed_file_while_it_is_read_are_read_once(
    tmp_path: Path, form: str
) -> None:
    """A file has a new member after its size was looked at, after its range was chosen, and while that is read."""
    file, members, written = tmp_path / f"a.txt.{form}", list[bytes](), 0
    for number in range(40):
        members.append(packed(form, "".join(f"{number}-{line}\n" for line in range(3))))
    source = FileSource.create(FileSettings.model_validate({"path": str(tmp_path), "format": "text"}), task=0, tasks=1)
    reader, rows, at = source.part_batches({}), list[str](), dict[str, int]()

    def append() -> None:
        """Append the next piece: half a member, so that each second one completes one."""
        nonlocal written
        if written < 2 * len(members):
            member = members[written // 2]
            half = len(member) // 2
            with file.open("ab") as opened:
                opened.write(member[half:] if written % 2 else member[:half])
            written += 1

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = real_stat(path, **options)
        if str(path).endswith(file.name):
            append()
        return found

    def fstat(descriptor: int) -> os.stat_result:
        found = real_fstat(descriptor)
        if file.exists() and found.st_ino == real_stat(file).st_ino:
            append()
        return found

    real_stat, real_fstat = os.stat, os.fstat
    append()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "fstat", fstat)
        for _ in range(1000):
            end = dict(reader.plan(at))
            append()
            for each in ranges_between(at, end):
                for _, part in reader.parts([each]):
                    for some in reader.read_part(part):
                        rows += some["value"].to_pylist()
                        append()
            at = end
            if len(rows) >= 120:
                break
    assert rows == [f"{number}-{line}" for number in range(40) for line in range(3)]


def test_line_longer_than_a_batch_is_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 200)
    with pytest.raises(SourceError, match=r"a: the line at byte 0 is longer than 100 bytes; allowed: lines up to"):
        planner(tmp_path, max_bytes=100).advance({})


def test_line_that_fits_only_a_batch_of_its_own_gets_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345\n")
    (tmp_path / "b").write_bytes(b"x" * 95 + b"\n")
    plan, at = planner(tmp_path, max_bytes=100), dict[str, int]()
    for _ in range(3):
        at = plan.advance(at)
    assert at == {"a": 6, "b": 96}


def test_hidden_and_unfinished_files_are_ignored(tmp_path: Path) -> None:
    for name in ("a.csv", ".a.csv", "_a.csv", "a.csv.tmp", "a.csv.part", "b"):
        (tmp_path / name).touch()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "c").touch()
    (tmp_path / "_hidden").mkdir()
    (tmp_path / "_hidden" / "d").touch()
    assert sorted(list_inodes(tmp_path, "", {})) == ["a.csv", "b", "deep/er/c"]


def test_files_that_are_left_out_are_counted_once_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.csv", ".a.csv", "_a.csv", "a.csv.tmp", "A.PART", "b.txt"):
        (tmp_path / name).touch()
    for name in ("deep", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.txt").touch()
    (tmp_path / "link").symlink_to("deep")
    (tmp_path / "c.csv").symlink_to("a.csv")
    settings = FileSettings.model_validate({"path": str(tmp_path), "format": "text", "file.pattern": "*.csv"})
    tasks = [FileSource.create(settings, task=task, tasks=3) for task in range(3)]
    caplog.set_level("INFO")
    for _ in range(2):
        assert sum(task.lag({}).skipped_files or 0 for task in tasks) == 9
    logged = [record.getMessage() for record in caplog.records]
    assert sum(int(line.split(": ")[1].split()[0]) for line in logged) == 9
    (alone,) = [FileSource.create(settings, task=0, tasks=1)]
    alone.lag({})
    caplog.clear()
    (tmp_path / "_SUCCESS").touch()
    assert alone.lag({}).skipped_files == 10
    (logged_line,) = caplog.messages
    assert logged_line.startswith(
        f"{tmp_path}: 10 files or directories of this task are not read: hidden or unfinished"
    )
    for name in (".a.csv", "_SUCCESS"):
        (tmp_path / name).unlink()
    assert alone.lag({}).skipped_files == 8
    assert caplog.messages == [logged_line]


def test_missing_directory_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone: does not exist; allowed: source\.path names a directory"):
        list_inodes(tmp_path / "gone", "", {})
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="file: not a directory; allowed"):
        list_inodes(tmp_path / "file", "", {})


def test_truncated_file_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n")
    with pytest.raises(SourceError, match="a: has 2 bytes, 10 were read already; allowed: files that only grow"):
        planner(tmp_path).advance({"a": 10})
    with pytest.raises(SourceError, match="a: has 2 bytes, 10 are to be read; allowed: files that only grow"):
        read_bytes(tmp_path, Range(slice="a", start=0, end=10))


def test_non_regular_file_is_a_one_line_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    assert stat.S_ISFIFO((tmp_path / "a").stat().st_mode)
    with pytest.raises(SourceError, match="a: not a regular file; allowed: files"):
        planner(tmp_path).advance({})
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"a: cannot be read \(No such file or directory\); allowed"):
        planner(tmp_path).advance({})


def test_link_to_a_file_outside_the_directory_is_an_error_of_the_task_that_owns_its_name(tmp_path: Path) -> None:
    """Another user who may write in the directory could have any file of the worker's user copied."""
    root, outside = tmp_path / "in", tmp_path / "secret"
    root.mkdir()
    outside.write_text("key\n")
    for number in range(8):
        (root / str(number)).write_text("1\n")
    (root / "a").symlink_to(root / "0")
    (root / "c").symlink_to(outside)
    failed: list[str] = []
    read: list[str] = []
    for task in range(4):
        one = Planner(root=root, task=task, tasks=4, max_bytes=1 << 20)
        try:
            read += one.advance({})
        except SourceError as error:
            failed.append(str(error))
            assert one.lag({}).unreadable_files == 1
        else:
            assert one.lag({}).unreadable_files == 0
    assert failed == [f"{root / 'c'}: links to {outside}; allowed: links to files below {root}"]
    assert "c" not in read
    assert len(read) >= 5


def test_bad_entries_among_parquet_files_are_errors_of_their_tasks(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "0.parquet").write_bytes(b"damaged")
    (root / "a.parquet").symlink_to("/etc/hostname")
    for number in range(1, 9):
        pyarrow.parquet.write_table(pa.table({"a": [number]}), root / f"{number}.parquet")
    failed, read = 0, 0
    for task in range(4):
        source = ParquetSource.create(ParquetSourceSettings(path=str(root)), task=task, tasks=4)
        at: dict[str, int] = {}
        try:
            while (end := source.plan(at)) != at:
                at = end
        except SourceError:
            failed += 1
        read += len(at)
    assert 1 <= failed <= 2
    assert read == 8, "the files beside a bad one are read"


def test_unreadable_file_is_a_one_line_error(tmp_path: Path) -> None:
    """Root may read every file, so the check runs as another user where possible."""
    (tmp_path / "a").write_bytes(b"1\n")
    (tmp_path / "a").chmod(0)
    for parent in (tmp_path, *tmp_path.parents):
        if parent == tmp_path or parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            planner(tmp_path).advance({})
        except SourceError as error:
            os._exit(7 if "a: cannot be read (Permission denied); allowed" in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_file_removed_after_it_was_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"1\n")
    assert planner(tmp_path).advance({"a": 100}) == {"a": 100, "b": 2}


def test_every_file_belongs_to_one_task_under_any_hash_seed() -> None:
    names = [f"part-{n}.csv" for n in range(100)]
    for tasks in (1, 2, 3, 7):
        assert all([is_slice_of(n, t, tasks) for t in range(tasks)].count(True) == 1 for n in names)
    code = (
        "from connectgroup.spark.sources.catalog import is_slice_of;"
        "print(''.join(str(int(is_slice_of(f'part-{n}.csv', 0, 2))) for n in range(100)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {"".join(str(int(is_slice_of(n, 0, 2))) for n in names) + "\n"}
    assert 30 < sum(is_slice_of(n, 0, 2) for n in names) < 70


@pytest.mark.parametrize(
    "form",
    [
        "tx-{0}.csv",  # the CRC-32 of the first eight is odd
        "part-{0:05d}-5f3c2a11-9e0d-4b7a-8c6d-0123456789ab-c000.parquet",
        "tens-{0}0.csv",
        "even-{1}.csv",
        "2026/01/{2:02d}/{3:02d}.json",
        "log-202601{2:02d}{3:02d}0000.json",
    ],
)
@pytest.mark.parametrize("prefix", ["", "a-", "b-"])
def test_numbered_and_dated_files_are_spread_evenly(form: str, prefix: str) -> None:
    """With a digest of the whole name, one of two tasks gets up to 8 of 8, and one of four up to 8 of 16."""
    for count, tasks, most in ((8, 2, 6), (16, 2, 10), (16, 4, 7), (100, 2, 54), (100, 4, 30)):
        names = [prefix + form.format(n, 2 * n, 1 + n // 24, n % 24) for n in range(count)]
        loads = [sum(is_slice_of(name, task, tasks) for name in names) for task in range(tasks)]
        assert sum(loads) == count
        assert max(loads) <= most, (count, tasks, loads)


@pytest.mark.parametrize("seed", range(20))
def test_last_line_end_is_found_at_every_distance(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = b"".join(b"x" * chance.choice([0, 1, 10, 65_535, 65_536, 140_000]) + b"\n" for _ in range(8)) + b"tail"
    (tmp_path / "a").write_bytes(data)
    with (tmp_path / "a").open("rb") as file:
        for _ in range(50):
            start, stop = sorted(chance.sample(range(len(data) + 1), 2))
            at = data.rfind(b"\n", start, stop)
            assert last_line_end(file.fileno(), start, stop) == (at + 1 if at >= 0 else start)
