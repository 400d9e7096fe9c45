"""The two places of every scenario: the broker, and a proxy in front of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.consumer.fixtures import NewGroup as NewGroup
from tests.proxy.conftest import proxy as proxy

if TYPE_CHECKING:
    from tests.consumer.broker import Broker
    from tests.consumer.members import Cluster


@pytest.fixture(params=["broker", "proxy"])
def place(request: pytest.FixtureRequest, broker: Broker) -> Cluster:
    """The broker, and the proxy in front of it."""
    found: Cluster = broker if request.param == "broker" else request.getfixturevalue("proxy")
    return found


@pytest.fixture
def new_group(place: Cluster) -> NewGroup:
    """``with new_group("name", partitions=6) as group``: a topic, and a group at the place."""
    from tests.consumer.members import group_on

    return partial(group_on, place)
