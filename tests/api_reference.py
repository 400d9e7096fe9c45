"""The reference of the public names, from their signatures and docstrings.

``make docs`` writes it to docs/api.md, which is not in the repository; ``python -m tests.api_reference`` prints it.
"""

from __future__ import annotations

import enum
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, get_type_hints

from pydantic import BaseModel

import connectgroup
from connectgroup import consumer, testing
from connectgroup.testing import plugins, worker_group

_HEAD: Final = """\
# API

Every name can be imported from `connectgroup`, except where a section names another package. The guides
([embedding](embedding.md), [assignors](assignors.md), [connectors](writing-connectors.md),
[consumer groups](consumer-groups.md), [testing](testing.md)) show them in use. Names that are not here may change
without notice. `make docs` generates this page.
"""

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "Groups and workers in a program": ("embedding", "sync", "worker", "coordinator", "listener", "supervisor"),
    "Settings": ("config", "group", "member", "log", "transport", "topics"),
    "Requests and descriptions": ("client", "protocol"),
    "Assignors": ("assign", "plugins"),
    "Connectors, sources, sinks, transforms": ("connector", "dataplane"),
    "Explanations, plans, replay": ("analysis",),
    "Members of Kafka's consumer groups: `connectgroup.consumer`": ("consumer",),
    "Errors": ("errors",),
    "For tests: `connectgroup.testing`": ("testing",),
}
"""Each section and the packages whose public names it has."""

_MAX_ALIAS: Final = 320
"""Characters of an alias that is replaced by what it stands for: not the unions of all requests and of all records."""

_EMPTY: Final = inspect.Parameter.empty


