"""The names of ``import connectgroup``."""

from __future__ import annotations

import pytest

import connectgroup


@pytest.mark.parametrize("name", connectgroup.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(connectgroup, name) is not None
