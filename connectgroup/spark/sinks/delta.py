"""The sink ``delta``: rows in a Delta table, written by the package ``deltalake`` (delta-rs) without Spark.

Rows, positions and the check of the fence are one Delta commit (``delta_offsets``), so every reader of Delta tables
sees each batch whole and once. ``delta-spark`` is not needed: the rows are in the worker as Arrow tables.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ...connector import LocalPath
from ...dataplane.columns import Column, Columns, decimal_texts, to_arrow
from ...dataplane.errors import SinkError
from ...dataplane.ownership import Owner, Range
from ...dataplane.real_paths import make_directory
from ...dataplane.settings import PluginSettings, require_absolute
from ...dataplane.sink import Sink
from ...dataplane.transform import listed
from ...errors import ConfigError
from ...protocol.units import printable
from .delta_offsets import DeltaOffsets, reason
from .tables import BOOLEANS, NUMBER

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

_DIRECTORIES: Final = "the directory of a Delta table, as an absolute path"


class DeltaSettings(PluginSettings):
    """Settings of the sink ``delta``, each with the prefix ``sink.``."""

    path: Annotated[str, LocalPath(), Field(min_length=1, description=_DIRECTORIES)]
    partition_by: Annotated[
        str, Field(description="the columns that a new table is partitioned by, separated by commas")
    ] = ""
    auto_create: Annotated[bool, Field(description=f"{BOOLEANS}: create the table if it is missing")] = True
    auto_evolve: Annotated[bool, Field(description=f"{BOOLEANS}: add columns that the table lacks")] = False
    busy_timeout_ms: Annotated[
        int,
        Field(ge=1, le=600_000, description="1 to 600000: how long a batch is tried again while other writers commit"),
    ] = 60_000

    def model_post_init(self, _: Any) -> None:
        """Check the path.

        Raises:
            ConfigError: the path is relative.
        """
        require_absolute("sink.path", self.path, _DIRECTORIES)


class DeltaSink(Sink):
    """Appends rows to a Delta table in a directory: every reader of Delta tables sees each batch whole and once. The
    positions are in the table's directory ``_connectgroup``. Other writers may append, OPTIMIZE and VACUUM meanwhile.
    Columns of structs, arrays and maps are added to a new table with its first rows. A value that the type of its
    column in an existing table would change (rounded, cut, the text 007 as a number) is an error, also inside of a
    struct, an array or a map; so are, in a column of partitions, an empty text, which Delta has as null, and a negative
    decimal with a fraction. No column BINARY can be one of partitions.
    """

    Settings = DeltaSettings

    def __init__(self, settings: DeltaSettings, columns: Columns) -> None:
        """Open the table; create it if it is missing, or check its columns.

        Raises:
            ConfigError: deltalake is not installed, or a setting names a column that does not exist.
            SinkError: the table cannot be opened, or lacks a column of the source.
        """
        self._settings = settings
        self._columns = columns
        self._offsets = self.open_positions(settings)
        partitions = listed(settings.partition_by)
        for name in partitions:
            if name not in (usable := [column.name for column in columns if _may_be_partition(column)]):
                raise ConfigError("sink.partition.by", name, f"columns {', '.join(usable)}")
        if not self._offsets.exists():
            self._create_table(partitions)
        self._check_table(partitions)

    @classmethod
    def create(cls, settings: DeltaSettings, columns: Columns) -> DeltaSink:
        return cls(settings, columns)

    @classmethod
    def open_positions(cls, settings: DeltaSettings) -> DeltaOffsets:
        return DeltaOffsets(Path(settings.path), busy_timeout_s=settings.busy_timeout_ms / 1000)

    @classmethod
    def check_access(cls, settings: DeltaSettings) -> None:
        offsets = cls.open_positions(settings)
        offsets.check_access()
        if not settings.auto_create and not offsets.exists():
            raise _no_table(settings)

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        return self._offsets.claim(owner, is_mine)

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        def write(table: DeltaTable, properties: CommitProperties) -> None:
            from deltalake import write_deltalake

            # merge: columns that the rows lack are null, and those that the table lacks are added, if they may be.
            self._check_columns(table)
            fitted = _fitted(rows, table, adds_fields=self._settings.auto_evolve)
            _check_partitions(fitted, table)
            write_deltalake(table, fitted, mode="append", schema_mode="merge", commit_properties=properties)

        return self._offsets.commit(owner, ranges, write if rows.num_rows else None)

    def close(self) -> None:
        self._offsets.close()

    def _create_table(self, partitions: Sequence[str]) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable

        if not self._settings.auto_create:
            raise _no_table(self._settings)
        path = self._offsets.path
        fields = [pa.field(column.name, kind) for column in self._columns if (kind := _arrow_type(column)) is not None]
        try:
            make_directory(path)
            DeltaTable.create(str(path), pa.schema(fields), mode="ignore", partition_by=list(partitions))
        except Exception as error:
            # Another task has created it meanwhile.
            if not self._offsets.exists():
                raise SinkError(
                    f"{path}: cannot be created ({reason(error)}); allowed: {_DIRECTORIES}, that this worker may write"
                ) from error

    def _check_table(self, partitions: Sequence[str]) -> None:
        table = self._offsets.table()
        found = table.metadata().partition_columns
        if partitions and list(partitions) != found:
            raise ConfigError("sink.partition.by", ", ".join(partitions), f"as the table: {', '.join(found) or 'none'}")
        self._check_columns(table)

    def _check_columns(self, table: DeltaTable) -> None:
        """Check, for each batch, that the table has all columns, or that they may be added: it may be altered."""
        known = {field.name.lower() for field in table.schema().fields}
        settings, path = self._settings, self._offsets.path
        for column in self._columns:
            added = settings.auto_evolve or (settings.auto_create and _arrow_type(column) is None)
            if column.name.lower() not in known and not added:
                raise SinkError(
                    f"{path}: the table has no column {column.name}; allowed: a table with all columns of the source,"
                    " or sink.auto.evolve true"
                )


def _no_table(settings: DeltaSettings) -> SinkError:
    return SinkError(f"{settings.path}: is no Delta table; allowed: a table, or sink.auto.create true")


def _arrow_type(column: Column) -> pa.DataType | None:
    """Return the Arrow type of a column; None for structs, arrays and maps, which are added with the first rows: in
    ``Column`` the names of a struct's fields are in upper case."""
    try:
        return to_arrow((column,)).field(0).type
    except KeyError:
        return None


