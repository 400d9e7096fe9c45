"""What the sinks into database tables share: settings with the names of Kafka Connect's JDBC sink, and row changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from ...dataplane.columns import Column, Columns, as_objects, decimal_texts, json_encoder, sql_name
from ...dataplane.dead_letters import FIELDS
from ...dataplane.errors import SinkError
from ...dataplane.settings import PluginSettings
from ...dataplane.transform import listed
from ...errors import NO_VALUE, ConfigError
from ...protocol.units import printable

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_NAMES: Final = "a name of letters, digits and _, not starting with connectgroup_ or sqlite_"
_TABLE: Final = re.compile(r"(?!connectgroup_|sqlite_)[A-Za-z_]\w{0,62}", re.IGNORECASE | re.ASCII)
NUMBER: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?"
"""A text whose number is the same text; of others, such as 007, the notation would be lost. As Python and PostgreSQL
read it."""
InsertMode = Literal["insert", "upsert", "delete"]
BOOLEANS: Final = "true, false"
ROWS_THAT_FIT: Final = "rows that fit the table: its types, constraints and triggers"
OTHER_TABLE: Final = (
    "the table altered or dropped, or another sink.table, and the connector's offsets reset to write earlier rows there"
)
"""What is allowed, too, if the type of a column does not keep a value: a table has the types of the ``source.schema``
that it was made for, also after that was corrected. Positions are in a table of their own: a new table has only rows
that are read from now on."""
_JSON: Final = json_encoder(ensure_ascii=True, compact=False)


class TableSinkSettings(PluginSettings):
    """Settings of a sink that writes to a table, each with the prefix ``sink.``."""

    table: Annotated[str, Field(description=TABLE_NAMES)]
    insert_mode: Annotated[
        InsertMode,
        Field(description="insert, upsert, delete: what a row does to the row of the table that has its key"),
    ] = "insert"
    pk_fields: Annotated[str, Field(description="the columns of the key, separated by commas")] = ""
    delete_field: Annotated[
        str, Field(description="upsert: a boolean column; a row in which it is true deletes its key")
    ] = ""
    auto_create: Annotated[bool, Field(description=f"{BOOLEANS}: create the table if it is missing")] = True
    auto_evolve: Annotated[bool, Field(description=f"{BOOLEANS}: add columns that the table lacks")] = False

    def model_post_init(self, _: Any) -> None:
        """Check the table's name and the combination of mode, key and delete field.

        Raises:
            ConfigError: one of them is not allowed.
        """
        if not _TABLE.fullmatch(self.table):
            raise ConfigError("sink.table", self.table, TABLE_NAMES)
        if self.insert_mode == "insert":
            for name, value in (("pk.fields", self.pk_fields), ("delete.field", self.delete_field)):
                if value:
                    raise ConfigError(f"sink.{name}", value, "nothing with sink.insert.mode insert")
        elif not self.keys:
            raise ConfigError("sink.pk.fields", NO_VALUE, f"columns, for sink.insert.mode {self.insert_mode}")
        if self.insert_mode == "delete" and self.delete_field:
            raise ConfigError("sink.delete.field", self.delete_field, "nothing with sink.insert.mode delete")

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return listed(self.pk_fields)

    def written(self, columns: Columns) -> Columns:
        """Return the columns of the table among the columns of the rows.

        Raises:
            ConfigError: a column of the key or the delete field does not exist, or the latter is not boolean.
        """
        by_name = {column.name: column for column in columns}
        for key in self.keys:
            if key not in by_name:
                raise ConfigError("sink.pk.fields", key, f"columns {', '.join(by_name)}")
        if self.delete_field and getattr(by_name.get(self.delete_field), "type", None) != "BOOLEAN":
            booleans = [column.name for column in columns if column.type == "BOOLEAN"]
            raise ConfigError("sink.delete.field", self.delete_field, f"a boolean column: {', '.join(booleans)}")
        if self.insert_mode == "delete":
            return tuple(by_name[key] for key in self.keys)
        return tuple(column for column in columns if column.name != self.delete_field)


def check_dead_letters(name: str) -> None:
    """Check the name of the table of dead letters.

    Raises:
        ConfigError: the name cannot be that of a table.
    """
    if not _TABLE.fullmatch(name):
        raise ConfigError("errors.deadletterqueue.name", name, TABLE_NAMES)


def missing_columns(where: str, settings: TableSinkSettings, found: Sequence[str], columns: Columns) -> list[Column]:
    """Return the columns to add to an existing table.

    Args:
        where: the database, for the error.
        settings: the sink's settings.
        found: the names of the table's columns.
        columns: the columns that are written.

    Raises:
        SinkError: a column is missing, and ``auto.evolve`` is off.
    """
    known = {name.lower() for name in found}
    missing = [column for column in columns if column.name.lower() not in known]
    if missing and not settings.auto_evolve:
        raise SinkError(
            f"{where}: table {settings.table} has no column {missing[0].name}; allowed: a table with all columns of"
            " the source, a name that is not taken, or sink.auto.evolve true"
        )
    return missing


def no_table(where: str, settings: TableSinkSettings) -> SinkError:
    """Return the error for a missing table that must not be created."""
    return SinkError(f"{where}: table {settings.table} does not exist; allowed: a table, or sink.auto.create true")


def check_unaltered(where: str, before: Mapping[str, object], found: Mapping[str, object]) -> None:
    """Check that a table has the columns that the sink has looked at: values were compared with their types.

    Args:
        where: the database and the table, for the error.
        before, found: what is known of each column that is written, by its name.

    Raises:
        SinkError: one has changed. The task that starts again looks at the table again.
    """
    for name, kind in before.items():
        if found.get(name) != kind:
            what = "has another type" if name in found else "is gone"
            raise SinkError(
                f"{where}: was altered since the task started: the column {printable(name)} {what}; allowed: the task"
                " starts again, on the columns that the table has now"
            )


def null_keys(settings: TableSinkSettings, rows: pa.Table) -> dict[int, str]:
    """Return the numbers of the rows whose key has a null, with the reason why they cannot be written: null is equal to
    nothing, and SQLite would make up a number for it."""
    import pyarrow.compute as pc

    found: dict[int, str] = {}
    for key in settings.keys:
        if rows.column(key).null_count:
            for at in pc.indices_nonzero(pc.is_null(rows.column(key))).to_pylist():
                found.setdefault(at, f"{key} is null; allowed: a value in each column of sink.pk.fields")
    return dict(sorted(found.items()))


def without(rows: pa.Table, bad: Collection[int]) -> pa.Table:
    """Return the rows without those of some numbers."""
    import pyarrow as pa

    if not bad:
        return rows
    return rows.take(pa.array([at for at in range(rows.num_rows) if at not in bad], pa.int64()))


def plain_values(rows: pa.Table) -> pa.Table:
    """Return the rows with structs, arrays and maps as JSON text, and decimals as text."""
    import pyarrow as pa

    for at, field in enumerate(rows.schema):
        values = rows.column(at)
        if pa.types.is_nested(field.type):
            plain = as_objects(values.to_pylist(), field.type)
            texts = [None if value is None else _JSON(value) for value in plain]
            rows = rows.set_column(at, field.name, pa.chunked_array([pa.array(texts, pa.string())]))
        elif pa.types.is_decimal(field.type):
            rows = rows.set_column(at, field.name, decimal_texts(values))
    return rows


def dead_letter_columns() -> str:
    """Return the columns of a table of dead letters, as in CREATE TABLE."""
    return ", ".join(f"{field} TEXT" for field in FIELDS)


def insert_dead_letter(table: str) -> str:
    """Return the statement that writes one dead letter; its parameters are the fields."""
    return f"INSERT INTO {sql_name(table)} ({', '.join(FIELDS)}) VALUES ({', '.join('?' * len(FIELDS))})"
