"""Spark SQL of transforms: ordinary expressions are computed; those that reach more than the rows are refused."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectgroup.dataplane.settings import ALLOWED_SETTINGS
from connectgroup.dataplane.transform import Place
from connectgroup.errors import ConfigError
from connectgroup.spark.transforms import expressions
from connectgroup.spark.transforms.expressions import FUNCTIONS, TABLE_FUNCTIONS
from connectgroup.spark.transforms.rows import (
    ConditionSettings,
    Filter,
    FilterSettings,
    Sql,
    SqlCondition,
    SqlSettings,
)
from tests.volume import SIZE

from .sql_corpus import COLUMNS, DOCUMENT, EXPRESSIONS, QUERIES, REFUSED_EXPRESSIONS, REFUSED_QUERIES

CANARY = "canary-of-a-file"
PLACE = Place(prefix="transforms.t.")


class Guard:
    """A server that nothing may connect to, and a file that nothing may read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.write_text(f"<{CANARY}>{CANARY}</{CANARY}>\n")
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.connected: list[object] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, address = self.listening.accept()
            except OSError:
                return
            self.connected.append(address)
            client.close()

    def filled(self, text: str) -> str:
        url = f"http://127.0.0.1:{self.listening.getsockname()[1]}/x"
        return text.replace("{doc}", DOCUMENT).replace("{url}", url).replace("{file}", str(self.file))


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guard]:
    made = Guard(tmp_path_factory.mktemp("guard") / "secret.xml")
    yield made
    made.listening.shutdown(socket.SHUT_RDWR)
    made.listening.close()
    assert made.connected == [], "nothing has connected"
    assert not made.file.with_name("secret.xml.out").exists()


@pytest.fixture(scope="module")
def frame(spark: None) -> Any:
    from connectgroup.spark.session import spark_session

    session = spark_session().newSession()
    made = session.createDataFrame([], COLUMNS)
    made.createOrReplaceTempView("batch")
    return made


