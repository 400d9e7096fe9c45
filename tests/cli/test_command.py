"""Each command once against a real coordinator, and each kind of invalid use: one line, exit code 2."""

from __future__ import annotations

import array
import asyncio
import fcntl
import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import termios
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from connectgroup.cli import groups
from connectgroup.cli.command import main
from connectgroup.client.admin import Admin
from connectgroup.loggers import LogLines, Repeats

from ..integration.processes import PATIENCE_S, Program, call_command, free_ports, programs, wait
from ..volume import ci_only
from .connector_files import connector_file, idle_connector_file

GROUP = "sleepers"


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Program]:
    """A coordinator on a free port."""
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as program:
        program.line_with("coordinator at ")
        yield program


@pytest.fixture
def address(coordinator: Program) -> str:
    return coordinator.line_with("coordinator at ").removeprefix("coordinator at ")


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    """The file of an idle connector."""
    return idle_connector_file(tmp_path / "idle.json")


def test_short_commands_import_no_models_of_settings(address: str) -> None:
    """They take most of the time of a short command's start."""
    run = "from connectgroup.cli.command import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    code = f"import sys\n{run}print(*sys.modules, file=sys.stderr)"
    for arguments, shown in (
        (["--version"], "connectgroup "),
        (["groups", "list", "--coordinator", address], "GROUP "),
    ):
        command = [sys.executable, "-c", code, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        assert ran.stdout.startswith(shown)
        assert not {"pydantic", "pyspark", "connectgroup.plugins"} & set(ran.stderr.split())
        if "--version" in arguments:
            messages = "connectgroup.client.admin", "connectgroup.protocol.messages.common"
            assert not set(messages) & set(ran.stderr.split()), "these need a tenth of a second"


def test_closed_pipe_of_a_reader_is_no_error(address: str, idle: Path) -> None:
    """``connectgroup groups describe ... | head``."""
    group = ("--group", GROUP, "--coordinator", address)
    assert call_command("connectors", "put", idle, *group).code == 0
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "connectgroup", "groups", "describe", GROUP, *group[2:]]
    with open(writer, "wb") as closed:
        ran = subprocess.run(arguments, stdout=closed, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_data_directory_is_private_to_its_owner(address: str, tmp_path: Path) -> None:
    """The log holds connector configurations; so do SQLite's other files."""
    data = tmp_path / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()} == {0o600}


def test_command_works_without_standard_output(address: str, idle: Path) -> None:
    """``>&-``: the command takes effect."""
    put = [sys.executable, "-m", "connectgroup", "connectors", "put", str(idle), "--group", GROUP]
    arguments = ["sh", "-c", 'exec "$@" >&-', "sh", *put, "--coordinator", address]
    ran = subprocess.run(arguments, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"note: group sleepers has no worker: naps runs when one joins\n")


def test_command_that_reads_a_closed_standard_input_says_what_it_got(address: str) -> None:
    """``<&-``: as an empty file."""
    put = [sys.executable, "-m", "connectgroup", "connectors", "put", "-", "--coordinator", address]
    ran = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *put], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == (
        b'connectgroup: -: is empty; allowed: JSON: {"name": ..., "config": {...}}; '
        b"or properties in a file whose name ends in .properties\n"
    )


def test_one_ctrl_c_ends_a_command_that_reads_what_is_typed() -> None:
    reads, writes = os.pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs of a shell ignore it, and so their children
    try:
        os.write(writes, b"[")
        process = subprocess.Popen(
            [sys.executable, "-m", "connectgroup", "connectors", "put", "-"], stdin=reads, stderr=subprocess.PIPE
        )
        try:
            unread = array.array("i", [1])

            def has_read() -> bool:
                fcntl.ioctl(writes, termios.FIONREAD, unread)
                return unread[0] == 0

            wait("what was typed to be read", has_read)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
            assert (process.returncode, err) == (130, b"")
        finally:
            process.kill()
            process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(reads)
        os.close(writes)


def test_a_guide_as_json_is_an_object_with_its_text() -> None:
    shown = json.loads(call_command("docs", "operations", "--json").out)
    assert (shown["name"], shown["title"]) == ("operations", "Operations")
    assert shown["text"] == call_command("docs", "operations").out
    place = call_command("docs", "operations", "--path")
    assert json.loads(call_command("docs", "operations", "--path", "--json").out)["path"] == place.out.rstrip("\n")


