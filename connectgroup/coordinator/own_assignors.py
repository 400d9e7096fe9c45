"""The coordinator's own assignors: the same plug-ins that workers run, called by the group rules.

They serve groups whose workers list no assignor, and groups whose workers' assignors keep failing (design 3.6).
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
from ..group.connect.settings import GroupSettings, ServerAnswer, ServerAssign
from ..plugins import load_assignor
from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import grouped

logger = logging.getLogger(__name__)

LIMIT_S = 5.0
"""How long an assignor may hold up the coordinator: half a session. The built-in ones take milliseconds."""


def with_own_assignor(settings: GroupSettings) -> GroupSettings:
    """The settings with the assignor that ``group.remote.assignor`` names, found by its entry point.

    Returns:
        The settings as they are where the assignor is among them, where none is named, and where it cannot be loaded:
        that is logged, because groups whose workers list no assignor stay unassigned then.
    """
    name = settings.server_assignor
    if not name or name in settings.server_assignors:
        return settings
    try:
        own = server_assignor(name, limit_s=LIMIT_S)
    except (ConfigError, PluginError) as error:
        logger.warning("group.remote.assignor: %s", error)
        return settings
    return replace(settings, server_assignors={**settings.server_assignors, name: own})


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
