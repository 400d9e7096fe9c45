"""Spark SQL in the configuration of a connector: it computes from the rows of a batch, and reaches nothing else.

A client that may change a connector must not be able to run programs as the worker's user, to read files outside the
worker's list, or to send requests from the worker's machine. Spark SQL can do all of that: ``SELECT TRANSFORM(a) USING
'a shell command'``, ``SELECT * FROM text.`/a/file```, ``java_method('a.Class', 'a method')``, ``from_xml(a, 'a INT',
map('rowValidationXSDPath', 'http://a.server'))``. Spark even computes constant expressions while it analyzes a query.

So a text is parsed before Spark looks at it in any other way, and each node of what the parser makes of it must be on a
list (``functions``). A Spark Connect server parses and analyzes at once: what is sent there is read here, word by word,
by rules that are stricter than SQL's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...dataplane.settings import ALLOWED_SETTINGS, is_allowed
from ...dataplane.transform import Place
from ...errors import ConfigError
from ...protocol.units import printable
from ..remote import is_remote
from .functions import BEFORE_PARENTHESES, FUNCTIONS, NODES, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_VIEW: Final = "batch"
_FUNCTIONS_ALLOWED: Final = (
    "functions of Spark that compute from their arguments alone, always the same, and what the worker's"
    f" {ALLOWED_SETTINGS} adds (sql.FUNCTION)"
)
_CATALYST: Final = "org.apache.spark.sql.catalyst."
_VALUES: Final = ("java.lang.", "java.math.", "java.util.UUID", "scala.Enumeration", "scala.math.", "scala.None",
                  "org.apache.spark.sql.types.", "org.apache.spark.unsafe.types.",
                  "org.apache.spark.sql.util.CaseInsensitiveStringMap")  # fmt: skip
"""Java objects in a parsed plan that have no nodes."""
_OTHERS: Final = re.compile(
    r"^[\s:+|-]*(ScriptTransformation\b.*|View \(`(?!batch`).*"
    r"|(?!LocalRelation\b|OneRowRelation\b)\w*Relation(?:V2)?\b.*)",
    re.MULTILINE,
)
"""A node of the plan of a server, as Spark prints it, that is neither the batch nor computed from it."""


class _Refused(Exception):
    """A text has a part that is not allowed.

    Attributes:
        what, allowed: as of ``ConfigError``.
    """

    def __init__(self, what: str, allowed: str) -> None:
        super().__init__(what, allowed)
        self.what, self.allowed = what, allowed


def query(frame: DataFrame, text: str, place: Place, setting: str) -> DataFrame:
    """The result of a query over the view ``batch``.

    Raises:
        ConfigError: the text is not a query, names something that does not exist, or reaches more than the rows.
    """
    text = text.strip().removesuffix(";")
    _require(frame, text, place, setting, is_query=True)
    return checked(frame, frame.sparkSession.sql, place, text, setting)


def condition(frame: DataFrame, text: str, place: Place, setting: str = "condition") -> Column:
    """A condition over the columns.

    Raises:
        ConfigError: it reaches more than the rows, or is no expression.
    """
    from pyspark.sql import functions as F

    _require(frame, text, place, setting, is_query=False)
    return F.expr(text)


def checked(
    frame: DataFrame, build: Callable[[Any], DataFrame], place: Place, argument: object, setting: str = "condition"
) -> DataFrame:
    """Call ``build(argument)`` and have Spark analyze the result.

    Raises:
        ConfigError: Spark rejects the expression, with the first line of the reason.
    """
    with_errors = _Reporting(f"{place.prefix}{setting}")
    with with_errors:
        found = build(argument)
        _ = found.schema
        if is_remote(found.sparkSession):
            known = _others_in(frame) if (others := _others_in(found)) else set()
            if others - known:
                raise _Refused("another table", f"Spark SQL over the view {_VIEW} that runs no program")
        return found
    raise AssertionError


class _Reporting:
    """Errors of Spark, and refused parts, become errors of a setting."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from pyspark.errors import AnalysisException, ParseException

        if isinstance(error, _Refused):
            raise ConfigError(self._where, f"an expression with {error.what}", error.allowed) from None
        if isinstance(error, AnalysisException | ParseException):
            reason = re.sub(r"\s+", " ", str(error).split("SQLSTATE")[0]).strip(" .")
            raise ConfigError(
                self._where, "an expression", f"Spark SQL over the columns ({printable(reason, limit=200)})"
            ) from error