FULL = Path("/dev/full")
"""A device that is always full."""


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("arguments", [("groups", "list"), ("plugins", "describe", "pipeline"), ("docs", "operations")])
def test_output_to_a_full_disk_is_an_error_of_one_line(address: str, arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "CONNECTGROUP_COORDINATOR": address}
    with FULL.open("wb") as full:
        command = [sys.executable, "-m", "connectgroup", *arguments]
        ran = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False, env=environment
        )
    message = b"connectgroup: standard output: cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (2, message)


@pytest.mark.parametrize("streams", [f">{FULL} 2>{FULL}", "<&- >&- 2>&-"])
def test_up_serves_also_if_nothing_that_it_prints_can_be_written(streams: str, tmp_path: Path) -> None:
    if str(FULL) in streams and not FULL.exists():
        pytest.skip("/dev/full is Linux's")
    (port,) = free_ports(1)
    up = [sys.executable, "-m", "connectgroup", "up", "--workers", "1", "--port", str(port)]
    process = subprocess.Popen(["sh", "-c", f'exec "$@" {streams}', "sh", *up], cwd=tmp_path)
    try:
        listing = ("workers", "list", "--json", "--coordinator", f"127.0.0.1:{port}")

        def states() -> list[str]:
            found = call_command(*listing)
            return [each["state"] for each in json.loads(found.out)] if found.code == 0 else []

        wait("a worker", lambda: states() == ["STABLE"] or process.poll() is not None, lambda: "")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", [("coordinator",), ("up", "--workers", "1")], ids=["coordinator", "up"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_start_that_waits_for_the_database_of_the_log(
    command: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    port, closed_port = free_ports(2)
    log = f"postgresql://nobody@127.0.0.1:{closed_port}/none"
    arguments = [sys.executable, "-m", "connectgroup", *command, "--port", str(port), "--log", log]
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(arguments, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait("its first attempt", lambda: "cannot connect" in said.read_text() or process.poll() is not None)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0, said.read_text()
        assert "Traceback" not in said.read_text()
    finally:
        process.kill()
        process.wait()


def test_broken_pipe_elsewhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every broken pipe is the command's standard output."""

    def breaks(options: object) -> None:
        raise BrokenPipeError("a plug-in's")

    monkeypatch.setattr(groups, "list_groups", breaks, raising=True)
    with pytest.raises(BrokenPipeError):
        main(["groups", "list"])


def test_every_command_has_its_documented_effect(address: str, idle: Path, tmp_path: Path) -> None:
    """The operations on a connector from the command line, with one worker."""
    at = ("--coordinator", address)
    group = ("--group", GROUP, *at)

    def done(*arguments: str | Path) -> str:
        finished = call_command(*arguments)
        assert (finished.code, finished.err) == (0, ""), finished
        return finished.out

    def state() -> list[str]:
        return re.findall(r"^  (naps\S*: \S+)", done("groups", "describe", GROUP, *at), re.MULTILINE)

    head = r"GROUP +TYPE +STATE +EPOCH +MEMBERS\n"
    assert re.fullmatch(head, done("groups", "list", *at))
    created = call_command("connectors", "put", idle, *group)
    assert created.out == "connector naps: created, version 1\n"
    assert created.err == f"note: group {GROUP} has no worker: naps runs when one joins\n"
    assert re.fullmatch(head + rf"{GROUP} +connect +Empty +1 +0\n", done("groups", "list", *at))
    (listed,) = json.loads(done("connectors", "list", "--json", *group))
    assert listed == json.loads(idle.read_text())
    with Program("worker", "--name", "w", "--scratch", tmp_path / "scratch", "--listener", "log", *group) as worker:
        running = ["naps: RUNNING", "naps-0: RUNNING", "naps-1: RUNNING"]
        wait("running tasks", lambda: state() == running, worker.output)
        described = done("groups", "describe", GROUP, *at)
        assert (
            f"group {GROUP}: Stable, epoch 3, target 3\nassignor: balanced\nworker w (127.0.0.1): STABLE" in described
        )
        explained = done("groups", "explain", GROUP, "--moves", *at).splitlines()
        assert explained[0].startswith("epoch 1 | connector naps added")
        assert any(line.startswith("epoch 2 | w joined | 1 started | took ") for line in explained), explained
        assert "  naps-1: started on w" in explained
        assert len(done("groups", "explain", GROUP, "--last", "1", *at).splitlines()) == 1
        assert done("connectors", "pause", "naps", *group) == "connector naps: paused, version 4\n", (
            "its last change was in epoch 4"
        )
        wait("a pause", lambda: state() == ["naps: RUNNING", "naps-0: PAUSED", "naps-1: PAUSED"], worker.output)
        assert done("connectors", "stop", "naps", *group) == "connector naps: stopped, version 5\n"
        wait("a stop", lambda: state() == ["naps: STOPPED", "naps-0: STOPPED", "naps-1: STOPPED"], worker.output)
        assert done("connectors", "resume", "naps", *group) == "connector naps: resumed, version 6\n"
        wait("running tasks", lambda: state() == running, worker.output)
        assert done("connectors", "delete", "naps", *group) == "connector naps: deleted\n"
        wait("the end of the connector", lambda: state() == [], worker.output)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.output()
    assert re.fullmatch(head + rf"{GROUP} +connect +Empty +\d+ +0\n", done("groups", "list", *at))


def test_coordinator_stopped_by_a_signal_keeps_its_groups(
    coordinator: Program, address: str, idle: Path, tmp_path: Path
) -> None:
    assert call_command("connectors", "put", idle, "--group", GROUP, "--coordinator", address).code == 0
    coordinator.signal(signal.SIGTERM)
    assert coordinator.ended() == 0
    assert coordinator.lines[0] == f"coordinator at {address}"
    assert [line for line in coordinator.lines[1:] if " INFO " not in line] == []
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as again:
        at = again.line_with("coordinator at ").removeprefix("coordinator at ")
        assert GROUP in call_command("groups", "list", "--coordinator", at).out


async def set_logger_level(address: str, logger: str, level: str) -> None:
    """On all workers of the group."""
    async with Admin.connect([address]) as admin:
        await admin.set_logger_level(GROUP, logger, level)


def test_up_runs_a_group_and_restarts_a_worker_that_died(idle: Path, tmp_path: Path) -> None:
    """Without Spark. SIGINT (Ctrl-C) stops all processes cleanly. Lines of the log have a date and a zone."""
    log = tmp_path / "log"
    connector_file(idle, **{"connector.class": "idle", "tasks.max": "2", "log": str(log)})
    arguments = ("--group", GROUP, "--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 2)
    with Program("up", *arguments) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]

        def describe() -> str:
            return call_command("groups", "describe", GROUP, "--coordinator", at).out

        def all_run() -> bool:
            shown = describe()
            both = "worker worker-1 " in shown and "worker worker-2 " in shown
            return both and shown.count(": RUNNING on worker-") == 3 and "Stable" in shown

        wait("all tasks on two workers", all_run, up.output)
        dated = re.search(r"(\S+) INFO .* joined", "\n".join(list(up.lines)))
        assert dated is not None
        assert datetime.fromisoformat(dated[1]).tzinfo is not None
        (killed,) = [pid for pid, command in programs(up.pid).items() if "--name worker-1" in command]
        os.kill(killed, signal.SIGKILL)
        up.line_with("rebalance | epoch 5 | worker-1 died (SIGKILL)")

        def is_back() -> bool:
            return any("--name worker-1" in command for command in programs(up.pid).values())

        wait("worker-1 again", lambda: is_back() and all_run() and "worker worker-1" in describe(), up.output)
        asyncio.run(set_logger_level(at, "connectgroup.worker", "DEBUG"))
        told = "logger connectgroup.worker: level DEBUG, set by an operator for the whole group"
        wait("both workers to set it", lambda: sum(told in line for line in up.lines) == 2, up.output)
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output()
    assert not any("Traceback" in line for line in up.lines), up.output()
    entries = [line.split()[1:4] for line in log.read_text().splitlines()]
    running = {(member, unit) for what, member, unit in entries if what == "START"}
    stopped = {(member, unit) for what, member, unit in entries if what == "STOP"}
    assert {member for member, _ in running - stopped} <= {"worker-1"}, "only tasks of the killed worker have no STOP"
    with Program("up", *arguments) as up:
        up.line_with(f" of earlier runs: connectgroup groups explain {GROUP}")
        up.line_with("rebalance | ")
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output()
    assert not any("rebalance | epoch 5 " in line for line in up.lines), up.output()


def test_second_ctrl_c_kills_what_the_first_one_is_still_stopping(idle: Path, tmp_path: Path) -> None:
    """A task that does not stop holds up its worker for the rebalance timeout, a minute."""
    log = tmp_path / "log"
    connector_file(idle, **{"connector.class": "idle", "log": str(log), "stop.ms": "3600000"})
    arguments = ("--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 1)
    with Program("up", *arguments) as up:
        wait("the task", lambda: log.exists() and "START" in log.read_text(), up.output)
        up.signal(signal.SIGINT)
        up.line_with("stopping the workers ... (Ctrl-C again kills them)")

        def has_ended() -> bool:
            up.signal(signal.SIGINT)
            return up.code is not None

        wait("its end", has_ended, up.output)
        # A further one at the very end is Python's.
        assert up.ended() in (130, -signal.SIGINT), up.output()
        assert any("the workers and Spark are killed" in line for line in up.lines), up.output()
        assert not any("Traceback" in line for line in up.lines), up.output()
    assert "STOP" not in log.read_text()


def test_repeats_of_a_log_line_are_counted_and_written_once_a_second() -> None:
    now = 0.0
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(Repeats(handler, clock=lambda: now))
    logger = logging.Logger("test")
    logger.addHandler(handler)

    for _ in range(1_000):
        logger.error("no %s", "descriptor")
        logger.error("task %s failed", "a-0")
    logger.error("task %s failed", "a-1")
    assert written.getvalue().splitlines() == ["no descriptor", "task a-0 failed", "task a-1 failed"]

    now = 1.5
    logger.error("no %s", "descriptor")
    logger.error("no %s", "descriptor")
    assert written.getvalue().splitlines()[3:] == [
        "task a-0 failed (999 more of this line)",
        "no descriptor (999 more of this line)",
    ]
    now = 3.0
    logger.error("another line")
    assert written.getvalue().splitlines()[5:] == ["no descriptor (1 more of this line)", "another line"]


def test_lines_with_different_errors_are_no_repeats() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(Repeats(handler, clock=lambda: 0.0))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    for error in (KeyError("a"), KeyError("b"), KeyError("a")):
        logger.error("failed", exc_info=error)
    assert written.getvalue().splitlines() == ["failed", "KeyError: 'a'", "failed", "KeyError: 'b'"]


AFTER = ci_only("4 s of a core; in a user's run, the option before the command; its place is argparse's")


@pytest.mark.parametrize(
    "words", [("--log-format", "json", "up"), pytest.param(("up", "--log-format=json"), marks=AFTER)]
)
def test_log_is_a_json_object_a_line_also_of_workers(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Program(*words, "--workers", 1, "--port", 0, "--data", tmp_path / "data") as up:
        of_worker = json.loads(up.line_with('"process": "worker-1"'))
        of_group = json.loads(up.line_with(" joined"))
        up.signal(signal.SIGINT)
        up.ended()
        shown = [json.loads(line) for line in up.lines if line.startswith("{")]
    assert {"time", "level", "logger", "message", "process"} <= of_worker.keys()
    assert of_group["level"] == "INFO"
    assert datetime.fromisoformat(of_group["time"]).tzinfo is not None
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in shown)
    assert not any(line.startswith("worker-1 ") for line in up.lines)


def test_traceback_is_a_part_of_its_json_line() -> None:
    lines = LogLines(as_json=True)
    try:
        raise ValueError("odd\nvalue")
    except ValueError:
        record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "task %s failed", ("t-0",), sys.exc_info())
    shown = json.loads(lines.format(record))
    assert (shown["level"], shown["logger"], shown["message"]) == ("ERROR", "a.b", "task t-0 failed")
    assert shown["exception"].startswith("Traceback")
    assert "odd\nvalue" in shown["exception"]


def test_name_with_control_characters_begins_no_line_of_the_log() -> None:
    """Strangers choose the names of files, topics and keys that the log names."""
    record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "%s: bad", ("a\n2026 INFO ok\x1b[2J\u2028é",), None)
    assert LogLines(as_json=False).format(record).endswith(r" ERROR a\n2026 INFO ok\x1b[2J\u2028é: bad")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert LogLines(as_json=False).format(record).endswith("\nValueError: \\x1b[2J")


def test_unknown_form_of_log_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONNECTGROUP_LOG_FORMAT", "yaml")
    assert main(["groups", "list"]) == 2
    assert capsys.readouterr().err == "connectgroup: CONNECTGROUP_LOG_FORMAT: got 'yaml'; allowed: text, json\n"
