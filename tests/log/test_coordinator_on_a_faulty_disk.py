"""The coordinator with a failing disk: requests get retriable errors, and succeed once the disk works again (F10)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectgroup.cli.command import main
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, LogError
from connectgroup.log.base import LogNotWritable
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tests.coordinator.builders import GROUP, add, ask, beat, change, look, memory_is_log, serving

from .faulty_vfs import Call, FaultyVfs
from .life import NAME
from .test_faulty_disk import Failing, a_change, any_call, growth

ASK_AGAIN = {CoordinatorNotAvailable.code, CoordinatorLoadInProgress.code}


async def until_served(coordinator: Coordinator, request: HeartbeatRequest) -> tuple[HeartbeatResponse, int]:
    """Retry while the response is retriable, as a worker does. The response, and the number of retries."""
    for retries in itertools.count():
        response = await ask(coordinator, request)
        if response.error_code not in ASK_AGAIN:
            return response, retries
        assert "\n" not in (response.error_message or "")
        await asyncio.sleep(0.05)
    raise AssertionError


@pytest.mark.parametrize(
    ("may", "full", "half"),
    [(any_call, False, False), (a_change, False, True), (growth, True, True)],
    ids=["not done", "done, or half of it", "full after half"],
)
async def test_single_failed_disk_call_costs_one_retry(
    directory: Path, may: Callable[[Call], bool], full: bool, half: bool
) -> None:
    """For each call that a join makes: the group is unchanged or the join is durable; earlier members stay."""
    felt = 0
    for number in itertools.count(1):
        folder = directory / str(number)
        folder.mkdir()
        failing = Failing(number, may, full=full, half=half, ill=False)
        log = SqliteLog(folder / NAME)
        with FaultyVfs(folder, failing):
            async with serving(log) as coordinator:
                await change(coordinator, add())
                first = await ask(coordinator, beat("a"))
                failing.ill = True
                joined, retries = await until_served(coordinator, beat("b"))
                assert joined.error_code == 0
                felt += retries > 0
                stays, _ = await until_served(coordinator, beat("a", first.member_epoch))
                assert stays.error_code == 0
                failing.ill = False
                assert {member.member_id for member in (await look(coordinator)).members} == {"a", "b"}
                await memory_is_log(coordinator, log)
        if failing.failed is None:
            break
    assert felt > 5


@pytest.mark.parametrize(
    ("may", "full"),
    [(growth, True), (a_change, False), (any_call, False)],
    ids=["full", "cannot be written", "gone"],
)
async def test_no_request_succeeds_while_the_disk_fails_and_all_do_afterwards(
    directory: Path, may: Callable[[Call], bool], full: bool
) -> None:
    """F10: retriable responses, the same state afterwards, no restart."""
    failing = Failing(1, may, full=full, lasting=True, ill=False)
    log = SqliteLog(directory / NAME)
    with FaultyVfs(directory, failing):
        async with serving(log) as coordinator:
            await change(coordinator, add())
            first = await ask(coordinator, beat("a"))
            failing.ill = True
            for _ in range(5):
                response = await ask(coordinator, beat("b"))
                assert response.error_code in ASK_AGAIN
                assert response.coordinator_epoch == log.epoch
                await asyncio.sleep(0.1)
            assert failing.failed is not None
            failing.ill = False
            joined, _ = await until_served(coordinator, beat("b"))
            assert joined.error_code == 0
            stays, _ = await until_served(coordinator, beat("a", first.member_epoch))
            assert stays.error_code == 0
            await memory_is_log(coordinator, log)
    async with serving(SqliteLog(directory / NAME)) as coordinator:
        group = await look(coordinator)
        assert {member.member_id for member in group.members} == {"a", "b"}
        assert [connector.connector for connector in group.connectors] == ["c"]


@contextlib.contextmanager
def full_disk(directory: Path, size: str = "1m") -> Iterator[Callable[[bool], None]]:
    """A small file system at the directory; the function fills it, or makes room again."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "log", directory]).returncode:
        pytest.skip("only root can mount a small file system here")
    filler = directory / "filler"

    def fill(fills: bool) -> None:
        filler.unlink(missing_ok=True)
        if fills:
            with filler.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    os.write(file.fileno(), b"x" * 512)

    try:
        yield fill
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@contextlib.contextmanager
def failing_writes(directory: Path) -> Iterator[Callable[[bool], None]]:
    """Each write of SQLite fails with an input/output error, while the function says so."""
    failing = Failing(1, lambda call: call.what == "write", lasting=True, ill=False)

    def fail(fails: bool) -> None:
        failing.ill = fails

    with FaultyVfs(directory, failing):
        yield fail


