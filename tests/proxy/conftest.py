"""A proxy in front of the real broker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.consumer.fixtures import NewGroup as NewGroup

if TYPE_CHECKING:
    from tests.consumer.broker import Broker

    from .running import Proxy


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


@pytest.fixture(scope="package")
def quick_group(broker: Broker) -> Iterator[NewGroup]:
    """As ``new_group``; consumer groups have a short heartbeat interval."""
    from tests.consumer.members import group_on

    from .running import running_proxy

    heartbeat = ("--consumer-heartbeat-interval-ms", "300", "--consumer-session-timeout-ms", "6000")
    with running_proxy(broker, *heartbeat) as proxy:
        yield partial(group_on, proxy)
