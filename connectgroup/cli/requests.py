"""The connection of a subcommand to the coordinator."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from ..errors import ConnectGroupError, GroupIdNotFound, TransportError
from ..protocol.units import printable

if TYPE_CHECKING:
    from ..client.admin import Admin

RETRY_FOR_S: Final = 2.0
"""A coordinator that is being started or restarted is waited for this long."""


@asynccontextmanager
async def connected(options: argparse.Namespace) -> AsyncIterator[Admin]:
    """Yield an admin client of the coordinators that ``--coordinator`` names."""
    from ..client.admin import Admin

    try:
        async with Admin.connect(options.coordinator.split(","), client_id="cli", retry_for_s=RETRY_FOR_S) as admin:
            yield admin
    except GroupIdNotFound as error:
        raise await _no_such_group(options) from error
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator with the address of a running coordinator") from error


async def _no_such_group(options: argparse.Namespace) -> GroupIdNotFound:
    """The error for an unknown group; it names those that exist."""
    from ..client.admin import Admin

    names: list[str] = []
    with suppress(ConnectGroupError):
        async with Admin.connect(options.coordinator.split(","), client_id="cli", retry_for_s=RETRY_FOR_S) as admin:
            names = [printable(group.group_id) for group in await admin.list_groups()]
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return GroupIdNotFound(f"no such group {printable(options.group)!r}; groups here: {shown or 'none'}")
