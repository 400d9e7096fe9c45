"""Search and replace on the syntax tree, so that formatting, comments and most names do not matter.

A pattern is Python. A name of one capital letter matches any expression, or, as an attribute or a keyword, any
identifier; the same letter twice must match equal code. ``...`` matches any number of arguments, of elements or of
statements, and elsewhere any one expression. A replacement uses the same letters and, in the same order, the same
``...``. An ``if`` without ``else`` matches one with ``else`` and keeps it.

    ``F(U) in (None, M)``    ->  ``True``       an expression
    ``if A < B: return C``   ->  ````           a statement, removed
    ``...``                  ->  ``return ()``  the whole body of the function, but for its docstring
    ``...``                  ->  ``await asyncio.sleep(15)\\n...``   the same body with a statement before it
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Bindings = dict[str, Any]
Put = Callable[[list[ast.AST]], None]
"""Puts nodes in the place of a match."""

IGNORED = {"ctx", "kind", "type_comment", "type_params"}
LETTER = re.compile(r"[A-Z]")


class PatternError(Exception):
    """The target or the pattern is not found, or the pattern matches more than once."""


def replaced(source: str, qualname: str, old: str, new: str, *, nth: int | None = None) -> ast.Module:
    """The module's tree with the code that ``old`` matches in one definition replaced by ``new``.

    Args:
        source: the text of the module.
        qualname: of the class, function or method to look in, as in ``__qualname__`` without ``<locals>``; empty: the
            whole module.
        nth: which match to replace, from 0, if there are several.

    Raises:
        PatternError: the target or the pattern is not found, or the pattern matches more than once.
    """
    module = ast.parse(source)
    matches = list(_matches(definition(module, qualname), old, new))
    if not matches:
        raise PatternError(f"{qualname}: {old!r} matches nothing")
    if nth is None and len(matches) > 1:
        lines = ", ".join(str(match.line) for match in matches)
        raise PatternError(f"{qualname}: {old!r} matches {len(matches)} times, in lines {lines}; nth= chooses one")
    if nth is not None and nth >= len(matches):
        raise PatternError(f"{qualname}: {old!r} matches {len(matches)} times; nth={nth} is out of range")
    match = matches[nth or 0]
    nodes = _instantiated(_parsed(new), match.bindings)
    if match.statements:
        nodes = [ast.Expr(node) if isinstance(node, ast.expr) else node for node in nodes] or [ast.Pass()]
    match.put(nodes)
    return ast.fix_missing_locations(module)


def definition(module: ast.Module, qualname: str) -> ast.Module | Definition:
    """The class, function or method of that name.

    Raises:
        PatternError: there is none.
    """
    found: ast.Module | Definition = module
    for name in qualname.split(".") if qualname else ():
        inner = [each for each in _definitions(found) if each.name == name]
        if not inner:
            raise PatternError(f"{qualname}: there is no {name}")
        found = inner[-1]  # of a property with a setter, or of overloads: the last
    return found


def _definitions(outer: ast.AST) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(outer):
        if isinstance(child, Definition):
            yield child
        elif not isinstance(child, ast.expr):
            yield from _definitions(child)


@dataclass(slots=True)
class _Match:
    line: int
    bindings: Bindings
    put: Put
    statements: bool


def _parsed(text: str) -> list[ast.AST]:
    """An expression, or statements; every ``...`` in a list is numbered."""
    tree = ast.parse(text)
    nodes: list[ast.AST] = list(tree.body)
    if len(nodes) == 1 and isinstance(nodes[0], ast.Expr) and not _is_rest(nodes[0]):
        nodes = [nodes[0].value]
    number = 0
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Constant) and node.value is ...:
                vars(node)["hole"] = f"...{number}"
                number += 1
            if isinstance(node, ast.If) and not node.orelse:
                node.orelse = [ast.Expr(ast.Constant(...))]
                vars(vars(node.orelse[0])["value"])["hole"] = "else"
    return nodes


def _is_rest(node: object) -> bool:
    node = node.value if isinstance(node, ast.Expr) else node
    return isinstance(node, ast.Constant) and node.value is ...


def _hole(node: ast.AST) -> str:
    return str(vars(node.value if isinstance(node, ast.Expr) else node)["hole"])


# --------------------------------------------------------------------------------------------------
# Search


def _matches(outer: ast.AST, old: str, new: str) -> Iterator[_Match]:
    pattern, by = _parsed(old), _parsed(new)
    if len(pattern) == 1 and isinstance(pattern[0], ast.expr):
        if by and all(isinstance(node, ast.expr) for node in by):
            yield from _expressions(outer, pattern[0])
        else:
            yield from _statements_with(outer, pattern[0])
    elif len(pattern) == 1 and _is_rest(pattern[0]):
        body: list[Any] = vars(outer)["body"]
        begin = 1 if ast.get_docstring(outer, clean=False) is not None else 0  # type: ignore[arg-type]
        bindings = {_hole(pattern[0]): body[begin:]}
        yield _Match(vars(outer).get("lineno", 1), bindings, _slice(body, begin, len(body)), True)
    else:
        for body in _bodies(outer):
            for begin in range(len(body) - len(pattern) + 1):
                end = begin + len(pattern)
                bindings = {}
                if _equal(pattern, body[begin:end], bindings):
                    yield _Match(body[begin].lineno, bindings, _slice(body, begin, end), True)


def _expressions(outer: ast.AST, pattern: ast.expr) -> Iterator[_Match]:
    """Matching expressions in source order, without those of a signature."""
    found: list[tuple[tuple[int, int], _Match]] = []
    for node in (each for statement in vars(outer)["body"] for each in ast.walk(statement)):
        for name, value in ast.iter_fields(node):
            for index, each in enumerate(value if isinstance(value, list) else [value]):
                bindings: Bindings = {}
                if isinstance(each, ast.expr) and _equal(pattern, each, bindings):
                    put = _slice(value, index, index + 1) if isinstance(value, list) else _attribute(node, name)
                    found.append(((each.lineno, each.col_offset), _Match(each.lineno, bindings, put, False)))
    yield from (match for _, match in sorted(found, key=lambda pair: pair[0]))


def _statements_with(outer: ast.AST, pattern: ast.expr) -> Iterator[_Match]:
    """The innermost statements with a matching expression."""
    for body in _bodies(outer):
        for index, statement in enumerate(body):
            for node in _own_expressions(statement):
                bindings: Bindings = {}
                if _equal(pattern, node, bindings):
                    yield _Match(statement.lineno, bindings, _slice(body, index, index + 1), True)
                    break


def _bodies(outer: ast.AST) -> Iterator[list[Any]]:
    found = [
        value
        for node in ast.walk(outer)
        for value in vars(node).values()
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt)
    ]
    yield from sorted(found, key=lambda body: body[0].lineno)


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    stack: list[ast.AST] = [
        child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr | ast.withitem)
    ]
    while stack:
        node = stack.pop()
        yield node
        stack += ast.iter_child_nodes(node)


def _slice(place: list[Any], begin: int, end: int) -> Put:
    def put(nodes: list[ast.AST]) -> None:
        place[begin:end] = nodes

    return put


def _attribute(node: ast.AST, name: str) -> Put:
    def put(nodes: list[ast.AST]) -> None:
        setattr(node, name, nodes[0])

    return put


# --------------------------------------------------------------------------------------------------
# Compare


def _equal(pattern: object, code: object, bindings: Bindings) -> bool:
    """Whether the code has the pattern's form; ``bindings`` gets the values of letters and ``...``."""
    if isinstance(pattern, ast.Name) and LETTER.fullmatch(pattern.id):
        return isinstance(code, ast.expr) and _bind(pattern.id, code, bindings)
    if isinstance(pattern, list):
        return isinstance(code, list) and _equal_lists(pattern, code, bindings)
    if not isinstance(pattern, ast.AST):
        letter = isinstance(pattern, str) and LETTER.fullmatch(pattern) and isinstance(code, str)
        return _bind(str(pattern), code, bindings) if letter else type(pattern) is type(code) and pattern == code
    if _is_rest(pattern) and isinstance(code, ast.expr):
        return _bind(_hole(pattern), [code], bindings)
    if type(pattern) is not type(code):
        return False
    if isinstance(pattern, ast.Call) and pattern.args and _is_rest(pattern.args[-1]):
        return _equal_calls(pattern, code, bindings)
    return all(
        _equal(value, getattr(code, name), bindings) for name, value in ast.iter_fields(pattern) if name not in IGNORED
    )


