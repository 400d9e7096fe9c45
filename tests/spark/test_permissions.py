"""Files created by connectors have the modes of the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from connectgroup.connector import TaskContext
from connectgroup.connectors.idle import IdleConnector
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.dataplane.sink import Sink
from connectgroup.protocol.units import Unit
from connectgroup.spark.sinks.delta import DeltaSettings, DeltaSink
from connectgroup.spark.sinks.parquet import ParquetSink
from connectgroup.spark.sinks.sqlite import SqliteSink
from connectgroup.spark.sinks.tables import TableSinkSettings

OWNER = Owner(connector="c", task=0, tasks=1, fencing_token=1)
RANGES = [Range(slice="f", start=0, end=1)]


@pytest.fixture(params=[0o002, 0o022, 0o077], ids=lambda umask: f"umask {umask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def check(folder: Path, umask: int, count: int) -> None:
    paths = list(folder.rglob("*"))
    assert len(paths) == count
    for path in paths:
        whole = 0o777 if path.is_dir() else 0o666
        assert f"{stat.S_IMODE(path.stat().st_mode):04o}" == f"{whole & ~umask:04o}", path


def write(sink: Sink) -> None:
    sink.claim(OWNER, lambda _: True)
    sink.commit(OWNER, RANGES, pa.table({"a": pa.array([1], pa.int32())}))


def test_sqlite_table_has_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    sink = SqliteSink(tmp_path / "out.db", TableSinkSettings(table="t"), from_ddl("a INT"))
    write(sink)
    check(tmp_path, umask, 3)
    sink.close()


def test_parquet_files_and_manifest_have_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    sink = ParquetSink(tmp_path / "out")
    write(sink)
    check(tmp_path, umask, 5)
    sink.close()


def test_delta_table_and_its_positions_have_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    sink = DeltaSink.create(DeltaSettings(path=str(tmp_path / "out")), from_ddl("a INT"))
    write(sink)
    check(tmp_path, umask, 11)
    sink.close()


def test_log_of_an_idle_connector_has_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    connector = IdleConnector("c", {"log": str(tmp_path / "log")})
    context = TaskContext(
        unit=Unit("c", 0),
        owner_epoch=1,
        member_id="m",
        scratch=tmp_path / "scratch",
        progress=lambda _: None,
        failed=lambda _: None,
    )
    connector.task({}, context).start()
    check(tmp_path, umask, 1)
