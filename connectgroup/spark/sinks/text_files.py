"""The sinks ``jsonl`` and ``csv``: text files in a directory, and a manifest that lists the committed files.

What the source ``files`` reads and these sinks write has the same form: JSON lines, or CSV with a header, in which null
is an empty field and an empty text has quotes.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...dataplane.columns import as_objects, json_encoder, plain
from ...dataplane.errors import SinkError
from ...dataplane.real_paths import open_below
from ...protocol.units import printable
from ..sources.dialect import LineDialect
from .manifest import FileSinkSettings, ManifestSink
from .tables import plain_values

if TYPE_CHECKING:
    import pyarrow as pa


_COPY_BYTES: Final = 1 << 20
_WRITTEN: Final = LineDialect("csv", multiline=True)
"""How the sink writes CSV: a name of a column may contain a line feed."""


class JsonlSettings(FileSinkSettings):
    """Settings of the sink ``jsonl``, each with the prefix ``sink.``."""


class JsonlSink(ManifestSink):
    """Writes one JSON object a line; nested values stay nested, maps are objects, times are ISO text in UTC, bytes are
    base64. Numbers that JSON does not have are the texts NaN, Infinity and -Infinity. Readers open the files that
    `connectgroup.spark.sinks.manifest.read_committed` lists.
    """

    Settings = JsonlSettings
    extension = "jsonl"

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        import pyarrow as pa

        kind = pa.struct(rows.schema)
        for batch in rows.to_batches(max_chunksize=65_536):
            file.write("".join(f"{_JSON(row)}\n" for row in as_objects(batch.to_pylist(), kind)).encode())

    def head(self, path: Path) -> bytes | None:
        return b""

    def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
        for path in paths:
            with open_below(path.parent, path.name) as part:
                shutil.copyfileobj(part, file, _COPY_BYTES)


class CsvSettings(FileSinkSettings):
    """Settings of the sink ``csv``, each with the prefix ``sink.``."""


class CsvSink(ManifestSink):
    """Writes CSV with a header; structs, arrays and maps are JSON text, bytes are base64. A null in the only column is
    an error: it would be a blank line, which is no row. Readers open the files that
    `connectgroup.spark.sinks.manifest.read_committed` lists.
    """

    Settings = CsvSettings
    extension = "csv"

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.csv

        if rows.num_columns == 1 and rows.column(0).null_count:
            # A row of nothing but a null would be a blank line, which is no row for any reader.
            name = printable(rows.column_names[0])
            raise SinkError(
                f"sink csv: column {name} is null, and the row has no other column;"
                " allowed: a second column, values without null, or the sink jsonl or parquet"
            )
        rows = plain_values(rows)
        for at, field in enumerate(rows.schema):
            if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
                texts = [None if value is None else plain(value) for value in rows.column(at).to_pylist()]
                rows = rows.set_column(at, field.name, pa.chunked_array([pa.array(texts, pa.string())]))
        pyarrow.csv.write_csv(rows, file)

    def head(self, path: Path) -> bytes | None:
        from ..sources.parts import head_of

        with open_below(path.parent, path.name) as file:
            return head_of(file.fileno(), _WRITTEN)

    def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
        header = self.head(paths[0]) or b""
        file.write(header)
        for path in paths:
            with open_below(path.parent, path.name) as part:
                part.seek(len(header))
                shutil.copyfileobj(part, file, _COPY_BYTES)


def _plain(value: object) -> object:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return plain(value)


_JSON: Final = json_encoder(_plain)
