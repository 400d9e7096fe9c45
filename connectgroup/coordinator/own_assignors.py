"""Server-side assignors: the plug-ins that workers run, run by the coordinator and called by the group rules.

They serve groups whose workers list no assignor, and groups whose client-side assignors fail repeatedly (PD-06).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace

from ..assign.api import ConnectAssignment, ConnectAssignor
from ..assign.convert import group_from_prepare, members_for_install
from ..assign.sandbox import run_assignor
from ..errors import ConfigError, PluginError
from ..group.connect.settings import GroupSettings, ServerAssignment, ServerAssignorCall
from ..plugins import load_assignor
from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import grouped

logger = logging.getLogger(__name__)

LIMIT_S = 5.0
"""How long an assignor may block the coordinator: half a session timeout. Built-in assignors take milliseconds."""


def with_own_assignor(settings: GroupSettings) -> GroupSettings:
    """Return the settings with the assignor that ``group.remote.assignor`` names, loaded from its entry point.

    Returns:
        The unchanged settings if they contain the assignor, if none is named, or if it cannot be loaded. A failed load
        is logged, because groups whose workers list no assignor then stay unassigned.
    """
    name = settings.server_assignor
    if not name or name in settings.server_assignors:
        return settings
    try:
        own = server_assignor(name, limit_s=LIMIT_S)
    except (ConfigError, PluginError) as error:
        logger.warning("group.remote.assignor: %s", error.with_location() if isinstance(error, PluginError) else error)
        return settings
    return replace(settings, server_assignors={**settings.server_assignors, name: own})


def server_assignors(names: Iterable[str], *, limit_s: float | None = None) -> dict[str, ServerAssignorCall]:
    """Load assignors in the form that the group rules call: the plug-ins that workers run, under the same names."""
    return {name: server_assignor(name, limit_s=limit_s) for name in names}


def server_assignor(name: str, *, limit_s: float | None = None) -> Callable[[PrepareResponse], ServerAssignment]:
    """Load one assignor in the form that the group rules call; ``limit_s`` as in ``as_server_assignor``.

    Raises:
        ConfigError, PluginError: there is no assignor of that name, or it cannot be created.
    """
    return as_server_assignor(load_assignor(name), limit_s=limit_s)


def as_server_assignor(
    assignor: ConnectAssignor, *, limit_s: float | None = None
) -> Callable[[PrepareResponse], ServerAssignment]:
    """Wrap an assignor for the group rules; every outcome becomes a ``ServerAssignment`` or a ``PluginError``.

    Args:
        limit_s: timeout of a call. A call blocks the group rules, and with them every group of this coordinator. A
            call that exceeds the timeout continues in its own thread; while it runs, the assignor is not called again.
            ``None``: call the assignor in the caller's thread, without a timeout.
    """

    def ask(prepared: PrepareResponse) -> ConnectAssignment:
        try:
            return run_assignor(assignor, group_from_prepare(prepared))
        except PluginError as error:
            logger.error("server-side %s", error.with_location())
            raise

    limited = ask if limit_s is None else _limited(ask, assignor.name, limit_s)

    def assign(prepared: PrepareResponse) -> ServerAssignment:
        assignment = limited(prepared)
        if assignment.error:
            raise PluginError(f"assignor {assignor.name!r}: {assignment.message or f'error {assignment.error}'}")
        return ServerAssignment(
            members=members_for_install(assignment),
            delayed=grouped(assignment.delayed),
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

        # A daemon thread: a plug-in that never returns must not prevent the coordinator from exiting.
        try:
            threading.Thread(target=work, name=f"assignor {name}", daemon=True).start()
        except RuntimeError as error:
            # The assignor was not called, so no call is under way: the next computation may get a thread (reliability
            # F36).
            raise PluginError(f"assignor {name!r} was not asked: {error}") from error
        under_way = answer
        try:
            return answer.result(limit_s)
        except TimeoutError:
            raise PluginError(f"assignor {name!r} did not answer within {limit_s:g} s") from None

    return limited