def _may_be_partition(column: Column) -> bool:
    return column.type != "BINARY" and _arrow_type(column) is not None


def _fitted(rows: pa.Table, table: DeltaTable, *, adds_fields: bool) -> pa.Table:
    """Return rows with the names and types of the table's columns.

    Raises:
        SinkError: a value does not fit its column. delta-rs alone would truncate 1.5 to 1.
    """
    import pyarrow as pa

    known = {field.name.lower(): field for field in pa.schema(table.schema())}
    for at, field in enumerate(rows.schema):
        target = known.get(field.name.lower())
        if target is None or (target.name == field.name and target.type == field.type):
            continue
        values = rows.column(at)
        if pa.types.is_nested(field.type):
            for name, part, kind in _parts(values, target.type, target.name):
                if kind is not None:
                    _cast(part, kind, name, table)  # delta-rs converts it
                elif not adds_fields:
                    raise SinkError(
                        f"{table.table_uri}: the table has no field {printable(name)}; allowed: a table with all fields"
                        " of the source's structs, or sink.auto.evolve true"
                    )
        else:
            values = _cast(values, target.type, target.name, table)
        rows = rows.set_column(at, target.name, values)
    return rows


def _parts(
    values: pa.ChunkedArray, target: pa.DataType, name: str
) -> Iterator[tuple[str, pa.ChunkedArray, pa.DataType | None]]:
    """Yield the values in structs, lists and maps that have another type in the table, with their name and that type;
    without a type, if a struct of the table does not have them.

    Args:
        target: the type of the whole in the table.
        name: of the whole.
    """
    import pyarrow as pa

    kind, types = values.type, pa.types
    if kind == target:
        return
    if types.is_map(kind) and types.is_map(target):
        pairs = [pa.list_(pa.struct({"key": each.key_type, "value": each.item_type})) for each in (kind, target)]
        yield from _parts(values.cast(pairs[0]), pairs[1], name)
    elif types.is_struct(kind) and types.is_struct(target):
        for at, field in enumerate(kind):
            inner, path = [chunk.flatten()[at] for chunk in values.chunks], f"{name}.{field.name}"
            part, found = pa.chunked_array(inner, field.type), target.get_field_index(field.name)
            if found < 0:
                yield path, part, None
            else:
                yield from _parts(part, target.field(found).type, path)
    elif _is_list(kind) and _is_list(target):
        items = pa.chunked_array([chunk.flatten() for chunk in values.chunks], kind.value_type)
        yield from _parts(items, target.value_type, name)
    else:
        yield name, values, target


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _cast(values: pa.ChunkedArray, kind: pa.DataType, name: str, table: DeltaTable) -> pa.ChunkedArray:
    """Return values as a type of the table.

    Raises:
        SinkError: one would be changed.
    """
    import pyarrow as pa

    try:
        # By way of texts: Arrow makes 0.1 of a DECIMAL(20,20) the number 0.09999999999999999.
        is_inexact = pa.types.is_decimal(values.type) and pa.types.is_floating(kind)
        stored = (decimal_texts(values) if is_inexact else values).cast(kind)
    except pa.ArrowException as error:
        raise SinkError(f"{table.table_uri}: column {name}: {reason(error)}; allowed: {_values_of(kind)}") from error
    for before, after in _changed(values, stored):
        raise SinkError(
            f"{table.table_uri}: column {name}: type {kind} would store {printable(str(after), limit=60)} instead of"
            f" {printable(str(before), limit=60)}; allowed: {_values_of(kind)}"
        )
    return stored


