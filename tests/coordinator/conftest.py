"""The tests of this package run in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from connectgroup.coordinator import compute
from connectgroup.testing.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


async def on_loop(name: str, function: Callable[[], Any]) -> Any:
    """Replaces ``compute.off_loop``: calls the function on the event loop."""
    return function()


@pytest.fixture(autouse=True)
def assignors_run_on_the_loop(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Assignors that need no time do not need a thread either; tests marked ``threads`` use threads."""
    if request.node.get_closest_marker("threads") is None:
        monkeypatch.setattr(compute, "off_loop", on_loop)
