"""``connectgroup docs``: the guides, examples and files for containers that are installed with the package."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from .render import print_json, print_table

PACKAGE: Final = Path(__file__).parents[1]
"""In a wheel, ``docs`` is below it, with the examples; in a checkout, both are in the directory above it."""


async def print_docs(options: argparse.Namespace) -> int:
    """List the guides and examples, or print one."""
    found = installed()
    if options.document is None:
        titles = {name: _title(path) for name, path in found.items()}
        if options.json:
            print_json([{"name": name, "title": titles[name], "path": str(path)} for name, path in found.items()])
        else:
            print_table(("NAME", "ABOUT"), list(titles.items()))
        return 0
    path = found.get(options.document)
    if path is None:
        raise ConfigError("document", options.document, ", ".join(found) or "none are installed")
    if options.json:
        text = {} if options.path else {"text": path.read_text(encoding="utf-8")}
        print_json({"name": options.document, "title": _title(path), "path": str(path), **text})
    elif options.path:
        print(path)
    else:
        print(path.read_text(encoding="utf-8"), end="")
    return 0


def installed() -> Mapping[str, Path]:
    """The guides by name, ``readme`` first, the files for containers as ``deploy/NAME``, and ``examples/NAME.py``."""
    inside = PACKAGE / "docs"
    guides, root = (inside, inside) if inside.is_dir() else (PACKAGE.parent / "docs", PACKAGE.parent)
    found = {"readme": root / "README.md"}
    found |= {path.stem: path for path in sorted(guides.glob("*.md")) if path.name != "README.md"}
    found |= {f"deploy/{path.name}": path for path in sorted((guides / "deploy").glob("*"))}
    found |= {f"examples/{path.name}": path for path in sorted((root / "examples").glob("*.py"))}
    return {name: path for name, path in found.items() if path.is_file()}


def _title(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return next((line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")), "")