class _Text(str):
    """Text that a signature shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def reference() -> str:
    """Return the reference in Markdown."""
    names = {f"connectgroup.{name}": getattr(connectgroup, name) for name in connectgroup.__all__}
    names |= {f"connectgroup.testing.{name}": getattr(testing, name) for name in testing.__all__}
    names |= {f"connectgroup.consumer.{name}": getattr(consumer, name) for name in consumer.__all__}
    lines = [_HEAD]
    for title, packages in _SECTIONS.items():
        lines += [f"## {title}", ""]
        for name, value in sorted(names.items(), key=lambda item: item[0].casefold()):
            if _package(name) in packages:
                lines += [*_entry(name.rpartition(".")[2], value), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _package(name: str) -> str:
    """The first package or module below ``connectgroup`` that has the name."""
    short = name.rpartition(".")[2]
    home = next((module for module, names in connectgroup._HOME.items() if short in names), short)
    _, package, *of_package = name.split(".")
    return package if of_package else home.partition(".")[0]


def _entry(name: str, value: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    if inspect.ismodule(value):
        yield from _text(inspect.getdoc(value))
        for key, each in vars(value).items():
            is_own = getattr(each, "__module__", "") == value.__name__ and not key.startswith("_")
            if is_own and inspect.isclass(each):
                yield from _class(f"{name}.{key}", each)
            elif is_own and inspect.isfunction(each):
                yield from _member(f"{name}.{key}", each)
    elif isinstance(value, str):
        yield from _code(f"{name} = {value!r}")
    elif hasattr(value, "__origin__"):
        yield from _code(f"{name} = {_shown(str(value))}")
    else:
        yield from (_class if inspect.isclass(value) else _member)(name, value)


def _class(name: str, cls: type) -> Iterator[str]:
    bases = [base.__name__ for base in cls.__bases__ if base.__name__ in connectgroup.__all__]
    if issubclass(cls, enum.Enum):
        yield from _code(f"class {name}: {', '.join(member.name for member in cls)}")
    elif bases or issubclass(cls, Exception) or getattr(cls, "_is_protocol", False) or "__call__" in vars(cls):
        yield from _code(f"class {name}" + (f"({', '.join(bases)})" if bases else ""))
        if issubclass(cls, Exception) and "__init__" in vars(cls):
            yield from _code(_signature(name, cls))
    else:
        yield from _code(_signature(f"class {name}", cls))
    yield from _text(inspect.cleandoc(cls.__doc__ or ""))
    if inspect.isfunction(made := vars(cls).get("__init__")) and made.__doc__:
        yield from _text(inspect.getdoc(made))
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # with bases that are not public themselves
        if base is cls or (base.__module__.startswith("connectgroup") and base.__name__ not in connectgroup.__all__):
            members |= vars(base)
    for key, each in members.items():
        inner = _function_of(each)
        shown = key == "__call__" or not key.startswith(("_", "test_"))
        if shown and inspect.isfunction(inner) and inner.__doc__:
            yield from _member(key, each)


def _member(name: str, value: Any) -> Iterator[str]:
    inner = _function_of(value)
    kind = "@classmethod " if isinstance(value, classmethod) else "async " if inspect.iscoroutinefunction(inner) else ""
    shown = kind + _signature(name, inner)
    is_field = isinstance(value, property | cached_property)
    yield from _code(shown.replace("() -> ", ": ", 1) if is_field else shown)
    yield from _text(inspect.getdoc(inner))


def _function_of(member: Any) -> Any:
    """The function of a class method or of a property; else the member itself."""
    if isinstance(member, cached_property):
        return member.func
    return getattr(member, "__func__", getattr(member, "fget", member))


def _code(text: str) -> Iterator[str]:
    yield from ("```text", text, "```", "")


def _signature(name: str, value: Any) -> str:
    """``name(parameters) -> result``; one parameter per line if it is long."""
    signature = inspect.signature(value)
    # Of settings: without their limits.
    hints = get_type_hints(value) if isinstance(value, type) and issubclass(value, BaseModel) else {}
    names = vars(plugins) | vars(worker_group) | vars(sys.modules[value.__module__])
    shown: list[str] = []
    for key, each in signature.parameters.items():
        if each.kind is each.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        if key not in ("self", "cls"):
            annotation = _shown(hints.get(key, each.annotation), names)
            shown.append(str(each.replace(annotation=annotation, default=_default(each))))
    is_class = inspect.isclass(value) or signature.return_annotation is _EMPTY
    end = ")" if is_class else f") -> {_shown(signature.return_annotation, names)}"
    if len(name) + len(", ".join(shown)) + len(end) < 110:
        return f"{name}({', '.join(shown)}{end}"
    return "\n".join([f"{name}(", *(f"    {text}," for text in shown), end])


def _default(parameter: inspect.Parameter) -> Any:
    value = parameter.default
    if value is _EMPTY:
        return value
    text = str(value) if isinstance(value, enum.Enum) else repr(value)
    return _Text(re.sub(r"<function .* at 0x\w+>|<[^<>]*>", "...", text))


def _shown(annotation: Any, names: Mapping[str, Any] | None = None) -> Any:
    """An annotation as text; an alias that is not public is replaced by what it stands for, looked up in ``names``."""
    if annotation is _EMPTY:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    if names is not None:
        text = re.sub(r"\b[A-Z]\w+\b(?!\()", lambda found: _expanded(found[0], names), text)
    return _Text(re.sub(r"\b(?:typing|collections\.abc|connectgroup(?:\.\w+)*|pathlib)\.(?=[A-Z])", "", text))


def _expanded(name: str, names: Mapping[str, Any]) -> str:
    value = names.get(name)
    if name in connectgroup.__all__ or inspect.isclass(value) or not hasattr(value, "__args__"):
        return name
    text = str(_shown(value, names))
    return text if len(text) <= _MAX_ALIAS else name


def _text(docstring: str | None) -> Iterator[str]:
    """A docstring as Markdown: the blocks ``Args:`` and the like become lists."""
    block = ""
    for line in (docstring or "").replace("``", "`").split("\n"):
        if found := re.match(r"(Args|Attributes|Returns|Raises|Yields):$", line):
            block = found[1]
            yield from (line, "")
        elif not block or (line and not line.startswith(" ")):
            block = ""
            yield line
        elif block not in ("Returns", "Yields") and (entry := re.match(r"    (\*{0,2}\w[\w, ]*): (.*)", line)):
            yield f"- `{entry[1]}`: {entry[2]}"
        else:
            yield line.strip() if block in ("Returns", "Yields") else f"  {line.strip()}".rstrip()
    yield ""


if __name__ == "__main__":
    print(reference(), end="")