def refused(build: Any, guard: Guard, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^transforms\.t\.\w+: got ") as failed:
        build()
    assert CANARY not in str(failed.value)
    assert CANARY not in str(failed.value.__cause__)
    assert guard.connected == [], text


@pytest.mark.parametrize("text", REFUSED_EXPRESSIONS)
def test_expression_that_reaches_more_than_the_rows_is_refused(frame: Any, guard: Guard, text: str) -> None:
    text = guard.filled(text)
    refused(lambda: Filter(FilterSettings(condition=f"({text}) IS NOT NULL"), PLACE).apply(frame), guard, text)
    refused(lambda: SqlCondition(ConditionSettings(condition=text), PLACE).condition(frame), guard, text)
    refused(lambda: Sql(SqlSettings(query=f"SELECT id, {text} AS x FROM batch"), PLACE).apply(frame), guard, text)


@pytest.mark.parametrize("text", REFUSED_QUERIES)
def test_query_that_reaches_more_than_the_rows_is_refused(frame: Any, guard: Guard, text: str) -> None:
    text = guard.filled(text)
    refused(lambda: Sql(SqlSettings.model_construct(query=text), PLACE).apply(frame), guard, text)
    if not text.startswith(("FROM", "TABLE")):
        return
    refused(lambda: Sql(SqlSettings(query=f"SELECT * FROM ({text})"), PLACE).apply(frame), guard, text)


def test_ordinary_expressions_and_queries_are_computed(frame: Any) -> None:
    failed = {}
    # Spark compiles each: a user's run takes some.
    for text in EXPRESSIONS[:: 8 if SIZE == "user" else 1]:
        try:
            Filter(FilterSettings(condition=f"({text}) IS NOT NULL"), PLACE).apply(frame)
        except ConfigError as error:
            failed[text] = str(error)
    for text in QUERIES[:: 8 if SIZE == "user" else 1]:
        try:
            Sql(SqlSettings(query=text), PLACE).apply(frame).toArrow()
        except ConfigError as error:
            failed[text] = str(error)
    assert failed == {}


def test_column_that_has_the_name_of_a_function_for_the_user_is_read(frame: Any) -> None:
    """Spark calls these functions without parentheses where no column has the name."""
    users = frame.sparkSession.newSession().createDataFrame([("ann",)], "User STRING")
    users.createOrReplaceTempView("batch")
    found = Sql(SqlSettings(query="SELECT user, `USER` AS b FROM batch WHERE user = 'ann'"), PLACE).apply(users)
    assert [tuple(row) for row in found.collect()] == [("ann", "ann")]
    assert Filter(FilterSettings(condition="user = 'ann'"), PLACE).apply(users).collect() == []
    query = "SELECT q.user FROM (SELECT id AS user FROM batch) AS q"
    assert Sql(SqlSettings(query=query), PLACE).apply(frame).columns == ["user"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id AS user FROM batch ORDER BY user",
        "SELECT id user, current_timestamp() AS now FROM batch ORDER BY User",
        "SELECT user FROM (SELECT id AS user FROM batch)",
        "SELECT transform(tags, user -> upper(user)) AS t FROM batch",
        "SELECT user.id FROM batch user JOIN (SELECT id AS user FROM batch) q ON q.user = user.id",
        "SELECT user FROM (SELECT id AS user FROM batch) JOIN (SELECT id AS user FROM batch) USING (user)",
    ],
)
def test_name_of_a_function_for_the_user_may_be_that_of_an_alias(frame: Any, query: str) -> None:
    Sql(SqlSettings(query=query), PLACE).apply(frame)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user FROM (SELECT id AS a FROM batch)",
        "SELECT user, id AS user FROM batch",
        "SELECT id AS user, upper(user) AS u FROM batch",
        "SELECT id AS user FROM batch WHERE user = 'root'",
        "SELECT id FROM batch WHERE EXISTS (SELECT session_user FROM batch)",
        "SELECT id FROM batch WHERE id IN (SELECT current_user)",
        "SELECT transform(tags, x -> user) FROM batch",
        "SELECT * FROM VALUES (user)",
        "WITH t AS (SELECT user AS a FROM batch) SELECT a FROM t",
        "SELECT count(*) FROM batch GROUP BY user",
    ],
)
def test_name_that_is_a_column_elsewhere_in_a_query_names_no_user(frame: Any, query: str) -> None:
    """Only where no column has the name, Spark calls the function."""
    with pytest.raises(
        ConfigError, match=r"an expression with (\w+)'; allowed: .* column as q\.\1, or under another alias"
    ):
        Sql(SqlSettings(query=query), PLACE).apply(frame)


def test_column_of_the_rows_is_none_of_a_subquery(frame: Any) -> None:
    users = frame.sparkSession.newSession().createDataFrame([("ann",)], "user STRING")
    users.createOrReplaceTempView("batch")
    with pytest.raises(ConfigError, match="an expression with user'"):
        Sql(SqlSettings(query="SELECT user FROM (SELECT 1 AS a FROM batch)"), PLACE).apply(users)


def test_functions_on_the_list_are_functions_of_spark_that_do_not_change_their_result(frame: Any) -> None:
    state = frame.sparkSession._jsparkSession.sessionState()
    for registry, known in ((state.functionRegistry(), FUNCTIONS), (state.tableFunctionRegistry(), TABLE_FUNCTIONS)):
        found, names = registry.listFunction().iterator(), set[str]()
        while found.hasNext():
            names.add(found.next().funcName())
        assert known <= names, known - names


