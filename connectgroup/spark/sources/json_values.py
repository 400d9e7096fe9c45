"""The fields of JSON objects as columns: lines of files, and values of Kafka records.

A value keeps what its text says, or it is an error: no number of the text becomes a ``float`` on its way to a text or a
decimal, and no value that does not fit its column becomes null.
"""

from __future__ import annotations

import json
import re
import secrets
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...dataplane.columns import Column, Columns, check_range, decimals, to_arrow
from ...protocol.units import printable

FAULTS: Final = (pa.ArrowException, ValueError, OverflowError, TypeError, RecursionError)
"""What a text or a value that is not allowed raises."""
_RULES_END: Final = datetime(2037, 1, 1)
NANOSECONDS: Final = r"\.[0-9]{6}0"
"""In times with more digits than microseconds have, as SQL Server and .NET write them: seven, and others nine."""
_HAS_ZONE: Final = r"^.{10}.*(Z|[+-]\d\d(:?\d\d)?)$"
_TYPES: Final[dict[str, frozenset[type]]] = {
    "BOOLEAN": frozenset({bool}),
    "TINYINT": frozenset({int}),
    "SMALLINT": frozenset({int}),
    "INT": frozenset({int}),
    "BIGINT": frozenset({int}),
    "FLOAT": frozenset({int, float}),
    "DOUBLE": frozenset({int, float}),
    "DATE": frozenset({str}),
    "TIMESTAMP": frozenset({str}),
}
_NOT_FINITE: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""JSON has no such numbers. The sinks write these texts, as Kafka Connect and Spark do."""
_TEXTS: Final = frozenset({str, type(None)})
_NULL: Final = frozenset({type(None)})


_MARK: Final = f"\0{secrets.token_hex(12)}:"
"""Before a number that is kept as its text. No text of a source contains it: each process has its own."""
_MARKED: Final = re.compile(rf'"\\u0000{_MARK[1:]}([^"]*)"')
_INEXACT: Final = re.compile(rb"\.(?:[0-9]+0(?![0-9])|[0-9]{10}|0000|[0-9]+[eE]|(?<=[0-9]{7}\.)[0-9])|-0(?![.0-9])")
"""A number whose text may differ from that of the float or integer that it is read as, or something in a text that
looks so: a fraction that ends in a zero or has many digits, an exponent behind one, many digits before one; -0. All
others have at most 15 digits, and Python writes a float with the fewest digits that it has."""


def objects_of(texts: Sequence[bytes], *, exact: bool = False) -> list[dict[str, Any]]:
    """Return the JSON object that each text is.

    Args:
        exact: whether numbers are texts for ``texts_of``, which takes longer; see ``exactly``.

    Raises:
        ValueError, RecursionError: a text is no JSON, not one object, or not UTF-8.
    """
    # One call for all texts. Texts that are JSON only together, such as [1 and 2], must not pass: each text ends with
    # its only brace, or there is a word between them that no text can know.
    whole = b"[%b]" % b",\n".join(texts)
    objects: list[dict[str, Any]]
    if _end_with_only_brace(whole, len(texts)):
        objects = loads(whole.decode(), exact=exact)
        is_between = True
    else:
        between = secrets.token_hex(8)
        separator = f',"{between}",'.encode()
        found = loads((b"[%b]" % separator.join(texts)).decode(), exact=exact)
        objects = found[::2]
        is_between = found[1::2].count(between) == len(found) - len(objects)
    if len(objects) != len(texts) or not is_between:
        raise ValueError("a text is not one object")
    if not set(map(type, objects)) <= {dict}:
        raise ValueError("a text is not an object")
    return objects


def _end_with_only_brace(whole: bytes, count: int) -> bool:
    """Whether each line of a text, without a comma behind it, ends with a closing brace and has no other one.

    Args:
        whole: the text, with a bracket around its lines.
        count: the number of lines that it is expected to have.
    """
    text = np.frombuffer(whole, np.uint8)
    feeds = np.flatnonzero(text == ord("\n"))
    brace = ord("}")
    if len(feeds) != count - 1 or np.count_nonzero(text == brace) != count:
        return False
    return bool((text[feeds - 2] == brace).all() and text[-2] == brace)


def exactly(texts: Sequence[bytes], objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return objects with their numbers as ``texts_of`` needs them: parsed again, if one is written in another way than
    Python writes it.

    Args:
        texts: JSON.
        objects: what ``objects_of`` has returned for these.
    """
    whole = b",".join(texts)
    if _INEXACT.search(whole) is None and not _has_exponent(whole):
        return objects
    return objects_of(texts, exact=True)