def _equal_calls(pattern: ast.Call, code: Any, bindings: Bindings) -> bool:
    """``F(A, ...)`` matches any further keywords as well; those that it names may have any order."""
    fixed, named = pattern.args[:-1], {each.arg: each.value for each in pattern.keywords}
    given = {each.arg: each.value for each in code.keywords if each.arg in named}
    if len(code.args) < len(fixed) or given.keys() != named.keys():
        return False
    rest = code.args[len(fixed) :] + [each for each in code.keywords if each.arg not in named]
    return (
        _equal(pattern.func, code.func, bindings)
        and _equal(fixed, code.args[: len(fixed)], bindings)
        and all(_equal(named[name], given[name], bindings) for name in named)
        and _bind(_hole(pattern.args[-1]), rest, bindings)
    )


def _equal_lists(pattern: list[Any], code: list[Any], bindings: Bindings) -> bool:
    if not pattern:
        return not code
    if not _is_rest(pattern[0]):
        if not code:
            return False
        return _equal(pattern[0], code[0], bindings) and _equal_lists(pattern[1:], code[1:], bindings)
    for length in range(len(code) - len(pattern) + 1, -1, -1):
        attempt = dict(bindings)
        if _equal_lists(pattern[1:], code[length:], attempt):
            bindings.update(attempt)
            return _bind(_hole(pattern[0]), code[:length], bindings)
    return False


