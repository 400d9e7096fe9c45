"""Serve as one member of a group for as long as the program runs: restarts, drains and signals are handled.

reason = await connectgroup.serve_worker(settings, "127.0.0.1:8474", runner=MyRunner())
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import cast

from ..assign.api import ConnectAssignor
from ..checks import check_call, check_object
from ..errors import ConfigError
from ..listener import WorkerRebalanceListener
from ..member.settings import MemberSettings
from ..transport.access import Access
from ..transport.base import Client
from ..transport.following import FollowingClient, parse_addresses
from .arguments import check_on_start, check_runner, check_settings
from .loop import Worker
from .runner import Runner
from .settings import WorkerSettings
from .state import StopReason

MakeRunner = Callable[[Worker], Runner]
"""A function that makes the runner of a worker: a restarted worker is a new one."""


async def serve_worker(
    settings: MemberSettings,
    connect: Callable[[], Client] | str,
    *,
    assignors: Sequence[ConnectAssignor] = (),
    listeners: Sequence[WorkerRebalanceListener] = (),
    runner: Runner | MakeRunner | None = None,
    times: WorkerSettings | None = None,
    access: Access | None = None,
    signals: bool = True,
    on_start: Callable[[Worker], object] = lambda worker: None,
) -> StopReason:
    """Run a worker until it is stopped or has drained; after a restart, run a new one with the same member id.

    The new worker joins at once, so that no unit moves. Cancelling this call stops the worker.

    Args:
        runner: runs the units; or a function that makes a runner for each worker: ``lambda worker: MyRunner(worker)``.
        signals: whether signals are handled meanwhile, as by ``connectgroup worker``: SIGTERM, SIGINT and SIGHUP stop
            the worker (a second SIGTERM or SIGINT ends the process), SIGUSR1 drains it, SIGUSR2 restarts it. Ignored
            outside of the main thread, where Python handles no signals.
        on_start: called with each worker before it joins; keep it for ``Worker.state``, ``Worker.stop`` and others.
        connect: creates a client of the coordinator; or the address of a coordinator, ``host:port``.
        access: how to authenticate to an address, and TLS; ``None``: see ``Access``.
        settings, assignors, listeners, times: as of ``Worker.running``.

    Returns:
        ``STOPPED`` or ``DRAINED``.

    Raises:
        ConfigError: an argument cannot be used.
        GroupError: the coordinator rejected the worker.
    """
    fixed, make_runner = _runner_or_function(runner)
    check_on_start(on_start)
    make_client = client_maker(connect, access, settings)
    workers: list[Worker] = []
    wanted: list[Callable[[Worker], None]] = []

    def ask(what: Callable[[Worker], None]) -> None:
        wanted.append(what)
        for worker in workers:
            what(worker)

    in_main = threading.current_thread() is threading.main_thread()
    with handle_signals(*_asked(ask)) if signals and in_main else nullcontext():
        while True:
            async with Worker.running(
                settings,
                make_client,
                assignors=assignors,
                listeners=listeners,
                runner=fixed,
                times=times,
            ) as worker:
                if make_runner is not None:
                    worker.set_runner(make_runner(worker))
                workers[:] = [worker]
                on_start(worker)
                if Worker.stop in wanted:  # between two workers
                    worker.stop()
                reason = await worker.wait_stopped()
            if reason is not StopReason.RESTARTED:
                return reason


def _runner_or_function(runner: Runner | MakeRunner | None) -> tuple[Runner | None, MakeRunner | None]:
    if callable(runner) and not isinstance(runner, type) and not hasattr(runner, "start"):
        return None, runner
    check_runner(cast("Runner | None", runner))
    return cast("Runner | None", runner), None


def _asked(ask: Callable[[Callable[[Worker], None]], None]) -> tuple[Callable[[], None], ...]:
    return (lambda: ask(Worker.stop)), (lambda: ask(Worker.drain)), (lambda: ask(Worker.restart))


def client_maker(
    connect: Callable[[], Client] | str, access: Access | None, settings: MemberSettings
) -> Callable[[], Client]:
    """The function that makes each of the two clients of a worker.

    Args:
        connect: such a function, or the address of a coordinator; several with commas.
        access: for an address.

    Raises:
        ConfigError: ``connect`` is neither, such as a client; or ``access`` is given with a function.
    """
    check_settings(settings)
    if access is not None:
        check_object("access", access, Access, "Access(...)")
    if isinstance(connect, str):
        return partial(FollowingClient, parse_addresses("connect", connect), settings.member_id, access=access)
    allowed = 'a function that makes a client: lambda: TcpClient(host, port); or an address: "127.0.0.1:8474"'
    check_call("connect", connect, (), allowed)
    if access is not None:
        raise ConfigError("access", access, "with an address; a function gives it to its TcpClient")
    return connect


# --------------------------------------------------------------------------------------------------
# Signals of a worker process: SIGTERM, SIGINT and SIGHUP stop the worker, SIGUSR1 drains it, SIGUSR2 restarts it.
#
# ``loop.add_signal_handler`` is not used: asyncio passes a signal to the loop as a byte in the socket that
# ``call_soon_threadsafe`` also writes to. That socket holds a few hundred bytes. While it is full, the byte, and with
# it the signal, is lost. Here the Python signal handler acts, and a separate pipe only wakes up the loop.


@contextmanager
def handle_signals(stop: Callable[[], None], drain: Callable[[], None], restart: Callable[[], None]) -> Iterator[None]:
    """Within this context, signals call these functions on the running event loop.

    A second SIGTERM or SIGINT ends the process immediately. Use it only in the main thread. SIGHUP (the terminal has
    been closed) stops the worker, as it stops Kafka's processes; a process that ignores it (``nohup``) still does.

    Args:
        stop: called once, for the first SIGTERM, SIGINT or SIGHUP.
        drain: called for each SIGUSR1.
        restart: called for each SIGUSR2.
    """
    loop = asyncio.get_running_loop()
    stopping = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if number == signal.SIGUSR1:
            loop.call_soon_threadsafe(drain)
        elif number == signal.SIGUSR2:
            loop.call_soon_threadsafe(restart)
        elif stopping and number == signal.SIGHUP:
            pass  # a shell and the terminal may both send it
        elif stopping:
            # Not through ``logging``: this handler may interrupt the thread that holds a lock of ``logging``.
            if select.select([], [2], [], 0)[1]:
                os.write(2, b"second SIGTERM or SIGINT: process ends without stopping its tasks\n")
            os._exit(1)
        else:
            stopping = True
            loop.call_soon_threadsafe(stop)

    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    # A signal just before the loop waits for events would be handled only after the wait: the pipe ends the wait.
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def drop() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)

    loop.add_reader(reader, drop)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        loop.remove_reader(reader)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
