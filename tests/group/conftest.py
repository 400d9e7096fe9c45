"""Scenes that several stories begin with."""

from __future__ import annotations

import pytest

from .builders import FixedAssignor, Scene, foo, settings


@pytest.fixture
def fixed() -> FixedAssignor:
    """The coordinator's own assignor: it answers what it was told to."""
    return FixedAssignor()


@pytest.fixture
def rest(fixed: FixedAssignor) -> Scene:
    """m0 has foo and foo-0, m1 has foo-1, foo-2 and foo-3, all at epoch 100 (99 before)."""
    fixed.shares = {"m0": foo(-1, 0), "m1": foo(1, 2, 3)}
    return Scene.at_rest(
        settings(fixed), epoch=100, connectors={"foo": 4}, members={"m0": foo(-1, 0), "m1": foo(1, 2, 3)}
    )
