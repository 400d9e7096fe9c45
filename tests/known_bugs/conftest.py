"""Asynchronous scenarios run in virtual time, with the same random seed at every run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from tests.worker.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def fixed_random_seed(request: pytest.FixtureRequest) -> None:
    """Back-offs have jitter: the same at every run of a test."""
    random.seed(request.node.name)
