"""The sink ``parquet``: Parquet files in a directory, and a manifest that lists the committed files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from .manifest import MANIFEST as MANIFEST, FileSinkSettings, ManifestSink, read_committed as read_committed

if TYPE_CHECKING:
    import pyarrow as pa


_GROUP_BYTES: Final = 64 << 20
"""Bytes of the rows of a row group when files are compacted; the rows of one file are never divided."""


class ParquetSettings(FileSinkSettings):
    """Settings of the sink ``parquet``, each with the prefix ``sink.``."""


class ParquetSink(ManifestSink):
    """Writes Parquet files, compressed with zstd."""

    Settings = ParquetSettings
    extension = "parquet"

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, file, compression="zstd", compression_level=1)

    def head(self, path: Path) -> bytes | None:
        import pyarrow.parquet

        return bytes(pyarrow.parquet.read_schema(path).serialize())

    def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        schema = pyarrow.parquet.read_schema(paths[0])
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer:
            group: list[pa.Table] = []
            for path in paths:
                group.append(pyarrow.parquet.ParquetFile(path).read())
                if sum(rows.nbytes for rows in group) >= _GROUP_BYTES:
                    writer.write_table(pa.concat_tables(group))
                    group = []
            if group:
                writer.write_table(pa.concat_tables(group))
