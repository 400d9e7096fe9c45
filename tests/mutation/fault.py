"""A planted fault: a change that breaks a rule of the product, and the tests that must detect it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .pattern import replaced

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A change of one piece of code, addressed by name and by form: see ``pattern``.

    Attributes:
        name: the faulty behaviour.
        target: module and qualified name, with a colon between.
        old: the pattern to find there, exactly once or the ``nth`` time.
        new: what replaces it; empty: the statement is removed.
        tests: paths or ids of pytest, separated by blanks; one of these tests must fail.
        simulator: the invariants of ``tests.simulation`` of which one must be violated.
        seed: a seed that violated one when the fault was last looked at: it is tried first, and saves a minute. Without
            ``simulator``, a seed of ``tests.model.consumer``.
        model: whether ``tests.model`` must find a difference.
    """

    name: str
    target: str
    old: str
    new: str
    nth: int | None = None
    tests: str = ""
    simulator: str = ""
    seed: int = 1
    model: bool = False

    @cached_property
    def path(self) -> Path:
        """The file of the target, below the repository."""
        return module_path(self.target.partition(":")[0])

    def applied(self, source: str) -> ast.Module:
        """The module's tree with the fault. Raises PatternError."""
        return replaced(source, self.target.partition(":")[2], self.old, self.new, nth=self.nth)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the fault in this process, wherever the function has been imported to, and remove it at the end.

        The function stays the same object and gets other code. Faults of a class or a module cannot be planted.
        """
        function = _function(self.target)
        whole = compile(self.applied((ROOT / self.path).read_text(encoding="utf-8")), str(self.path), "exec")
        kept, function.__code__ = function.__code__, _code(whole, function.__code__.co_qualname)
        try:
            yield
        finally:
            function.__code__ = kept


@dataclass(frozen=True, slots=True)
class C:
    """A change at the address: see ``Fault``; ``tests`` if others than those of the address must detect it."""

    name: str
    old: str
    new: str = ""
    nth: int | None = None
    tests: str = ""
    simulator: str = ""
    seed: int = 1
    model: bool = False


def at(target: str, tests: str, *changes: C) -> tuple[Fault, ...]:
    """The faults at one address.

    Args:
        target: module below the repository and qualified name, with a colon between.
        tests: paths or ids of pytest below ``tests/``, separated by blanks.
    """
    return tuple(
        Fault(
            name=change.name,
            target=target,
            old=change.old,
            new=change.new,
            nth=change.nth,
            tests=" ".join(f"tests/{part}" for part in (change.tests or tests).split()),
            simulator=change.simulator,
            seed=change.seed,
            model=change.model,
        )
        for change in changes
    )


def module_path(module: str) -> Path:
    """A module's file below the repository, from wherever its package is imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} cannot be imported"
    assert spec.origin is not None, f"{module} has no file"
    return Path(spec.origin).resolve().relative_to(ROOT)


def _function(target: str) -> FunctionType:
    """The outermost function of a target: of a method, a property or a decorated function itself."""
    module, _, qualname = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = inspect.getattr_static(found, name)
        found = getattr(found, "fget", None) or getattr(found, "__func__", found)
        if not inspect.isclass(found):
            break
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType), f"{target} is no function: its fault can only be written into a file"
    return found


def _code(outer: CodeType, qualname: str) -> CodeType:
    stack = [outer]
    while stack:
        code = stack.pop()
        if code.co_qualname == qualname:
            return code
        stack += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    raise AssertionError(f"there is no {qualname}")
