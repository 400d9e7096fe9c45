"""A coordinator with a port: log, rules, server and the assignors it runs itself, put together."""

from __future__ import annotations

from collections.abc import Iterable

from ..assignor_guard import group_from_prepare, members_for_install, run_assignor
from ..config import CoordinatorConfig
from ..errors import PluginError
from ..group.settings import ServerAssign
from ..log.base import Log
from ..log.memory import MemoryLog
from ..log.sqlite import SqliteLog
from ..messages import InstalledMember, PrepareResponse
from ..plugins import load_assignor
from ..transport.tcp_server import TcpServer
from .runtime import Coordinator


class CoordinatorServer:
    """Serves groups on one TCP port until it is closed."""

    def __init__(self, config: CoordinatorConfig) -> None:
        """Nothing is opened yet.

        Raises:
            ConfigError, PluginError: the assignor cannot be had.
        """
        self.config = config
        log: Log = SqliteLog(config.data) if config.data is not None else MemoryLog()
        self.coordinator = Coordinator(log, config.group_settings(server_assignors([config.assignor])))
        self._server = TcpServer(self.coordinator, host=config.host, port=config.port)

    @property
    def address(self) -> str:
        """``host:port`` as workers are told it."""
        return f"{self.config.host}:{self._server.port}"

    async def start(self) -> None:
        """Open the log, then the port.

        Raises:
            LogError, TransportError: one line each: what, where, what is allowed.
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


def server_assignors(names: Iterable[str]) -> dict[str, ServerAssign]:
    """Assignors as the group rules call them: the same plug-ins that workers run, found by the same names."""
    return {name: server_assignor(name) for name in names}


def server_assignor(name: str) -> ServerAssign:
    """One of them.

    Raises:
        ConfigError, PluginError: there is none of that name, or it cannot be made.
    """
    assignor = load_assignor(name)

    def assign(prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        assignment = run_assignor(assignor, group_from_prepare(prepared))
        if assignment.error:
            raise PluginError(f"assignor {name!r}: {assignment.message or f'error {assignment.error}'}")
        return members_for_install(assignment)

    return assign