def _require(frame: DataFrame, text: str, place: Place, setting: str, *, is_query: bool) -> None:
    session = frame.sparkSession
    with _Reporting(f"{place.prefix}{setting}"):
        if not is_remote(session):
            refused = _refused_part(text, is_query, session)
            if refused is not None:
                raise _Refused(*refused)
            return
        _read(text)
        if is_query:
            # In parentheses, every statement but a query is an error of syntax. Nothing is computed.
            _ = session.sql(f"SELECT * FROM (\n{text}\n)").columns


@lru_cache(maxsize=256)
def _refused_part(text: str, is_query: bool, session: SparkSession) -> tuple[str, str] | None:
    """Parse a text; each batch asks again. Returns what ``_Refused`` has.

    Raises:
        ParseException: it is no query or no expression.
    """
    state: Any = session._jsparkSession.sessionState()
    parser = state.sqlParser()
    try:
        _check(parser.parseQuery(text) if is_query else parser.parseExpression(text), session)
    except _Refused as error:
        return error.what, error.allowed
    return None


def _check(root: Any, session: SparkSession) -> None:
    """Check each node of what Spark's parser returned.

    Raises:
        _Refused: one is not on the list.
    """
    from py4j.java_gateway import JavaObject, is_instance_of  # type: ignore[import-untyped]

    gateway: Any = session.sparkContext._gateway
    left: list[tuple[Any, frozenset[str]]] = [(root, frozenset((_VIEW,)))]
    while left:
        node, tables = left.pop()
        if not isinstance(node, JavaObject):
            continue
        whole = str(node.getClass().getName())
        name = whole.rpartition(".")[2].partition("$")[0]
        if whole.startswith(_CATALYST):
            if name == "UnresolvedWith":
                left += _with(node, tables)
                continue
            if name in ("ExprId", "GenericInternalRow", "Literal"):
                continue  # values
            if name not in NODES:
                raise _Refused(name, "Spark SQL that computes from the rows of a batch, without this part")
            _check_name(name, node, tables)
            parts = node.productIterator()
        elif whole.startswith(_VALUES):
            continue
        elif whole.startswith("scala.") and is_instance_of(gateway, node, "scala.collection.Iterable"):
            parts = node.iterator()
        elif whole.startswith(("scala.Tuple", "scala.Some")):
            parts = node.productIterator()
        else:
            raise _Refused(name, "Spark SQL that computes from the rows of a batch, without this part")
        while parts.hasNext():
            left.append((parts.next(), tables))


