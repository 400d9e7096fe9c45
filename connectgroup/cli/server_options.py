"""Options of the commands that start servers and workers."""

from __future__ import annotations

import argparse

from ..protocol import DEFAULT_PORT
from .arguments import number, path
from .completion import with_plugins
from .requests import options_about


def add_server(parser: argparse.ArgumentParser, *, rebalance_delay_ms: int = 10_000) -> None:
    """Add the options of a coordinator.

    Args:
        rebalance_delay_ms: the default of ``--rebalance-delay-ms``.
    """
    where = options_about(parser, "where the coordinator listens, and its log")
    moves = options_about(parser, "rebalances: when tasks move, and how")
    consumers = options_about(parser, "consumer groups of Kafka clients")
    limits = options_about(parser, "limits")
    add_rules(parser)
    where.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        help="properties with Kafka's names of a broker's settings for groups (group.consumer.*, group.*, offsets.*); "
        "an option takes precedence",
    )
    where.add_argument(
        "--log",
        metavar="URL",
        help="memory:, sqlite:///path, postgresql://USER@HOST/DATABASE or kafka://HOST:PORT/TOPIC instead of a file "
        "in the --data directory; coordinators with the same log in PostgreSQL or Kafka replace each other",
    )
    where.add_argument(
        "--uvloop",
        action=argparse.BooleanOptionalAction,
        help="run on uvloop, a faster event loop (extra 'uvloop'); by default if it is installed",
    )
    where.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    where.add_argument(
        "--port", type=number, default=DEFAULT_PORT, help=f"port to listen on, 0 for any ({DEFAULT_PORT})"
    )
    moves.add_argument(
        "--session-timeout-ms",
        type=number,
        default=10_000,
        help="a worker without a heartbeat for this long is removed (10000)",
    )
    moves.add_argument(
        "--heartbeat-interval-ms",
        type=number,
        default=3_000,
        help="heartbeat interval of workers (3000); at most a third of the session timeout",
    )
    consumers.add_argument(
        "--topics-from",
        metavar="HOST:PORT",
        help="PLAINTEXT listener of the Kafka broker whose topics consumer groups (KIP-848) subscribe to",
    )
    consumers.add_argument(
        "--consumer-session-timeout-ms", type=number, help="session timeout of consumer groups (45000)"
    )
    consumers.add_argument(
        "--consumer-heartbeat-interval-ms",
        type=number,
        help="heartbeat interval of consumer groups (5000)",
    )
    consumers.add_argument(
        "--consumer-assignment-interval-ms",
        type=number,
        help="minimum interval between two computations of the assignment of a consumer group: consumers that join "
        "within it are assigned together (1000)",
    )
    consumers.add_argument(
        "--consumer-migration-policy",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        help="which groups of consumers change between the classic protocol and KIP-848 while they have members "
        "(bidirectional)",
    )
    moves.add_argument(
        "--fallback-assignor",
        default="balanced",
        metavar="NAME",
        help="server-side assignor, used after three failures of the workers' assignor (balanced)",
    )
    moves.add_argument(
        "--group-assignors",
        metavar="NAME,...",
        help="server-side assignors that members may request: entry points for consumer groups, of which the first is "
        "the default, or for workers (uniform,range)",
    )
    moves.add_argument(
        "--rebalance-delay-ms",
        type=number,
        default=rebalance_delay_ms,
        help="how long the tasks of a lost or restarting worker are delayed for it; 0 reassigns them at once "
        f"({rebalance_delay_ms})",
    )
    moves.add_argument(
        "--connection-loss-grace-ms",
        type=number,
        default=1_000,
        help="how long after the loss of its connection to look whether a worker's process on this machine has ended, "
        "which removes the worker at once; 0: only its session timeout does (1000)",
    )
    moves.add_argument(
        "--assignment-interval-ms",
        type=number,
        default=0,
        help="minimum interval between two computations of an assignment (0)",
    )
    moves.add_argument(
        "--moves-per-round",
        type=number,
        default=0,
        help="maximum number of running tasks that are moved at a time; 0 moves all (0)",
    )
    limits.add_argument(
        "--max-connections",
        type=number,
        default=2000,
        help="maximum number of open connections; a worker needs two (2000)",
    )
    limits.add_argument(
        "--max-connections-per-address",
        type=number,
        default=1500,
        help="maximum number of connections from one address (1500)",
    )
    for option, default, help_ in (
        ("--max-connections-per-principal", 1_500, "maximum number of connections of one authenticated user"),
        ("--max-unauthenticated", 200, "maximum number of connections that have not authenticated yet"),
        ("--idle-timeout-s", 600, "close a connection without a request for this long"),
        ("--max-frame-bytes", 8 << 20, "maximum size of a request to the coordinator"),
        ("--max-groups", 1_000, "maximum number of groups"),
        ("--max-members", 1_000, "maximum number of members of one group"),
        ("--max-units", 25_000, "maximum number of connectors and tasks of one group"),
    ):
        limits.add_argument(option, type=number, default=default, help=f"{help_} ({default})")


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options of a server about what its clients may do, and what is noted of it."""
    part = options_about(parser, "users and TLS")
    part.add_argument(
        "--access-rules",
        type=path,
        metavar="FILE",
        help="rules about who may read, describe, alter and delete which groups and connectors, over REST too; what "
        "none allows is denied; read again when it changes (everything is allowed)",
    )
    part.add_argument(
        "--audit-log",
        type=path,
        metavar="FILE",
        help="append a JSON line for each change and each denied request: who, when, from where, what, the result",
    )
    part.add_argument(
        "--requests-per-second-per-principal",
        type=number,
        default=0,
        metavar="N",
        help="quota of each user: above it, its connections are muted, and REST responds 429; 0: none (0)",
    )


def add_sharing(parser: argparse.ArgumentParser) -> None:
    """Add the options of a coordinator that shares its log."""
    part = options_about(parser, "where the coordinator listens, and its log")
    part.add_argument(
        "--advertised",
        metavar="HOST:PORT",
        help="where clients, and the other coordinators of the --log, reach this one (--host and --port)",
    )
    part.add_argument(
        "--partitions",
        type=number,
        metavar="N",
        help="spread the groups over N partitions of a --log in PostgreSQL or Kafka: several coordinators serve at "
        "once; fixed at the first start of the log (1, or as many as the log has)",
    )


def add_group_protocol(parser: argparse.ArgumentParser) -> None:
    """Add the option for the protocol of workers."""
    part = options_about(parser, "rebalances: when tasks move, and how")
    part.add_argument(
        "--group-protocol",
        choices=("connect", "classic", "generic"),
        help="group.protocol: generic is another name of classic; a group may have workers of both (connect)",
    )


def add_assigning(parser: argparse.ArgumentParser, assignor_help: str) -> None:
    """Add the options that select the assignor, and the rebalance timeout."""
    part = options_about(parser, "rebalances: when tasks move, and how")
    assignors = part.add_mutually_exclusive_group()
    with_plugins(assignors.add_argument("--assignor", action="append", help=assignor_help), "assignors")
    assignors.add_argument("--no-assignor", action="store_true", help="list no assignor: the coordinator assigns")
    assignors.add_argument(
        "--server-assignor", metavar="NAME", help="list no assignor and request this server-side assignor"
    )
    part.add_argument(
        "--rebalance-timeout-ms", type=number, help="how long a worker may take to stop revoked tasks (60000)"
    )


def add_metrics(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the option of the Prometheus endpoint."""
    part = options_about(parser, "REST API, live page and metrics")
    part.add_argument(
        "--metrics-port",
        type=number,
        metavar="PORT",
        help=f"serve metrics for Prometheus at this port of 127.0.0.1, 0 for any (off){more}",
    )


