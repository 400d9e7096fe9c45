"""Where logs live that are made by the hundred."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzzing import folder_in_memory


@pytest.fixture
def place() -> Iterator[Path]:
    """What a sync does here is up to the test, and need not take its time."""
    with folder_in_memory() as folder:
        yield folder
