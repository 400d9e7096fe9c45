"""Every process that a command has started has ended at the end of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..integration.processes import marked


@pytest.fixture(autouse=True)
def no_process_is_left_over() -> Iterator[None]:
    with marked():
        yield
