"""Options and subcommands of ``connectgroup``."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from .. import __version__
from ..log.registry import LOG_FORMS
from ..loggers import FORMAT_VARIABLE, FORMATS
from ..protocol import DEFAULT_REST_PORT, HISTORY
from ..protocol.units import printable
from .arguments import (
    DEFAULT_GROUP,
    GROUP_HELP,
    GROUP_TYPES,
    add_allowed_paths,
    add_coordinator,
    add_group,
    add_json,
    add_plugin_path,
    add_secrets,
    count,
    group_types,
    name,
    number,
    path,
    subcommand,
)
from .completion import SHELLS, with_groups, with_plugins, with_workers
from .connector_options import add_connectors, add_plugins, add_status
from .errors import UsageError
from .requests import add_security
from .server_options import (
    add_assigning,
    add_group_protocol,
    add_metrics,
    add_rest,
    add_rest_port,
    add_rules,
    add_server,
    add_sharing,
)


class _Parser(argparse.ArgumentParser):
    """Reports an error as one line, like all other errors of the command; ``--help`` prints the usage."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(self.prog, f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            if near := difflib.get_close_matches(str(value), map(str, action.choices or ()), n=1):
                error.message += f"; did you mean {near[0]}?"
            raise

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """A command rejects unknown options itself, so that the error refers to the help of the command.

        ``parser`` of the options is the parser of the command.
        """
        options, unknown = super().parse_known_args(args, namespace)
        if self.get_default("run") is None:
            return options, unknown
        options.parser = self
        if unknown:
            names = [name for name in self._option_string_actions if name.startswith("--")]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], names, n=1, cutoff=0.75)
            hint = f" ({near[0]}; did you mean that?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return options, unknown


