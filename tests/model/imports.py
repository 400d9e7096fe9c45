"""What the modules of a model import."""

from __future__ import annotations

import ast
from pathlib import Path

SHARED = ("connectgroup.errors", "connectgroup.protocol")


def imports_of_rules(path: Path, model: tuple[str, ...]) -> list[str]:
    """What a module of a model imports besides the model and the shared data types."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            found += [node.module] if node.module not in model else []
        elif isinstance(node, ast.ImportFrom | ast.Import):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            ours = {module for module in modules if module.startswith(("connectgroup", "tests"))}
            found += sorted(module for module in ours if not module.startswith(SHARED))
    return [str(name) for name in found]
