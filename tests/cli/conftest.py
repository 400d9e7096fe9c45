"""Whatever a command has started is gone when its test is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..integration.processes import marked


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield
