"""Subcommands that run until they are stopped: ``up``, ``coordinator``, ``rest``, ``proxy`` and ``worker``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..errors import UNKNOWN_SETTING, ConfigError
from ..gc_tuning import give_back_large_blocks, short_collections
from ..private import make_private
from ..protocol.units import counted, printable
from .arguments import allowed_paths_of, secrets_of
from .errors import INTERRUPTED, port_option, renamed
from .http import Serving, metrics_server, print_rest, rest_server
from .render import print_json, print_line
from .requests import ACCESS_OPTIONS, admin_of

if TYPE_CHECKING:
    from ..config.coordinator import CoordinatorConfig
    from ..coordinator.server import GroupServer

logger = logging.getLogger(__name__)

C = TypeVar("C", bound="CoordinatorConfig")

LIMITS: Final = (
    *("max_connections_per_principal", "max_unauthenticated", "idle_timeout_s", "max_frame_bytes"),
    *("max_groups", "max_members", "max_units"),
)
"""Options of a coordinator that are settings of the same name."""

SAME_SIGNAL_S: Final = 0.3
"""For how long after the first signal another one counts as a copy of it."""
END_TIMEOUT_S: Final = 5.0
"""How long a process may take to end at a second Ctrl-C."""


def _allow_open_files(connections: int) -> None:
    """Raise the limit of open files to what so many connections need, if the system allows it.

    The usual limit is 1,024.
    """
    wanted = connections + 200  # connections above a limit, and the log
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def run_up(options: argparse.Namespace) -> int:
    from ..analysis.explain import NewRebalances
    from ..dataplane.java_plugins import plugin_path
    from ..plugins import load_assignor
    from ..supervisor import Supervisor
    from .connectors import checked_connector

    assignors = [] if options.no_assignor or options.server_assignor else options.assignor or ["balanced"]
    if options.server_assignor not in (None, options.fallback_assignor):
        raise ConfigError(
            "--server-assignor", options.server_assignor, f"{options.fallback_assignor} (--fallback-assignor)"
        )
    for name in assignors:
        # Report an error once here, and not from every worker.
        load_assignor(name)
    data, coordinator = Path(options.data), coordinator_config(options)
    _check_connections(options.workers, coordinator)
    options.allowed_path = paths = allowed_paths_of(options) or (Path.cwd(),)
    # Before anything starts: otherwise the error is in the log of the worker that would own the connector.
    connectors = [checked_connector(file, paths, secrets_of(options)) for file in options.connector]
    last_port = 65_535 - options.workers
    if options.metrics_port is not None and not 0 <= options.metrics_port <= last_port:
        allowed = f"0 to {last_port} for {options.workers} workers, each at a port of its own"
        raise ConfigError("--metrics-port", options.metrics_port, allowed)
    for option, port in ("--port", coordinator.port), ("--rest-port", options.rest_port):
        if options.metrics_port and port and 0 <= port - options.metrics_port <= options.workers:
            allowed = (
                f"a port P with {option} {port} outside P to P+{options.workers}, those of this process and its workers"
            )
            raise ConfigError("--metrics-port", options.metrics_port, allowed)
    if options.metrics_port:
        _check_metrics_ports(options.metrics_port, 1 + options.workers)
    with _settings_of_coordinator():
        supervisor = Supervisor(
            options.group,
            workers=options.workers,
            scratch=data / "scratch",
            coordinator=coordinator,
            connectors=connectors,
            assignors=assignors,
            server_assignor=options.server_assignor,
            group_protocol=options.group_protocol,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            restart=not options.no_restart,
            secrets=secrets_of(options),
            allowed_paths=paths,
            metrics_port=options.metrics_port,
            one_first=(os.cpu_count() or 1) < options.workers,
            # Java plug-ins are other programs' code: one that ends Java must end that of one worker only.
            shared_spark=not options.isolated_spark and not plugin_path(),
        )
    _make_directory("--data", data)
    rest_connections = options.rest_max_connections if options.rest_port is not None else 0
    _allow_open_files(coordinator.max_connections + coordinator.max_unauthenticated + rest_connections)
    stopping = _stop_event(supervisor.kill)
    rebalances, last, rows = NewRebalances(), "", 0
    started_ms = round(time.time() * 1_000)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(short_collections())
        give_back_large_blocks()
        metrics_url = await stack.enter_async_context(metrics_server(options.metrics_port))
        rest = None
        if options.rest_port is not None:
            ready = rest_server(supervisor.admin, options, options.rest_port, rates=supervisor.rows_per_second)
            rest = await stack.enter_async_context(ready)  # what is wrong is known before the workers start
        with port_option("--port"):
            starting = stack.enter_async_context(supervisor)
            if not await _unless_stopped(starting, stopping, lambda: not supervisor.serves):
                return 0
        print(f"coordinator at {supervisor.server.address}, group {options.group}", flush=True)
        print(f"connectors may use files in {', '.join(map(str, paths))} (--allowed-path)", flush=True)
        if metrics_url:
            print(f"metrics at {metrics_url}", flush=True)
        if rest is not None:
            print_rest(await stack.enter_async_context(rest()))
        pause_s = 1.0
        shown = (await supervisor.describe()).rebalances
        if earlier := [each for each in shown if 0 <= each.finished_ms < started_ms]:
            rebalances = NewRebalances(earlier[-1].epoch)
            before = counted(len(earlier), "rebalance")
            print(f"{before} of earlier runs: connectgroup groups explain {options.group}", flush=True)
        while not stopping.is_set() and not supervisor.all_rejected:
            began = time.monotonic()
            group = await supervisor.describe()
            described_s = time.monotonic() - began
            for line in rebalances.lines(group.rebalances):
                print_line(f"rebalance | {line}", flush=True)
            line = f"{supervisor.summary(group)} | {round((supervisor.rows - rows) / pause_s)} rows/s"
            rows = supervisor.rows
            # Describing 100,000 tasks takes most of a second, during which the coordinator sends no responses.
            pause_s = max(1.0, 20 * described_s)
            if line != last:
                print_line(line, flush=True)
                last = line
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), pause_s)
        if supervisor.all_rejected:
            raise ConfigError("up", "no worker that runs", "workers that start; each one reported its error above")
        print("stopping the workers ... (Ctrl-C again kills them)", flush=True)
    return INTERRUPTED if supervisor.killed else 0


def coordinator_config(options: argparse.Namespace) -> CoordinatorConfig:
    """Return the validated settings."""
    from ..config.coordinator import CoordinatorConfig

    return _checked_with_file(CoordinatorConfig, _coordinator_values(options), options.config)


def _checked_with_file(model: type[C], values: Mapping[str, Any], file: Path | None) -> C:
    """Return the validated settings of options and of a file with Kafka's names; options take precedence.

    Raises:
        ConfigError: as ``checked``; a setting of the file is named as it is there.
    """
    from ..config.base import checked
    from ..config.coordinator import KAFKA_NAMES
    from ..properties import read_properties

    given = {name: value for name, value in values.items() if value is not None}
    if file is None:
        return checked(model, given)
    in_file = read_properties(file, "config")
    for name in in_file:
        if name not in KAFKA_NAMES:
            near = difflib.get_close_matches(name, KAFKA_NAMES, n=1)
            allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(KAFKA_NAMES)
            raise ConfigError(f"{file}: {printable(name)}", UNKNOWN_SETTING, allowed)
    names = {KAFKA_NAMES[name]: name for name in in_file}
    try:
        return checked(model, {KAFKA_NAMES[name]: value for name, value in in_file.items()} | given)
    except ConfigError as error:
        if error.field not in names or error.field in given:
            raise
        raise ConfigError(f"{file}: {names[error.field]}", error.value, error.allowed) from error


@contextlib.contextmanager
def _settings_of_coordinator() -> Iterator[None]:
    """Give ``assignor`` of a coordinator's settings its option: ``--assignor`` is one of workers."""
    try:
        yield
    except ConfigError as error:
        raise renamed(error, "fallback_assignor" if error.field == "assignor" else error.field) from error


def _coordinator_values(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a coordinator, by the names of ``CoordinatorConfig``; ``None``: not given."""
    from ..log.registry import LOG_FILE

    return {
        "host": options.host,
        "port": options.port,
        "data": options.data / LOG_FILE if options.log is None else None,
        "log": options.log,
        "partitions": getattr(options, "partitions", None),
        "advertised": getattr(options, "advertised", None),
        **_security_values(options),
        "session_timeout_ms": options.session_timeout_ms,
        "heartbeat_interval_ms": options.heartbeat_interval_ms,
        "scheduled_rebalance_max_delay_ms": options.rebalance_delay_ms,
        "connection_loss_grace_ms": options.connection_loss_grace_ms,
        "assignment_interval_ms": options.assignment_interval_ms,
        "moves_per_round": options.moves_per_round,
        "max_connections": options.max_connections,
        "max_connections_per_address": options.max_connections_per_address,
        "requests_per_second_per_principal": options.requests_per_second_per_principal,
        **{name: getattr(options, name) for name in LIMITS},
        "assignor": options.fallback_assignor,
        "group_assignors": options.group_assignors,
        "topics_from": options.topics_from,
        "consumer_session_timeout_ms": options.consumer_session_timeout_ms,
        "consumer_heartbeat_interval_ms": options.consumer_heartbeat_interval_ms,
        "consumer_assignment_interval_ms": options.consumer_assignment_interval_ms,
        "consumer_migration_policy": options.consumer_migration_policy,
    }


def _security_values(options: argparse.Namespace) -> dict[str, Any]:
    users = {
        "authentication": not getattr(options, "no_authentication", False),
        "group_users": dict(options.group_users),
        "access_rules": options.access_rules,
        "audit_log": options.audit_log,
    }
    return users | {name: getattr(options, name) for name in ACCESS_OPTIONS}


def _check_connections(workers: int, config: CoordinatorConfig) -> None:
    """Reject a limit that the workers alone would exceed: each needs two connections, and a command one more.

    Raises:
        ConfigError: one of the limits is lower.
    """
    needed = 2 * workers + 1
    for name in "max_connections", "max_connections_per_address", "max_connections_per_principal":
        if (limit := getattr(config, name)) < needed:
            raise ConfigError(name, limit, f"{needed} or more for {workers} workers, two for each and one for commands")


def _check_metrics_ports(first: int, count: int) -> None:
    """Reject ports that other programs have: a worker whose port it is would end, and not be started again.

    Raises:
        TransportError: one of them cannot be used.
    """
    from ..transport.acceptor import bind, cannot_listen

    for port in range(first, first + count):
        with port_option("--metrics-port"):
            try:
                taken = bind(["127.0.0.1"], port)
            except OSError as error:
                raise cannot_listen("127.0.0.1", port, error) from error
        for each in taken:
            each.close()


async def serve_rest(options: argparse.Namespace) -> int:
    stopping = _stop_event()
    admin = admin_of(options, client_id="rest")
    # A full collection would delay every request for some 50 ms.
    give_back_large_blocks()
    with short_collections():
        async with admin, rest_server(admin, options, options.port) as rest, rest() as url:
            print(f"REST at {url}, group {options.group}", flush=True)
            print(f"page at {url}/page", flush=True)
            await stopping.wait()
    return 0


async def serve_coordinator(options: argparse.Namespace) -> int:
    from ..client.admin import Admin
    from ..coordinator.server import CoordinatorServer

    config = coordinator_config(options)
    connections = config.max_connections + config.max_unauthenticated
    with _settings_of_coordinator():
        server = CoordinatorServer(config)
    rest = None
    if options.rest_port is not None:
        admin = Admin.local(server.coordinator, access=server.access_to_others)
        rest = rest_server(admin, options, options.rest_port)
    return await _serve_groups(options, server, "coordinator at {}", connections, rest)


async def _serve_groups(
    options: argparse.Namespace,
    server: GroupServer,
    line: str,
    connections: int,
    rest: AbstractAsyncContextManager[Serving] | None = None,
) -> int:
    """Serve until a signal arrives.

    Args:
        line: printed once the port is open, with the address.
        connections: how many sockets the server may need.
        rest: a REST server, which has its port before the server starts, and runs while the server does.
    """
    if options.log is None:
        _make_directory("--data", options.data)
    _allow_open_files(connections + (options.rest_max_connections if rest is not None else 0))
    stopping = _stop_event()
    async with contextlib.AsyncExitStack() as stack:
        # Before the log is loaded: the collections meanwhile are the longest otherwise.
        stack.enter_context(short_collections())
        give_back_large_blocks()
        metrics_url = await stack.enter_async_context(metrics_server(options.metrics_port))
        serving = await stack.enter_async_context(rest) if rest is not None else None
        with port_option("--port"):
            if not await _unless_stopped(server.start(), stopping):
                return 0
        print(line.format(server.address), flush=True)
        if metrics_url:
            print(f"metrics at {metrics_url}", flush=True)
        try:
            async with serving() if serving is not None else contextlib.nullcontext("") as url:
                if url:
                    print_rest(url)
                await stopping.wait()
        finally:
            await server.close()
    return 0


async def serve_proxy(options: argparse.Namespace) -> int:
    from ..config.coordinator import ProxyConfig
    from ..proxy.server import ProxyServer

    names = (
        *("broker", "broker_config", "advertised_host", "advertised_port"),
        *("initial_rebalance_delay_ms", "min_session_timeout_ms"),
    )
    values = _coordinator_values(options) | {name: getattr(options, name) for name in names}
    config = _checked_with_file(ProxyConfig, values, options.config)
    # Each connection of a client has one of its own to the broker.
    line = f"proxy at {{}} for broker {config.broker}"
    with _settings_of_coordinator():
        server = ProxyServer(config)
    return await _serve_groups(options, server, line, 2 * config.max_connections)


async def serve_worker(options: argparse.Namespace) -> int:
    from ..config.base import checked
    from ..config.worker import WorkerConfig
    from ..worker.process import ReplaceAtExit, run_worker
    from ..worker.scratch import default_parent
    from ..worker.supervised import RESTART_EXIT_CODE

    supervised = options.supervised or not options.own_process
    replace = None if supervised else ReplaceAtExit()
    scratch = options.scratch or default_parent()
    values: dict[str, Any] = {"coordinator": options.coordinator, "group": options.group, "scratch": scratch}
    if options.assignor or options.no_assignor:
        values["assignors"] = tuple(options.assignor or ())
    if options.listener:
        values["listeners"] = tuple(options.listener)
    if options.label:
        values["labels"] = tuple(options.label)
    optional = (
        "name",
        "instance",
        "capacity",
        "rack",
        "server_assignor",
        "rebalance_timeout_ms",
        "group_protocol",
        "tls_server",
        *ACCESS_OPTIONS,
    )
    values |= {name: value for name in optional if (value := getattr(options, name)) is not None}
    secrets = secrets_of(options)
    values |= {"secret_env": secrets.env, "secret_paths": secrets.paths}
    values["allowed_paths"] = allowed_paths_of(options) or ()
    config = checked(WorkerConfig, values)
    _make_directory("--scratch", scratch)
    async with contextlib.AsyncExitStack() as stack:

        async def serve_metrics() -> None:
            if metrics_url := await stack.enter_async_context(metrics_server(options.metrics_port)):
                logger.info("metrics at %s", metrics_url)

        beside: list[asyncio.Task[None]] = []
        if not options.replacement:
            await serve_metrics()
        if options.rest_port is not None:
            admin = await stack.enter_async_context(admin_of(options, client_id="rest"))
            rest = await stack.enter_async_context(rest_server(admin, options, options.rest_port))
            url = await stack.enter_async_context(rest())
            logger.info("REST at %s, page at %s/page", url, url)
        try:
            restarts = await run_worker(
                config,
                supervised=options.supervised,
                replacement=options.replacement,
                # Not before: until then the process that is replaced has the port.
                on_join=lambda: (
                    beside.append(asyncio.create_task(_when_free(serve_metrics))) if options.replacement else None
                ),
            )
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    if not restarts:
        return 0
    if replace is None:
        return RESTART_EXIT_CODE
    # A generated name must stay the same: the tasks are delayed for this member id.
    replace.wanted("--name", config.name)
    return 0


async def _when_free(serve: Callable[[], Awaitable[None]], timeout_s: float = 60.0) -> None:
    """Start a server at a port that another process is about to give up."""
    ends_s = time.monotonic() + timeout_s
    while True:
        try:
            return await serve()
        except ConfigError as error:
            if time.monotonic() >= ends_s:
                logger.error("no metrics: %s", error)
                return None
        await asyncio.sleep(0.25)


async def prepare_spark(options: argparse.Namespace) -> int:
    """Archive the classes that Spark loads."""
    from ..os_process import kill_children
    from ..spark.session import end_starts
    from ..spark.warm_up import prepare
    from ..threads import off_loop

    if not options.json:
        print("starting Spark to record its classes; this takes up to a minute", file=sys.stderr, flush=True)
    preparing = asyncio.create_task(off_loop("prepare Spark", prepare))
    try:
        archive = await asyncio.shield(preparing)
    except asyncio.CancelledError:  # Ctrl-C
        end_starts()
        kill_children()
        await asyncio.wait({preparing}, timeout=END_TIMEOUT_S)  # it deletes what it has written
        preparing.cancel() or preparing.exception()  # read, so that asyncio does not report it
        raise
    size = archive.stat().st_size
    if options.json:
        print_json({"archive": str(archive), "bytes": size})
    else:
        print(f"prepared: {archive} ({size >> 20} MB); Spark starts sooner from now on")
    return 0


def _make_directory(option: str, path: Path) -> None:
    """Create a directory of mode 0700; an existing directory keeps its mode, and no other user may write it."""
    # The directory itself may be a link that the operator has made.
    make_private(path.resolve(), option, may_be_sticky=option == "--scratch")


async def _unless_stopped(
    starting: Awaitable[object], stopping: asyncio.Event, may_cancel: Callable[[], bool] = lambda: True
) -> bool:
    """Wait for a start; false if a signal has ended it: it waits as long as a database or a broker does not respond.

    Args:
        may_cancel: asked when the signal arrives; otherwise the start goes on to its end.
    """
    start, signalled = asyncio.ensure_future(starting), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({start, signalled}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        start.cancel()
        raise
    finally:
        signalled.cancel()
    if not start.done() and may_cancel():
        start.cancel()
    await asyncio.wait({start})
    if start.cancelled():
        return False
    start.result()  # its error
    return True


def _stop_event(kill: Callable[[], None] = lambda: None) -> asyncio.Event:
    """Return an event that the first SIGTERM, SIGINT or SIGHUP sets.

    SIGHUP: the terminal has been closed. A process that ignores it (``nohup``) still does.

    Args:
        kill: called for a later SIGINT, of a person who does not want to wait for an orderly end: this process ends
            within ``END_TIMEOUT_S`` then, and at once for one more. Not for SIGTERM, nor right after the first signal,
            which a program such as ``timeout`` sends twice.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_s = 0.0

    def on_signal(number: signal.Signals) -> None:
        nonlocal first_s
        if not stopping.is_set():
            first_s = loop.time()
            stopping.set()
        elif number == signal.SIGINT and loop.time() > first_s + SAME_SIGNAL_S:
            kill()  # first: one more signal ends this process at once
            loop.call_later(END_TIMEOUT_S, os._exit, INTERRUPTED)
            loop.remove_signal_handler(number)
            signal.signal(number, lambda *_: os._exit(INTERRUPTED))

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    return stopping
