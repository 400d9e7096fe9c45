"""A file is known by what was read of it: renamed, rotated, copied and rewritten files. No Spark."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.errors import SourceError
from connectgroup.dataplane.ownership import Position, metadata_of, ranges_between
from connectgroup.spark.sources.catalog import is_slice_of
from connectgroup.spark.sources.copies import Copies
from connectgroup.spark.sources.dialect import LineDialect
from connectgroup.spark.sources.file_settings import FileSettings
from connectgroup.spark.sources.files import FileSource
from connectgroup.spark.sources.identity import Identity
from connectgroup.spark.sources.listing import read_bytes
from connectgroup.spark.sources.parts import next_fields, read_part
from connectgroup.spark.sources.planner import FileRules, Planner


class Reader:
    """One task that reads a directory; ``store`` has the committed positions of all tasks."""

    def __init__(self, root: Path, store: dict[str, int], *, task: int = 0, tasks: int = 1, **rules: Any) -> None:
        self.root, self.store = root, store
        mine = {name: at for name, at in store.items() if is_slice_of(name, task, tasks)}
        self.lookups = 0
        others: Callable[[], Mapping[str, int]] | None = self._committed if tasks > 1 else None
        self.planner = Planner(
            root=root,
            task=task,
            tasks=tasks,
            max_bytes=1 << 20,
            rules=FileRules(**rules),
            positions=dict(mine),
            others=others,
        )
        self.at: dict[str, int] = mine

    def _committed(self) -> dict[str, int]:
        self.lookups += 1
        return dict(self.store)

    def read(self) -> str:
        """Read and commit all batches; return the lines in the order of the slices."""
        text = ""
        while (end := self.planner.advance(self.at)) != self.at:
            for part in ranges_between(self.at, end):
                assert metadata_of(part.end)
                named = replace(part, slice=self.planner.file_of(part.slice))
                if named.slice.endswith(".gz"):
                    batches = read_part(self.root, named, from_ddl("value STRING"), LineDialect("text"))
                    text += "".join(f"{line}\n" for batch in batches for line in batch["value"].to_pylist())
                else:
                    text += read_bytes(self.root, named).decode()
            self.at = end
            self.store.update(end)
        return text


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize("restarts", [False, True])
def test_renamed_file_is_not_read_again_and_continues(tmp_path: Path, restarts: bool) -> None:
    store: dict[str, int] = {}
    append(tmp_path / "a", "one\n")
    reader = Reader(tmp_path, store)
    assert reader.read() == "one\n"
    (tmp_path / "a").rename(tmp_path / "z")
    if restarts:
        reader = Reader(tmp_path, store)
    assert reader.read() == ""
    append(tmp_path / "z", "two\n")
    assert reader.read() == "two\n"
    assert store == {"a": 8}
    assert Reader(tmp_path, store).planner.lag(store).files == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_rotated_logs_are_read_once(tmp_path: Path, restarts: bool) -> None:
    """A chain of renames at once, and a new file under the first name."""
    store: dict[str, int] = {}
    reader = Reader(tmp_path, store)
    text = ""
    for round_ in range(4):
        for number in range(round_, 0, -1):
            source = tmp_path / (f"log.{number - 1}" if number > 1 else "log")
            append(source, f"late {round_} {number}\n")
            source.rename(tmp_path / f"log.{number}")
        append(tmp_path / "log", f"line {round_}\n")
        if restarts:
            reader = Reader(tmp_path, store)
        text += reader.read()
    assert sorted(text.splitlines()) == sorted(
        [f"line {n}" for n in range(4)] + [f"late {n} {m}" for n in range(4) for m in range(1, n + 1)]
    )
    assert sorted(store) == ["log", "log#2", "log#3", "log#4"]


def test_file_renamed_to_the_name_of_another_task_is_read_once(tmp_path: Path) -> None:
    store: dict[str, int] = {}
    names = {task: [n for n in map(str, range(100)) if is_slice_of(n, task, 2)] for task in range(2)}
    append(tmp_path / names[0][0], "one\n")
    tasks = [Reader(tmp_path, store, task=task, tasks=2) for task in range(2)]
    assert [task.read() for task in tasks] == ["one\n", ""]
    (tmp_path / names[0][0]).rename(tmp_path / names[1][0])
    append(tmp_path / names[1][0], "two\n")
    assert [task.read() for task in reversed(tasks)] == ["", "two\n"]
    assert [task.planner.lag(store).files for task in tasks] == [0, 0]
    shutil.copy(tmp_path / names[1][0], tmp_path / names[1][1])
    assert [task.read() for task in tasks] == ["", "one\ntwo\n"], "a copy is another file"


def test_other_tasks_are_asked_only_for_files_that_may_have_been_renamed(tmp_path: Path) -> None:
    """A look-up reads all offsets of the connector: with the sink kafka, a topic."""
    store: dict[str, int] = {}
    names = [n for n in map(str, range(100)) if is_slice_of(n, 0, 2)]
    append(tmp_path / names[0], "x\n")
    reader = Reader(tmp_path, store, tasks=2)
    reader.read()
    assert reader.lookups == 1, "renamed before this task started?"
    for name in names[1:10]:
        append(tmp_path / name, f"{name}\n")
        assert reader.read() == f"{name}\n"
    assert reader.lookups == 1
    theirs = next(n for n in map(str, range(100)) if is_slice_of(n, 1, 2))
    append(tmp_path / theirs, "one\n")
    assert reader.read() == ""
    assert Reader(tmp_path, store, task=1, tasks=2).read() == "one\n"
    (tmp_path / theirs).rename(tmp_path / names[20])
    for _ in range(3):
        assert reader.read() == ""
    assert reader.lookups == 2


@pytest.mark.parametrize("identity", ["content", "inode"])
@pytest.mark.parametrize("more", ["", "more\n"])
def test_file_renamed_to_the_name_of_another_task_and_written_anew_is_read(
    tmp_path: Path, identity: str, more: str
) -> None:
    store: dict[str, int] = {}
    theirs, ours = (next(n for n in map(str, range(60)) if is_slice_of(n, task, 2)) for task in range(2))
    tasks = [Reader(tmp_path, store, task=task, tasks=2, identity=identity) for task in range(2)]
    append(tmp_path / theirs, LINES)
    assert [task.read() for task in tasks] == [LINES, ""]
    (tmp_path / theirs).rename(tmp_path / ours)
    assert [task.read() for task in tasks] == ["", ""]
    other = LINES.replace("line 100", "LINE 100") + more
    (tmp_path / ours).write_text(other)
    os.utime(tmp_path / ours, (1, 1))
    assert [task.read() for task in tasks] == ["", other]
    append(tmp_path / ours, "last\n")
    assert [task.read() for task in tasks] == ["", "last\n"]


def test_file_renamed_before_the_task_of_its_new_name_has_seen_the_former_one_is_read_once(tmp_path: Path) -> None:
    """A program that gives a file its name when it is complete, and another task has read it meanwhile."""
    store: dict[str, int] = {}
    before = [name for n in range(60) if is_slice_of(name := f"{n}.writing", 0, 2)]
    after = [name for n in range(60) if is_slice_of(name := f"{n}.csv", 1, 2)]
    tasks = [Reader(tmp_path, store, task=task, tasks=2) for task in range(2)]
    append(tmp_path / "first", "first\n")
    assert sorted(task.read() for task in tasks) == ["", "first\n"]
    for number in range(4):
        append(tmp_path / before[number], f"{number}\n")
        os.utime(tmp_path / before[number], (1, 1))
        assert tasks[0].read() == f"{number}\n"
        (tmp_path / before[number]).rename(tmp_path / after[number])
        assert [task.read() for task in reversed(tasks)] == ["", ""]
        append(tmp_path / after[number], "more\n")
        assert [task.read() for task in reversed(tasks)] == ["", "more\n"]
    lookups = tasks[1].lookups
    append(tmp_path / ".new", "new\n")
    (tmp_path / ".new").rename(tmp_path / after[9])
    assert [task.read() for task in tasks] == ["", "new\n"]
    assert tasks[1].lookups <= lookups + 1


@pytest.mark.parametrize("same_size", [False, True])
def test_file_rewritten_in_place_is_an_error_that_says_so(tmp_path: Path, same_size: bool) -> None:
    store: dict[str, int] = {}
    append(tmp_path / "a", "one\n")
    reader = Reader(tmp_path, store)
    reader.read()
    (tmp_path / "a").write_text("two\n" if same_size else "two\nthree\n")
    os.utime(tmp_path / "a", (1, 1))
    for each in (reader, Reader(tmp_path, store)):
        with pytest.raises(
            SourceError,
            match=r"a: was rewritten: it no longer begins with the 4 bytes that were read of it;"
            r" allowed: files that only grow .*, or source\.on\.rewrite=read",
        ):
            each.read()
    again = Reader(tmp_path, store, on_rewrite="read")
    assert again.read() == (tmp_path / "a").read_text()
    append(tmp_path / "a", "four\n")
    assert Reader(tmp_path, store, on_rewrite="read").read() == "four\n"
    (tmp_path / "a").write_text("x\n")
    assert again.read() == "x\n", "shorter than what was read"
    assert sorted(store) == ["a", "a#2", "a#3"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("way", ["replaced", "in place", "compressed"])
@pytest.mark.parametrize("more", ["", "more\n"])
def test_file_with_another_value_in_its_middle_is_not_the_one_that_was_read(
    tmp_path: Path, way: str, more: str, restarts: bool
) -> None:
    """A nightly export with as many bytes, whose beginning and end are as they were."""
    rows = [f"{number},{number * 7919 % 1000:03}\n" for number in range(3_000)]
    name = "a.gz" if way == "compressed" else "a"

    def write(path: Path, text: str) -> None:
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if way == "compressed" else text.encode())

    (tmp_path / "a").write_text("".join(rows))
    reader = Reader(tmp_path, {})
    assert reader.read() == "".join(rows)
    rows[1_500] = f"1500,{(1500 * 7919 + 1) % 1000:03}\n"
    changed = "".join(rows) + more
    if way == "in place":
        write(tmp_path / name, changed)
    else:
        write(tmp_path / "new.tmp", changed)
        (tmp_path / "a").unlink()
        (tmp_path / "new.tmp").rename(tmp_path / name)
    os.utime(tmp_path / name, (1, 1))
    if way != "compressed":
        with pytest.raises(SourceError, match="a: was rewritten: it no longer begins with"):
            reread(reader, restarts).read()
    again = Reader(tmp_path, reader.store, on_rewrite="read")
    assert again.read() == changed
    assert again.read() == reread(again, restarts, on_rewrite="read").read() == ""
    assert again.planner.lag(again.store).files == 0


def test_file_rewritten_with_the_same_beginning_continues(tmp_path: Path) -> None:
    """A writer that replaces a file by a longer version of it."""
    store: dict[str, int] = {}
    append(tmp_path / "a", "one\n")
    Reader(tmp_path, store).read()
    append(tmp_path / "new.tmp", "one\ntwo\n")
    (tmp_path / "new.tmp").rename(tmp_path / "a")
    assert Reader(tmp_path, store).read() == "two\n"


def test_new_file_with_the_content_of_a_deleted_one_is_read(tmp_path: Path) -> None:
    store: dict[str, int] = {}
    append(tmp_path / "monday", "ok\n")
    reader = Reader(tmp_path, store)
    reader.read()
    (tmp_path / "monday").unlink()
    append(tmp_path / "tuesday", "ok\n")
    os.utime(tmp_path / "tuesday", (1, 1))
    assert reader.read() == "ok\n"


def test_file_moved_from_another_disk_is_not_read_again(tmp_path: Path) -> None:
    """Another inode; the content and the time of change are the same."""
    store: dict[str, int] = {}
    append(tmp_path / "a", "one\n")
    Reader(tmp_path, store).read()
    shutil.copy2(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").unlink()
    assert Reader(tmp_path, store).read() == ""


def test_archive_with_another_value_and_the_time_of_the_last_one_is_read(tmp_path: Path) -> None:
    """Some programs give each file that they extract the same time."""
    rows = [f"{number}\n" for number in range(1_000, 4_000)]
    (tmp_path / "monday").write_text("".join(rows))
    os.utime(tmp_path / "monday", (1, 1))
    reader = Reader(tmp_path, {})
    assert reader.read() == "".join(rows)
    (tmp_path / "monday").rename(tmp_path.parent / f"{tmp_path.name}-old")
    rows[1_500] = "9999\n"
    (tmp_path / "tuesday").write_text("".join(rows))
    os.utime(tmp_path / "tuesday", (1, 1))
    assert reader.read() == "".join(rows)


LINES = "".join(f"line {n}\n" for n in range(200))


def reread(reader: Reader, restarts: bool, **rules: Any) -> Reader:
    return Reader(reader.root, reader.store, **rules) if restarts else reader


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("identity", ["content", "name", "inode"])
def test_nightly_export_with_the_rows_of_yesterday_and_more_is_read_whole(
    tmp_path: Path, identity: str, restarts: bool
) -> None:
    append(tmp_path / "monday", LINES)
    reader = Reader(tmp_path, {}, identity=identity)
    assert reader.read() == LINES
    (tmp_path / "monday").rename(tmp_path.parent / f"{tmp_path.name}-archive")
    append(tmp_path / "tuesday", LINES + "more\n")
    assert reread(reader, restarts, identity=identity).read() == LINES + "more\n"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("identity", "found"), [("content", "more\n"), ("inode", LINES + "more\n")])
def test_file_that_takes_the_place_of_another_is_new_by_its_inode(
    tmp_path: Path, identity: str, found: str, restarts: bool
) -> None:
    """An export that is written anew under its name; and by content, a file that a program writes anew to append."""
    append(tmp_path / "a", LINES)
    reader = Reader(tmp_path, {}, identity=identity)
    assert reader.read() == LINES
    append(tmp_path / "a.tmp", LINES + "more\n")
    (tmp_path / "a.tmp").rename(tmp_path / "a")
    reader = reread(reader, restarts, identity=identity)
    assert reader.read() == found
    append(tmp_path / "a", "last\n")
    assert reread(reader, restarts, identity=identity).read() == "last\n"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("identity", ["content", "inode"])
def test_new_log_with_the_first_lines_of_the_rotated_one_is_read_whole(
    tmp_path: Path, identity: str, restarts: bool
) -> None:
    append(tmp_path / "log", "version 1\n")
    reader = Reader(tmp_path, {}, identity=identity)
    assert reader.read() == "version 1\n"
    append(tmp_path / "log", "late\n")
    (tmp_path / "log").rename(tmp_path / "log.1")
    append(tmp_path / "log", "version 1\nearly\n")
    assert sorted(reread(reader, restarts, identity=identity).read().splitlines()) == ["early", "late", "version 1"]


@pytest.mark.parametrize("restarts", [False, True])
def test_renamed_file_is_read_again_if_its_name_is_its_identity(tmp_path: Path, restarts: bool) -> None:
    append(tmp_path / "a", "one\n")
    reader = Reader(tmp_path, {}, identity="name")
    assert reader.read() == "one\n"
    (tmp_path / "a").rename(tmp_path / "b")
    append(tmp_path / "b", "two\n")
    reader = reread(reader, restarts, identity="name")
    assert reader.read() == "one\ntwo\n"
    append(tmp_path / "b", "three\n")
    assert reread(reader, restarts, identity="name").read() == "three\n"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("identity", ["content", "name", "inode"])
@pytest.mark.parametrize("more", ["", "more\n"])
def test_content_that_comes_back_is_read_again(tmp_path: Path, identity: str, restarts: bool, more: str) -> None:
    reader = Reader(tmp_path, {}, identity=identity, on_rewrite="read")
    for number, text in enumerate(("one\n", "other\n", "one\n" + more, "other\n", "one\n")):
        (tmp_path / "a").write_text(text)
        os.utime(tmp_path / "a", (number, number))
        reader = reread(reader, restarts, identity=identity, on_rewrite="read")
        assert reader.read() == text
        assert reader.read() == ""
    assert sorted(reader.store) == ["a", "a#2", "a#3", "a#4", "a#5"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("on_rewrite", ["fail", "read"])
def test_log_that_is_copied_and_truncated_is_read_once(tmp_path: Path, restarts: bool, on_rewrite: str) -> None:
    """logrotate's copytruncate: lines that came after the last batch are in the copy alone."""
    append(tmp_path / "app.log", LINES)
    reader = Reader(tmp_path, {}, on_rewrite=on_rewrite)
    assert reader.read() == LINES
    for round_ in range(3):
        append(tmp_path / "app.log", f"late {round_}\n")
        if (tmp_path / "app.log.1").exists():
            (tmp_path / "app.log.1").rename(tmp_path / f"app.log.{round_ + 1}")
        shutil.copy(tmp_path / "app.log", tmp_path / "app.log.1")
        (tmp_path / "app.log").write_text("")
        append(tmp_path / "app.log", f"new {round_}\n")
        reader = reread(reader, restarts, on_rewrite=on_rewrite)
        assert sorted(reader.read().split()) == sorted(f"late {round_} new {round_}".split())