def _has_exponent(text: bytes) -> bool:
    """Whether an exponent may follow a digit. Searching with a regular expression would take longer than parsing."""
    found = np.frombuffer(text, np.uint8)
    is_digit = (found - ord("0")) < 10
    return bool((is_digit[:-1] & ((found[1:] | 32) == ord("e"))).any())


def loads(text: str, *, exact: bool = False) -> Any:
    """Return the value of a JSON text. NaN and Infinity are no JSON.

    Args:
        exact: whether numbers are texts for ``texts_of``.

    Raises:
        ValueError, RecursionError: the text is no JSON.
    """
    numbers: dict[str, Any] = {"parse_float": _MARK.__add__} if exact else {}
    if exact and "-0" in text:
        numbers["parse_int"] = _kept_integer
    return json.loads(text, parse_constant=_refuse_constant, **numbers)


def is_number_as_text(value: Any) -> bool:
    """Whether a value of ``loads`` with ``exact`` is a number that is kept as it was written."""
    return isinstance(value, str) and value.startswith(_MARK)


def texts_of(values: Iterable[Any]) -> list[str | None]:
    """Return values of ``loads`` as texts: objects, arrays, booleans and numbers as JSON, texts as they are. With
    ``exact``, each number is as it was written."""
    plain = [each.removeprefix(_MARK) if isinstance(each, str) else each for each in values]
    others = [each for each in plain if each is not None and not isinstance(each, str)]
    if not others:
        return plain
    between = secrets.token_hex(12)
    text = _JSON([each for other in others for each in (other, between)])
    if _MARK[1:] in text:
        text = _MARKED.sub(r"\1", text)
    written = iter(text[1:].split(f',"{between}"'))
    return [each if each is None or isinstance(each, str) else next(written).removeprefix(",") for each in plain]


