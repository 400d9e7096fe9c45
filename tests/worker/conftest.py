"""Every test here runs in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from connectgroup.testing.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def seeded_random(request: pytest.FixtureRequest) -> None:
    """Back-off has jitter: the same in every run of a test."""
    random.seed(request.node.name)
