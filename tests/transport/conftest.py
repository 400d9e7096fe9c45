"""The server's own tests run on both event loops: the coordinator's command uses uvloop where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from connectgroup.cli.command import new_event_loop

ON_BOTH = ("test_tls.py", "test_tcp_server.py", "test_tcp_server_limits.py", "test_direct.py", "test_authentication.py")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops = {"asyncio": asyncio.new_event_loop}
    uvloop = new_event_loop("auto")
    return loops if uvloop is None or item.path.name not in ON_BOTH else {**loops, "uvloop": uvloop}
