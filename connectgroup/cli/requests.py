"""The connection of a subcommand to the coordinator."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from ..client.conditions import shown
from ..errors import ConfigError, ConnectGroupError, GroupIdNotFound, NotAuthenticated, TransportError
from ..protocol.units import printable
from .security import access_of

if TYPE_CHECKING:
    from ..client.admin import Admin

RETRY_FOR_S: Final = 2.0
"""A coordinator that is being started or restarted is waited for this long."""


def admin_of(options: argparse.Namespace, *, client_id: str = "cli", retry_for_s: float = RETRY_FOR_S) -> Admin:
    """Create an admin client of the coordinators that ``--coordinator`` names; the caller closes it."""
    from ..client.admin import Admin

    addresses = options.coordinator.split(",")
    return Admin.connect(addresses, client_id=client_id, retry_for_s=retry_for_s, access=access_of(options))


@asynccontextmanager
async def connected(options: argparse.Namespace, *, retry_for_s: float = RETRY_FOR_S) -> AsyncIterator[Admin]:
    """Yield an admin client of the coordinators that ``--coordinator`` names."""
    try:
        async with admin_of(options, retry_for_s=retry_for_s) as admin:
            yield admin
    except GroupIdNotFound as error:
        raise await _no_such_group(options) from error
    except NotAuthenticated:
        raise
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator with the address of a running coordinator") from error


async def check_group(admin: Admin, options: argparse.Namespace) -> None:
    """Refuse to create a second group on a coordinator without ``--new-group``: its name is rather a typing error.

    Raises:
        ConfigError: there are groups, this one is not among them, and ``--new-group`` was not given.
    """
    names = [group.group_id for group in await admin.list_groups()]
    if names and options.group not in names and not options.new_group:
        raise ConfigError("--group", options.group, f"{shown(names)}; --new-group creates another group")


async def _no_such_group(options: argparse.Namespace) -> GroupIdNotFound:
    """The error for an unknown group; it names those that exist."""
    names: list[str] = []
    with suppress(ConnectGroupError):
        async with admin_of(options) as admin:
            names = [group.group_id for group in await admin.list_groups()]
    return GroupIdNotFound(f"no such group {printable(options.group)!r}; groups here: {shown(names)}")
