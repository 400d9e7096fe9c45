"""One real broker for all tests of this folder that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .broker import Broker
    from .members import BrokerGroup

NewGroup = Callable[..., "AbstractContextManager[BrokerGroup]"]


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    """A Kafka broker. Where there cannot be one, a test that asks for it says what is missing, and is skipped."""
    # Not at the head of this file: tests that need no broker must run without confluent-kafka too.
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from .broker import Unavailable, running_broker

    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_broker())
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield running


@pytest.fixture
def new_group(broker: Broker) -> NewGroup:
    """``with new_group("name", partitions=6) as group``: a topic and a group on the broker."""
    from .members import group_on

    return partial(group_on, broker)
