"""docs/connectors.md matches the settings models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectgroup.connectors.reference import reference
from connectgroup.plugins import (
    available,
    load_predicate_class,
    load_sink_class,
    load_source_class,
    load_transform_class,
)


def test_reference_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "connectors.md"
    assert page.read_text() == reference(), "python -m connectgroup.connectors.reference > docs/connectors.md"


def test_every_setting_has_a_description() -> None:
    classes: list[Any] = [
        *(load_source_class(name) for name in available("sources")),
        *(load_sink_class(name) for name in available("sinks")),
        *(load_transform_class(name, "type") for name in available("transforms")),
        *(load_predicate_class(name, "type") for name in available("predicates")),
    ]
    for cls in classes:
        for name, field in cls.Settings.model_fields.items():
            assert field.description, f"{cls.__name__}: {name}"
        assert cls.__doc__, cls


@pytest.mark.parametrize("kind", ["sources", "sinks", "transforms", "predicates"])
def test_reference_lists_every_plug_in(kind: str) -> None:
    for name in available(kind):  # type: ignore[arg-type]
        assert f"`{name}`" in reference()