def _with(node: Any, tables: frozenset[str]) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield the parts of a WITH, with the tables that each may name: those before it, and itself if it is recursive."""
    relations = node.cteRelations().iterator()
    while relations.hasNext():
        relation = relations.next()
        name = str(relation._1()).lower()
        yield relation._2(), tables | {name} if node.allowRecursion() else tables
        tables |= {name}
    yield node.child(), tables


def _check_name(kind: str, node: Any, tables: frozenset[str]) -> None:
    if kind == "UnresolvedFunction":
        _check_function(_texts(node.nameParts()), FUNCTIONS)
    elif kind == "UnresolvedGenerator":
        _check_function([str(node.name().unquotedString())], TABLE_FUNCTIONS)
    elif kind == "UnresolvedTableValuedFunction":
        _check_function(_texts(node.name()), TABLE_FUNCTIONS)
    elif kind == "UnresolvedRelation":
        parts = _texts(node.multipartIdentifier())
        if len(parts) != 1 or parts[0].lower() not in tables or node.isStreaming():
            raise _Refused(f"the table {'.'.join(parts)}", f"the view {_VIEW}")


def _texts(parts: Any) -> list[str]:
    return [str(parts.apply(n)) for n in range(parts.size())]


def _check_function(parts: list[str], known: frozenset[str]) -> None:
    """Check the name of a function.

    Raises:
        _Refused: it is not on the list, and the operator does not allow it.
    """
    name = parts[-1].lower()
    is_built_in = len(parts) == 1 or [part.lower() for part in parts[:-1]] == ["system", "builtin"]
    if not is_built_in or not (name in known or is_allowed("sql", name)):
        raise _Refused(f"{'.'.join(parts)}()", _FUNCTIONS_ALLOWED)


# ------------------------------------------------------------------------------------------------------------------
# Texts for a Spark Connect server.

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\r\n\\]*(?=[\r\n]|\Z))
    |(?P<text>[rR](?:'[^']*'|"[^"]*")|'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    |`(?P<quoted>(?:[^`]|``)*+)`
    |(?P<word>[A-Za-z0-9_]+)
    |(?P<mark>[^\s\w'"`$\\])""",
    re.VERBOSE | re.DOTALL,
)
"""The lexer of Spark SQL, without what it reads in more than one way: dollar-quoted texts, nested comments."""


class _Token(NamedTuple):
    kind: str
    text: str


@lru_cache(maxsize=256)
def _read(text: str) -> None:
    """Check a text for a server, without a parser: each word before a parenthesis is a function on the list or a word
    of SQL.

    Raises:
        _Refused: it has something else.
    """
    tokens = list(_tokens(text))
    for at, token in enumerate(tokens):
        before, after = tokens[at - 1] if at else None, tokens[at + 1] if at + 1 < len(tokens) else None
        word = token.text.lower() if token.kind == "word" else ""
        is_path = before == _Token("mark", ".")
        if word in ("current_user", "session_user") and not is_path:
            raise _Refused(word, "columns and functions that do not name the user")
        if word in ("tablesample", "identifier") or (word == "stream" and after is not None and after.kind != "mark"):
            raise _Refused(word.upper(), "Spark SQL over the rows of a batch, without this part")
        if word == "using" and after != _Token("mark", "("):
            raise _Refused("USING without columns", "Spark SQL that runs no program")
        if token == _Token("mark", "(") and before is not None:
            _check_call(tokens, at)


def _check_call(tokens: list[_Token], at: int) -> None:
    before = tokens[at - 1]
    if before.kind == "mark":
        if before.text in (")", "]"):
            raise _Refused(f"{before.text}(", "the names of functions as words")
        return
    name = before.text.lower()
    first = at - 1
    while first >= 2 and tokens[first - 1] == _Token("mark", ".") and tokens[first - 2].kind in ("word", "quoted"):
        first -= 2
    parts = [each.text for each in tokens[first:at:2]]
    if before.kind == "text":
        raise _Refused("a text before (", "the names of functions as words")
    if before.kind == "word" and len(parts) == 1 and name in BEFORE_PARENTHESES:
        return
    if len(parts) == 1 and first and tokens[first - 1].kind == "word" and tokens[first - 1].text.lower() == "as":
        return  # The name of a table, with those of its columns.
    _check_function(parts, FUNCTIONS | TABLE_FUNCTIONS)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or text.startswith(("/*", "://"), at):
            part = printable(text[at : at + 20])
            raise _Refused(part, "texts in quotes that end, comments with --, and letters of ASCII outside of quotes")
        at = found.end()
        kind = str(found.lastgroup)
        if kind != "space":
            yield _Token(kind, found[kind].replace("``", "`") if kind == "quoted" else found[kind])


def _others_in(frame: DataFrame) -> set[str]:
    """Return the nodes of a server's plan that are neither the view nor computed from it; their columns are left out.

    Raises:
        AnalysisException: the plan cannot be analyzed.
    """
    explained: Any = frame._explain_string
    plan = str(explained(extended=True))
    return {re.sub(r"#\d+L?", "", match) for match in _OTHERS.findall(plan)}
