"""Each kind of invalid use of a command: one line on standard error, and its exit code."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import socketserver
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..integration.processes import Program, call_command, marked
from .connector_files import connector_file

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
        r"connectgroup: --coordinator: got 'here'; allowed: host:port, port 1 to 65535",
    ),
    "an unknown option of a monitor's command": (
        ["status", "--check", "--warning", "3"],
        r"connectgroup status: unrecognized arguments: --warning; see connectgroup status --help",
    ),
    "an invalid coordinator of a monitor's command": (
        ["status", "--check", "--coordinator", "here"],
        r"connectgroup: --coordinator: got 'here'; allowed: host:port, port 1 to 65535",
    ),
    "an address of Kafka Connect with one bracket": (
        ["connectors", "import", "http://user:secret@[::1:8083"],
        r"connectgroup: URL: got '\[::1:8083'; allowed: the address of Kafka Connect's REST API, such as .*",
    ),
    "the coordinators of others, for up": (
        ["up", "--coordinator", "a:8474,b:8474"],
        r"connectgroup up: argument --coordinator: up runs a coordinator of its own; allowed: connectgroup worker "
        r"--coordinator a:8474,b:8474 for workers of other coordinators.*",
    ),
    "a port that is too high": (
        ["coordinator", "--port", "65536", "--data", "{tmp}/unused"],
        r"connectgroup: --port: got '65536'; allowed: .*",
    ),
    "a port that is not a number": (
        ["coordinator", "--port", "http", "--data", "{tmp}/unused"],
        r"connectgroup coordinator: argument --port: got 'http'; allowed: a whole number; see .* --help",
    ),
    "a port in use": (
        ["coordinator", "--port", "{port}", "--data", "{tmp}/unused"],
        r"connectgroup: 127.0.0.1:{port}: cannot listen: .*in use; another port, or 0 for any: --port",
    ),
    "an address of the whole network": (
        ["coordinator", "--port", "0", "--host", "0.0.0.0", "--data", "{tmp}/unused"],
        r"connectgroup: --host: got '0.0.0.0'; allowed: an address of this machine's own .*",
    ),
    "a name of an address of the whole network": (
        ["coordinator", "--port", "0", "--host", "0", "--data", "{tmp}/unused"],
        r"connectgroup: --host: got '0 \(0.0.0.0\)'; allowed: an address of this machine's own .*",
    ),
    "fewer connections than the workers need": (
        ["up", "--workers", "3", "--max-connections", "6", "--data", "{tmp}/up", "--port", "0"],
        r"connectgroup: --max-connections: got '6'; allowed: 7 or more for 3 workers, two for each and .*",
    ),
    "an empty name of a connector": (
        ["connectors", "delete", "", "--coordinator", "{address}"],
        r"connectgroup: name: got ''; allowed: a non-empty name",
    ),
    "a missing file": (
        ["connectors", "put", "{tmp}/none.json", "--coordinator", "{address}"],
        r"connectgroup: file: got '{tmp}/none.json'; allowed: a readable file \(No such file or directory\)",
    ),
    "a file that is not JSON": (
        ["connectors", "put", "{tmp}/bad.json", "--coordinator", "{address}"],
        r"connectgroup: {tmp}/bad.json: is not JSON: Expecting .*; allowed: JSON: .*",
    ),
    "a file with a duplicate key": (
        ["connectors", "put", "{tmp}/twice.json", "--coordinator", "{address}"],
        r"""connectgroup: {tmp}/twice.json: has the key 'name' twice; allowed: JSON: .*""",
    ),
    "a file of another shape": (
        ["up", "--connector", "{tmp}/shape.json", "--data", "{tmp}/up", "--port", "0"],
        r"connectgroup: {tmp}/shape.json: conf: unknown; allowed: config \(did you mean that\?\)",
    ),
    "a connector class that is not installed": (
        ["connectors", "put", "{tmp}/class.json", "--coordinator", "{address}"],
        r"connectgroup: .*class.json: .*: got 'os.system'; allowed: idle, pipeline, a Java class in a jar .*",
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
        r"connectgroup: .*setting.json: config.stop.ms: got 'soon'; allowed: a whole number of milliseconds",
    ),
    "an assignor that is not installed": (
        ["worker", "--group", "g", "--coordinator", "{address}", "--assignor", "nosuch"],
        r"connectgroup: --assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "an assignor that is not installed, for all workers": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--assignor", "nosuch"],
        r"connectgroup: --assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
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
        r"connectgroup: --server-assignor: got ''; allowed: a non-empty name",
    ),
    "a rebalance timeout of 0": (
        ["worker", "--group", "g", "--rebalance-timeout-ms", "0"],
        r"connectgroup: --rebalance-timeout-ms: got '0'; allowed: a whole number from 1 to 3600000",
    ),
    "a rebalance timeout of 0, for all workers": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--rebalance-timeout-ms", "0"],
        r"connectgroup: --rebalance-timeout-ms: got '0'; allowed: a whole number from 1 to 3600000",
    ),
    "a restart in an unknown group": (
        ["workers", "restart", "w1", "--group", "nosuch", "--coordinator", "{address}"],
        r"connectgroup: no such group 'nosuch'; groups here: .*",
    ),
    "the type and the members of a group": (
        ["groups", "describe", "g", "--type", "--members"],
        r"connectgroup groups describe: argument --type: not allowed with argument --members; see .* --help",
    ),
    "the moves and one task of a group": (
        ["groups", "explain", "g", "--task", "c-0", "--moves"],
        r"connectgroup groups explain: argument --task: not allowed with argument --moves; see .* --help",
    ),
    "a limit for no assignor": (
        ["replay", "{tmp}/log", "--max-moves", "2"],
        r"connectgroup replay: argument --max-moves: not allowed without argument --assignor; see .* --help",
    ),
    "a restart of no worker": (
        ["workers", "restart"],
        r"connectgroup workers restart: the following arguments are required: name; see .* --help",
    ),
    "a fallback that is not installed": (
        ["coordinator", "--port", "0", "--data", "{tmp}/unused", "--fallback-assignor", "nosuch"],
        r"connectgroup: --fallback-assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "a fallback that is not installed, for all workers": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--fallback-assignor", "nosuch"],
        r"connectgroup: --fallback-assignor: got 'nosuch'; allowed: balanced, incremental-cooperative, weighted",
    ),
    "an unreachable address of REST": (
        ["rest", "--host", "192.0.2.1", "--coordinator", "{address}"],
        r"connectgroup: --host: got '192.0.2.1'; allowed: a loopback address .*",
    ),
    "an unreachable address of REST in a worker": (
        ["worker", "--group", "g", "--coordinator", "{address}", "--rest-port", "0", "--rest-host", "192.0.2.1"],
        r"connectgroup: --rest-host: got '192.0.2.1'; allowed: a loopback address .*",
    ),
    "a certificate of REST without its key": (
        ["rest", "--certificate", "{tmp}/bad.json", "--coordinator", "{address}"],
        r"connectgroup: --key: missing; allowed: certificate and key together",
    ),
    "readers of REST that cannot be read": (
        ["rest", "--readers", "{tmp}/none", "--coordinator", "{address}"],
        r"connectgroup: --readers: got '{tmp}/none'; allowed: a readable file \(No such file or directory\)",
    ),
    "a port of REST that is too high, for up": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--rest-port", "99999"],
        r"connectgroup: --rest-port: got '99999'; allowed: a whole number from 0 to 65535",
    ),
    "a port of REST in use, for up": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--rest-port", "{port}"],
        r"connectgroup: 127.0.0.1:{port}: cannot listen: .*in use; another port, or 0 for any: --rest-port",
    ),
    "the coordinator's port for REST": (
        ["up", "--port", "18474", "--data", "{tmp}/unused", "--rest-port", "18474"],
        r"connectgroup: --rest-port: got '18474'; allowed: another one than --port, or 0 for any",
    ),
    "a port of metrics in use, for a worker of up": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--metrics-port", "{port_below}"],
        r"connectgroup: 127.0.0.1:\d+: cannot listen: .*in use; another port, or 0 for any: --metrics-port",
    ),
    "users of REST that cannot be read, for up": (
        ["up", "--port", "0", "--data", "{tmp}/unused", "--rest-port", "0", "--rest-users", "{tmp}/none"],
        r"connectgroup: --rest-users: got '{tmp}/none'; allowed: a readable file \(No such file or directory\)",
    ),
    "an unreachable address of REST in a coordinator": (
        ["coordinator", "--port", "0", "--data", "{tmp}/unused", "--rest-port", "0", "--rest-host", "192.0.2.1"],
        r"connectgroup: --rest-host: got '192.0.2.1'; allowed: a loopback address .*",
    ),
    "Kafka's settings that cannot be read": (
        ["coordinator", "--port", "0", "--data", "{tmp}/unused", "--config", "{tmp}/none"],
        r"connectgroup: --config: got '{tmp}/none'; allowed: a readable file \(No such file or directory\)",
    ),
    "a relative path of secrets": (
        ["worker", "--group", "g", "--secret-path", "secrets.properties"],
        r"connectgroup: --secret-path: got 'secrets.properties'; allowed: an absolute path",
    ),
    "a port of metrics that is too high": (
        ["coordinator", "--port", "0", "--data", "{tmp}/unused", "--metrics-port", "65536"],
        r"connectgroup: --metrics-port: got '65536'; allowed: a whole number from 0 to 65535",
    ),
    "a label without a value": (
        ["worker", "--group", "g", "--label", "fast"],
        r"connectgroup: --label: got 'fast'; allowed: name=value, each name once",
    ),
    "a certificate without its key": (
        ["worker", "--group", "g", "--tls-cert", "{tmp}/bad.json"],
        r"connectgroup: --tls-key: missing; allowed: --tls-cert and --tls-key together",
    ),
    "a log that does not exist": (
        ["replay", "{tmp}/none"],
        r"connectgroup: log: got '{tmp}/none'; allowed: an existing file: .*, or the data directory of a coordinator",
    ),
    "a program that is no coordinator": (
        ["groups", "list", "--coordinator", "{other_program}"],
        r"connectgroup: {other_program}: .* TLS\? --tls-ca FILE \(and --tls-cert, --tls-key\); allowed: .*",
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
        r"connectgroup: --heartbeat-interval-ms: got '3000'; allowed: at most a third of --session-timeout-ms \(5000\)",
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
        r"connectgroup: --rebalance-timeout-ms: got '-5'; allowed: a whole number from 1 to 3600000",
    ),
    "a time out of range": (
        ["up", "--data", "{tmp}/unused", "--rebalance-timeout-ms", "9" * 20],
        r"connectgroup: --rebalance-timeout-ms: got '9{20}'; allowed: a whole number from 1 to 3600000",
    ),
    "no command": ([], r"connectgroup: the following arguments are required: COMMAND; see connectgroup --help"),
    "an unknown command": (["flap"], r"connectgroup: argument COMMAND: invalid choice: 'flap' \(choose from .*\).*"),
    "a misspelt command": (
        ["conectors", "list"],
        r"connectgroup: argument COMMAND: .*; did you mean connectors\?; see .*",
    ),
    "a misspelt action": (["groups", "lst"], r"connectgroup groups: argument ACTION: .*; did you mean list\?; see .*"),
    "an unknown state": (
        ["groups", "list", "--state", "nosuch"],
        r"connectgroup groups list: argument --state: invalid choice: 'nosuch' \(choose from .*stable.*\).*",
    ),
    "no group": (["worker"], r"connectgroup worker: the following arguments are required: --group; see .*"),
}


KINDS = {
    "an unknown option of a monitor's command": ("rejected", 3),
    "an invalid coordinator of a monitor's command": ("rejected", 3),
    "no coordinator": ("unavailable", 5),
    "no coordinator for a change": ("unavailable", 5),
    "no such host": ("unavailable", 5),
    "unknown group described": ("not_found", 3),
    "unknown group explained": ("not_found", 3),
    "unknown connector": ("not_found", 3),
    "a program that is no coordinator": ("unavailable", 5),
    "a connector of an unknown group": ("not_found", 3),
    "a restart in an unknown group": ("not_found", 3),
}
"""Those whose exit code is not 2."""


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
    with (
        socket.socket() as bound,
        socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as other,
        marked(),
        Program(*arguments) as coordinator,
    ):
        bound.bind(("127.0.0.1", 0))  # without listening
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        yield {
            "address": address,
            "closed_port": f"127.0.0.1:{bound.getsockname()[1]}",
            "other_program": f"127.0.0.1:{other.server_address[1]}",
            "pid": str(coordinator.pid),
            "port": address.rpartition(":")[2],
            "port_below": str(int(address.rpartition(":")[2]) - 1),
            "tmp": str(root),
        }
        other.shutdown()
        thread.join()


@pytest.mark.parametrize("what", LINES)
def test_error_is_one_line_with_its_exit_code(placeholders: dict[str, str], what: str) -> None:
    """The setting, the value, what is allowed; never a traceback or a usage text."""
    arguments, line = LINES[what]
    done = call_command(*(word.format(**placeholders) for word in arguments))
    _, code = KINDS.get(what, ("rejected", 2))
    assert (done.code, done.out) == (code, ""), done
    for name, value in placeholders.items():
        line = line.replace(f"{{{name}}}", re.escape(value))
    assert re.fullmatch(line + "\n", done.err), done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("what", ["no coordinator", "unknown connector", "a missing file", "an unknown command"])
def test_error_with_json_is_one_json_object_on_standard_error(placeholders: dict[str, str], what: str) -> None:
    arguments, line = LINES[what]
    done = call_command(*(word.format(**placeholders) for word in arguments), "--json")
    kind, code = KINDS.get(what, ("rejected", 2))
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    error = json.loads(done.err)
    assert (error["error"], error["exit_code"]) == (kind, code)
    for name, value in placeholders.items():
        line = line.replace(f"{{{name}}}", re.escape(value))
    assert re.fullmatch(line, f"connectgroup: {error['message']}")


def test_up_checks_its_connectors_before_anything_starts(tmp_path: Path) -> None:
    config = {"source": "files", "source.path": str(tmp_path), "source.format": "csv", "sink": "sqlite"}
    file = connector_file(tmp_path / "a.json", **{"connector.class": "pipeline", "sink.tabel": "t", **config})
    done = call_command("up", "--port", 0, "--data", tmp_path / "data", "--connector", file)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"connectgroup: {file}: 3 errors"
    assert any(
        "sink.tabel: unknown; allowed: sink.table (did you mean that?)" in line for line in done.err.splitlines()
    )
    assert not (tmp_path / "data").exists()