@pytest.mark.parametrize("disk", [full_disk, failing_writes])
async def test_groups_are_served_from_the_durable_state_while_the_log_takes_no_writes(
    directory: Path, disk: Callable[[Path], AbstractContextManager[Callable[[bool], None]]], caplog: Any
) -> None:
    caplog.set_level(logging.WARNING)
    with disk(directory) as break_disk:
        log = SqliteLog(directory / NAME)
        async with serving(log) as coordinator:
            await change(coordinator, add())
            epoch = (await ask(coordinator, beat("a"))).member_epoch
            assert (await ask(coordinator, beat("a", epoch))).error_code == 0
            before = await look(coordinator)
            caplog.clear()

            break_disk(True)
            parked = asyncio.create_task(ask(coordinator, beat("a", epoch, max_wait_ms=60_000)))
            await asyncio.sleep(0.05)
            for _ in range(3):
                assert (await ask(coordinator, beat("b"))).error_code == CoordinatorNotAvailable.code, "a change"
            assert not parked.done(), "it has nothing to report"
            described = await look(coordinator)
            assert "takes no writes" not in described.log_error
            assert NAME in described.log_error
            assert replace(described, log_error="") == before
            assert (await ask(coordinator, beat("a", epoch))).error_code == 0
            # A change that a member reports is rejected, and begins its session again: its lease stays.
            refused = await ask(
                coordinator, beat("a", epoch, draining=True, owned=frozenset(), rebalance_timeout_ms=60_000)
            )
            assert refused.error_code == CoordinatorNotAvailable.code
            assert refused.session_timeout_ms > 0
            assert (await ask(coordinator, beat("a", epoch))).error_code == 0
            lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
            assert len(lines) == 1, lines

            break_disk(False)
            joined, _ = await until_served(coordinator, beat("b"))
            assert joined.error_code == 0
            assert (await parked).error_code == 0, "it waited until there was a change"
            assert (await look(coordinator)).log_error == ""
            assert [each.getMessage() for each in caplog.records][-1] == "the log takes writes again"
            await memory_is_log(coordinator, log)


async def test_coordinator_starts_when_there_is_space_again_with_all_records(directory: Path) -> None:
    with full_disk(directory) as fill:
        log = SqliteLog(directory / NAME)
        async with serving(log) as coordinator:
            await change(coordinator, add())
            await ask(coordinator, beat("a"))
            before = await look(coordinator)
            fill(True)
            assert (await ask(coordinator, beat("b"))).error_code == CoordinatorNotAvailable.code
        fill(True)  # closing has made room
        for _ in range(2):
            with pytest.raises(LogError, match=r"is full \(SQLITE_FULL\)|may be full") as failed:
                await SqliteLog(directory / NAME).open()
            assert "\n" not in str(failed.value)
        fill(False)
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            after = await look(coordinator)
            assert [each.member_id for each in after.members] == [each.member_id for each in before.members]


async def test_compaction_on_a_full_disk_fails_alone(directory: Path) -> None:
    with full_disk(directory) as fill:
        log = SqliteLog(directory / NAME)
        async with serving(log) as coordinator:
            await change(coordinator, add())
            await ask(coordinator, beat("a"))
            await ask(coordinator, beat("b"))
            fill(True)
            with pytest.raises(LogNotWritable, match="SQLITE_FULL"):
                await log.compact()
            assert {each.member_id for each in (await look(coordinator)).members} == {"a", "b"}
            await memory_is_log(coordinator, log)
            fill(False)
            assert await log.compact() >= 0
            await memory_is_log(coordinator, log)


def new_ext4(image: Path) -> Path:
    """Make a file system of 16 MiB in a file."""
    with image.open("wb") as file:
        file.truncate(16 << 20)
    if not shutil.which("mkfs.ext4") or subprocess.run(["mkfs.ext4", "-q", "-F", image]).returncode:
        pytest.skip("mkfs.ext4 is not installed")
    return image


