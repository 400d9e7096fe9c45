"""Scenarios that are ``async`` run in virtual time, with the same dice at every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from tests.worker.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def same_dice(request: pytest.FixtureRequest) -> None:
    """Retries wait with jitter: the same one at every run of a test."""
    random.seed(request.node.name)