def check_case(objects: Iterable[Mapping[str, Any]], names: frozenset[str]) -> None:
    """Check that no field has the name of a column in other case: its values would be lost.

    Raises:
        ValueError: one has.
    """
    lower = {name.lower() for name in names}
    if any(name.lower() in lower for name in set().union(*objects) - names):
        raise ValueError("a field has the name of a column in other case")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonColumns:
    """Reads the fields of objects as columns.

    Attributes:
        columns: names and types. A field may be missing (null).
        timezone: the zone of timestamps without one; empty: they are an error.
    """

    columns: Columns
    timezone: str = ""

    def arrays(
        self,
        objects: Sequence[Mapping[str, Any]],
        again: Callable[[], Sequence[Mapping[str, Any]]],
        *,
        may_be_small: bool = True,
    ) -> list[pa.Array]:
        """Return the values of each column.

        Args:
            objects: what ``objects_of`` has returned.
            again: returns the same objects with ``exact``.
            may_be_small: whether a number may be one that Python reads as 0 (``may_be_small``).

        Raises:
            One of ``FAULTS``: a value does not fit its column.
        """
        exact: Sequence[Mapping[str, Any]] | None = None
        arrays = []
        for column, field in zip(self.columns, to_arrow(self.columns), strict=True):
            values = [item.get(column.name) for item in objects]
            types = set(map(type, values))
            if column.type.startswith("DECIMAL") or (column.type == "STRING" and not types <= _TEXTS):
                exact = again() if exact is None else exact
                values = [item.get(column.name) for item in exact]
            arrays.append(self._array(values, types, column, field.type))
            check_years(arrays[-1])
            if may_be_small and float in types and column.type in ("FLOAT", "DOUBLE"):
                # Python reads 1e-400 as 0.
                zero = pc.equal(arrays[-1], 0)
                written = objects if not pc.any(zero).as_py() else again() if exact is None else exact
                if written is not objects:
                    texts = (written[at].get(column.name) for at in pc.indices_nonzero(zero).to_pylist())
                    if not all(map(_is_zero, texts)):
                        raise OverflowError(f"{column.name} is too small for {column.type}")
        return arrays

    def _array(self, values: list[Any], types: set[type], column: Column, kind: pa.DataType) -> pa.Array:
        if column.type.startswith("DECIMAL"):
            # The sinks write decimals as texts: not every reader of JSON keeps the digits of a number.
            if not types <= {int, float, Decimal, str, type(None)}:
                raise TypeError(f"{column.name} is not {column.type}")
            plain = [f"{each:f}" if isinstance(each, Decimal) else each for each in values]
            return decimals(pa.array(texts_of(plain), pa.string()), kind)
        if column.type == "STRING":
            # Each value has a text. A schema that was inferred has STRING for a field with numbers and texts.
            return pa.array(values if types <= _TEXTS else texts_of(values), kind)
        if column.type in ("FLOAT", "DOUBLE"):
            return _floats(values, types, column, kind)
        if not types <= _TYPES[column.type] | _NULL:
            raise TypeError(f"{column.name} is not {column.type}")
        if column.type == "TIMESTAMP":
            return timestamps(pa.array(values, pa.string()), self.timezone)
        return pa.array(values, pa.string()).cast(kind) if column.type == "DATE" else pa.array(values, kind)

    def explain(self, text: str, *, whole: str = "one JSON object") -> str:
        """Return why a text is not an object with these fields, and what is allowed.

        Args:
            whole: what a text has to be.
        """
        try:
            return self._explained(text, whole)
        except RecursionError:
            # To parse or to write it takes a few calls more here than where it was read.
            return f"too many levels of nesting; allowed: {whole}, of fewer levels"

    def _explained(self, text: str, whole: str) -> str:
        try:
            found = loads(text)
        except json.JSONDecodeError as error:
            return f"not JSON ({error.msg} at column {error.colno}); allowed: {whole}"
        except (ValueError, RecursionError) as error:
            return f"not JSON ({printable(error)}); allowed: {whole}"
        if not isinstance(found, dict):
            return f"{printable(text.strip(), limit=40)} is not an object; allowed: {whole}"
        exact = cache(lambda: [loads(text, exact=True)])  # once, however many columns there are
        for column in self.columns:
            one = replace(self, columns=(column,))
            try:
                one.arrays([found], exact)
            except FAULTS:
                value = _shown(exact()[0][column.name])
                return f"{printable(column.name)} is {printable(value, limit=200)}; allowed: {self.allowed(column)}"
        known = {column.name.lower(): column.name for column in self.columns}
        for name in found:
            if name not in known.values() and name.lower() in known:
                return f"field {printable(name)}; allowed: {printable(known[name.lower()])}, in this case"
        return f"not JSON; allowed: {whole}"

    def allowed(self, column: Column) -> str:
        """Return the values of a column, for errors."""
        zone = "ISO 8601" if self.timezone else "ISO 8601 with a zone"
        form = {"TIMESTAMP": f" ({zone})", "DATE": " (YYYY-MM-DD)", "BOOLEAN": " (true or false)"}
        return f"{column.type}{form.get(column.type, '')} or null"


def check_years(values: pa.Array) -> None:
    """Check that timestamps and dates, in UTC, are in the years 1 to 9999: others are no values of Python's and SQL's.

    Raises:
        OverflowError: one is not.
    """
    kind = values.type
    if pa.types.is_date32(kind):
        lowest, highest, numbers = -719_162, 2_932_896, values.cast(pa.int32())
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        lowest, highest, numbers = -62_135_596_800_000_000, 253_402_300_799_999_999, values.cast(pa.int64())
    else:
        return
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and not lowest <= found["min"] <= found["max"] <= highest:
        raise OverflowError("a year outside of 1 to 9999")