def remount(directory: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", directory], check=True)


def contents(directory: Path) -> dict[str, bytes]:
    """The bytes of each file."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def put_back(directory: Path, files: dict[str, bytes]) -> None:
    """Write these files, and no others."""
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


@contextlib.contextmanager
def mounted(image: Path, directory: Path) -> Iterator[None]:
    """The file system ext4 of a file, at a directory."""
    if os.geteuid() != 0 or subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, directory]).returncode:
        pytest.skip("only root can mount a file here, if the kernel has loop devices")
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


async def test_groups_are_served_after_the_kernel_has_made_the_file_system_read_only(
    directory: Path, tmp_path: Path, caplog: Any
) -> None:
    """As after an error of the disk (``errors=remount-ro``): until it is mounted again, only reads work."""
    image = new_ext4(tmp_path / "image")
    caplog.set_level(logging.WARNING)
    with mounted(image, directory):
        log = SqliteLog(directory / NAME)
        async with serving(log) as coordinator:
            await change(coordinator, add())
            epoch = (await ask(coordinator, beat("a"))).member_epoch
            remount(directory, "abort")
            for _ in range(3):
                refused = await ask(coordinator, beat("b"))
                assert refused.error_code == CoordinatorNotAvailable.code
                assert "takes no writes" in (refused.error_message or "")
                assert (await ask(coordinator, beat("a", epoch))).error_code == 0
            group = await look(coordinator)
            assert [member.member_id for member in group.members] == ["a"]
            assert NAME in group.log_error
            assert len([each for each in caplog.records if "takes no writes" in each.getMessage()]) == 1
        with pytest.raises(LogError, match=NAME) as failed:
            await SqliteLog(directory / NAME).open()
        assert "\n" not in str(failed.value)
    with mounted(image, directory):
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            assert [member.member_id for member in (await look(coordinator)).members] == ["a"]
            assert (await ask(coordinator, beat("b"))).error_code == 0


async def test_log_on_a_read_only_file_system_is_not_opened_and_not_changed(directory: Path) -> None:
    with full_disk(directory):
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            await change(coordinator, add())
            await ask(coordinator, beat("a"))
        files = contents(directory)
        remount(directory, "ro")
        for restored in False, True:
            with pytest.raises(LogError, match="is on a read-only file system") as failed:
                await SqliteLog(directory / NAME, restored=restored).open()
            assert "\n" not in str(failed.value)
        assert contents(directory) == files
        remount(directory, "rw")
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            assert [member.member_id for member in (await look(coordinator)).members] == ["a"]


async def test_changes_are_durable_though_the_write_ahead_log_cannot_be_written_back(directory: Path) -> None:
    """There is room in the write-ahead log, whose space is used again, but none for the file to grow."""
    with full_disk(directory, size="24m") as fill:
        log = SqliteLog(directory / NAME, compact_after=1_000_000)

        def written_back() -> int:
            return (directory / NAME).stat().st_size

        async def changed(number: int) -> bool:
            request = add(f"c{number}", **{f"setting{n}": "x" * 4_000 for n in range(12)})
            return (await change(coordinator, request)).error_code == 0

        async with serving(log) as coordinator:
            numbers, accepted = itertools.count(), []
            size = written_back()
            while written_back() == size:
                accepted += [number for number in [next(numbers)] if await changed(number)]
            fill(True)
            size, before = written_back(), len(accepted)
            while await changed(number := next(numbers)):
                accepted.append(number)
            assert len(accepted) - before > 50, "in the space of the write-ahead log"
            assert written_back() == size, "it cannot grow"
            await memory_is_log(coordinator, log)
            fill(False)
            for _ in range(100):
                if await changed(number):
                    break
                await asyncio.sleep(0.05)
            accepted.append(number)
            await memory_is_log(coordinator, log)
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            found = {connector.connector for connector in (await look(coordinator)).connectors}
            assert found == {f"c{number}" for number in accepted}


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "without its write-ahead log"])
async def test_log_on_a_full_disk_is_recovered_when_there_is_space(
    directory: Path, capsys: pytest.CaptureFixture[str], cut: bool
) -> None:
    with full_disk(directory) as fill:
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            await change(coordinator, add())
            await ask(coordinator, beat("a"))
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            await ask(coordinator, beat("b"))
            files = contents(directory)
        if cut:
            put_back(directory, {name: data for name, data in files.items() if not name.endswith(("-wal", "-shm"))})
            with pytest.raises(LogError, match="groups recover"):
                await SqliteLog(directory / NAME).open()
        fill(True)
        for _ in range(2):
            assert await asyncio.to_thread(main, ["groups", "recover", str(directory / NAME)]) != 0
            out, err = capsys.readouterr()
            assert out == ""
            assert re.fullmatch(rf"connectgroup: .*{NAME}: .*full.*\n", err), err
        fill(False)
        assert await asyncio.to_thread(main, ["groups", "recover", str(directory / NAME)]) == 0
        assert capsys.readouterr().out == f"group {GROUP}: recovered\n"
        async with serving(SqliteLog(directory / NAME)) as coordinator:
            group = await look(coordinator)
            assert [connector.connector for connector in group.connectors] == ["c"]
            assert group.members == ()
