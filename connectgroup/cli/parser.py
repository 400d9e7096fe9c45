"""Options and subcommands of ``connectgroup``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from ..protocol.units import name_violation, printable
from .connectors import delete_connectors, list_connectors, put_connectors, set_target_state
from .groups import delete_groups, describe_groups, explain_groups, list_groups, restart_worker
from .processes import run_up, serve_coordinator, serve_worker


class _Parser(argparse.ArgumentParser):
    """Reports an error as one line, like all other errors of the command; ``--help`` prints the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="connectgroup", description="Worker groups that share out connectors and tasks.")
    parser.add_argument("--verbose", action="store_true", help="log more")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="a coordinator and workers on this machine, until Ctrl-C")
    up.add_argument("--workers", type=_count, default=3, help="worker processes to start (3)")
    up.add_argument("--group", type=_name, default="workers", help="the group's name (workers)")
    up.add_argument(
        "--data", type=_path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    up.add_argument(
        "--connector",
        type=_path,
        action="append",
        default=[],
        metavar="FILE",
        help="a connector to run; may be repeated",
    )
    _add_assigning(up, "an assignor the workers offer; may be repeated (balanced)")
    up.add_argument("--no-restart", action="store_true", help="do not start a worker again that died")
    _add_server(up)
    up.set_defaults(run=run_up)

    coordinator = commands.add_parser("coordinator", help="a coordinator alone")
    coordinator.add_argument(
        "--data", type=_path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    _add_server(coordinator)
    coordinator.set_defaults(run=serve_coordinator)

    worker = commands.add_parser("worker", help="one worker")
    _add_coordinator(worker)
    worker.add_argument("--group", type=_name, required=True, help="the group to join")
    worker.add_argument("--name", type=_name, help="this worker's name in the group; made up by default")
    worker.add_argument(
        "--instance", type=_name, help="group.instance.id: after a stop, its tasks are kept until the session timeout"
    )
    _add_assigning(worker, "an assignor to offer; may be repeated (balanced)")
    worker.add_argument("--listener", action="append", help="a rebalance listener; may be repeated")
    worker.add_argument("--capacity", help="weight of tasks it can carry at most (no limit)")
    worker.add_argument("--label", action="append", help="name=value, for connectors that ask; may be repeated")
    worker.add_argument("--rack", help="where it stands: a rack or a zone")
    worker.add_argument(
        "--scratch",
        type=_path,
        help="where the worker creates its private directory for temporary files",
    )
    worker.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    worker.set_defaults(run=serve_worker)

    groups = commands.add_parser("groups", help="look at groups").add_subparsers(required=True, metavar="ACTION")
    listing = groups.add_parser("list", help="all groups, a line each")
    _add_coordinator(listing)
    listing.set_defaults(run=list_groups)
    describe = groups.add_parser("describe", help="one group: workers, connectors, tasks")
    explain = groups.add_parser("explain", help="why a group rebalanced, and what it cost")
    forget = groups.add_parser("delete", help="forget a group that all workers have left, with its connectors")
    for command, function in ((describe, describe_groups), (explain, explain_groups), (forget, delete_groups)):
        command.add_argument("group")
        _add_coordinator(command)
        command.set_defaults(run=function)
    explain.add_argument("--last", type=_count, default=10, help="how many rebalances (10)")
    explain.add_argument("--moves", action="store_true", help="every move with its downtime")

    workers = commands.add_parser("workers", help="restart workers").add_subparsers(required=True, metavar="ACTION")
    restart = workers.add_parser("restart", help="restart a worker; its tasks are kept for it (--rebalance-delay-ms)")
    restart.add_argument("name")
    restart.add_argument("--group", type=_name, default="workers", help="the group's name (workers)")
    restart.add_argument("--no-wait", action="store_true", help="do not wait until the worker runs its tasks again")
    restart.add_argument("--timeout", type=_count, default=60, metavar="SECONDS", help="how long to wait for it (60)")
    _add_coordinator(restart)
    restart.set_defaults(run=restart_worker)

    connectors = commands.add_parser("connectors", help="change a group's connectors").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = connectors.add_parser("list", help="connectors with their configurations, as JSON")
    listing.set_defaults(run=list_connectors)
    put = connectors.add_parser("put", help="create a connector, or change it, from a JSON file")
    put.add_argument("file", type=_path)
    put.set_defaults(run=put_connectors)
    delete = connectors.add_parser("delete", help="remove a connector and its tasks")
    delete.set_defaults(run=delete_connectors)
    states = {
        name: connectors.add_parser(name, help=help_)
        for name, help_ in (
            ("pause", "stop its tasks, keep watching its source"),
            ("resume", "run it again"),
            ("stop", "stop all of it"),
        )
    }
    for name, command in states.items():
        command.set_defaults(run=set_target_state, action=name)
    for command in (delete, *states.values()):
        command.add_argument("name")
    for command in (listing, put, delete, *states.values()):
        command.add_argument("--group", type=_name, default="workers", help="the group's name (workers)")
        _add_coordinator(command)
    return parser


def _add_server(parser: argparse.ArgumentParser) -> None:
    from ..config.base import DEFAULT_PORT

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
    """Add the options that select the assignor, and the rebalance timeout."""
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--assignor", action="append", help=offer)
    who.add_argument("--no-assignor", action="store_true", help="offer none: the coordinator assigns")
    who.add_argument("--server-assignor", metavar="NAME", help="offer none and ask for this one of the coordinator's")
    parser.add_argument(
        "--rebalance-timeout-ms", type=_number, help="how long a worker may take to stop revoked tasks (60000)"
    )


def _add_coordinator(parser: argparse.ArgumentParser) -> None:
    from ..config.base import DEFAULT_PORT

    default = f"127.0.0.1:{DEFAULT_PORT}"
    parser.add_argument("--coordinator", default=default, metavar="HOST:PORT", help=f"where it listens ({default})")


def _name(text: str) -> str:
    """Check an identifier with the coordinator's rule, before anything starts."""
    allowed = name_violation(text)
    if allowed is not None:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: {allowed}")
    return text


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: a path")
    return Path(text)


def _number(text: str) -> int:
    """Convert a number; the settings check its range. A number of more than 100 digits is not converted."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 100:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: a whole number")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 1 to 10000")
    return int(text)
