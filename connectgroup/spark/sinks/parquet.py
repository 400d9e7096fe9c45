"""The sink ``parquet``: Parquet files in a directory, and a manifest that lists the committed files."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from .manifest import MANIFEST as MANIFEST, FileSinkSettings, ManifestSink, read_committed as read_committed

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSettings(FileSinkSettings):
    """Settings of the sink ``parquet``, each with the prefix ``sink.``."""


class ParquetSink(ManifestSink):
    """Writes Parquet files, compressed with zstd."""

    Settings = ParquetSettings
    extension = "parquet"

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, file, compression="zstd", compression_level=1)
