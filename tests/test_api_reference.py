"""The generated API reference has every public name, with its signature and docstring."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

import connectgroup
from connectgroup import consumer, testing

from .api_reference import reference


def test_every_public_name_is_listed_once() -> None:
    listed = re.findall(r"^### (\w+)$", reference(), re.MULTILINE)
    assert sorted(listed) == sorted([*connectgroup.__all__, *testing.__all__, *consumer.__all__])


@pytest.mark.parametrize("package", [connectgroup, testing, consumer], ids=lambda package: package.__name__)
def test_every_public_class_and_function_has_a_docstring(package: ModuleType) -> None:
    values = {name: getattr(package, name) for name in package.__all__}
    described = {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
    # That of a class itself: a dataclass without one shows its signature, other classes that of their base.
    texts = {name: vars(value).get("__doc__") or "" for name, value in described.items() if inspect.isclass(value)}
    texts |= {name: value.__doc__ or "" for name, value in described.items() if inspect.isfunction(value)}
    assert [name for name, text in texts.items() if not text or text.startswith(f"{name}(")] == []
    assert len(texts) > 2


def test_text_is_the_same_in_every_process() -> None:
    assert " at 0x" not in reference()
    assert "object>" not in reference()


def test_type_variables_and_private_names_are_left_out() -> None:
    assert "Type variable" not in reference()
    assert not re.search(r"^(?:async )?_(?!_call__\()\w+\(", reference(), re.MULTILINE)


def test_a_fixture_that_is_called_shows_what_it_takes_and_aliases_are_spelled_out() -> None:
    entry = reference().partition("### StartGroup\n")[2].partition("\n### ")[0]
    assert "    connectors: Mapping[str, int | Mapping[str, Any]] | None = None,\n" in entry
    assert "seed: int | None" not in entry  # of the constructor, which the fixture calls
    assert "add_connector(name: str, spec: int | Mapping[str, Any]) -> None" in reference()


def test_errors_show_their_constructors_and_cached_properties_are_shown() -> None:
    """The latter: what an assignor reads."""
    text = reference()
    assert "\nConfigError(field: str, value: object, allowed: str, *, is_path: bool = False)\n" in text
    assert "units: tuple[Unit, ...]\n```\n\nEvery connector and task once" in text


def test_types_of_descriptions_are_public() -> None:
    for name in [name for name in connectgroup.__all__ if re.match("Described|Rebalance$|Move$", name)]:
        used = set(re.findall(r"\b[A-Z]\w+", " ".join(getattr(connectgroup, name).__annotations__.values())))
        assert used - {"None"} <= set(connectgroup.__all__)