def _bind(name: str, code: object, bindings: Bindings) -> bool:
    known = bindings.setdefault(name, code)
    return known is code or _dump(known) == _dump(code)


def _dump(code: object) -> str:
    """A dump that does not depend on whether a name is read or written."""
    if isinstance(code, list):
        return " ".join(map(_dump, code))
    return ast.unparse(code) if isinstance(code, ast.AST) else str(code)


# --------------------------------------------------------------------------------------------------
# Replace


@dataclass(slots=True)
class _Filler(ast.NodeTransformer):
    bindings: Bindings = field(default_factory=dict)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        bound = self.bindings.get(node.id)
        if isinstance(bound, str):
            return ast.Name(bound, node.ctx)
        return node if bound is None else _in_context(copy.deepcopy(bound), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self.bindings.get(node.attr, node.attr)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        self.generic_visit(node)
        node.arg = self.bindings.get(node.arg or "", node.arg)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords += [each for each in node.args if isinstance(each, ast.keyword)]
        node.args = [each for each in node.args if not isinstance(each, ast.keyword)]
        return node

    def visit_Expr(self, node: ast.Expr) -> Any:
        return self._rest(node) if _is_rest(node) else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self._rest(node) if node.value is ... else node

    def _rest(self, node: ast.AST) -> Any:
        if _hole(node) not in self.bindings and _hole(node) != "else":
            raise PatternError("the replacement has a ... that the pattern does not have")
        return copy.deepcopy(self.bindings.get(_hole(node), []))


def _in_context(node: ast.AST, context: ast.expr_context) -> ast.AST:
    """A name that is read in the pattern may be written in the replacement, and vice versa."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Starred | ast.Tuple | ast.List):
        node.ctx = context
    for part in getattr(node, "elts", ()) if isinstance(node, ast.Tuple | ast.List) else ():
        _in_context(part, context)
    return node


def _instantiated(nodes: list[ast.AST], bindings: Bindings) -> list[ast.AST]:
    filled: list[ast.AST] = []
    for node in nodes:
        made = _Filler(bindings).visit(node)
        filled += made if isinstance(made, list) else [made]
    return filled
