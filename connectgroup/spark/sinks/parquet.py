"""The sink ``parquet``: Parquet files in a directory, and a manifest that lists the committed files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ...dataplane.real_paths import open_below
from .manifest import MANIFEST as MANIFEST, FileSinkSettings, ManifestSink, read_committed as read_committed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import FileMetaData

_GROUP_BYTES: Final = 64 << 20
"""Bytes of the rows of a row group when files are compacted: not more are in memory at once, and a batch of
``_BATCH_BYTES`` or one row."""
_BATCH_BYTES: Final = 8 << 20
_MAX_ROWS: Final = 16_384


class ParquetSettings(FileSinkSettings):
    """Settings of the sink ``parquet``, each with the prefix ``sink.``."""


class ParquetSink(ManifestSink):
    """Writes Parquet files, compressed with zstd. Readers open the files that
    `connectgroup.spark.sinks.manifest.read_committed` lists.
    """

    Settings = ParquetSettings
    extension = "parquet"

    def encode(self, rows: pa.Table, file: BinaryIO) -> None:
        import pyarrow.parquet

        pyarrow.parquet.write_table(rows, file, compression="zstd", compression_level=1)

    def head(self, path: Path) -> bytes | None:
        import pyarrow.parquet

        with open_below(path.parent, path.name) as file:
            return bytes(pyarrow.parquet.read_schema(file).serialize())

    def join(self, paths: Sequence[Path], file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        with open_below(paths[0].parent, paths[0].name) as first:
            schema = pyarrow.parquet.read_schema(first)
        with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd", compression_level=1) as writer:
            group: list[pa.RecordBatch] = []
            for path in paths:
                with open_below(path.parent, path.name) as opened, pyarrow.parquet.ParquetFile(opened) as source:
                    for rows in source.iter_batches(_batch_rows(source.metadata)):
                        group.append(rows)
                        if sum(each.nbytes for each in group) >= _GROUP_BYTES:
                            writer.write_table(pa.Table.from_batches(group, schema))
                            group = []
            if group:
                writer.write_table(pa.Table.from_batches(group, schema))


def _batch_rows(metadata: FileMetaData) -> int:
    """Return the number of rows to read of a file at once, by the mean size of its rows before compression.

    Dictionary encoding may hide repeated values from that size; the upper bound is for them.
    """
    total = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    return max(1, min(_MAX_ROWS, int(_BATCH_BYTES * max(1, metadata.num_rows) // max(1, total))))
