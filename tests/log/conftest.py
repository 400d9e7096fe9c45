"""A directory for tests that create hundreds of logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzzing import folder_in_memory


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where possible: the tests simulate every sync, so it need not reach a real disk."""
    with folder_in_memory() as folder:
        yield folder
