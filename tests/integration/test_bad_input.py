"""Bad input is reported in one line, the rest of the group continues, and after the correction no row is missing.

Each test has a connector with bad input, beside a healthy one that must not be affected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from connectgroup.errors import InvalidRequest
from connectgroup.spark.sources.catalog import is_slice_of
from tests.volume import ci_only

from .cluster import GROUP, LocalGroup
from .conftest import Background
from .flow import Pipe
from .processes import call_command, programs
from .scene import SINKS, Scenario

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def two_workers(cluster: LocalGroup) -> None:
    cluster.have_workers(2)


def failed(cluster: LocalGroup, pipe: Pipe, *parts: str) -> str:
    """Wait until a unit of a connector fails with a one-line message with these parts; return its error.

    The message begins with the number of the next attempt, which changes. The same error is in the log of the worker.
    """

    def found() -> str | None:
        found_messages = (message for message in cluster.messages(pipe.name) if all(part in message for part in parts))
        return next(found_messages, None)

    message = cluster.wait(f"{pipe.name} failed with {parts}", found)
    assert "\n" not in message
    assert "Traceback" not in message
    assert "allowed: " in message
    error = message.rpartition("last error: ")[2]
    # The status may arrive before the worker's output has been read.
    cluster.wait("the error in the log", lambda: any(f"failed: {error}" in line for _, line in list(cluster.log)))
    return error


def test_unknown_connector_class_lists_the_available_ones(
    cluster: LocalGroup, scene: Scenario, background: Background
) -> None:
    feeder = scene.feed()
    feeder.write(100)
    pipe = scene.pipe("sqlite")
    cluster.put(pipe.name, {**pipe.config, "connector.class": "os.system"})
    error = failed(cluster, pipe, "connector.class: got 'os.system'")
    assert "allowed: idle, pipeline, witnessed-pipeline, a Java class in a jar on the plug-in path" in error
    shown = call_command("groups", "describe", GROUP, "--coordinator", cluster.address)
    assert shown.code == 0
    assert f"  {pipe.name}: FAILED on worker-" in shown.out
    assert f"last error: {error}\n" in shown.out
    background.continues(cluster)
    cluster.run(pipe)
    scene.finish()


def test_invalid_setting_is_named(cluster: LocalGroup, scene: Scenario, background: Background) -> None:
    scene.feed().write(100)
    pipe = scene.pipe("parquet")
    cluster.put(pipe.name, {**pipe.config, "source.pth": "x"})
    expected = "source.pth: unknown; allowed: source.path (did you mean that?)"
    assert failed(cluster, pipe) == expected
    with pytest.raises(InvalidRequest, match=r"tasks\.max: got 'many'; allowed: a whole number from 1 to 100000"):
        cluster.put(pipe.name, {**pipe.config, "tasks.max": "many"})
    background.continues(cluster)
    cluster.run(pipe)
    scene.finish()


def test_missing_directory_may_be_created_later(cluster: LocalGroup, scene: Scenario, background: Background) -> None:
    pipe = scene.pipe("sqlite")
    cluster.put(pipe.name, pipe.config)
    failed(cluster, pipe, f"{scene.root}/source: does not exist; allowed: source.path names a directory")
    background.continues(cluster)
    scene.feed().write(1_000)
    scene.finish()


def test_unreadable_file_stops_only_its_task(cluster: LocalGroup, scene: Scenario, background: Background) -> None:
    """The other task continues; the failed one reads everything once the file can be read."""
    feeder = scene.feed()
    pipe = scene.pipe("parquet")
    cluster.run(pipe)
    feeder.write(500)
    scene.arrived()
    bad = feeder.directory / _name_of_task(0, tasks=2)
    later = feeder.directory / ".later"  # hidden, so it is not a file of the source itself
    bad.symlink_to(later)  # unreadable for root too
    failed(cluster, pipe, f"{bad}: cannot be read (No such file or directory); allowed: files this worker may read")
    other = feeder.directory / _name_of_task(1, tasks=2)
    other.write_bytes(b"id,text\n" + feeder.lines(500, 600))
    cluster.wait("the other task's rows", lambda: pipe.count() == 600)
    # Each attempt runs for a moment before it fails again, so this state has to be awaited.
    cluster.wait("one task FAILED, the other RUNNING", lambda: _states(cluster, pipe) == ["FAILED", "RUNNING"])
    background.continues(cluster)
    later.write_bytes(b"id,text\n" + feeder.lines(600, 700))
    feeder.written = 700
    scene.finish()


def test_invalid_json_line_stops_its_task_until_it_is_corrected(
    cluster: LocalGroup, scene: Scenario, background: Background
) -> None:
    """No row of the batch with the line is committed; after the correction all are. Other tasks continue meanwhile."""
    feeder = scene.feed("jsonl")
    pipe = scene.pipe("sqlite", settings={"source.format": "jsonl"})
    cluster.run(pipe)
    bad = feeder.directory / _name_of_task(0, tasks=2)
    good = feeder.lines(0, 100)
    at = good.index(b'{"id": 50')
    bad.write_bytes(good[:at] + good[at:].replace(b'"id"', b'"id!', 1))
    failed(cluster, pipe, f"{bad}, line 51 (byte {at}): not JSON", "allowed: one JSON object a line")
    other = feeder.directory / _name_of_task(1, tasks=2)
    other.write_bytes(feeder.lines(100, 200))
    cluster.wait("the other task's rows", lambda: pipe.count() == 100)
    # Each attempt runs for a moment before it fails again, so this state has to be awaited.
    cluster.wait("one task FAILED, the other RUNNING", lambda: _states(cluster, pipe) == ["FAILED", "RUNNING"])
    background.continues(cluster)
    with bad.open("r+b") as file:
        file.write(good)
        file.write(feeder.lines(200, 300))
    feeder.written = 300
    scene.finish()


@pytest.mark.parametrize("sink", SINKS)
def test_write_to_a_locked_sink_is_retried_until_it_is_free(
    cluster: LocalGroup, scene: Scenario, background: Background, sink: str
) -> None:
    """F34: another connection holds the sink's write lock for longer than ``sink.busy.timeout.ms``."""
    feeder = scene.feed()
    pipe = scene.pipe(sink, settings={"sink.busy.timeout.ms": "200"})
    cluster.run(pipe)
    feeder.write(200)
    scene.arrived()
    with pipe.locked():
        feeder.write(200)
        failed(cluster, pipe, f"{pipe.database}: locked by another connection for more than 0.2 s; allowed: ")
        background.continues(cluster)
        assert pipe.count() == 200
    scene.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk:
    """A small file system.

    Attributes:
        messages: the sink's error message, by kind of sink.
        make_room: ends the shortage.
    """

    path: Path
    messages: dict[str, str]
    make_room: Callable[[], None]


