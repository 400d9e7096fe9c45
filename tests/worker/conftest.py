"""Every test here runs in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}
