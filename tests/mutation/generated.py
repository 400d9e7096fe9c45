"""Mutants made by rule, for the pure packages: comparison, boundary, removed operand, negation, removed statement.

Why not mutmut or cosmic-ray: both bring a runner and a store of results of their own, mutate what only formats
messages, and know neither our copies and forks nor which test runs which line. The rules alone are short.

Left alone: messages (arguments of ``raise``, f-strings, ``logger``), assertions, annotations and module constants.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .fault import ROOT
from .pattern import definitions

PACKAGES: dict[str, tuple[str, ...]] = {
    "connectgroup/group": ("tests/group", "tests/scenes", "tests/coordinator"),
    "connectgroup/member": ("tests/member",),
    "connectgroup/wire": ("tests/wire",),
}
"""What is mutated, and the tests that must notice."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
DELETED = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.AugAssign)
FORMATTING = {"__repr__", "__str__"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One change made by rule.

    Attributes:
        path: the file, below the repository.
        qualname: the innermost definition it is in.
        line: in the file as it is; ``plain_line``: in the file as ``ast.unparse`` writes it, a line a statement.
        old, new: the code changed, and what it is changed to; empty: removed.
        source: the whole file, changed.
    """

    path: Path
    qualname: str
    line: int
    plain_line: int
    old: str
    new: str
    source: str

    @property
    def target(self) -> str:
        """Module and qualified name, as in ``Fault``."""
        return f"{'.'.join(self.path.with_suffix('').parts)}:{self.qualname}"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.path}:{self.line}: {self.qualname}: {self.old!r} -> {self.new or 'removed'!r}"


def generated(package: str) -> Iterator[Generated]:
    """Every mutant of a package, in the order of its files and lines."""
    for path in sorted((ROOT / package).rglob("*.py")):
        yield from of_file(path.relative_to(ROOT))


def of_file(path: Path) -> Iterator[Generated]:
    """Every mutant of a file."""
    original = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    plain = ast.parse(ast.unparse(original))
    lines = dict(zip(map(id, _statements(plain)), (each.lineno for each in _statements(original)), strict=True))
    for qualname, outer in definitions(plain):
        if outer.name in FORMATTING or isinstance(outer, ast.ClassDef):
            continue
        for body, index in _places(outer):
            statement: ast.stmt = body[index]
            last = body is outer.body and index == len(body) - 1
            for old, new, change in _changes(body, index, last=last):
                undo = change()
                yield Generated(
                    path=path,
                    qualname=qualname,
                    line=lines[id(statement)],
                    plain_line=statement.lineno,
                    old=old,
                    new=new(),
                    source=ast.unparse(plain),
                )
                undo()


Undo = Callable[[], None]
Change = tuple[str, Callable[[], str], Callable[[], Undo]]
"""The code before, the code after (once it is changed), and the change, which returns how to undo it."""


def _statements(tree: ast.AST) -> list[ast.stmt]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _places(outer: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Every statement of a definition, those of inner definitions left out, by the list it is in."""
    for child in vars(outer).values():
        for each in child if isinstance(child, list) else ():
            if isinstance(each, ast.stmt):
                yield child, child.index(each)
                if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _places(each)
            elif isinstance(each, ast.ExceptHandler | ast.match_case):
                yield from _places(each)


def _changes(body: list[ast.stmt], index: int, *, last: bool) -> Iterator[Change]:
    statement = body[index]
    if isinstance(statement, ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or _logs(statement):
        return
    if _is_deletable(statement, last=last):
        yield ast.unparse(statement), lambda: "", _setter(body, index, ast.Pass())
    if isinstance(statement, ast.Raise):
        return
    stack: list[ast.AST] = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr | ast.ExceptHandler | ast.match_case):
            continue
        stack += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        yield from _of_expression(node)
    if isinstance(statement, ast.If | ast.While):
        yield from _negation(statement)


def _of_expression(node: ast.AST) -> Iterator[Change]:
    def text() -> str:
        return ast.unparse(node)

    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield text(), text, _setter(node.ops, index, COMPARISONS[type(operator)]())
    elif isinstance(node, ast.BoolOp):
        for index in [place for place, value in enumerate(node.values) if "fault_point(" not in ast.unparse(value)]:
            yield text(), text, _without(node.values, index)
    elif isinstance(node, ast.IfExp):
        yield from _negation(node)
    elif isinstance(node, ast.comprehension):
        for index, test in enumerate(node.ifs):
            yield f"if {ast.unparse(test)}", lambda: "", _setter(node.ifs, index, ast.Constant(True))
    if isinstance(node, ast.Compare | ast.BinOp):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Constant) and type(child.value) is int:
                yield text(), text, _attribute(child, "value", child.value + 1)


def _negation(node: ast.If | ast.While | ast.IfExp) -> Iterator[Change]:
    test = node.test
    if isinstance(test, ast.Compare) and not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return  # the other operator is the negation
    new = ast.UnaryOp(ast.Not(), test)
    yield f"if {ast.unparse(test)}", lambda: f"if {ast.unparse(new)}", _attribute(node, "test", new)


def _is_deletable(statement: ast.stmt, *, last: bool) -> bool:
    if isinstance(statement, ast.Return) and last:
        return False
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await | ast.Yield | ast.YieldFrom)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return isinstance(statement, DELETED)


def _logs(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("logger.")


def _without(place: list[ast.expr], index: int) -> Callable[[], Undo]:
    def change() -> Undo:
        left_out = place.pop(index)
        return lambda: place.insert(index, left_out)

    return change


def _setter(place: list[Any], index: int, new: ast.AST) -> Callable[[], Undo]:
    def change() -> Undo:
        old = place[index]
        place[index] = new
        return lambda: place.__setitem__(index, old)

    return change


def _attribute(node: ast.AST, name: str, new: object) -> Callable[[], Undo]:
    def change() -> Undo:
        old = getattr(node, name)
        setattr(node, name, new)
        return lambda: setattr(node, name, old)

    return change
