"""Asynchronous scenarios run in virtual time, with the same random seed at every run, as in ``tests.worker``."""

from tests.worker.conftest import (
    pytest_asyncio_loop_factories as pytest_asyncio_loop_factories,
    seeded_random as seeded_random,
)