@pytest.fixture
def small_disk(cluster: LocalGroup, tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 256 kB; where it may not be mounted, a limit of that size on the workers' files."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if _mount("-t", "tmpfs", "-o", "size=256k", "none", str(disk)):
        messages = {
            "sqlite": "the database or its disk is full",
            "parquet": "cannot be written (No space left on device)",
        }
        try:
            yield SmallDisk(path=disk, messages=messages, make_room=lambda: _remount(disk))
        finally:
            subprocess.run(["umount", str(disk)], check=True)
        return
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in map(cluster.pid, cluster.alive())}

    def unlimited() -> None:
        for pid, limit in limits.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)

    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (256 << 10, hard))
    messages = {"sqlite": "disk I/O error", "parquet": "cannot be written (File too large)"}
    try:
        yield SmallDisk(path=disk, messages=messages, make_room=unlimited)
    finally:
        unlimited()


@pytest.mark.parametrize("sink", SINKS)
def test_write_to_a_full_sink_is_retried_until_there_is_space(
    cluster: LocalGroup, small_disk: SmallDisk, scene: Scenario, background: Background, sink: str
) -> None:
    """F10, F34: no row of the batch that did not fit is committed; later all are."""
    feeder = scene.feed()
    pipe = scene.pipe(sink, tasks=1, output=small_disk.path)
    cluster.run(pipe)
    feeder.write(100)
    scene.arrived()
    # One file, renamed into its directory: one batch, which fits or does not.
    part = feeder.directory / "large.part"
    part.write_bytes(b"id,text\n" + feeder.lines(100, 60_100))
    part.rename(feeder.directory / "large.csv")
    feeder.written = 60_100
    failed(cluster, pipe, small_disk.messages[sink])
    assert pipe.count() == 100
    small_disk.make_room()
    background.continues(cluster)
    scene.finish()