def test_operator_allows_a_function_and_java_reads_no_document_of_another_place(
    frame: Any, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java itself refuses: its system properties allow no protocol for DTDs, schemas and stylesheets."""
    monkeypatch.setenv(ALLOWED_SETTINGS, "sql.xpath_string, sql.from_xml")
    # Not the texts of other tests: what has been parsed is kept.
    plain = Sql(SqlSettings(query="SELECT xpath_string('<a>text</a>', 'a') AS x FROM range(1)"), PLACE).apply(frame)
    assert plain.toArrow().to_pylist() == [{"x": "text"}]
    for document in (
        guard.filled('<!DOCTYPE a SYSTEM "{url}"><a>1</a>'),
        guard.filled('<!DOCTYPE a [<!ENTITY e SYSTEM "file://{file}">]><a>&e;</a>'),
        guard.filled('<!DOCTYPE a [<!ENTITY % e SYSTEM "{url}"> %e;]><a>1</a>'),
    ):
        query = f"SELECT id, xpath_string('{document}', 'a') AS y FROM range(1)"
        text = ""
        try:
            text = str(Sql(SqlSettings(query=query), PLACE).apply(frame).toArrow().to_pylist())
        except Exception as error:  # whatever Spark makes of it
            text = str(error)
        assert CANARY not in text
    assert guard.connected == []


# What is sent to a Spark Connect server is read by rules that are stricter than SQL's.

ONLY_ANALYZED = (
    "global_temp",
    "default.batch",
    "FROM other",
    "SELECT * FROM b)",
    "VERSION AS OF",
    "default.c",
    "some_table",
    "csv.`",
    "text`.`",
    "text.`",
    "binaryFile",
    "session.x",
    ":parameter",
    "?",
)
"""Parts of those that name tables: the server's analyzed plan shows them (``tests/spark/test_connect.py``)."""


def _read(text: str) -> None:
    expressions._read(text)


@pytest.mark.parametrize("text", [*REFUSED_EXPRESSIONS, *REFUSED_QUERIES[: REFUSED_QUERIES.index("SET VAR x = 1")]])
def test_text_for_a_server_has_no_function_that_is_not_on_the_list(guard: Guard, text: str) -> None:
    if any(part in text for part in ONLY_ANALYZED) or "(" not in text.replace("TRANSFORM(", ""):
        return
    if text.startswith(("INSERT", "CREATE", "ADD", "SET", "LIST")) or " INSERT " in text:
        return  # Statements are errors of syntax for the server.
    with pytest.raises(expressions._Refused):
        _read(guard.filled(text))


def test_ordinary_texts_may_be_sent_to_a_server() -> None:
    failed = {}
    for text in (*EXPRESSIONS, *QUERIES):
        try:
            _read(text)
        except expressions._Refused as error:
            failed[text] = error.what
    assert {text for text in failed if "/*" not in text} == set()


def test_names_in_a_text_for_a_server_that_may_be_functions_for_the_user_are_found() -> None:
    names = expressions._read("`Current_User` = 1 OR session_user = a.user OR b = user")
    assert names == {"current_user", "session_user", "user"}
    assert expressions._read("SELECT a AS user, user.b, `user`.c, 'user' FROM batch AS user") == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "'a' || `reflect`('x')",
        "r'\\' || reflect('x')",
        '"a" || reflect("x")',
        "'a''' || reflect('x')",
        "$$a$$ || reflect('x')",
        "/* a */ reflect('x')",
        "-- a\\\n reflect('x')",
        "--a\nreflect\n(\n'x')",
        "a://b--c reflect('x')",
        "reflect\u00a0('x')",
        "ref\u0142ect('x')",
        "'a",
        "`a",
        "\"reflect\"('x')",
        "(reflect)('x')",
        "a.b.reflect('x')",
        "system . builtin . reflect('x')",
        "`system`.`builtin`.`reflect`('x')",
        "`a``b`('x')",
        "x AS y, reflect('x')",
        "SELECT TRANSFORM(a) ROW FORMAT DELIMITED USING 'cat'",
        'MAP a USING "cat"',
    ],
)
def test_no_way_of_writing_hides_a_call_from_what_reads_texts_for_a_server(text: str) -> None:
    with pytest.raises(expressions._Refused):
        _read(text)
