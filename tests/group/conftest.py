"""Fixtures that several test files share."""

from __future__ import annotations

import pytest

from .builders import FixedAssignor, Scene, foo, settings


@pytest.fixture
def fixed() -> FixedAssignor:
    """The coordinator's server-side assignor, which returns the result that the test has set."""
    return FixedAssignor()


@pytest.fixture
def rest(fixed: FixedAssignor) -> Scene:
    """Member m0 owns foo and foo-0, member m1 owns foo-1, foo-2 and foo-3, all at epoch 100 (previous epoch 99)."""
    fixed.target = {"m0": foo(-1, 0), "m1": foo(1, 2, 3)}
    return Scene.stable(
        settings(fixed), epoch=100, connectors={"foo": 4}, members={"m0": foo(-1, 0), "m1": foo(1, 2, 3)}
    )