def _values_of(kind: pa.DataType) -> str:
    """What is allowed in a column. A table has the types of the ``source.schema`` that it was made for, also after that
    was corrected."""
    return f"values of the type {kind}; for others, another sink.path, or the table deleted: all rows are read again"


_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def _check_partitions(rows: pa.Table, table: DeltaTable) -> None:
    """Check the values that are written as names of partitions, not to files.

    Raises:
        SinkError: a text is empty, which counts as null there by the protocol of Delta, or the name of the null; a
            value is BINARY; or a decimal is negative and has a fraction, which delta-rs 1.6 writes as -1.-50: no reader
            could open the table.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in table.metadata().partition_columns:
        if name not in rows.column_names:
            continue
        values = rows.column(name)
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            is_bad, shown, allowed = pc.is_valid(values), "BINARY, which delta-rs would store as text", "null"
        elif pa.types.is_decimal(values.type):
            # So wide that a number has room beside the fraction.
            wide = values.cast(pa.decimal256(76, values.type.scale))
            is_negative = pc.less(wide, pa.scalar(decimal.Decimal(0), wide.type))
            is_bad = pc.and_(is_negative, pc.not_equal(wide, pc.trunc(wide)))
            shown, allowed = "a negative number with a fraction", "numbers from 0, or whole ones"
        elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            is_bad, allowed = pc.is_in(values, pa.array(["", _HIVE_NULL], values.type)), "other texts, or null"
            shown = f"empty or {_HIVE_NULL}, and would be read as null"
        else:
            continue
        if pc.any(is_bad).as_py():
            raise SinkError(
                f"{table.table_uri}: column {printable(name)}, by which the table is partitioned, is {shown}; allowed:"
                f" {allowed}"
            )


def _changed(values: pa.ChunkedArray, stored: pa.ChunkedArray) -> list[tuple[Any, Any]]:
    """Return the first value that a cast to numbers, booleans or dates has rounded, or whose notation is lost (007)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, stored.type
    is_day_of_time = types.is_date(kind) and types.is_timestamp(values.type)
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    if not (is_day_of_time or any(test(kind) for test in tests)):
        return []
    try:
        back = decimal_texts(stored) if types.is_decimal(kind) and types.is_string(values.type) else stored
        same = pc.equal(values, back.cast(values.type))
    except pa.ArrowException:
        same = pc.equal(pc.is_null(values), None)
    if types.is_floating(values.type):
        same = pc.or_(same, pc.is_nan(values))
    for at in pc.indices_nonzero(pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(same, False)))).to_pylist():
        before, after = values[at].as_py(), stored[at].as_py()
        is_number = isinstance(before, decimal.Decimal) or (isinstance(before, str) and re.fullmatch(NUMBER, before))
        if not is_number or isinstance(after, bool) or decimal.Decimal(before) != decimal.Decimal(str(after)):
            return [(before, after)]
    return []
