"""The command ``connectgroup``. Errors are one line on standard error: what, where, what is allowed; exit code 2.

``argparse`` rather than a richer library: the base install has four packages, and the command belongs to it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import logging
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import ConfigError, ConnectGroupError, PluginError, TransportError, from_code
from .messages import (
    ChangedConnector,
    ConnectorChange,
    DeleteRequest,
    DeleteResponse,
    DescribedGroup,
    DescribedMember,
    DescribeRequest,
    DescribeResponse,
    Request,
    Response,
    RestartRequest,
    RestartResponse,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
    config_of,
    each_unit,
    entries,
)
from .names import Unit, show
from .records import WantedState

if TYPE_CHECKING:
    from .config import CoordinatorConfig

OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
STATES = {"resume": WantedState.RUNNING, "pause": WantedState.PAUSED, "stop": WantedState.STOPPED}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went: 0 done, 1 ended by an error on the way, 2 refused.

    130: interrupted (Ctrl-C); 141: nobody reads what it prints any more.
    """
    options = _parser().parse_args(arguments)
    options.own_process = arguments is None
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        code = _run(options.run(options))
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_unread():
            raise
        # Python would say so again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell says of who is ended by SIGPIPE
    except ConnectGroupError as error:
        print(f"connectgroup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(command: Coroutine[Any, Any, int]) -> int:
    async def run() -> int:
        asyncio.get_running_loop().set_exception_handler(_on_loop_error)
        return await command

    return asyncio.run(run())


def _is_unread() -> bool:
    """Whether whoever reads our lines has read enough (``| head``)."""
    if sys.stdout is None:
        return False
    output = select.poll()
    output.register(sys.stdout, 0)  # a pipe without a reader is in error, whatever one asks for
    return bool(output.poll(0))


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line, and no traceback, where asyncio cannot take in a connection; it tries again every second."""
    error = context.get("exception")
    if isinstance(error, OSError) and "socket" in context and error.errno in OUT_OF_RESOURCES:
        logging.error("no new connection can be taken in: %s; those that are open go on", error.strerror)
    else:
        loop.default_exception_handler(context)


def _allow_open_files(max_connections: int) -> None:
    """As many as the server takes connections, where the system lets us: the usual limit is 1,024."""
    wanted = max_connections + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# --------------------------------------------------------------------------------------------------
# Processes


async def _up(options: argparse.Namespace) -> int:
    from .config import read_connector
    from .plugins import load_assignor
    from .supervisor import Supervisor, explain, summary

    connectors = [read_connector(path) for path in options.connector]
    assignors = [] if options.no_assignor or options.server_assignor else options.assignor or ["balanced"]
    if options.server_assignor not in (None, options.fallback_assignor):
        raise ConfigError(
            "--server-assignor", options.server_assignor, f"{options.fallback_assignor} (--fallback-assignor)"
        )
    if options.rebalance_timeout_ms is not None and not 1 <= options.rebalance_timeout_ms <= 3_600_000:
        raise ConfigError("rebalance_timeout_ms", options.rebalance_timeout_ms, "1 to 3600000")
    for name in assignors:
        # Said here, once, and not by every worker.
        load_assignor(name)
    data, coordinator = Path(options.data), _coordinator_config(options)
    _check_connections(options.workers, coordinator)
    supervisor = Supervisor(
        options.group,
        workers=options.workers,
        scratch=data / "scratch",
        coordinator=coordinator,
        connectors=connectors,
        assignors=assignors,
        server_assignor=options.server_assignor,
        rebalance_timeout_ms=options.rebalance_timeout_ms,
        restart=not options.no_restart,
    )
    _make_directory("--data", data)
    _allow_open_files(coordinator.max_connections)
    stopping = _stop_event()
    said, last, rows = 0, "", 0
    async with supervisor:
        print(f"coordinator at {supervisor.server.address}, group {options.group}", flush=True)
        while not stopping.is_set():
            group = await supervisor.describe()
            for rebalance in group.rebalances:
                if rebalance.epoch > said and rebalance.finished_ms >= 0:
                    said = rebalance.epoch
                    print(f"rebalance | {explain(rebalance)}", flush=True)
            line = f"{summary(group)} | {supervisor.rows - rows} rows/s"
            rows = supervisor.rows
            if line != last:
                print(line, flush=True)
                last = line
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), 1.0)
        print("stopping the workers ...", flush=True)
    return 0


def _coordinator_config(options: argparse.Namespace) -> CoordinatorConfig:
    """The settings, checked."""
    from .config import CoordinatorConfig, checked

    values = {
        "host": options.host,
        "port": options.port,
        "data": options.data / "groups.sqlite",
        "session_timeout_ms": options.session_timeout_ms,
        "heartbeat_interval_ms": options.heartbeat_interval_ms,
        "scheduled_rebalance_max_delay_ms": options.rebalance_delay_ms,
        "assignment_interval_ms": options.assignment_interval_ms,
        "moves_per_round": options.moves_per_round,
        "max_connections": options.max_connections,
        "max_connections_per_address": options.max_connections_per_address,
        "assignor": options.fallback_assignor,
    }
    return checked(CoordinatorConfig, values)


def _check_connections(workers: int, config: CoordinatorConfig) -> None:
    """Refuse a limit that the workers alone would exceed: each needs two connections, and commands one more.

    Raises:
        ConfigError: one of the limits is lower.
    """
    needed = 2 * workers + 1
    for name in "max_connections", "max_connections_per_address":
        if (limit := getattr(config, name)) < needed:
            raise ConfigError(name, limit, f"{needed} or more for {workers} workers, two for each and one for commands")


async def _coordinator(options: argparse.Namespace) -> int:
    from .coordinator.server import CoordinatorServer

    config = _coordinator_config(options)
    server = CoordinatorServer(config)
    _make_directory("--data", options.data)
    _allow_open_files(config.max_connections)
    stopping = _stop_event()
    await server.start()
    print(f"coordinator at {server.address}", flush=True)
    try:
        await stopping.wait()
    finally:
        await server.close()
    return 0


async def _worker(options: argparse.Namespace) -> int:
    from .config import WorkerConfig, checked
    from .worker.process import run_worker
    from .worker.restart import RESTART_EXIT_CODE, ReplaceAtExit
    from .worker.scratch import default_parent

    supervised = options.supervised or not options.own_process
    replace = None if supervised else ReplaceAtExit()
    scratch = options.scratch or default_parent()
    values: dict[str, Any] = {"coordinator": options.coordinator, "group": options.group, "scratch": scratch}
    if options.name:
        values["name"] = options.name
    if options.instance:
        values["instance"] = options.instance
    if options.assignor or options.no_assignor:
        values["assignors"] = tuple(options.assignor or ())
    if options.listener:
        values["listeners"] = tuple(options.listener)
    if options.label:
        values["labels"] = tuple(options.label)
    optional = ("capacity", "rack", "server_assignor", "rebalance_timeout_ms")
    values |= {name: said for name in optional if (said := getattr(options, name)) is not None}
    config = checked(WorkerConfig, values)
    _make_directory("--scratch", scratch)
    if not await run_worker(config, supervised=options.supervised):
        return 0
    if replace is None:
        return RESTART_EXIT_CODE
    # A generated name must stay the same: the tasks are delayed for it.
    replace.wanted("--name", config.name)
    return 0


def _make_directory(option: str, path: Path) -> None:
    """Make a directory that only its owner may enter; one that exists keeps its mode."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(option, path, f"a directory that can be made ({error.strerror})") from error


def _stop_event() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


# --------------------------------------------------------------------------------------------------
# Groups


async def _groups_list(options: argparse.Namespace) -> int:
    for group in await _describe(options, ()):
        print(f"{group.group_id:<30} {group.state:<12} epoch {group.group_epoch:<6} {len(group.members)} workers")
    return 0


async def _groups_describe(options: argparse.Namespace) -> int:
    for group in await _describe(options, (options.group,)):
        print(f"group {group.group_id}: {group.state}, epoch {group.group_epoch}, target {group.assignment_epoch}")
        print(f"assignor: {group.assignor_name or 'none yet'}", end="")
        print(f", being computed by {group.computing_member}" if group.computing_member else "")
        if group.assignor_error:
            print(f"last assignor error: {group.assignor_error}")
        for member in group.members:
            print(f"worker {member.member_id} ({member.client_host}): {member.state}, epoch {member.member_epoch}")
            print(f"  {_about(member)}")
            print(f"  runs {show(each_unit(member.assigned), most=20)}")
            if member.pending_revocation:
                print(f"  is stopping {show(each_unit(member.pending_revocation), most=20)}")
        for waiting in group.held_back:
            who = f"worker {waiting.instance_id or waiting.member_id}" if waiting.member_id else "the assignor"
            print(f"waiting {waiting.left_ms / 1000:.1f} s more for {who}: {show(each_unit(waiting.units), most=20)}")
        for connector in group.connectors:
            print(f"connector {connector.connector}: {connector.wanted_state}, version {connector.version}")
            for unit in connector.units:
                where = f"on {unit.member_id} since epoch {unit.owner_epoch}" if unit.member_id else ""
                print(f"  {Unit(connector.connector, unit.task)}: {unit.state} {where}".rstrip())
                if unit.message:
                    print(f"    {unit.message}")
    return 0


def _about(member: DescribedMember) -> str:
    """What a member gave when it joined: client id, epoch, and what it offers to assignors."""
    labels = ",".join(f"{label.name}={label.value}" for label in member.labels)
    given = {
        "client id": member.client_id,
        "joined at epoch": member.joined_epoch,
        "capacity": member.capacity,
        "labels": labels,
        "rack": member.rack,
        "host": member.host,
    }
    return ", ".join(f"{name} {value}" for name, value in given.items() if value) or "nothing known of how it joined"


async def _groups_delete(options: argparse.Namespace) -> int:
    response = await _call(options, DeleteRequest(group_ids=(options.group,)))
    assert isinstance(response, DeleteResponse)
    for result in response.results:
        if result.error_code:
            raise from_code(result.error_code, result.error_message)
        print(f"group {result.group_id}: deleted")
    return 0


async def _groups_explain(options: argparse.Namespace) -> int:
    from .supervisor import explain

    for group in await _describe(options, (options.group,)):
        for rebalance in group.rebalances[-options.last :]:
            print(explain(rebalance))
            for move in rebalance.moves if options.moves else ():
                unit = Unit(move.connector, move.task)
                if move.source == move.target:
                    print(f"  {unit}: started again on {move.target}, downtime {move.standstill_ms} ms")
                    continue
                stood = f"stood still {move.standstill_ms} ms" if move.source else "started"
                print(f"  {unit}: {move.source or 'nowhere'} -> {move.target}, {stood}")
    return 0


# --------------------------------------------------------------------------------------------------
# Workers


async def _workers_restart(options: argparse.Namespace) -> int:
    response = await _call(options, RestartRequest(group_id=options.group, member_id=options.name))
    assert isinstance(response, RestartResponse)
    if response.error_code:
        raise from_code(response.error_code, response.error_message)
    if options.no_wait:
        already = "already " if response.already_requested else ""
        print(f"worker {options.name}: restart {already}requested")
        return 0
    give_up_at = time.monotonic() + options.timeout
    while time.monotonic() < give_up_at:
        [group] = await _describe(options, (options.group,))
        if _is_back(group, options.name):
            print(f"worker {options.name}: restarted")
            return 0
        await asyncio.sleep(0.2)
    print(f"connectgroup: worker {options.name}: not back within {options.timeout} s", file=sys.stderr)
    return 1


def _is_back(group: DescribedGroup, name: str) -> bool:
    """Whether a worker has been restarted and runs its units: those of the newest target, none of them starting."""
    member = next((member for member in group.members if member.member_id == name), None)
    if member is None or member.state in ("RESTARTING", "AWAY") or group.state == "Assigning":
        return False
    starting = any(
        unit.state == "STARTING" for connector in group.connectors for unit in connector.units if unit.member_id == name
    )
    return member.assigned == member.target and not starting


# --------------------------------------------------------------------------------------------------
# Connectors


async def _connectors_list(options: argparse.Namespace) -> int:
    for group in await _describe(options, (options.group,)):
        for connector in group.connectors:
            print(json.dumps({"name": connector.connector, "config": config_of(connector.config)}, indent=2))
    return 0


async def _connectors_put(options: argparse.Namespace) -> int:
    from .config import read_connector
    from .masking import without_secrets
    from .placement import most_tasks
    from .plugins import load_connector_class
    from .worker.runner import one_line

    connector = read_connector(options.file)
    most_tasks(connector.config)
    # Said here, where somebody reads it, and not only on the worker that would own it.
    cls = load_connector_class(connector.config["connector.class"])
    try:
        cls(connector.name, connector.config)
    except Exception as error:
        if isinstance(error, ConnectGroupError) and without_secrets(str(error), connector.config) == str(error):
            raise
        raise PluginError(f"connector class {cls.__name__}: {one_line(error, connector.config)}") from error
    return await _change(options, ConnectorChange(connector=connector.name, config=entries(connector.config)))


async def _connectors_delete(options: argparse.Namespace) -> int:
    return await _change(options, ConnectorChange(connector=options.name, delete=True))


async def _connectors_state(options: argparse.Namespace) -> int:
    return await _change(options, ConnectorChange(connector=options.name, wanted_state=STATES[options.action]))


async def _change(options: argparse.Namespace, change: ConnectorChange) -> int:
    response = await _call(options, UpdateConnectorsRequest(group_id=options.group, changes=(change,)))
    assert isinstance(response, UpdateConnectorsResponse)
    if response.error_code:
        raise from_code(response.error_code, response.error_message)
    changed: ChangedConnector = response.results[0]
    print(f"connector {changed.connector}: " + (f"version {changed.version}" if changed.version else "removed"))
    return 0


async def _describe(options: argparse.Namespace, group_ids: tuple[str, ...]) -> tuple[DescribedGroup, ...]:
    response = await _call(options, DescribeRequest(group_ids=group_ids))
    assert isinstance(response, DescribeResponse)
    for group in response.groups:
        if group.error_code:
            raise from_code(group.error_code, group.error_message)
    return response.groups


async def _call(options: argparse.Namespace, request: Request) -> Response:
    from .config import parse_address
    from .transport.tcp_client import TcpClient

    client = TcpClient(*parse_address("--coordinator", options.coordinator), "cli")
    try:
        return await client.call(request, timeout_s=10)
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator names a coordinator that runs") from error
    finally:
        await client.close()


# --------------------------------------------------------------------------------------------------
# Arguments


class _Parser(argparse.ArgumentParser):
    """Says what is wrong on one line, like every other error here; the usage is what ``--help`` is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="connectgroup", description="Worker groups that share out connectors and tasks.")
    parser.add_argument("--verbose", action="store_true", help="log more")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="a coordinator and workers on this machine, until Ctrl-C")
    up.add_argument("--workers", type=_count, default=3, help="worker processes to start (3)")
    up.add_argument("--group", default="workers", help="the group's name (workers)")
    up.add_argument(
        "--data", type=Path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    up.add_argument(
        "--connector",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a connector to run; may be repeated",
    )
    _add_assigning(up, "an assignor the workers offer; may be repeated (balanced)")
    up.add_argument("--no-restart", action="store_true", help="do not start a worker again that died")
    _add_server(up)
    up.set_defaults(run=_up)

    coordinator = commands.add_parser("coordinator", help="a coordinator alone")
    coordinator.add_argument(
        "--data", type=Path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    _add_server(coordinator)
    coordinator.set_defaults(run=_coordinator)

    worker = commands.add_parser("worker", help="one worker")
    _add_coordinator(worker)
    worker.add_argument("--group", required=True, help="the group to join")
    worker.add_argument("--name", help="this worker's name in the group; made up by default")
    worker.add_argument("--instance", help="a name that outlives the process: stopped, its work waits for its return")
    _add_assigning(worker, "an assignor to offer; may be repeated (balanced)")
    worker.add_argument("--listener", action="append", help="a rebalance listener; may be repeated")
    worker.add_argument("--capacity", help="weight of tasks it can carry at most (no limit)")
    worker.add_argument("--label", action="append", help="name=value, for connectors that ask; may be repeated")
    worker.add_argument("--rack", help="where it stands: a rack or a zone")
    worker.add_argument(
        "--scratch",
        type=Path,
        help="where the worker creates its private directory for temporary files",
    )
    worker.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    worker.set_defaults(run=_worker)

    groups = commands.add_parser("groups", help="look at groups").add_subparsers(required=True, metavar="ACTION")
    listing = groups.add_parser("list", help="all groups, a line each")
    _add_coordinator(listing)
    listing.set_defaults(run=_groups_list)
    describe = groups.add_parser("describe", help="one group: workers, connectors, tasks")
    explain = groups.add_parser("explain", help="why a group rebalanced, and what it cost")
    forget = groups.add_parser("delete", help="forget a group that all workers have left, with its connectors")
    for command, function in ((describe, _groups_describe), (explain, _groups_explain), (forget, _groups_delete)):
        command.add_argument("group")
        _add_coordinator(command)
        command.set_defaults(run=function)
    explain.add_argument("--last", type=_count, default=10, help="how many rebalances (10)")
    explain.add_argument("--moves", action="store_true", help="every move with its standstill")

    workers = commands.add_parser("workers", help="restart workers").add_subparsers(required=True, metavar="ACTION")
    restart = workers.add_parser("restart", help="restart a worker; its tasks are kept for it (--rebalance-delay-ms)")
    restart.add_argument("name")
    restart.add_argument("--group", default="workers", help="the group's name (workers)")
    restart.add_argument("--no-wait", action="store_true", help="do not wait until the worker runs its tasks again")
    restart.add_argument("--timeout", type=_count, default=60, metavar="SECONDS", help="how long to wait for it (60)")
    _add_coordinator(restart)
    restart.set_defaults(run=_workers_restart)

    connectors = commands.add_parser("connectors", help="change a group's connectors").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = connectors.add_parser("list", help="connectors with their configurations, as JSON")
    listing.set_defaults(run=_connectors_list)
    put = connectors.add_parser("put", help="create a connector, or change it, from a JSON file")
    put.add_argument("file", type=Path)
    put.set_defaults(run=_connectors_put)
    delete = connectors.add_parser("delete", help="remove a connector and its tasks")
    delete.set_defaults(run=_connectors_delete)
    states = {
        name: connectors.add_parser(name, help=help_)
        for name, help_ in (
            ("pause", "stop its tasks, keep watching its source"),
            ("resume", "run it again"),
            ("stop", "stop all of it"),
        )
    }
    for name, command in states.items():
        command.set_defaults(run=_connectors_state, action=name)
    for command in (delete, *states.values()):
        command.add_argument("name")
    for command in (listing, put, delete, *states.values()):
        command.add_argument("--group", default="workers", help="the group's name (workers)")
        _add_coordinator(command)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    from .config import DEFAULT_PORT

    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; this machine's own only (127.0.0.1)")
    parser.add_argument(
        "--port", type=_number, default=DEFAULT_PORT, help=f"port to listen on, 0 for any ({DEFAULT_PORT})"
    )
    parser.add_argument(
        "--session-timeout-ms", type=_number, default=10_000, help="silence that removes a worker (10000)"
    )
    parser.add_argument("--heartbeat-interval-ms", type=_number, default=3_000, help="how often workers speak (3000)")
    parser.add_argument(
        "--fallback-assignor",
        default="balanced",
        metavar="NAME",
        help="the coordinator's own, for when the workers' has failed three times (balanced)",
    )
    parser.add_argument(
        "--rebalance-delay-ms",
        type=_number,
        default=10_000,
        help="how long a lost worker's work is kept for it (10000)",
    )
    parser.add_argument(
        "--assignment-interval-ms", type=_number, default=0, help="changes within this time share one computation (0)"
    )
    parser.add_argument(
        "--moves-per-round", type=_number, default=0, help="tasks that may be moved at a time, 0 for all (0)"
    )
    parser.add_argument(
        "--max-connections", type=_number, default=2000, help="open connections; a worker needs two (2000)"
    )
    parser.add_argument(
        "--max-connections-per-address", type=_number, default=1500, help="of them from one address (1500)"
    )


def _add_assigning(parser: argparse.ArgumentParser, offer: str) -> None:
    """Who computes the target assignment, and how long a worker may take."""
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--assignor", action="append", help=offer)
    who.add_argument("--no-assignor", action="store_true", help="offer none: the coordinator assigns")
    who.add_argument("--server-assignor", metavar="NAME", help="offer none and ask for this one of the coordinator's")
    parser.add_argument(
        "--rebalance-timeout-ms", type=_number, help="how long a worker may take to stop revoked tasks (60000)"
    )


def _add_coordinator(parser: argparse.ArgumentParser) -> None:
    from .config import DEFAULT_PORT

    default = f"127.0.0.1:{DEFAULT_PORT}"
    parser.add_argument("--coordinator", default=default, metavar="HOST:PORT", help=f"where it listens ({default})")


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 1 to 10000")
    return int(text)


if __name__ == "__main__":
    raise SystemExit(main())