SETTLE = 3_600_000


@pytest.mark.parametrize("on_rewrite", ["fail", "read"])
def test_copy_stays_the_log_that_was_truncated_when_the_settle_window_has_ended(
    tmp_path: Path, on_rewrite: str
) -> None:
    append(tmp_path / "app.log", LINES)
    reader = Reader(tmp_path, {}, settle_ms=SETTLE, on_rewrite=on_rewrite)
    assert reader.read() == LINES
    shutil.copy(tmp_path / "app.log", tmp_path / "app.log.1")
    (tmp_path / "app.log").write_text("")
    append(tmp_path / "app.log", "new\n")
    assert reader.read() == "new\n"
    reader = Reader(tmp_path, reader.store, on_rewrite=on_rewrite)
    assert [reader.read() for _ in range(3)] == ["", "", ""]
    (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
    append(tmp_path / "app.log", "last\n")
    assert [reader.read() for _ in range(3)] == ["last\n", "", ""]
    assert reader.planner.lag(reader.at).files == 0


def test_copy_beside_other_new_files_is_read_once_by_several_tasks(tmp_path: Path) -> None:
    """The log is of one task; the copy, and a file that is new as well, of another one."""
    theirs = next(name for n in range(60) if is_slice_of(name := f"app{n}.log", 0, 2))
    copies = [name for n in range(60) if is_slice_of(name := f"{theirs}.{n}", 1, 2)]
    store: dict[str, int] = {}
    append(tmp_path / theirs, LINES)
    tasks = [Reader(tmp_path, store, task=task, tasks=2, settle_ms=SETTLE) for task in range(2)]
    assert [task.read() for task in tasks] == [LINES, ""]
    shutil.copy(tmp_path / theirs, tmp_path / copies[1])
    (tmp_path / theirs).write_text("new\n")
    append(tmp_path / copies[0], "other\n")
    assert [task.read() for task in tasks] == ["new\n", "other\n"]
    assert [task.read() for task in tasks] == ["", ""]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_logs_that_are_numbered_and_compressed_are_read_once_by_several_tasks(
    tmp_path: Path, tasks: int, restarts: bool
) -> None:
    """logrotate with delaycompress: app.log.1 becomes app.log.2.gz, and app.log becomes app.log.1."""
    store: dict[str, int] = {}

    def started() -> list[Reader]:
        return [Reader(tmp_path, store, task=task, tasks=tasks) for task in range(tasks)]

    append(tmp_path / "app.log.1", "older\n")
    readers = started()
    assert "".join(each.read() for each in readers) == "older\n"
    for round_ in range(4):
        for path in sorted(tmp_path.glob("app.log.*.gz"), reverse=True):
            path.rename(tmp_path / f"app.log.{int(path.name[8:-3]) + 1}.gz")
        if (tmp_path / "app.log.1").exists():
            packed = gzip.compress((tmp_path / "app.log.1").read_bytes())
            (tmp_path / "app.log.1").unlink()
            (tmp_path / "app.log.2.gz").write_bytes(packed)
        if round_:
            (tmp_path / "app.log").rename(tmp_path / "app.log.1")
        append(tmp_path / "app.log", f"round {round_}\n")
        readers = started() if restarts else readers
        assert "".join(each.read() for each in readers) == f"round {round_}\n"
        assert "".join(each.read() for each in readers) == ""


def spread(tasks: int) -> tuple[str, str]:
    """Return the name of a log and of its copy, which belong to different tasks if there are two."""
    for number in range(100):
        log, copy = f"{number}.log", f"{number}.log.1"
        if tasks == 1 or (is_slice_of(log, 0, 2) and is_slice_of(copy, 1, 2)):
            return log, copy
    raise AssertionError


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("renames", [False, True])
@pytest.mark.parametrize("lines", [3, 40, 4000])
def test_log_is_read_once_while_it_is_copied_and_then_truncated(
    tmp_path: Path, restarts: bool, tasks: int, renames: bool, lines: int
) -> None:
    """At each moment of two rotations: the copy is partial, complete, and the log truncated, short, long again."""
    log, copy = spread(tasks)
    if renames:
        copy = next(n for n in (f"archive-{n}" for n in range(99)) if tasks == 1 or is_slice_of(n, 1, 2))
    store: dict[str, int] = {}
    seen: list[str] = []
    readers = [Reader(tmp_path, store, task=task, tasks=tasks, settle_ms=SETTLE) for task in range(tasks)]

    def look() -> None:
        for task in range(tasks):
            if restarts:
                readers[task] = Reader(tmp_path, store, task=task, tasks=tasks, settle_ms=SETTLE)
            seen.extend(readers[task].read().splitlines())

    expected = []
    for round_ in range(2):
        # The next copy may get the inode of this one.
        (tmp_path / copy).unlink(missing_ok=True)
        written = [f"{round_} line {number}" for number in range(lines)]
        append(tmp_path / log, "".join(f"{line}\n" for line in written))
        look()
        append(tmp_path / log, f"{round_} late\n")
        content = (tmp_path / log).read_text()
        for part in (0, 1, 2, 4):
            (tmp_path / copy).write_text(content[: len(content) * part // 4])
            look()
        append(tmp_path / log, f"{round_} last\n")
        (tmp_path / copy).write_text(content + f"{round_} last\n")
        os.truncate(tmp_path / log, 0)
        look()
        append(tmp_path / log, f"{round_} new\n")
        look()
        expected += [*written, f"{round_} late", f"{round_} last", f"{round_} new"]
        assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("tasks", [1, 2])
def test_copy_that_ends_and_log_that_is_truncated_between_two_batches_are_read_once(tmp_path: Path, tasks: int) -> None:
    log, copy = spread(tasks)
    store: dict[str, int] = {}
    readers = [Reader(tmp_path, store, task=task, tasks=tasks, settle_ms=SETTLE) for task in range(tasks)]
    append(tmp_path / log, LINES)
    assert "".join(reader.read() for reader in readers) == LINES
    shutil.copy(tmp_path / log, tmp_path / copy)
    os.truncate(tmp_path / log, 0)
    assert [reader.read() for reader in reversed(readers)] == [""] * tasks


def test_copy_and_truncation_during_a_batch_longer_than_the_settle_window_are_read_once(tmp_path: Path) -> None:
    """The task of the copy sees it when the log was truncated long ago; it has seen neither."""
    log, copy = spread(2)
    store: dict[str, int] = {}
    readers = [Reader(tmp_path, store, task=task, tasks=2, settle_ms=1) for task in range(2)]
    append(tmp_path / log, LINES)
    assert [reader.read() for reader in readers] == [LINES, ""]
    shutil.copy(tmp_path / log, tmp_path / copy)
    append(tmp_path / copy, "late\n")
    os.truncate(tmp_path / log, 0)
    while time.time() < (tmp_path / copy).stat().st_ctime + 0.002:
        continue
    assert [reader.read() for reader in reversed(readers)] == ["", "late\n"]
    assert [reader.read() for reader in readers] == ["", ""]


def test_log_that_begins_with_the_same_line_after_it_was_truncated_is_read_once(tmp_path: Path) -> None:
    log, copy = spread(2)
    store: dict[str, int] = {}
    readers = [Reader(tmp_path, store, task=task, tasks=2, settle_ms=SETTLE) for task in range(2)]
    append(tmp_path / log, f"begin\n{LINES}")
    assert [reader.read() for reader in readers] == [f"begin\n{LINES}", ""]
    # Another new file, for which the task looks at the starts of all files.
    append(tmp_path / (other := next(n for n in (f"{n}" for n in range(99)) if is_slice_of(n, 1, 2))), "other\n")
    assert [reader.read() for reader in readers] == ["", "other\n"], other
    shutil.copy(tmp_path / log, tmp_path / copy)
    (tmp_path / log).write_text("begin\nnew\n")
    assert [reader.read() for reader in reversed(readers)] == ["", "begin\nnew\n"]


def test_log_that_is_truncated_while_a_batch_is_planned_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner has looked at the log, and then comes to the copy: nothing begins with that any more."""
    append(tmp_path / "app.log", LINES)
    reader = Reader(tmp_path, {}, settle_ms=SETTLE)
    assert reader.read() == LINES
    shutil.copy(tmp_path / "app.log", tmp_path / "app.log.1")
    may_be = Copies.may_be

    def truncate_first(self: Copies, name: str, *args: Any, **more: Any) -> bool:
        if name == "app.log.1":
            os.truncate(tmp_path / "app.log", 0)
        return may_be(self, name, *args, **more)

    monkeypatch.setattr(Copies, "may_be", truncate_first)
    assert reader.read() == ""
    append(tmp_path / "app.log.1", "late\n")
    assert reader.read() == "late\n"


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("restarts", [False, True])
def test_log_that_is_compressed_and_then_truncated_is_read_once(tmp_path: Path, restarts: bool, tasks: int) -> None:
    names = (f"{number}.log" for number in range(100))
    log = next(n for n in names if tasks == 1 or (is_slice_of(n, 0, 2) and is_slice_of(f"{n}.gz", 1, 2)))
    store: dict[str, int] = {}
    seen = ""
    readers = [Reader(tmp_path, store, task=task, tasks=tasks, settle_ms=SETTLE) for task in range(tasks)]

    def look() -> None:
        nonlocal seen
        for task in range(tasks):
            if restarts:
                readers[task] = Reader(tmp_path, store, task=task, tasks=tasks, settle_ms=SETTLE)
            seen += readers[task].read()

    append(tmp_path / log, LINES)
    look()
    append(tmp_path / log, "late\n")
    packed = gzip.compress((LINES + "late\n").encode())
    for part in (len(packed) // 2, len(packed)):
        (tmp_path / f"{log}.gz").write_bytes(packed[:part])
        look()
    os.truncate(tmp_path / log, 0)
    look()
    append(tmp_path / log, "new\n")
    look()
    assert sorted(seen.splitlines()) == sorted([*LINES.splitlines(), "late", "new"])


def test_copy_of_a_file_that_stays_is_read_after_the_settle_window(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(tmp_path / "a", LINES)
    reader = Reader(tmp_path, {}, settle_ms=300)
    assert reader.read() == LINES
    append(tmp_path / "b", LINES)
    append(tmp_path / "longer", LINES + "more\n")
    append(tmp_path / "other", "other\n")
    assert reader.read() == LINES + "more\nother\n"
    assert reader.planner.lag(reader.at).files == 1
    time.sleep(0.4)
    assert reader.read() == LINES
    os.truncate(tmp_path / "a", 0)
    assert reader.read() == ""
    time.sleep(0.4)
    with pytest.raises(
        SourceError, match=r"a: has 0 bytes, .*\(as (b|longer) does: if that is its copy, its rows were read twice"
    ):
        reader.read()
    again = Reader(tmp_path, reader.store, settle_ms=300, on_rewrite="read")
    append(tmp_path / "a", "new\n")
    assert again.read() == "new\n"
    assert "begins with what was read of it: if that is its copy, its rows were read twice" in caplog.text


def test_files_that_were_there_before_the_first_batch_do_not_wait(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        append(tmp_path / name, LINES)
    assert Reader(tmp_path, {}, settle_ms=SETTLE).read() == 3 * LINES


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("late", ["", "late\n"])
@pytest.mark.parametrize("keeps", [False, True])
def test_rotated_log_that_is_compressed_is_read_once(tmp_path: Path, restarts: bool, late: str, keeps: bool) -> None:
    """Lines that came between the last batch and the compression are read from the compressed file."""
    append(tmp_path / "app.log", LINES)
    reader = Reader(tmp_path, {})
    assert reader.read() == LINES
    (tmp_path / "app.log").rename(tmp_path / "app.log.1")
    append(tmp_path / "app.log", "new\n")
    reader = reread(reader, restarts)
    assert reader.read() == "new\n"
    append(tmp_path / "app.log.1", late)
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress((LINES + late).encode()))
    if not keeps:
        (tmp_path / "app.log.1").unlink()
    reader = reread(reader, restarts)
    assert reader.read() == late
    (tmp_path / "app.log.1.gz").rename(tmp_path / "app.log.2.gz")
    reader = reread(reader, restarts)
    assert reader.read() == ""
    assert reader.planner.lag(reader.at).files == 0
    shown = [FileSource.partition_of(name, at) for name, at in reader.store.items()]
    assert ({"slice": "app.log.1.gz"}, "app.log") in [(name, at.get("packed.from")) for name, at in shown]
    for name, at in shown:
        assert FileSource.slice_of(name, at) == (name["slice"], at["position"])
    other = "".join(f"other {n}\n" for n in range(200))
    (tmp_path / "app.log.3.gz").write_bytes(gzip.compress(other.encode()))
    assert reread(reader, restarts).read() == other


def test_log_of_one_task_that_is_compressed_to_the_name_of_another_is_read_once(tmp_path: Path) -> None:
    store: dict[str, int] = {}
    name = next(f"{n}.log" for n in range(100) if is_slice_of(f"{n}.log", 0, 2) and is_slice_of(f"{n}.log.gz", 1, 2))
    append(tmp_path / name, LINES)
    tasks = [Reader(tmp_path, store, task=task, tasks=2) for task in range(2)]
    assert [task.read() for task in tasks] == [LINES, ""]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress((LINES + "late\n").encode()))
    (tmp_path / name).unlink()
    assert [task.read() for task in tasks] == ["", "late\n"]


def test_offsets_show_the_file_of_a_slice_that_has_another_name(tmp_path: Path) -> None:
    store: dict[str, int] = {}
    append(tmp_path / "log", "one\n")
    reader = Reader(tmp_path, store)
    reader.read()
    (tmp_path / "log").rename(tmp_path / "log.1")
    append(tmp_path / "log.1", "two\n")
    append(tmp_path / "log", "new\n")
    reader.read()
    assert [FileSource.partition_of(name, at) for name, at in sorted(store.items())] == [
        ({"slice": "log"}, {"position": 8, "file": "log.1"}),
        ({"slice": "log#2"}, {"position": 4, "file": "log"}),
    ]


def test_offsets_without_metadata_still_load(tmp_path: Path) -> None:
    append(tmp_path / "a", "one\n")
    append(tmp_path / "a", "two\n")
    store: dict[str, int] = {"a": 4}
    assert Reader(tmp_path, store).read() == "two\n"
    assert isinstance(store["a"], Position)
    store = {"a": 100}
    with pytest.raises(SourceError, match="a: has 8 bytes, 100 were read already; allowed: files that only grow"):
        Reader(tmp_path, store).read()
    assert Reader(tmp_path, store, on_rewrite="read").read() == "one\ntwo\n"
    assert Reader(tmp_path, store).read() == ""


def test_last_line_without_a_line_feed_is_shown_and_read_on_request(tmp_path: Path) -> None:
    store: dict[str, int] = {}
    append(tmp_path / "a", "one\ntwo")
    reader = Reader(tmp_path, store)
    assert reader.read() == "one\n"
    lag = reader.planner.lag(store)
    assert (lag.files, lag.bytes, lag.unfinished_files) == (1, 3, 1)
    young = Reader(tmp_path, store, final_newline="accept", final_newline_ms=3_600_000)
    assert young.read() == ""
    old = Reader(tmp_path, store, final_newline="accept", final_newline_ms=0)
    assert old.read() == "two"
    assert old.planner.lag(store).unfinished_files == 0
    append(tmp_path / "a", "\nthree\n")
    assert old.read() == "\nthree\n"


def test_line_that_goes_on_after_it_was_accepted_is_an_error(tmp_path: Path) -> None:
    append(tmp_path / "a", "one")
    reader = Reader(tmp_path, {}, final_newline="accept", final_newline_ms=0)
    assert reader.read() == "one"
    append(tmp_path / "a", "more\n")
    with pytest.raises(SourceError, match=r"a: byte 3 is not the start of a line: .*final\.newline=accept"):
        reader.read()


def test_file_that_cannot_be_read_is_left_out_if_errors_are_tolerated(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    append(tmp_path / "b", "one\n")
    with pytest.raises(SourceError, match="a: cannot be read"):
        Reader(tmp_path, {}).read()
    (tmp_path / "c").symlink_to("/etc/hostname")
    reader = Reader(tmp_path, {}, skips_bad=True)
    assert reader.read() == "one\n"
    assert sorted(reader.planner.problems) == ["a", "c"]
    assert reader.planner.lag(reader.at).unreadable_files == 2


def test_compressed_file_is_read_when_it_is_complete(tmp_path: Path) -> None:
    whole = gzip.compress(b"one\n" * 1000)
    (tmp_path / "a.gz").write_bytes(whole[:-10])
    reader = Reader(tmp_path, {})
    assert reader.planner.advance({}) == {}
    assert Reader(tmp_path, {}, final_newline="accept", final_newline_ms=0).planner.advance({}) == {
        "a.gz": len(whole) - 10
    }
    waiting = reader.planner.lag({})
    assert (waiting.files, waiting.unfinished_files) == (1, 1), "shown, and not only waited for"
    (tmp_path / "a.gz").write_bytes(whole)
    assert reader.planner.advance({}) == {"a.gz": len(whole)}


def test_incomplete_compressed_files_are_unfinished_in_the_lag_of_a_source(tmp_path: Path) -> None:
    """Each measurement unpacks one file that it does not know, so that a directory full of them costs little."""
    whole = gzip.compress(b"one\n" * 1000)
    source = FileSource.create(FileSettings.model_validate({"path": str(tmp_path), "format": "text"}), task=0, tasks=1)
    for name, size in (("a.gz", len(whole)), ("b.gz", len(whole) - 10), ("c.gz", len(whole) - 20)):
        (tmp_path / name).write_bytes(whole[:size])
    assert [source.lag({}).unfinished_files for _ in range(4)] == [0, 1, 2, 2]
    (tmp_path / "c.gz").write_bytes(whole)
    assert source.lag({}).unfinished_files == 1


def test_only_files_of_the_pattern_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.csv", "b.txt", "deep/c.csv"):
        append(tmp_path / name, f"{name}\n")
    assert Reader(tmp_path, {}, pattern="*.csv").read() == "a.csv\ndeep/c.csv\n"
    assert Reader(tmp_path, {}, pattern="deep/*").read() == "deep/c.csv\n"


def test_new_fields_of_a_file_that_is_read_from_its_start_are_found(tmp_path: Path) -> None:
    """It was rewritten in place, or has the inode of a deleted file: the committed position is not one of it."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 10)
    with path.open("rb") as file:
        identity = Identity.of(file.fileno(), "a.jsonl", path.stat().st_size)
    positions = {"a.jsonl": Position(identity.read, identity.metadata())}
    assert [*next_fields(tmp_path, positions)] == []
    path.write_text('{"b": 1}\n')
    assert [column.name for columns in next_fields(tmp_path, positions) for column in columns] == ["b"]


def test_new_fields_of_a_compressed_file_are_found_piece_by_piece(tmp_path: Path) -> None:
    lines = b'{"a": 1}\n' * 1_000_000 + b'{"b": 1}\n'
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    found = [*next_fields(tmp_path, {})]
    assert len(found) == 3, "pieces of 4 MiB"
    assert [column.name for column in found[-1]] == ["a", "b"]


@pytest.mark.parametrize("identity", ["content", "inode", "name"])
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("second", ["0.csv", "z.csv", "deep/a.csv"])
@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_file_with_two_names_is_read_once(tmp_path: Path, link: str, second: str, tasks: int, identity: str) -> None:
    """As a program has it that links a file to its new name before it removes the old one, or a link to the latest."""
    (tmp_path / "deep").mkdir()
    first, other = tmp_path / "m.csv", tmp_path / second
    first.write_text("1\n2\n")
    store: dict[str, int] = {}
    readers = [Reader(tmp_path, store, task=task, tasks=tasks, identity=identity) for task in range(tasks)]

    def lines() -> list[str]:
        return sorted("".join(reader.read() for _ in range(2) for reader in readers).split())

    times = 2 if identity == "name" else 1
    assert lines() == ["1", "2"]
    if link == "hard":
        os.link(first, other)
    else:
        other.symlink_to(first)
    assert lines() == ["1", "2"] * (times - 1)
    with first.open("a") as file:
        file.write("3\n")
    assert lines() == ["3"] * times
    if link == "hard":
        first.unlink()
        with other.open("a") as file:
            file.write("4\n")
        assert lines() == ["4"]


@pytest.mark.parametrize("on_rewrite", ["fail", "read"])
def test_logs_that_begin_alike_are_read_once_through_two_rotations(tmp_path: Path, on_rewrite: str) -> None:
    """The second log begins with all that was read of the first one: its header."""
    reader = Reader(tmp_path, {}, on_rewrite=on_rewrite)
    log, text = tmp_path / "app.csv", "header\n"
    append(log, text)
    read = reader.read()
    for number in range(3):
        for older in (2, 1):
            if (tmp_path / f"app.csv.{older}").exists():
                (tmp_path / f"app.csv.{older}").rename(tmp_path / f"app.csv.{older + 1}")
        log.rename(tmp_path / "app.csv.1")
        append(log, more := f"header\n{number}\n{number}\n")
        text += more
        read += reader.read()
    assert sorted(read.splitlines()) == sorted(text.splitlines())