UP_EXAMPLES: Final = """examples:
  connectgroup up --connector orders.json --allowed-path /data
      three workers, and one connector that may use the files below /data
  connectgroup up --workers 2 --rest-port 8083 --metrics-port 9100
      with the REST API and the live page at http://127.0.0.1:8083/page, and metrics for Prometheus
  connectgroup up --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem --credentials users
      workers and clients on other machines may connect
  connectgroup status --watch
      in another terminal: what the connectors do
"""


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="connectgroup",
        description="Worker groups: connectors and their tasks are distributed over worker processes.",
        epilog="--coordinator HOST:PORT, --group GROUP and --json may stand before or after COMMAND, if it has them. "
        "connectgroup COMMAND --help lists its options.",
    )
    parser.add_argument("--version", action="version", version=f"connectgroup {__version__}")
    parser.add_argument("--verbose", action="store_true", help="log at level DEBUG")
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default=os.environ.get(FORMAT_VARIABLE) or "text",
        help=f"form of the log: lines, or a JSON object on each (text; {FORMAT_VARIABLE})",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser(
        "up",
        help="run a coordinator and workers on this machine until Ctrl-C",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=UP_EXAMPLES,
    )
    up.add_argument("--workers", type=count, default=3, help="number of worker processes (3)")
    add_group(up)
    up.add_argument(
        "--data", type=path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    up.add_argument(
        "--connector",
        type=path,
        action="append",
        default=[],
        metavar="FILE",
        help="file of a connector to create or update, JSON or .properties; may be repeated",
    )
    add_assigning(up, "an assignor that the workers list, in order of preference; may be repeated (balanced)")
    add_group_protocol(up)
    up.add_argument(
        "--isolated-spark",
        action="store_true",
        help="one Java process for each worker instead of one that all workers of this machine share",
    )
    up.add_argument("--coordinator", type=_not_of_up, help=argparse.SUPPRESS)
    up.add_argument("--no-restart", action="store_true", help="do not restart a worker process that died")
    # Long enough for the start of Spark on a busy machine. The supervisor reports a worker that died, without a delay.
    add_server(up, rebalance_delay_ms=30_000)
    add_sharing(up)
    add_security(up)
    add_rest_port(up)
    add_metrics(up, "; worker-1 serves its own at the next port, worker-2 at the one after")
    add_secrets(up)
    add_allowed_paths(up, "the current directory")
    add_plugin_path(up)
    # Its workers create the group if the first connector does not, and have the same secrets.
    up.set_defaults(run=subcommand("processes.run_up"), serves="up", new_group=True, gives_secrets=True)

    rest = commands.add_parser("rest", help="serve the REST API of a group")
    add_coordinator(rest)
    add_group(rest)
    rest.add_argument("--new-group", action="store_true", help="create the group if there are only others")
    rest.add_argument("--port", type=number, default=DEFAULT_REST_PORT, help=f"port, 0 for any ({DEFAULT_REST_PORT})")
    add_rest(rest, "--")
    add_rules(rest)
    add_secrets(rest)
    add_allowed_paths(rest, "only the workers check")
    add_plugin_path(rest)
    rest.set_defaults(run=subcommand("processes.serve_rest"), serves="rest")

    coordinator = commands.add_parser("coordinator", help="run a coordinator")
    coordinator.add_argument(
        "--data", type=path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    add_server(coordinator)
    add_sharing(coordinator)
    add_security(coordinator)
    add_metrics(coordinator)
    add_rest_port(coordinator)
    rest_group = coordinator.add_argument(
        "--group", type=name, default=DEFAULT_GROUP, help=f"group of the REST API ({DEFAULT_GROUP})"
    )
    with_groups(rest_group)
    add_secrets(coordinator)
    add_allowed_paths(coordinator, "only the workers check")
    add_plugin_path(coordinator)
    coordinator.set_defaults(run=subcommand("processes.serve_coordinator"), serves="coordinator")

    proxy = commands.add_parser("proxy", help="serve the groups of a Kafka broker's clients; forward everything else")
    proxy.add_argument(
        "--broker", required=True, metavar="HOST:PORT,...", help="a Kafka broker, or several of the same cluster"
    )
    proxy.add_argument(
        "--broker-config",
        type=path,
        metavar="FILE",
        help="properties with librdkafka's settings of TLS and SASL to the brokers: security.protocol, sasl.username "
        "and the like (their PLAINTEXT listeners)",
    )
    proxy.add_argument(
        "--data", type=path, default=Path("connectgroup-data"), help="directory of the log (connectgroup-data)"
    )
    proxy.add_argument("--advertised-host", metavar="HOST", help="host that clients are sent to (--host)")
    proxy.add_argument("--advertised-port", type=number, metavar="PORT", help="port that clients are sent to (--port)")
    proxy.add_argument(
        "--initial-rebalance-delay-ms",
        type=number,
        help="how long the first rebalance of a classic group waits for more members (3000)",
    )
    proxy.add_argument(
        "--min-session-timeout-ms", type=number, help="lowest session timeout of a classic member (6000)"
    )
    add_server(proxy)
    add_security(proxy, proxy=True)
    add_metrics(proxy)
    proxy.set_defaults(run=subcommand("processes.serve_proxy"), serves="proxy")

    worker = commands.add_parser("worker", help="run one worker")
    add_coordinator(worker)
    worker.add_argument("--group", type=name, required=True, help="id of the group to join")
    worker.add_argument("--name", type=name, help="member id of this worker; generated by default")
    worker.add_argument(
        "--instance",
        type=name,
        help="group.instance.id: after a stop, the tasks are kept for this worker until the session timeout",
    )
    add_assigning(worker, "an assignor to list, in order of preference; may be repeated (balanced)")
    add_group_protocol(worker)
    worker.add_argument("--listener", action="append", help="a rebalance listener; may be repeated")
    worker.add_argument("--capacity", help="maximum total weight of the worker's tasks (no limit)")
    worker.add_argument(
        "--label", action="append", help="a label name=value, which connectors may require; may be repeated"
    )
    worker.add_argument("--rack", help="rack or zone of the worker")
    worker.add_argument(
        "--scratch",
        type=path,
        help="directory in which the worker creates its private directory for temporary files",
    )
    worker.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    worker.add_argument("--replacement", action="store_true", help=argparse.SUPPRESS)
    worker.add_argument("--tls-server", type=path, help=argparse.SUPPRESS)
    add_metrics(worker)
    add_rest_port(worker)
    add_rules(worker)
    add_secrets(worker)
    add_allowed_paths(worker, "none")
    add_plugin_path(worker)
    worker.set_defaults(run=subcommand("processes.serve_worker"), serves="worker", new_group=True)

    groups = commands.add_parser("groups", help="list, describe, explain and delete groups").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = groups.add_parser("list", help="list all groups, one per line")
    add_coordinator(listing)
    listing.add_argument(
        "--type",
        action="append",
        type=group_types,
        nargs="?",
        const=(),
        metavar="TYPE",
        help=f"groups of this type only: {', '.join(GROUP_TYPES)}; several separated by commas; may be repeated",
    )
    listing.add_argument(
        "--state",
        action="append",
        type=str.lower,
        choices=("assigning", "completingrebalance", "dead", "empty", "preparingrebalance", "reconciling", "stable"),
        metavar="STATE",
        help="groups in this state only: %(choices)s; may be repeated",
    )
    add_json(listing)
    listing.set_defaults(run=subcommand("groups.list_groups"))
    describe = groups.add_parser("describe", help="describe a group: workers, connectors, tasks")
    explain = groups.add_parser("explain", help="explain the rebalances of a group: cause, moves, downtime")
    forget = groups.add_parser("delete", help="delete a group that has no workers, with its connectors")
    describe.add_argument("--type", action="store_true", help="its type and state only")
    describe.add_argument("--members", action="store_true", help="its members only, one per line")
    describe.add_argument("--offsets", action="store_true", help="the committed offsets of a group of consumers only")
    for command in (listing, describe):
        command.add_argument(
            "--bootstrap-server",
            metavar="HOST:PORT",
            help="the groups of this Kafka broker's cluster, instead of those of a coordinator",
        )
        command.add_argument(
            "--command-config",
            type=path,
            metavar="FILE",
            help="properties of librdkafka for --bootstrap-server, such as security.protocol",
        )
    forget.add_argument("--yes", action="store_true", help="do not ask before its connectors are deleted with it")
    for command in (describe, forget):
        add_json(command)
    for command, function in (
        (describe, subcommand("groups.describe_groups")),
        (explain, subcommand("groups.explain_groups")),
        (forget, subcommand("groups.delete_groups")),
    ):
        # What deletes has no default: it must be named.
        default: dict[str, Any] = (
            {} if command is forget else {"nargs": "?", "default": DEFAULT_GROUP, "help": GROUP_HELP}
        )
        with_groups(command.add_argument("group", **default))
        add_coordinator(command)
        command.set_defaults(run=function)
    explain.add_argument(
        "--last", type=count, default=HISTORY, help=f"number of rebalances, at most {HISTORY}, which a group keeps"
    )
    explain.add_argument("--moves", action="store_true", help="show every move with its downtime")
    explain.add_argument(
        "--task", metavar="TASK", help="explain one task, CONNECTOR-NUMBER: why it is where it is, or does not run"
    )
    add_json(explain)

    planning = groups.add_parser("plan", help="show what a change would move; nothing is changed")
    with_groups(planning.add_argument("group", nargs="?", default=DEFAULT_GROUP, help=GROUP_HELP))
    changes = planning.add_mutually_exclusive_group()
    drained = changes.add_argument("--drain", metavar="WORKER", help="the tasks of this worker move to others")
    changes.add_argument("--add-workers", type=count, metavar="N", help="this many workers join")
    removed = changes.add_argument("--remove", metavar="WORKER", help="this worker stops and leaves")
    changes.add_argument("--connector", type=path, metavar="FILE", help="create or change this connector")
    other = planning.add_argument("--assignor", metavar="NAME", help="all workers list this assignor from now on")
    with_workers(drained)
    with_workers(removed)
    with_plugins(other, "assignors")
    add_json(planning)
    add_coordinator(planning)
    planning.set_defaults(run=subcommand("groups.plan_groups"))

    recover = groups.add_parser(
        "recover",
        help="after an older copy of a coordinator's log was put back: let workers and sinks continue from it",
    )
    recover.add_argument("log", help=f"{LOG_FORMS}; postgresql://USER@HOST:PORT/DATABASE or kafka://HOST:PORT/TOPIC")
    add_json(recover)
    recover.set_defaults(run=subcommand("groups.recover_log"))

    prepare = commands.add_parser("prepare", help="archive the classes that Spark loads: workers start sooner; once")
    add_json(prepare)
    prepare.set_defaults(run=subcommand("processes.prepare_spark"))

    replaying = commands.add_parser("replay", help="print the history of a group from its log, which is only read")
    replaying.add_argument("log", help=LOG_FORMS)
    replaying.add_argument("--group", metavar="GROUP", help="group id; not needed if the log has one group only")
    replaying.add_argument("--assignor", metavar="NAME", help="show what this assignor would have done instead")
    replaying.add_argument(
        "--max-moves",
        type=int,
        default=0,
        metavar="N",
        help="limit on moves per round of that assignor (default: none; the log does not have the coordinator's limit)",
    )
    add_json(replaying)
    replaying.set_defaults(run=subcommand("groups.replay_log"))

    coordinators = commands.add_parser("coordinators", help="list the coordinators that share a log").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = coordinators.add_parser("list", help="list them: which one serves since when, and the last fail-over")
    add_coordinator(listing)
    add_json(listing)
    listing.set_defaults(run=subcommand("coordinators.list_coordinators"))

    workers = commands.add_parser("workers", help="list, restart and drain workers").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = workers.add_parser("list", help="list the workers of a group")
    add_group(listing)
    add_coordinator(listing)
    add_json(listing)
    listing.set_defaults(run=subcommand("workers.list_workers"))
    for verb, help_, until in (
        ("restart", "restart a worker; its tasks are kept for it (--rebalance-delay-ms)", "runs its tasks again"),
        ("drain", "move a worker's tasks to other workers, then stop it", "has left"),
    ):
        action = workers.add_parser(verb, help=help_)
        with_workers(action.add_argument("name", help="the worker's name, or its group instance id"))
        add_group(action)
        action.add_argument("--no-wait", action="store_true", help=f"do not wait until the worker {until}")
        action.add_argument(
            "--timeout", type=count, default=60, metavar="SECONDS", help="maximum time to wait for the worker (60)"
        )
        add_coordinator(action)
        add_json(action)
        action.set_defaults(run=subcommand(f"workers.{verb}_worker"))

    status = commands.add_parser("status", help="show the connectors of a group, those that have failed first")
    add_status(status)
    add_group(status)
    add_coordinator(status)
    add_json(status)
    status.set_defaults(run=subcommand("status.show_status"))

    add_connectors(commands)
    add_plugins(commands)

    docs = commands.add_parser("docs", help="list the guides and examples; print one")
    docs.add_argument("document", nargs="?", help="its name, such as operations; without it, all are listed")
    docs.add_argument("--path", action="store_true", help="print where it is instead, to copy or to run it")
    add_json(docs)
    docs.set_defaults(run=subcommand("docs.print_docs"))

    completion = commands.add_parser("completion", help="print the script that completes this command in a shell")
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=subcommand("completion.print_completion"))
    return parser


def _not_of_up(text: str) -> str:
    raise argparse.ArgumentTypeError(
        "up runs a coordinator of its own; allowed: connectgroup worker --coordinator "
        f"{printable(text)} for workers of other coordinators"
    )


_GLOBAL = {"--coordinator": True, "--group": True, "--json": False}
"""Options that may also stand before the subcommand or its action, and whether they have a value."""

_ANYWHERE = {"--verbose": False, "--log-format": True}
"""Options of the command itself that may stand anywhere, and whether they have a value."""

_WITH_ACTIONS = ("groups", "workers", "connectors", "coordinators", "plugins")
"""The subcommands that have actions."""


def arranged(arguments: Sequence[str]) -> list[str]:
    """Move global options to where their parser expects them.

    ``--group g connectors list`` becomes ``connectors list --group g``: a subcommand that does not have the option
    rejects it. ``--verbose`` and ``--log-format`` may stand anywhere.
    """
    words, end = list(arguments), []
    if "--" in words:
        at = words.index("--")
        words, end = words[:at], words[at:]
    first, words = _split(words)
    commands: list[str] = []
    moved: list[str] = []
    while words:
        option, equals, _ = words[0].partition("=")
        if option in _GLOBAL:
            taken = 2 if _GLOBAL[option] and not equals else 1
            moved, words = moved + words[:taken], words[taken:]
        elif not commands and words[0] in _WITH_ACTIONS:
            commands, words = words[:1], words[1:]
        else:
            break
    return [*first, *commands, *words, *moved, *end]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of ``_ANYWHERE`` with their values, and the other words."""
    first: list[str] = []
    others: list[str] = []
    each = iter(words)
    for word in each:
        option, equals, _ = word.partition("=")
        if option not in _ANYWHERE:
            others.append(word)
            continue
        first.append(word)
        if _ANYWHERE[option] and not equals:
            first += [value for value in [next(each, None)] if value is not None]
    return first, others
