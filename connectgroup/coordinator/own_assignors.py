"""Server-side assignors: the plug-ins that workers run, run by the coordinator off its event loop.

They serve groups whose workers list no assignor, and groups whose client-side assignors fail repeatedly (PD-06).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..assign.api import ConnectAssignor
from ..assign.convert import group_from_prepare, members_for_install
from ..assign.placement import NO_TRAITS
from ..assign.sandbox import configure_assignor, run_assignor
from ..errors import ConfigError, PluginError
from ..group.connect.settings import GroupSettings, ServerAssignment, ServerAssignorCall
from ..plugins import available, load_assignor
from ..protocol.messages.assignment import PrepareResponse
from ..protocol.messages.common import grouped

logger = logging.getLogger(__name__)


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
        own = server_assignor(name)
    except (ConfigError, PluginError) as error:
        logger.warning("group.remote.assignor: %s", error.with_location() if isinstance(error, PluginError) else error)
        return settings
    return replace(settings, server_assignors={**settings.server_assignors, name: own})


def server_assignors(names: Iterable[str]) -> dict[str, ServerAssignorCall]:
    """Load the plug-ins that workers run, under the same names, for ``GroupSettings.server_assignors``."""
    return {name: server_assignor(name) for name in names}


def group_assignors(own: str, named: Iterable[str]) -> dict[str, ServerAssignorCall]:
    """The assignor ``group.remote.assignor``, and those of the named ones that are for connect groups."""
    of_workers = available("assignors")
    return server_assignors(dict.fromkeys([own, *(name for name in named if name in of_workers)]))


def server_assignor(name: str) -> Callable[[PrepareResponse], ServerAssignment]:
    """Load one assignor in the form of ``GroupSettings.server_assignors``.

    Raises:
        ConfigError, PluginError: there is no assignor of that name, or it cannot be created or configured.
    """
    assignor = load_assignor(name)
    configure_assignor(assignor, NO_TRAITS)
    return as_server_assignor(assignor)


def as_server_assignor(assignor: ConnectAssignor) -> Callable[[PrepareResponse], ServerAssignment]:
    """Wrap an assignor for ``GroupSettings.server_assignors``: a call returns the result, or raises ``PluginError``."""

    def assign(prepared: PrepareResponse) -> ServerAssignment:
        try:
            assignment = run_assignor(assignor, group_from_prepare(prepared))
        except PluginError as error:
            logger.error("server-side %s", error.with_location())
            raise
        if assignment.error:
            return ServerAssignment(error=assignment.error, message=assignment.message)
        return ServerAssignment(
            members=members_for_install(assignment),
            delayed=grouped(assignment.delayed),
            delay_ms=assignment.delay_ms,
            message=assignment.message,
        )

    return assign
