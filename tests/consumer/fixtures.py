"""The fixture of a real broker, one for the packages of tests that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .broker import Broker
    from .members import BrokerGroup

NewGroup = Callable[..., "AbstractContextManager[BrokerGroup]"]


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A Kafka broker. If none can run here, tests that use it are skipped with the reason, which CI forbids."""
    # Not a module-level import: tests without a broker must run without confluent-kafka too.
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from .broker import Unavailable, running_broker

    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_broker())
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield running
