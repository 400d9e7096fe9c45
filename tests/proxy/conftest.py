"""One real broker for all tests of this folder that use it, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.consumer.broker import Broker
    from tests.consumer.members import BrokerGroup

    from .running import Proxy

NewGroup = Callable[..., "AbstractContextManager[BrokerGroup]"]


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    """A Kafka broker. If none can run here, tests that use it are skipped with the reason, which CI forbids."""
    pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")
    from tests.consumer.broker import Unavailable, running_broker

    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_broker())
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope="package")
def proxy(broker: Broker) -> Iterator[Proxy]:
    """A proxy as a separate process."""
    from .running import running_proxy

    with running_proxy(broker) as running:
        yield running


@pytest.fixture
def new_group(proxy: Proxy) -> NewGroup:
    """``with new_group("name", partitions=6) as group``: a topic on the broker, and a group behind the proxy."""
    from tests.consumer.members import group_on

    return partial(group_on, proxy)
