"""A coordinator with a port: log, rules, server and the assignors it runs itself, put together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from ..assignor import ConnectAssignment, ConnectAssignor
from ..assignor_guard import group_from_prepare, members_for_install, run_assignor
from ..config import CoordinatorConfig
from ..errors import PluginError
from ..group.settings import ServerAnswer, ServerAssign
from ..log.base import Log
from ..log.memory import MemoryLog
from ..log.sqlite import SqliteLog
from ..messages import PrepareResponse, grouped
from ..plugins import load_assignor
from ..transport.limits import Limits
from ..transport.tcp_server import TcpServer
from .runtime import Coordinator

logger = logging.getLogger(__name__)

LIMIT_S = 5.0
"""How long an assignor may hold up the coordinator: half a session. The built-in ones take milliseconds."""


class CoordinatorServer:
    """Serves groups on one TCP port until it is closed."""

    def __init__(self, config: CoordinatorConfig) -> None:
        """Nothing is opened yet.

        Raises:
            ConfigError, PluginError: the assignor cannot be had.
        """
        self.config = config
        log: Log = SqliteLog(config.data) if config.data is not None else MemoryLog()
        self.coordinator = Coordinator(log, config.group_settings(server_assignors([config.assignor], limit_s=LIMIT_S)))
        limits = Limits(
            max_connections=config.max_connections, max_connections_per_address=config.max_connections_per_address
        )
        # There is no authentication yet.
        self._server = TcpServer(
            self.coordinator, host=config.host, port=config.port, limits=limits, loopback_only=True
        )

    @property
    def address(self) -> str:
        """``host:port`` as workers are told it."""
        return f"{self.config.host}:{self._server.port}"

    async def start(self) -> None:
        """Open the log, then the port.

        Raises:
            ConfigError, LogError, TransportError: one line each: what, where, what is allowed.
        """
        await self.coordinator.start()
        try:
            await self._server.start()
        except BaseException:
            await self.coordinator.close()
            raise

    async def close(self) -> None:
        """Answer what is parked, close the port, let go of the log."""
        try:
            await self.coordinator.close()
        finally:
            await self._server.close()


def server_assignors(names: Iterable[str], *, limit_s: float | None = None) -> dict[str, ServerAssign]:
    """Assignors as the group rules call them: the same plug-ins that workers run, found by the same names."""
    return {name: server_assignor(name, limit_s=limit_s) for name in names}


def server_assignor(name: str, *, limit_s: float | None = None) -> Callable[[PrepareResponse], ServerAnswer]:
    """One of them; ``limit_s`` as in ``as_server_assignor``.

    Raises:
        ConfigError, PluginError: there is none of that name, or it cannot be made.
    """
    return as_server_assignor(load_assignor(name), limit_s=limit_s)


def as_server_assignor(
    assignor: ConnectAssignor, *, limit_s: float | None = None
) -> Callable[[PrepareResponse], ServerAnswer]:
    """An assignor as the group rules call it; whatever it does becomes an answer or a ``PluginError``.

    Args:
        limit_s: how long it may take. The rules wait for it, and with them every group of this coordinator; a call
            that is given up goes on in a thread of its own, and while it does the assignor is not asked again.
            ``None``: it is called in the caller's thread and may take for ever.
    """

    def ask(prepared: PrepareResponse) -> ConnectAssignment:
        try:
            return run_assignor(assignor, group_from_prepare(prepared))
        except PluginError as error:
            logger.error("server-side %s", error.with_location())
            raise

    limited = ask if limit_s is None else _limited(ask, assignor.name, limit_s)

    def assign(prepared: PrepareResponse) -> ServerAnswer:
        assignment = limited(prepared)
        if assignment.error:
            raise PluginError(f"assignor {assignor.name!r}: {assignment.message or f'error {assignment.error}'}")
        return ServerAnswer(
            members=members_for_install(assignment),
            held_back=grouped(assignment.held_back),
            delay_ms=assignment.delay_ms,
            message=assignment.message,
        )

    return assign


def _limited(
    ask: Callable[[PrepareResponse], ConnectAssignment], name: str, limit_s: float
) -> Callable[[PrepareResponse], ConnectAssignment]:
    under_way: Future[ConnectAssignment] | None = None

    def limited(prepared: PrepareResponse) -> ConnectAssignment:
        nonlocal under_way
        if under_way is not None and not under_way.done():
            raise PluginError(f"assignor {name!r} still has not answered an earlier question")
        answer: Future[ConnectAssignment] = Future()

        def work() -> None:
            try:
                answer.set_result(ask(prepared))
            except BaseException as error:
                answer.set_exception(error)

        # A daemon: a plug-in that never returns must not keep the coordinator from ending.
        try:
            threading.Thread(target=work, name=f"assignor {name}", daemon=True).start()
        except RuntimeError as error:
            # Not asked, so nothing is under way: the next computation may find a thread again (reliability F36).
            raise PluginError(f"assignor {name!r} was not asked: {error}") from error
        under_way = answer
        try:
            return answer.result(limit_s)
        except TimeoutError:
            raise PluginError(f"assignor {name!r} did not answer within {limit_s:g} s") from None

    return limited
