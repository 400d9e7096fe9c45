"""Spark SQL in the configuration of a connector: it computes from the rows of a batch, and reaches nothing else.

A client that may change a connector must not be able to run programs as the worker's user, to read files outside the
worker's list, or to send requests from the worker's machine. Spark SQL can do all of that: ``SELECT TRANSFORM(a) USING
'a shell command'``, ``SELECT * FROM text.`/a/file```, ``java_method('a.Class', 'a method')``, ``from_xml(a, 'a INT',
map('rowValidationXSDPath', 'http://a.server'))``. Spark even computes constant expressions while it analyzes a query.

So a text is parsed before Spark looks at it in any other way, and each node of what the parser makes of it must be on a
list below. A Spark Connect server parses and analyzes at once: what is sent there is read here, word by word,
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

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_VIEW: Final = "batch"
_FUNCTIONS_ALLOWED: Final = (
    "functions of Spark that compute from their arguments alone, always the same, and what the worker's"
    f" {ALLOWED_SETTINGS} adds (sql.FUNCTION)"
)
_CATALYST: Final = "org.apache.spark.sql.catalyst."
_USERS: Final = frozenset({"current_user", "session_user", "user"})
_VALUES: Final = ("java.lang.", "java.math.", "java.util.UUID", "scala.Enumeration", "scala.math.", "scala.None",
                  "org.apache.spark.sql.types.", "org.apache.spark.unsafe.types.",
                  "org.apache.spark.sql.util.CaseInsensitiveStringMap")  # fmt: skip
"""Java objects in a parsed plan that have no nodes."""
_OTHERS: Final = re.compile(
    # Only blanks of the line: a literal may have as many empty lines as it likes.
    r"^[ :+|-]*+(ScriptTransformation\b.*|View \(`(?!batch`).*"
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
    from pyspark.sql import functions as F

    session = frame.sparkSession
    with _Reporting(f"{place.prefix}{setting}"):
        if is_remote(session):
            users = _read(text)
            if is_query:
                # In parentheses, every statement but a query is an error of syntax. Nothing is computed.
                _ = session.sql(f"SELECT * FROM (\n{text}\n)").columns
        else:
            refused, users = _refused_part(text, is_query, session)
            if refused is not None:
                raise _Refused(*refused)
        if users and _names_user(session.sql(text) if is_query else frame.select(F.expr(text))):
            name = min(users)
            allowed = f"columns and functions that do not name the user; a column as q.{name}, or under another alias"
            raise _Refused(name, allowed)


def _names_user(frame: DataFrame) -> bool:
    """Whether rows are computed from the name of the user. Spark calls a function for it, without parentheses, where no
    column has the function's name; which columns a place of a text has, only Spark knows.

    Raises:
        AnalysisException: the plan cannot be analyzed.
    """
    if is_remote(frame.sparkSession):
        return "current_user()" in _explained(frame)
    from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]

    gateway: Any = frame.sparkSession.sparkContext._gateway
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst
    plan = frame._jdf.queryExecution().analyzed()
    # Functions of the time have this pattern, too.
    if not plan.containsPattern(catalyst.trees.TreePattern.CURRENT_LIKE()):
        return False
    left = [plan]
    while left:
        node = left.pop()
        if str(node.getClass().getSimpleName()) == "CurrentUser":
            return True
        parts = [node.children()]
        if is_instance_of(gateway, node, f"{_CATALYST}plans.logical.LogicalPlan"):
            parts.append(node.expressions())
        elif is_instance_of(gateway, node, f"{_CATALYST}expressions.SubqueryExpression"):
            left.append(node.plan())
        for each in parts:
            found = each.iterator()
            while found.hasNext():
                left.append(found.next())
    return False


@lru_cache(maxsize=256)
def _refused_part(text: str, is_query: bool, session: SparkSession) -> tuple[tuple[str, str] | None, frozenset[str]]:
    """Parse a text; each batch asks again. Returns what ``_Refused`` has, and what ``_check`` returns.

    Raises:
        ParseException: it is no query or no expression.
    """
    state: Any = session._jsparkSession.sessionState()
    parser = state.sqlParser()
    try:
        return None, _check(parser.parseQuery(text) if is_query else parser.parseExpression(text), session)
    except _Refused as error:
        return (error.what, error.allowed), frozenset()


def _check(root: Any, session: SparkSession) -> frozenset[str]:
    """Check each node of what Spark's parser returned; return the names that may be functions for the user.

    Raises:
        _Refused: one is not on the list.
    """
    from py4j.java_gateway import JavaObject, is_instance_of

    gateway: Any = session.sparkContext._gateway
    left: list[tuple[Any, frozenset[str]]] = [(root, frozenset((_VIEW,)))]
    users: set[str] = set()
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
            # In a lambda, the parser makes a variable of each name.
            is_name = name in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable")
            if is_name and len(words := _texts(node.nameParts())) == 1:
                users |= _USERS & {words[0].lower()}
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
    return frozenset(users)


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
def _read(text: str) -> frozenset[str]:
    """Check a text for a server, without a parser: each word before a parenthesis is a function on the list or a word
    of SQL. Returns the names that may be functions for the user.

    Raises:
        _Refused: it has something else.
    """
    tokens = list(_tokens(text))
    users: set[str] = set()
    for at, token in enumerate(tokens):
        before, after = tokens[at - 1] if at else None, tokens[at + 1] if at + 1 < len(tokens) else None
        word = token.text.lower() if token.kind == "word" else ""
        is_path = before == _Token("mark", ".")
        is_new = before is not None and before.kind == "word" and before.text.lower() == "as"
        if token.kind in ("word", "quoted") and not is_path and not is_new and after != _Token("mark", "."):
            users |= _USERS & {token.text.lower()}
        if word in ("tablesample", "identifier") or (word == "stream" and after is not None and after.kind != "mark"):
            raise _Refused(word.upper(), "Spark SQL over the rows of a batch, without this part")
        if word == "using" and after != _Token("mark", "("):
            raise _Refused("USING without columns", "Spark SQL that runs no program")
        if token == _Token("mark", "(") and before is not None:
            _check_call(tokens, at)
    return frozenset(users)


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
        # -- that begins no comment of this form: a match at each of many would take quadratic time.
        is_comment = found is not None and found.lastgroup == "space"
        if found is None or (not is_comment and text.startswith(("/*", "://", "--"), at)):
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
    return other_nodes(_explained(frame))


def _explained(frame: DataFrame) -> str:
    explain: Any = frame._explain_string
    return str(explain(extended=True))


def other_nodes(plan: str) -> set[str]:
    """Return the nodes of a plan, as Spark prints it, that are neither the view nor computed from it."""
    return {re.sub(r"#\d+L?", "", match) for match in _OTHERS.findall(plan)}


# What Spark SQL may consist of.
#
# A function is on the list if it computes from its arguments, reaches nothing else (no file, server, program, Java
# class, user or place of the machine), and has the same result each time, because a batch may be read twice. The
# functions of time are on it: Spark computes them once for a query. Left out of the functions of Spark 4.2: those of
# XML (their options and documents name files and servers), Avro and protobuf (schemas from files), Java (``reflect``),
# random ones (``rand``, ``uuid``, ``shuffle``, ``aes_encrypt``), and those of files, sessions and machines
# (``input_file_name``, ``current_user``, ``version``, ``spark_partition_id``). A function of a later Spark is not on
# it.
#
# How much memory a function takes is not limited here: a query can repeat rows without any function.

_COMPUTING: Final = """
abs acos acosh add_months aes_decrypt aggregate any any_value approx_count_distinct approx_percentile approx_top_k
approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate array array_agg array_append array_compact
array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip
ascii asin asinh assert_true atan atan2 atanh avg base64 bigint bin binary bit_and bit_count bit_get bit_length
bit_or bit_xor bitmap_and_agg bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count
bitmap_or_agg bool_and bool_or boolean bround btrim cardinality cast cbrt ceil ceiling char char_length
character_length chr coalesce collate collation collect_list collect_set concat concat_ws contains conv
convert_timezone corr cos cosh cot count count_if count_min_sketch covar_pop covar_samp crc32 csc cume_dist curdate
current_date current_time current_timestamp current_timezone date date_add date_diff date_format date_from_unix_date
date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode
degrees dense_rank double e element_at elt encode endswith equal_null every exists exp explode explode_outer expm1
extract factorial filter find_in_set first first_value flatten float floor forall format_number format_string
from_csv from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest grouping grouping_id hash
hex histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg hour hypot if ifnull initcap inline
inline_outer instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull isnull json_array_length
json_object_keys json_tuple kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint
kll_sketch_agg_double kll_sketch_agg_float kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float kll_sketch_merge_bigint
kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint kll_sketch_to_string_double
kll_sketch_to_string_float kurtosis lag last last_day last_value lcase lead least left len length levenshtein
listagg ln localtimestamp locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval
make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map
map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with
mask max max_by md5 mean median min min_by minute mod mode month monthname months_between named_struct nanvl
negative next_day now nth_value ntile nullif nullifzero nvl nvl2 octet_length overlay parse_json parse_url
percent_rank percentile percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer
position positive pow power printf quarter quote radians raise_error rank reduce regexp_count regexp_extract
regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count
regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace reverse right rint round row_number rpad
rtrim schema_of_csv schema_of_json schema_of_variant schema_of_variant_agg sec second sentences sequence
session_window sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size skewness slice
smallint some sort_array soundex space split split_part sqrt st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid
st_srid stack startswith std stddev stddev_pop stddev_samp str_to_map string string_agg struct substr substring
substring_index sum tan tanh theta_difference theta_intersection theta_intersection_agg theta_sketch_agg
theta_sketch_estimate theta_union theta_union_agg time time_bucket time_diff time_from_micros time_from_millis
time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc timestamp timestamp_micros
timestamp_millis timestamp_seconds tinyint to_binary to_char to_csv to_date to_json to_number to_time to_timestamp
to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object to_xml transform
transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_avg try_divide try_element_at
try_make_interval try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply
try_parse_json try_parse_url try_subtract try_sum try_to_binary try_to_date try_to_number try_to_time
try_to_timestamp try_url_decode try_validate_utf8 try_variant_get tuple_difference_double tuple_difference_integer
tuple_difference_theta_double tuple_difference_theta_integer tuple_intersection_agg_double
tuple_intersection_agg_integer tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer tuple_sketch_estimate_double
tuple_sketch_estimate_integer tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
tuple_sketch_theta_integer tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer
tuple_union_theta_double tuple_union_theta_integer typeof ucase unbase64 unhex unix_date unix_micros unix_millis
unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 var_pop var_samp variance variant_get
vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize vector_sum
weekday weekofyear when width_bucket window window_time xxhash64 year zeroifnull zip_with
"""
_OPERATORS: Final = "and between div ilike in like not or regexp rlike | %"
FUNCTIONS: Final = frozenset(f"{_COMPUTING} {_OPERATORS}".split())

TABLE_FUNCTIONS: Final = frozenset((
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "range",
    "stack", "variant_explode", "variant_explode_outer",
))  # fmt: skip

_NODES: Final = """
Add Aggregate AggregateExpression Alias AliasIdentifier And AnyValue Ascending AttributeReference Between BitwiseAnd
BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate Complete Concat CreateArray CreateMap CreateNamedStruct
CreateStruct Cross Cube CurrentRow Descending Distinct Divide EqualNullSafe EqualTo Except Exists Filter First
FullOuter FunctionIdentifier Generate GlobalLimit GreaterThan GreaterThanOrEqual GroupingSets
ILike If In InSubquery Inner IntegralDivide Intersect IsNotNull IsNotUnknown IsNull IsUnknown Join JoinHint
LambdaFunction Last LateralJoin LateralSubquery LeftAnti LeftOuter LeftSemi LessThan LessThanOrEqual Like LikeAll
LikeAny ListQuery Literal LocalLimit LocalRelation MultiAlias Multiply NamedArgumentExpression NaturalJoin Not
NotLikeAll NotLikeAny NullsFirst NullsLast NumericEvalContext Offset OneRowRelation Or Overlay PercentileCont
PercentileDisc PipeExpression PipeOperator Pivot Project RLike RangeFrame Remainder Repartition
RepartitionByExpression RightOuter Rollup RowFrame ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight
ShiftRightUnsigned Sort SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight
SubqueryAlias Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing
UnboundedPreceding Union Unpivot UnresolvedAlias UnresolvedAttribute UnresolvedCollation UnresolvedExtractValue
UnresolvedFunction UnresolvedGenerator UnresolvedHaving UnresolvedHint UnresolvedInlineTable
UnresolvedNamedLambdaVariable UnresolvedOrdinal UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace
UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction UnresolvedWindowExpression
UnspecifiedFrame UsingJoin WindowExpression WindowSpecDefinition WindowSpecReference WithWindowDefinition
"""
NODES: Final = frozenset(_NODES.split())
"""Classes of Catalyst that Spark's parser makes of a query over a batch. ``UnresolvedWith`` is looked at by itself.
Others: programs (``ScriptTransformation``), names that an expression computes (``IDENTIFIER``), parameters, samples."""

_WORDS: Final = """
all and any array as between binary by case cast char character cube dec decimal distinct else end except exclude
exists extract filter first for from group having if ilike in include intersect interval is join last lateral like
limit not numeric offset on or order over overlay pivot position regexp rlike rollup select sets some struct
substring then time timestamp timestampadd timestampdiff trim try_cast union unpivot using values varchar when where
with within
"""
BEFORE_PARENTHESES: Final = frozenset(_WORDS.split())
"""Words of SQL, and of types, that may stand before a parenthesis and call no function."""
