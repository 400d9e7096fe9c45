"""The connection of a subcommand to the coordinator."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ..errors import TransportError

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
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator with the address of a running coordinator") from error
