"""Each test sees only what it measures itself."""

from __future__ import annotations

import pytest

from connectgroup.telemetry import metrics


@pytest.fixture(autouse=True)
def nothing_is_measured_yet() -> None:
    """Earlier tests may have left workers that never ended."""
    metrics.forget()