def times_in(values: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the dates and timestamps, also those inside of structs, lists and maps."""
    if pa.types.is_temporal(values.type):
        yield values
    elif pa.types.is_nested(values.type):
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else (values,):
            if pa.types.is_map(chunk.type):
                pair = pa.struct({"key": chunk.type.key_type, "value": chunk.type.item_type})
                chunk = chunk.cast(pa.list_(pair))
            inner = chunk.flatten()
            for part in inner if isinstance(inner, list) else (inner,):
                yield from times_in(part)


def timestamps(values: pa.Array, timezone: str) -> pa.Array:
    """Return texts as timestamps in UTC; those without a zone are of ``timezone``, or an error if it is empty."""
    kind = pa.timestamp("us", tz="UTC")
    with suppress(pa.ArrowInvalid):
        return values.cast(kind)  # Each has a zone, the most frequent case.
    if pc.any(pc.match_substring_regex(values, NANOSECONDS)).as_py():
        # Zeros behind the microseconds are no digits that are lost.
        values = pc.replace_substring_regex(values, r"(\.[0-9]{6})0+([^0-9]|$)", r"\1\2")
    has_zone = pc.match_substring_regex(values, _HAS_ZONE)
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(has_zone, nothing, values)
    if local.null_count == len(local):
        return values.cast(kind)
    if not timezone:
        raise ValueError("no zone")
    fixed = _in_zone(local.cast(pa.timestamp("us")), timezone)
    return pc.coalesce(pc.if_else(has_zone, values, nothing).cast(kind), fixed.cast(kind))


def _in_zone(local: pa.Array, timezone: str) -> pa.Array:
    """Return local times of a zone as timestamps, as Python, Java and Spark do.

    A clock that is set back shows an hour twice: the first one is meant. One that is set forward omits an hour: a time
    in it is one by the offset before, so that 02:30 is the moment at which the clock shows 03:30.
    """
    # Arrow has the rules of a zone up to 2037 only, and no time that a clock omits.
    is_known = pc.less(local, pa.scalar(_RULES_END, local.type))
    ruled = local
    if pc.all(is_known).as_py() is False:
        ruled = pc.if_else(is_known, local, pa.scalar(None, local.type))
    found = partial(pc.assume_timezone, ruled, timezone, ambiguous="earliest")
    try:
        moments = found(nonexistent="raise")
    except pa.ArrowInvalid:
        moments = found(nonexistent="latest")
        is_known = pc.and_kleene(is_known, pc.equal(moments, found(nonexistent="earliest")))
    if pc.all(is_known).as_py() is not False:
        return moments
    kind, zone = pa.timestamp("us", tz="UTC"), zoneinfo.ZoneInfo(timezone)
    pairs = zip(local.to_pylist(), is_known.to_pylist(), strict=True)
    others = [each.replace(tzinfo=zone).astimezone(UTC) if known is False else None for each, known in pairs]
    return pc.if_else(is_known, moments.cast(kind), pa.array(others, kind))


def _floats(values: list[Any], types: set[type], column: Column, kind: pa.DataType) -> pa.Array:
    """Return numbers; one that the type can only hold as infinite, or a FLOAT as 0, is an error."""
    named = 0
    if str in types:
        named = sum(1 for each in values if isinstance(each, str) and each.endswith("Infinity"))
        values = [_NOT_FINITE.get(each, each) if isinstance(each, str) else each for each in values]
        types = set(map(type, values))
    if not types <= {int, float, type(None)}:
        raise TypeError(f"{column.name} is not {column.type}")
    found = pa.array(values, kind)
    if (pc.sum(pc.is_inf(found)).as_py() or 0) != named:
        raise OverflowError(f"{column.name} is too large for {column.type}")
    if column.type == "FLOAT" and float in types:
        check_range(pa.array(values, pa.float64()), found)
    return found


def may_be_small(text: bytes) -> bool:
    """Whether a text may contain a number other than 0 that a floating-point type has only as 0."""
    return any(sign in text for sign in (b"e-", b"E-", b"0" * 30))


def _is_zero(value: Any) -> bool:
    """Whether a number of ``exact`` is 0, and not one that Python reads as 0."""
    if not isinstance(value, str):
        return bool(value == 0)
    return not set("123456789") & set(re.split("[eE]", value.removeprefix(_MARK))[0])


def _shown(value: Any) -> str:
    """Return a value as JSON for an error."""
    is_text = isinstance(value, str) and not is_number_as_text(value)
    return json.dumps(value) if is_text else str(texts_of([value])[0])


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _kept_integer(text: str) -> int | str:
    return _MARK + text if text == "-0" else int(text)


_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
