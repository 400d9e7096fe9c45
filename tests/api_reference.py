"""The reference of the public names, from their signatures and docstrings.

``python -m tests.api_reference`` prints it; docs/api.md is this text.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_type_hints

from pydantic import BaseModel

import connectgroup
from connectgroup import testing

_HEAD: Final = """\
# API

Every name can be imported from `connectgroup`, those of the last section from `connectgroup.testing`. The guides
([embedding](embedding.md), [assignors](assignors.md), [connectors](writing-connectors.md), [testing](testing.md)) show
them in use. Names that are not here may change without notice. This page is generated:
`python -m tests.api_reference > docs/api.md`.
"""

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Groups and workers in a program": ("embedding", "sync", "worker", "coordinator", "listener", "supervisor"),
    "Settings": ("config", "group", "member", "log", "transport"),
    "Requests and descriptions": ("client", "protocol"),
    "Assignors": ("assign", "plugins"),
    "Connectors, sources, sinks, transforms": ("connector", "dataplane"),
    "Explanations, plans, replay": ("analysis",),
    "Errors": ("errors",),
    "For tests: `connectgroup.testing`": ("testing",),
}
"""Each section and the packages whose public names it has."""

_BLOCK: Final = re.compile(r"^(Args|Attributes|Returns|Raises|Yields):$")
_WIDTH: Final = 110


class _Text(str):
    """Text that a signature shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def reference() -> str:
    """Return the reference in Markdown."""
    names = {f"connectgroup.{name}": getattr(connectgroup, name) for name in connectgroup.__all__}
    names |= {f"connectgroup.testing.{name}": getattr(testing, name) for name in testing.__all__}
    lines = [_HEAD]
    for title, packages in _SECTIONS.items():
        lines += [f"## {title}", ""]
        for name, value in sorted(names.items(), key=lambda item: item[0].casefold()):
            if _package(name, value) in packages:
                lines += [*_entry(name, value), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _package(name: str, value: Any) -> str:
    """The first package or module below ``connectgroup`` that has the name."""
    if name.startswith("connectgroup.testing."):
        return "testing"
    short = name.rpartition(".")[2]
    home = next((module for module, names in connectgroup._HOME.items() if short in names), short)
    return home.partition(".")[0]


def _entry(name: str, value: Any) -> Iterator[str]:
    short = name.rpartition(".")[2]
    yield f"### {short}"
    yield ""
    if inspect.ismodule(value):
        yield from _text(inspect.getdoc(value))
        for key, each in vars(value).items():
            if getattr(each, "__module__", "") == value.__name__ and not key.startswith("_"):
                yield from _class(f"{short}.{key}", each) if inspect.isclass(each) else _member(f"{short}.{key}", each)
    elif inspect.isclass(value) and not hasattr(value, "__origin__"):
        yield from _class(short, value)
    elif callable(value) and not hasattr(value, "__origin__"):
        yield from _code(_signature(short, value))
        yield from _text(inspect.getdoc(value))
    else:
        yield from _code(f"{short} = {str(value).replace('typing.', '').replace('collections.abc.', '')}")


def _class(name: str, cls: type) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base.__name__ in connectgroup.__all__]
    shown = f"class {name}" + (f"({', '.join(bases)})" if bases else "")
    if issubclass(cls, enum.Enum):
        yield from _code(f"class {name}: {', '.join(member.name for member in cls)}")
    else:
        yield from _code(shown if bases or getattr(cls, "_is_protocol", False) else _signature(shown, cls))
    yield from _text(cls.__doc__ and inspect.cleandoc(cls.__doc__))
    own = "__init__" in vars(cls) and inspect.getdoc(vars(cls)["__init__"])
    if own and own != inspect.getdoc(object.__init__):
        yield from _text(own)
    for key, each in _members(cls).items():
        yield from _member(key, each)


def _members(cls: type) -> dict[str, Any]:
    """Public methods and properties with a docstring, those of bases that are not public included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        is_ours = base is cls or (
            base.__module__.startswith("connectgroup") and base.__name__ not in connectgroup.__all__
        )
        for key, each in vars(base).items() if is_ours else ():
            inner = getattr(each, "__func__", getattr(each, "fget", each))
            if not key.startswith(("_", "test_")) and inspect.isfunction(inner) and inner.__doc__:
                found[key] = each
    return found


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        annotation = value.fget.__annotations__.get("return", "") if value.fget else ""
        shown = f"{name}: {annotation}"
    else:
        inner = getattr(value, "__func__", value)
        kind = "@classmethod " if isinstance(value, classmethod) else ""
        kind += "async " if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner) else ""
        shown = kind + _signature(name, inner)
    yield from _code(shown)
    yield from _text(inspect.getdoc(value))


def _code(text: str) -> Iterator[str]:
    yield from ("```text", text, "```", "")


def _signature(name: str, value: Any) -> str:
    """``name(parameters) -> result``, wrapped if it is long."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    # Of settings: without the limits, which the table of settings has.
    hints = get_type_hints(value) if isinstance(value, type) and issubclass(value, BaseModel) else {}
    parameters = [
        _parameter(each.replace(annotation=hints.get(key, each.annotation)))
        for key, each in signature.parameters.items()
        if key not in ("self", "cls")
    ]
    result = signature.return_annotation
    if inspect.isclass(value) or result is signature.empty:
        result = None
    signature = signature.replace(
        parameters=parameters, return_annotation=signature.empty if result is None else _shown(result)
    )
    text = f"{name}{signature}"
    if len(text) <= _WIDTH:
        return text
    inner = [str(inspect.Signature([each]))[1:-1].removesuffix(", /") for each in parameters]
    first = next((i for i, each in enumerate(parameters) if each.kind is inspect.Parameter.KEYWORD_ONLY), None)
    if first is not None:
        inner = [*inner[:first], "*", *(each.removeprefix("*, ") for each in inner[first:])]
    end = "" if result is None else f" -> {_shown(result)}"
    return "\n".join([f"{name}(", *(f"    {each}," for each in inner), f"){end}"])


def _parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not parameter.empty:
        text = str(default) if isinstance(default, enum.Enum) else repr(default)
        default = _Text(re.sub(r"<function .* at 0x\w+>|<[^<>]*>", "...", text))
    annotation = parameter.annotation
    return parameter.replace(
        default=default, annotation=annotation if annotation is parameter.empty else _shown(annotation)
    )


def _shown(annotation: Any) -> _Text:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return _Text(re.sub(r"\b(?:typing|collections\.abc|connectgroup(?:\.\w+)*|pathlib)\.(?=[A-Z])", "", text))


def _text(docstring: str | None) -> Iterator[str]:
    """A docstring as Markdown: the blocks ``Args:`` and the like become lists."""
    block, entries = "", False
    for line in (docstring or "").split("\n"):
        marked = line.replace("``", "`")
        if found := _BLOCK.match(line):
            block, entries = found[1], found[1] not in ("Returns", "Yields")
            yield from (f"{block}:", "") if entries else (f"{block}:",)
        elif block and line and not line.startswith(" "):
            block = ""
            yield marked
        elif block and entries and (entry := re.match(r"    (\*{0,2}\w[\w, ]*): (.*)", marked)):
            yield f"- `{entry[1]}`: {entry[2]}"
        elif block:
            yield f"  {marked.strip()}" if entries and marked.strip() else marked.strip()
        else:
            yield marked
    yield ""


if __name__ == "__main__":
    print(reference(), end="")