NONSENSE = {
    "a negative length": b"\xff\xff\xff\xff",
    "a length of two gigabytes": b"\x7f\xff\xff\xff" + b"x" * 64,
    "a web request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "random bytes": bytes(range(256)) * 16,
    "an unknown API": b"\x00\x00\x00\x0b" + b"\x27\x0f\x00\x00\x00\x00\x00\x01\xff\xff\x00",
    "an invalid heartbeat": b"\x00\x00\x00\x20" + b"\x50\x00\x00\x00\x00\x00\x00\x01\xff\xff\x00" + b"\xff" * 21,
}


def test_garbage_on_the_coordinator_port_has_no_effect(
    cluster: LocalGroup, background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    """Wire 1, 4, 10: the group continues with the same members; the log has a warning without a traceback."""
    cluster.settle()
    members = cluster.members()
    host, port = cluster.address.rsplit(":", 1)
    with caplog.at_level(logging.INFO):
        for what, data in NONSENSE.items():
            with socket.create_connection((host, int(port)), timeout=30) as peer:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                received = b""
                with contextlib.suppress(ConnectionResetError):
                    while more := peer.recv(4096):  # ends when the coordinator closes; or the timeout ends the test
                        received += more
            assert len(received) < 1024, what
            background.continues(cluster)
    cluster.settle()
    assert cluster.members() == members
    assert [record for record in caplog.records if record.levelno == logging.WARNING], "a warning is logged"
    assert not any("\n" in record.getMessage() or record.exc_info for record in caplog.records), caplog.text


def test_worker_with_an_invalid_setting_does_not_start(cluster: LocalGroup) -> None:
    """Rejected before it joins, in one line."""
    refused = call_command("worker", "--group", GROUP, "--coordinator", cluster.address, "--assignor", "nosuch")
    assert (refused.code, refused.out) == (2, "")
    assert (
        refused.err == "connectgroup: --assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted\n"
    )
    assert cluster.members() == set(cluster.alive())


@ci_only("one Spark more; in a user's run, spark/test_worker_process kills Java")
def test_worker_whose_java_is_killed_starts_a_new_one(
    cluster: LocalGroup, scene: Scenario, background: Background
) -> None:
    """The out-of-memory killer ends Java but not the worker."""
    # Rows that pass Spark: others arrive while it starts, and do not need it.
    passing = {"transforms": "same", "transforms.same.type": "sql", "transforms.same.query": "SELECT * FROM batch"}
    scene.run(sinks=("sqlite",), settings=passing)
    (pipe,) = scene.pipes
    victim = next(worker for worker in cluster.alive() if cluster.tasks_of(worker, pipe.name))
    epochs = cluster.tasks_of(victim, pipe.name)
    # One, or two while another Java starts; a command line in between belongs to a process that is about to be Java.
    javas = [pid for pid, command in programs(cluster.pid(victim)).items() if "deploy.SparkSubmit" in command]
    assert javas
    for java in javas:
        with contextlib.suppress(ProcessLookupError):
            os.kill(java, signal.SIGKILL)
    failed(cluster, pipe, "Spark's Java process has ended; allowed: the task starts again, on a new one")
    scene.wait_for_rows()
    background.continues(cluster)
    cluster.wait("the same grants on the same worker", lambda: cluster.tasks_of(victim, pipe.name) == epochs)
    scene.finish()


def _name_of_task(task: int, *, tasks: int) -> str:
    """A file name of this task's slice."""
    return next(name for name in (f"more-{n}" for n in range(100)) if is_slice_of(name, task, tasks))


def _states(cluster: LocalGroup, pipe: Pipe) -> list[str]:
    """The states of the tasks, in order."""
    return [unit.state for name, unit in sorted(cluster.units(pipe.name).items()) if not name.is_connector]


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _remount(disk: Path) -> None:
    assert _mount("-o", "remount,size=64m", str(disk))