def add_rest_port(parser: argparse.ArgumentParser) -> None:
    """Add ``--rest-port`` and the options of a REST server in the process of another server."""
    part = options_about(parser, "REST API, live page and metrics")
    help_ = "serve the REST API at this port, 0 for any (off)"
    part.add_argument("--rest-port", type=number, metavar="PORT", help=help_)
    add_rest(parser, "--rest-")


def add_rest(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Add the options of a REST server, each with this prefix."""
    part = options_about(parser, "REST API, live page and metrics")
    parser.set_defaults(rest_prefix=prefix, gives_secrets=False)
    part.add_argument(
        f"{prefix}host",
        dest="rest_host",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on; any but a loopback address requires users, certificate and key (127.0.0.1)",
    )
    part.add_argument(
        f"{prefix}users",
        dest="rest_users",
        type=path,
        metavar="FILE",
        help="name=password lines: basic authentication",
    )
    part.add_argument(
        f"{prefix}readers",
        dest="rest_readers",
        type=path,
        metavar="FILE",
        help="name=password lines: users that may only read",
    )
    part.add_argument(
        f"{prefix}connector-class",
        dest="rest_connector_classes",
        action="append",
        metavar="NAME",
        help="a connector class that clients may use; may be repeated (all that are installed)",
    )
    part.add_argument(
        f"{prefix}requests-per-second",
        dest="rest_requests_per_second",
        type=number,
        default=1_000,
        metavar="N",
        help="maximum for each client address (1000)",
    )
    for name, default, help_ in (
        ("max-connections", 1_000, "maximum number of connections"),
        ("max-connections-per-address", 500, "maximum number of connections from one address"),
        ("idle-timeout-s", 30, "close a connection without a request for this long"),
    ):
        part.add_argument(
            f"{prefix}{name}",
            dest=f"rest_{name.replace('-', '_')}",
            type=number,
            default=default,
            metavar="N",
            help=f"{help_} ({default})",
        )
    part.add_argument(f"{prefix}certificate", dest="rest_certificate", type=path, metavar="PEM", help="TLS certificate")
    part.add_argument(f"{prefix}key", dest="rest_key", type=path, metavar="PEM", help="private key of the certificate")
    part.add_argument(
        f"{prefix}allowed-host",
        dest="rest_allowed_hosts",
        action="append",
        metavar="NAME",
        help="another host name of this server that clients use; may be repeated",
    )
