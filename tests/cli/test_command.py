"""Each command once against a real coordinator, and each kind of invalid use: one line, exit code 2."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import connectgroup
from connectgroup.cli import parser
from connectgroup.cli.command import main

from ..integration.processes import PATIENCE_S, Program, family, marked, run_command, wait

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
    return connector_file(tmp_path / "idle.json", **{"connector.class": "idle", "tasks.max": "2"})


def connector_file(path: Path, **config: str) -> Path:
    path.write_text(json.dumps({"name": "naps", "config": config}))
    return path


def test_closed_pipe_of_a_reader_is_no_error(address: str, idle: Path) -> None:
    """``connectgroup groups describe ... | head``."""
    group = ("--group", GROUP, "--coordinator", address)
    assert run_command("connectors", "put", idle, *group).code == 0
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-m", "connectgroup", "groups", "describe", GROUP, *group[2:]]
    with open(writer, "wb") as closed:
        ran = subprocess.run(arguments, stdout=closed, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_data_directory_is_private_to_its_owner(address: str, tmp_path: Path) -> None:
    """The log holds connector configurations; so do SQLite's files beside it."""
    data = tmp_path / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()} == {0o600}


def test_command_works_without_standard_output(address: str, idle: Path) -> None:
    """``>&-``: the command takes effect."""
    put = [sys.executable, "-m", "connectgroup", "connectors", "put", str(idle), "--group", GROUP]
    arguments = ["sh", "-c", 'exec "$@" >&-', "sh", *put, "--coordinator", address]
    ran = subprocess.run(arguments, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_broken_pipe_elsewhere_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every broken pipe is the command's standard output."""

    def breaks(options: object) -> None:
        raise BrokenPipeError("a plug-in's")

    monkeypatch.setattr(parser, "list_groups", breaks, raising=True)
    with pytest.raises(BrokenPipeError):
        main(["groups", "list"])


def test_every_command_has_its_documented_effect(address: str, idle: Path, tmp_path: Path) -> None:
    """The operations on a connector from the command line, with one worker."""
    at = ("--coordinator", address)
    group = ("--group", GROUP, *at)

    def done(*arguments: str | Path) -> str:
        finished = run_command(*arguments)
        assert (finished.code, finished.err) == (0, ""), finished
        return finished.out

    def state() -> list[str]:
        return re.findall(r"^  (naps\S*: \S+)", done("groups", "describe", GROUP, *at), re.MULTILINE)

    assert done("groups", "list", *at) == ""
    assert done("connectors", "put", idle, *group) == "connector naps: version 1\n"
    assert re.fullmatch(rf"{GROUP} +Empty +epoch 1 +0 workers\n", done("groups", "list", *at))
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
        assert done("connectors", "pause", "naps", *group) == "connector naps: version 4\n", (
            "its last change was in epoch 4"
        )
        wait("a pause", lambda: state() == ["naps: RUNNING", "naps-0: OFF", "naps-1: OFF"], worker.output)
        assert done("connectors", "stop", "naps", *group) == "connector naps: version 5\n"
        wait("a stop", lambda: state() == ["naps: OFF", "naps-0: OFF", "naps-1: OFF"], worker.output)
        assert done("connectors", "resume", "naps", *group) == "connector naps: version 6\n"
        wait("running tasks", lambda: state() == running, worker.output)
        assert done("connectors", "delete", "naps", *group) == "connector naps: deleted\n"
        wait("the end of the connector", lambda: state() == [], worker.output)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0, worker.output()
    assert re.fullmatch(rf"{GROUP} +Empty +epoch \d+ +0 workers\n", done("groups", "list", *at))


def test_coordinator_stopped_by_a_signal_keeps_its_groups(
    coordinator: Program, address: str, idle: Path, tmp_path: Path
) -> None:
    assert run_command("connectors", "put", idle, "--group", GROUP, "--coordinator", address).code == 0
    coordinator.signal(signal.SIGTERM)
    assert coordinator.ended() == 0
    assert coordinator.lines == [f"coordinator at {address}"]
    with Program("coordinator", "--port", 0, "--data", tmp_path / "data") as again:
        at = again.line_with("coordinator at ").removeprefix("coordinator at ")
        assert GROUP in run_command("groups", "list", "--coordinator", at).out


def test_up_runs_a_group_and_restarts_a_worker_that_died(idle: Path, tmp_path: Path) -> None:
    """Without Spark. SIGINT (Ctrl-C) stops all processes cleanly."""
    log = tmp_path / "log"
    connector_file(idle, **{"connector.class": "idle", "tasks.max": "2", "log": str(log)})
    arguments = ("--group", GROUP, "--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 2)
    with Program("up", *arguments) as up:
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]

        def describe() -> str:
            return run_command("groups", "describe", GROUP, "--coordinator", at).out

        def all_run() -> bool:
            shown = describe()
            return shown.count(": RUNNING on worker-") == 3 and "worker worker-2" in shown and "Stable" in shown

        wait("all tasks on two workers", all_run, up.output)
        (killed,) = [pid for pid, command in family(up.pid).items() if "--name worker-1" in command]
        os.kill(killed, signal.SIGKILL)
        up.line_with("rebalance | epoch 5 | worker-1 died (SIGKILL)")

        def is_back() -> bool:
            return any("--name worker-1" in command for command in family(up.pid).values())

        wait("worker-1 again", lambda: is_back() and all_run() and "worker worker-1" in describe(), up.output)
        up.signal(signal.SIGINT)
        assert up.ended() == 0, up.output()
    assert not any("Traceback" in line for line in up.lines), up.output()
    entries = [line.split()[1:4] for line in log.read_text().splitlines()]
    running = {(member, unit) for what, member, unit in entries if what == "START"}
    stopped = {(member, unit) for what, member, unit in entries if what == "STOP"}
    assert {member for member, _ in running - stopped} <= {"worker-1"}, "only tasks of the killed worker have no STOP"


LINES = {
    "no coordinator": (
        ["groups", "list", "--coordinator", "{closed_port}"],
        r"connectgroup: {closed_port}: cannot connect: Connection refused; allowed: --coordinator with the address .*",
    ),
    "no coordinator for a change": (
        ["connectors", "delete", "naps", "--coordinator", "{closed_port}"],
        r"connectgroup: {closed_port}: cannot connect: Connection refused; allowed: .*",
    ),
    "no such host": (
        ["groups", "list", "--coordinator", "nowhere.invalid:8474"],
        r"connectgroup: nowhere.invalid:8474: cannot connect: .*; allowed: .*",
    ),
    "unknown group described": (
        ["groups", "describe", "nosuch", "--coordinator", "{address}"],
        r"connectgroup: no such group 'nosuch'; groups here: .*",
    ),
    "unknown group explained": (
        ["groups", "explain", "nosuch", "--coordinator", "{address}"],
        r"connectgroup: no such group 'nosuch'; groups here: .*",
    ),
    "unknown connector": (
        ["connectors", "pause", "nosuch", "--group", "g", "--coordinator", "{address}"],
        r"connectgroup: connector nosuch does not exist: there is no group 'g'",
    ),
    "a connector of an unknown group": (
        ["connectors", "delete", "naps", "--group", "nope", "--coordinator", "{address}"],
        r"connectgroup: connector naps does not exist: there is no group 'nope'",
    ),
    "an invalid port of the coordinator": (
        ["groups", "list", "--coordinator", "127.0.0.1:99999"],
        r"connectgroup: --coordinator: got '127.0.0.1:99999'; allowed: host:port, port 1 to 65535",
    ),
    "an invalid address of a worker's coordinator": (
        ["worker", "--group", "g", "--coordinator", "here"],
        r"connectgroup: coordinator: got 'here'; allowed: host:port, port 1 to 65535",
    ),
    "a port that is too high": (
        ["coordinator", "--port", "65536", "--data", "{tmp}/unused"],
        r"connectgroup: port: got '65536'; allowed: .*",
    ),
    "a port that is not a number": (
        ["coordinator", "--port", "http", "--data", "{tmp}/unused"],
        r"connectgroup coordinator: argument --port: got 'http'; allowed: a whole number; see .* --help",
    ),
    "a port in use": (
        ["coordinator", "--port", "{port}", "--data", "{tmp}/unused"],
        r"connectgroup: 127.0.0.1:{port}: .*(in use|cannot listen).*",
    ),
    "an address of the whole network": (
        ["coordinator", "--port", "0", "--host", "0.0.0.0", "--data", "{tmp}/unused"],
        r"connectgroup: host: got '0.0.0.0'; allowed: an address of this machine's own .*",
    ),
    "a name of an address of the whole network": (
        ["coordinator", "--port", "0", "--host", "0", "--data", "{tmp}/unused"],
        r"connectgroup: host: got '0 \(0.0.0.0\)'; allowed: an address of this machine's own .*",
    ),
    "fewer connections than the workers need": (
        ["up", "--workers", "3", "--max-connections", "6", "--data", "{tmp}/up", "--port", "0"],
        r"connectgroup: max_connections: got '6'; allowed: 7 or more for 3 workers, two for each and one for commands",
    ),
    "a missing file": (
        ["connectors", "put", "{tmp}/none.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/none.json: got 'No such file or directory'; allowed: a readable file",
    ),
    "a file that is not JSON": (
        ["connectors", "put", "{tmp}/bad.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/bad.json: got 'Expecting .*'; allowed: JSON: .*",
    ),
    "a file with a duplicate key": (
        ["connectors", "put", "{tmp}/twice.json", "--coordinator", "{address}"],
        r"""connectgroup: {tmp}/twice.json: got "duplicate key 'name'"; allowed: JSON: .*""",
    ),
    "a file of another shape": (
        ["up", "--connector", "{tmp}/shape.json", "--data", "{tmp}/up", "--port", "0"],
        r"connectgroup: {tmp}/shape.json: conf: unknown; allowed: config \(did you mean that\?\)",
    ),
    "a connector class that is not installed": (
        ["connectors", "put", "{tmp}/class.json", "--coordinator", "{address}"],
        r"connectgroup: connector.class: got 'os.system'; allowed: idle, pipeline",
    ),
    "an invalid number of tasks": (
        ["connectors", "put", "{tmp}/many.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/many.json: config.tasks.max: got 'many'; allowed: a whole number from 1 to 100000",
    ),
    "a misspelt tasks.max": (
        ["connectors", "put", "{tmp}/task.max.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/task.max.json: config.task.max: unknown; allowed: tasks.max \(did you mean that\?\)",
    ),
    "a misspelt config": (
        ["connectors", "put", "{tmp}/confg.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/confg.json: confg: unknown; allowed: config \(did you mean that\?\)",
    ),
    "a missing config": (
        ["connectors", "put", "{tmp}/none-given.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/none-given.json: config: missing",
    ),
    "a connector's setting": (
        ["connectors", "put", "{tmp}/setting.json", "--coordinator", "{address}"],
        r"connectgroup: stop.ms: got 'soon'; allowed: a whole number of milliseconds",
    ),
    "an assignor that is not installed": (
        ["worker", "--group", "g", "--coordinator", "{address}", "--assignor", "nosuch"],
        r"connectgroup: assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "an assignor that is not installed, for all workers": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--assignor", "nosuch"],
        r"connectgroup: assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "an assignor and no assignor": (
        ["worker", "--group", "g", "--assignor", "balanced", "--no-assignor"],
        r"connectgroup worker: argument --no-assignor: not allowed with argument --assignor; see .* --help",
    ),
    "an assignor and a server-side assignor": (
        ["up", "--assignor", "balanced", "--server-assignor", "balanced"],
        r"connectgroup up: argument --server-assignor: not allowed with argument --assignor; see .* --help",
    ),
    "an assignor that the coordinator of up does not have": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--server-assignor", "weighted"],
        r"connectgroup: --server-assignor: got 'weighted'; allowed: balanced \(--fallback-assignor\)",
    ),
    "an empty name of a server-side assignor": (
        ["worker", "--group", "g", "--server-assignor", ""],
        r"connectgroup: server_assignor: got ''; allowed: a non-empty name",
    ),
    "a rebalance timeout of 0": (
        ["worker", "--group", "g", "--rebalance-timeout-ms", "0"],
        r"connectgroup: rebalance_timeout_ms: got '0'; allowed: a whole number from 1 to 3600000",
    ),
    "a rebalance timeout of 0, for all workers": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--rebalance-timeout-ms", "0"],
        r"connectgroup: rebalance_timeout_ms: got '0'; allowed: a whole number from 1 to 3600000",
    ),
    "a restart in an unknown group": (
        ["workers", "restart", "w1", "--group", "nosuch", "--coordinator", "{address}"],
        r"connectgroup: no such group 'nosuch'; groups here: .*",
    ),
    "a restart of no worker": (
        ["workers", "restart"],
        r"connectgroup workers restart: the following arguments are required: name; see .* --help",
    ),
    "a fallback that is not installed": (
        ["coordinator", "--port", "0", "--data", "{tmp}/unused", "--fallback-assignor", "nosuch"],
        r"connectgroup: assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "data that is a file": (
        ["coordinator", "--port", "0", "--data", "{tmp}/bad.json"],
        r"connectgroup: --data: got '{tmp}/bad.json'; allowed: a directory that can be created \(File exists\)",
    ),
    "data below a file": (
        ["up", "--port", "0", "--data", "{tmp}/bad.json/data"],
        r"connectgroup: --data: got '{tmp}/bad.json/data'; allowed: a directory that .* \(Not a directory\)",
    ),
    "a log in use by another process": (
        ["coordinator", "--port", "0", "--data", "{tmp}/data"],
        r"connectgroup: {tmp}/data/groups.sqlite: in use by process {pid}; allowed: one process at a time",
    ),
    "a log that is not a database": (
        ["coordinator", "--port", "0", "--data", "{tmp}/text"],
        r"connectgroup: {tmp}/text/groups.sqlite: .*not an? .*database.*",
    ),
    "a database of another application": (
        ["coordinator", "--port", "0", "--data", "{tmp}/other"],
        r"connectgroup: {tmp}/other/groups.sqlite: .*",
    ),
    "conflicting timeouts": (
        ["coordinator", "--port", "0", "--session-timeout-ms", "5000", "--data", "{tmp}/unused"],
        r"connectgroup: heartbeat_interval_ms: got '3000'; allowed: at most a third of session_timeout_ms \(5000\)",
    ),
    "no workers": (
        ["up", "--workers", "0", "--data", "{tmp}/unused"],
        r"connectgroup up: argument --workers: got '0'; allowed: a whole number from 1 to 10000; see .* --help",
    ),
    "an empty group, for all workers": (
        ["up", "--group", "", "--data", "{tmp}/unused"],
        r"connectgroup up: argument --group: got ''; allowed: a non-empty name; see connectgroup up --help",
    ),
    "a group name that is too long, for all workers": (
        ["up", "--group", "g" * 300, "--data", "{tmp}/unused"],
        r"connectgroup up: argument --group: got 'g{77}\.\.\.'; allowed: at most 249 bytes \(it has 300 .*",
    ),
    "a group of two lines, for all workers": (
        ["up", "--group", "a\nb", "--data", "{tmp}/unused"],
        r"connectgroup up: argument --group: got 'a\\\\nb'; allowed: printable characters, .*; see .* --help",
    ),
    "a worker's name of two lines": (
        ["worker", "--group", "g", "--name", "a\nb"],
        r"connectgroup worker: argument --name: got 'a\\\\nb'; allowed: printable characters, .*; see .* --help",
    ),
    "an empty name": (
        ["worker", "--group", "g", "--name", ""],
        r"connectgroup worker: argument --name: got ''; allowed: a non-empty name; see .* --help",
    ),
    "an empty instance id": (
        ["worker", "--group", "g", "--instance", ""],
        r"connectgroup worker: argument --instance: got ''; allowed: a non-empty name; see .* --help",
    ),
    "an empty data directory": (
        ["up", "--data", ""],
        r"connectgroup up: argument --data: got ''; allowed: a path; see .* --help",
    ),
    "a negative time": (
        ["worker", "--group", "g", "--rebalance-timeout-ms", "-5"],
        r"connectgroup: rebalance_timeout_ms: got '-5'; allowed: a whole number from 1 to 3600000",
    ),
    "a time out of range": (
        ["up", "--data", "{tmp}/unused", "--rebalance-timeout-ms", "9" * 20],
        r"connectgroup: rebalance_timeout_ms: got '9{20}'; allowed: a whole number from 1 to 3600000",
    ),
    "no command": ([], r"connectgroup: the following arguments are required: COMMAND; see connectgroup --help"),
    "an unknown command": (["flap"], r"connectgroup: argument COMMAND: invalid choice: 'flap' \(choose from .*\).*"),
    "no group": (["worker"], r"connectgroup worker: the following arguments are required: --group; see .*"),
}


@pytest.fixture(scope="module")
def placeholders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Values of the placeholders above: a running coordinator, a port without a listener, and invalid files."""
    root = tmp_path_factory.mktemp("places")
    (root / "bad.json").write_text("{")
    (root / "twice.json").write_text('{"name": "a", "name": "b", "config": {}}')
    (root / "shape.json").write_text('{"name": "a", "config": {}, "conf": {}}')
    connector_file(root / "class.json", **{"connector.class": "os.system"})
    connector_file(root / "many.json", **{"connector.class": "idle", "tasks.max": "many"})
    connector_file(root / "setting.json", **{"connector.class": "idle", "stop.ms": "soon"})
    connector_file(root / "task.max.json", **{"connector.class": "idle", "task.max": "2"})
    (root / "confg.json").write_text('{"name": "a", "confg": {"connector.class": "idle"}}')
    (root / "none-given.json").write_text('{"name": "a"}')
    (root / "text").mkdir()
    (root / "text" / "groups.sqlite").write_text("some text that is long enough to be looked at" * 100)
    (root / "other").mkdir()
    with contextlib.closing(sqlite3.connect(root / "other" / "groups.sqlite")) as other:
        other.execute("CREATE TABLE theirs (x)")
    arguments = ("coordinator", "--port", 0, "--data", root / "data")
    with socket.socket() as bound, marked(), Program(*arguments) as coordinator:
        bound.bind(("127.0.0.1", 0))  # without listening
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        yield {
            "address": address,
            "closed_port": f"127.0.0.1:{bound.getsockname()[1]}",
            "pid": str(coordinator.pid),
            "port": address.rpartition(":")[2],
            "tmp": str(root),
        }


@pytest.mark.parametrize("what", LINES)
def test_error_is_one_line_and_exit_code_2(placeholders: dict[str, str], what: str) -> None:
    """The setting, the value, what is allowed; never a traceback or a usage text."""
    arguments, line = LINES[what]
    done = run_command(*(word.format(**placeholders) for word in arguments))
    assert done.code == 2, done
    assert done.out == ""
    for name, value in placeholders.items():
        line = line.replace(f"{{{name}}}", re.escape(value))
    assert re.fullmatch(line + "\n", done.err), done.err
    assert done.err.count("\n") == 1


def test_every_command_has_help() -> None:
    for arguments in (
        [],
        ["up"],
        ["coordinator"],
        ["worker"],
        ["groups"],
        ["groups", "describe"],
        ["workers", "restart"],
    ):
        done = run_command(*arguments, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(" ".join(["usage: connectgroup", *arguments]))


def test_installed_script_is_the_same_command() -> None:
    script = Path(sys.executable).parent / "connectgroup"
    done = subprocess.run([script, "groups", "--help"], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, run_command("groups", "--help").out)


def test_importing_the_package_imports_no_optional_dependency() -> None:
    """``import connectgroup`` loads no heavy module; a name loads its module when it is first used."""
    heavy = {"numpy", "pydantic", "pyspark", "pyarrow", "pandas", "opentelemetry", "tenacity", "sqlite3", "asyncio"}
    code = "import sys, connectgroup; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert not heavy & set(done.stdout.split())
    assert "connectgroup" in done.stdout.split()


ONLY_BASE = """
import sys
import re
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

allowed, pending = {"connectgroup"}, ["connectgroup"]
while pending:
    try:
        needs = distribution(pending.pop()).requires or []
    except PackageNotFoundError:
        continue  # for another platform, or part of Python
    for need in needs:
        name = plain(re.match(r"[\\w.-]+", need)[0])
        if "extra ==" not in need and name not in allowed:
            allowed.add(name)
            pending.append(name)
# Modules of no distribution belong to Python.
others = {module for module, names in packages_distributions().items() if not {plain(name) for name in names} & allowed}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in others:
            raise ModuleNotFoundError(f"not a base package: {name}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def test_group_runs_with_the_base_packages_alone(idle: Path, tmp_path: Path) -> None:
    """No Spark, no Kafka, no web framework: a coordinator, a worker and every public name, in processes that can import
    only the package's base dependencies.
    """
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(ONLY_BASE)
    only_base = {"PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))}
    code = (
        "import connectgroup, sys\n"
        "print(len([getattr(connectgroup, name) for name in connectgroup.__all__]))\n"
        "try:\n    import pyarrow\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **only_base},
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+\nnot a base package: pyarrow\n", done.stdout)
    arguments = ("--data", tmp_path / "data", "--connector", idle, "--port", 0, "--workers", 1)
    with Program("up", *arguments, environment=only_base) as up:
        up.line_with("| 1 workers | 3/3 units |")
        at = up.line_with("coordinator at ").removeprefix("coordinator at ").partition(",")[0]

        def all_run() -> bool:
            described = run_command("groups", "describe", "workers", "--coordinator", at, environment=only_base).out
            return described.count(": RUNNING on worker-1") == 3

        wait("running tasks", all_run, up.output)
        up.signal(signal.SIGTERM)
        assert up.ended() == 0, up.output()


def test_the_version_is_printed() -> None:
    done = run_command("--version")
    assert (done.code, done.out, done.err) == (0, f"connectgroup {connectgroup.__version__}\n", "")
