"""Spark SQL in the configuration of a connector: it computes from the rows of a batch, and reaches nothing else.

A client that may change a connector must not be able to run programs as the worker's user, or to use files outside the
worker's list. A query of Spark SQL can do both: ``SELECT TRANSFORM(a) USING 'a shell command'``,
``SELECT * FROM text.`/a/file```, ``INSERT OVERWRITE DIRECTORY``, ``ADD JAR``, ``java_method('a.Class', 'a method')``.
So the text must be a query and no other statement, and a plan that runs a program is rejected. The settings of the
session exclude files as tables, and its functions those that call Java (``session``). A Spark Connect server keeps
these functions: there a plan that has one is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...dataplane.transform import Place
from ...errors import ConfigError
from ...protocol.units import printable
from ..remote import is_remote
from ..session import REFLECTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROGRAM: Final = re.compile(r"^[\s:+|-]*ScriptTransformation\b", re.MULTILINE)
"""A node of a plan, as Spark prints it, of the plan itself or of a subquery: ``TRANSFORM``, ``MAP`` and ``REDUCE``."""
_ALL_FIELDS: Final = 2**31 - 1
_REFLECTION: Final = re.compile(rf"\b({'|'.join(REFLECTION)})\(", re.IGNORECASE)


def query(session: SparkSession, text: str) -> DataFrame:
    """The result of a query.

    Raises:
        ParseException: the text is not a query, but another statement. It has not been executed.
        AnalysisException: it names a table, a column or a function that does not exist.
    """
    text = text.strip().removesuffix(";")
    if is_remote(session):
        # In parentheses, every statement but a query is an error of syntax. Nothing is computed.
        _ = session.sql(f"SELECT * FROM (\n{text}\n)").columns
        return session.sql(text)
    state: Any = session._jsparkSession.sessionState()
    state.sqlParser().parseQuery(text)
    return session.sql(text)


def checked(build: Callable[[Any], DataFrame], place: Place, argument: object, setting: str = "condition") -> DataFrame:
    """Call ``build(argument)``.

    Raises:
        ConfigError: Spark rejects the expression, with the first line of the reason; or it runs a program.
    """
    from pyspark.errors import AnalysisException, ParseException

    where = f"{place.prefix}{setting}"
    try:
        frame = build(argument)
        plan = plan_of(frame)
    except (AnalysisException, ParseException) as error:
        reason = re.sub(r"\s+", " ", str(error).split("SQLSTATE")[0]).strip(" .")
        raise ConfigError(
            where, "an expression", f"Spark SQL over the columns ({printable(reason, limit=200)})"
        ) from error
    if _PROGRAM.search(plan):
        raise ConfigError(where, "an expression with TRANSFORM, MAP or REDUCE", "Spark SQL that runs no program")
    if is_remote(frame.sparkSession) and _REFLECTION.search(plan):
        raise ConfigError(where, f"an expression with {', '.join(REFLECTION)}", "Spark SQL that calls no Java")
    return frame


def plan_of(frame: DataFrame) -> str:
    """The analyzed plan as text; of a server also what Spark makes of it.

    Raises:
        AnalysisException: the plan cannot be analyzed. A server is asked only here.
    """
    if is_remote(frame.sparkSession):
        return str(frame._explain_string(extended=True))  # type: ignore[operator]
    return str(frame._jdf.queryExecution().analyzed().treeString(True, False, _ALL_FIELDS, False, False))
