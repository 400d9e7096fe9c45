"""Groups on the real broker."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from .fixtures import NewGroup as NewGroup

if TYPE_CHECKING:
    from .broker import Broker


@pytest.fixture
def new_group(broker: Broker) -> NewGroup:
    """``with new_group("name", partitions=6) as group``: a topic and a group on the broker."""
    from .members import group_on

    return partial(group_on, broker)
