"""The sink ``delta`` on real Delta tables, which an independent reader reads back."""

from __future__ import annotations

import datetime
import decimal
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from connectgroup.dataplane.columns import Column, Columns, from_ddl, to_arrow
from connectgroup.dataplane.errors import SinkError, TaskFenced
from connectgroup.dataplane.ownership import Position, Range, metadata_of
from connectgroup.errors import ConfigError
from connectgroup.spark.sinks import delta_offsets, new_files
from connectgroup.spark.sinks.delta import DeltaSettings, DeltaSink
from connectgroup.spark.sinks.delta_offsets import DeltaOffsets
from connectgroup.testing.contracts.sink import every, owner, span

from .conftest import PATIENCE_S, Bench

COLUMNS = from_ddl("a INT, b STRING")


def sink_at(path: Path, columns: Columns = COLUMNS, **settings: str) -> DeltaSink:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return DeltaSink.create(DeltaSettings.model_validate({"path": str(path)} | named), columns)


def offsets_at(path: Path) -> DeltaOffsets:
    return DeltaSink.open_positions(DeltaSettings(path=str(path)))


def rows(*values: int) -> pa.Table:
    return pa.table({"a": list(values), "b": [f"row {n}" for n in values]}, schema=to_arrow(COLUMNS))


def read(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["a"].to_pylist())


def states(path: Path) -> list[Path]:
    return sorted((path / "_connectgroup" / "c").iterdir())


def writer(*values: int) -> Callable[[DeltaTable, CommitProperties], None]:
    return lambda table, properties: write_deltalake(table, rows(*values), mode="append", commit_properties=properties)


def test_zombie_whose_commit_began_before_the_claim_of_its_successor_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the token is the commit's own: the zombie has read the state before the claim."""
    zombie, successor = sink_at(tmp_path / "t"), sink_at(tmp_path / "t")
    zombie.claim(owner(1), every)
    zombie.commit(owner(1), span(0, 1), rows(0))

    def write_late(*args: Any, **options: Any) -> None:
        assert successor.claim(owner(2), every) == {"s": 1}
        write_deltalake(*args, **options)

    monkeypatch.setattr(deltalake, "write_deltalake", write_late)
    with pytest.raises(TaskFenced, match="owner epoch 2, ours is 1"):
        zombie.commit(owner(1), span(1, 2), rows(9))
    monkeypatch.undo()
    before = states(tmp_path / "t")
    with pytest.raises(TaskFenced):
        zombie.commit(owner(1), span(1, 2), rows(9))
    assert states(tmp_path / "t") == before
    assert successor.commit(owner(2), span(1, 2), rows(1))
    assert read(tmp_path / "t") == [0, 1]


def test_task_that_loses_a_race_against_another_task_writes_its_batch_again(tmp_path: Path) -> None:
    tasks = [owner(1, task=task, tasks=2) for task in range(2)]
    sinks = [sink_at(tmp_path / "t") for _ in tasks]
    for task, sink in zip(tasks, sinks, strict=True):
        sink.claim(task, lambda _: False)
    tries = []

    def write_late(table: DeltaTable, properties: CommitProperties) -> None:
        tries.append(table.version())
        if len(tries) == 1:
            assert sinks[1].commit(tasks[1], span(0, 1, "other"), rows(1))
        writer(0)(table, properties)

    with closing(offsets_at(tmp_path / "t")) as offsets:
        assert offsets.commit(tasks[0], span(0, 1), write_late) is True
        assert offsets.positions("c") == {"other": 1, "s": 1}
    assert len(tries) == 2
    assert read(tmp_path / "t") == [0, 1]


def test_concurrent_owners_and_a_foreign_writer_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Each token takes over while the one before writes; others append and OPTIMIZE in between."""
    path, batches, errors = tmp_path / "t", 24, list[BaseException]()
    sink_at(path).close()

    def own(token: int, halfway: threading.Event) -> None:
        try:
            with closing(sink_at(path)) as sink:
                at = sink.claim(owner(token), every).get("s", 0)
                while at < batches:
                    sink.commit(owner(token), span(at, at + 1), rows(at))
                    at += 1
                    if at >= token * 5:
                        halfway.set()
        except TaskFenced:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            halfway.set()

    threads = []
    for token in range(1, 5):
        halfway = threading.Event()
        threads.append(threading.Thread(target=own, args=(token, halfway)))
        threads[-1].start()
        write_deltalake(str(path), rows(1000 + token), mode="append")
        assert halfway.wait(PATIENCE_S)
        DeltaTable(str(path)).optimize.compact()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read(path) == [*range(batches), *range(1001, 1005)]


WRITER = """
import os, signal, sys
from pathlib import Path
import deltalake
from tests.spark.test_delta import every, owner, rows, sink_at, span

path, token, place, count = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
write = deltalake.write_deltalake

def dies(*args, **kwargs):
    global count
    count -= 1
    if not count and place == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(*args, **kwargs)
    if not count and place == "after":
        os.kill(os.getpid(), signal.SIGKILL)

deltalake.write_deltalake = dies
sink = sink_at(path)
at = sink.claim(owner(token), every).get("s", 0)
while at < 30:
    sink.commit(owner(token), span(at, at + 2), rows(at, at + 1))
    at += 2
    print(at, flush=True)
"""


def test_killed_process_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """SIGKILL just before a commit, just after one, and at any moment."""
    path, ends = tmp_path / "t", list[int]()
    for token, (place, count) in enumerate([("before", 3), ("after", 3), ("any", 3), ("none", 0)], start=1):
        command = [sys.executable, "-c", WRITER, str(path), str(token), place, str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for n, _ in enumerate(process.stdout, start=1):
                if place == "any" and n == count:
                    process.kill()
        ends.append(process.returncode)
        if path.is_dir():
            assert read(path) == [*range(offsets_at(path).positions("c").get("s", 0))]
    assert ends == [-signal.SIGKILL] * 3 + [0]
    assert read(path) == [*range(30)]


def test_positions_survive_checkpoints_and_the_end_of_the_logs_retention(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with closing(sink_at(path)) as sink:
        sink.claim(owner(1), every)
        for at in range(12):
            sink.commit(owner(1), [Range(slice="s", start=at, end=Position(at + 1, f"after {at}"))], rows(at))
        table = DeltaTable(str(path))
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
        table.create_checkpoint()
        for file in (path / "_delta_log").glob("*.json"):
            if int(file.stem) < table.version():
                file.unlink()
        assert sink.commit(owner(1), span(12, 13), rows(12))
        assert sink.commit(owner(1), [Range(slice="t", start=0, end=Position(1, "é"))], rows(13))
    with closing(sink_at(path)) as successor:
        found = successor.claim(owner(2), every)
    assert {name: (at, metadata_of(at)) for name, at in found.items()} == {"s": (13, ""), "t": (1, "é")}
    assert read(path) == [*range(14)]
    assert len(states(path)) <= 10, "replaced states are deleted"


def test_error_after_the_commit_is_no_error_of_the_batch(tmp_path: Path) -> None:
    with closing(sink_at(tmp_path / "t")) as sink, closing(offsets_at(tmp_path / "t")) as offsets:
        sink.claim(owner(1), every)

        def write(table: DeltaTable, properties: CommitProperties) -> None:
            writer(1)(table, properties)
            raise OSError("no space for a checkpoint")

        assert offsets.commit(owner(1), span(0, 1), write) is True
        assert sink.commit(owner(1), span(1, 2), rows(2))
    assert read(tmp_path / "t") == [1, 2]


def test_batch_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    with closing(sink_at(tmp_path / "t")) as sink:
        sink.claim(owner(1), every)
        before = states(tmp_path / "t")
        for column, value in (("a", pa.array([1.5])), ("a", pa.array(["x"])), ("a", pa.array([1 << 40]))):
            with pytest.raises(SinkError, match=r"column a: .*; allowed: values of the type int32"):
                sink.commit(owner(1), span(0, 1), pa.table({column: value}))
        assert states(tmp_path / "t") == before
        assert sink.commit(owner(1), span(0, 1), rows(1))
    assert read(tmp_path / "t") == [1]


@pytest.mark.parametrize(
    ("declared", "kept", "changed"),
    [
        ("FLOAT", [0.5, None, math.nan, -0.0, math.inf], 0.1),
        ("DECIMAL(10,2)", [0.5, 0.1, None], 1.005),
        ("DOUBLE", ["0.5", "1e3", None], "007"),
        ("DOUBLE", [decimal.Decimal("0.10000000000000000000")], decimal.Decimal("0.12345678901234567890")),
        ("BIGINT", ["7", "-3"], "007"),
        ("BOOLEAN", [1, 0, None], 2),
        ("DATE", [datetime.datetime(2024, 1, 2)], datetime.datetime(2024, 1, 2, 3)),
        ("STRING", [0.1, 1e300], None),
    ],
)
def test_value_that_the_type_of_a_column_changes_is_an_error(
    tmp_path: Path, declared: str, kept: list[Any], changed: Any
) -> None:
    with closing(sink_at(tmp_path / "t", (Column("a", declared),))) as sink:
        sink.claim(owner(1), every)
        if changed is not None:
            with pytest.raises(SinkError, match=r"column a: .* would store .* instead of .*; allowed: values of the"):
                sink.commit(owner(1), span(0, 1), pa.table({"a": pa.array([*kept, changed])}))
        assert sink.commit(owner(1), span(0, 1), pa.table({"a": pa.array(kept)}))
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == len(kept)


@pytest.mark.parametrize(
    ("nest", "name"),
    [
        (lambda kind: (pa.struct({"x": kind}), lambda each: {"x": each}), "a.x"),
        (lambda kind: (pa.list_(kind), lambda each: [each, None]), "a"),
        (lambda kind: (pa.map_(pa.string(), kind), lambda each: [("k", each)]), "a.value"),
        (lambda kind: (pa.list_(pa.struct({"x": pa.list_(kind)})), lambda each: [{"x": [each]}, None]), "a.x"),
    ],
    ids=["struct", "array", "map", "array of structs"],
)
@pytest.mark.parametrize(
    ("stored", "kept", "changed"),
    [
        (pa.int32(), pa.array([1.0, None, -7.0]), pa.array([1.5])),
        (pa.int64(), pa.array(["7", "-3"]), pa.array(["007"])),
        (pa.int32(), pa.array([7, None]), pa.array([1 << 40])),
        (pa.float64(), pa.array([0.5, None], pa.float32()), None),
    ],
    ids=["fraction", "notation", "range", "wider"],
)
def test_value_inside_of_another_that_the_type_of_the_table_changes_is_an_error(
    tmp_path: Path, nest: Any, name: str, stored: pa.DataType, kept: pa.Array, changed: pa.Array | None
) -> None:
    def nested(values: pa.Array, kind: pa.DataType) -> pa.Table:
        whole, wrapped = nest(kind)
        # delta-rs converts the texts of a struct that is null, too, which is an error.
        end = [] if pa.types.is_string(kept.type) else [None]
        return pa.table({"a": pa.array([*map(wrapped, values.to_pylist()), *end], whole)})

    write_deltalake(str(tmp_path / "t"), nested(pa.array([1], stored), stored))
    before = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["a"].to_pylist()
    with closing(sink_at(tmp_path / "t", (Column("a", str(nest(kept.type)[0]).upper()),))) as sink:
        sink.claim(owner(1), every)
        if changed is not None:
            words = rf"column {name}: .*; allowed: values of the type {stored}; for others, another sink\.path"
            with pytest.raises(SinkError, match=words):
                sink.commit(owner(1), span(0, 1), nested(changed, kept.type))
        assert sink.commit(owner(1), span(0, 1), nested(kept, kept.type))
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["a"].to_pylist()
    wanted = [*nested(kept.cast(stored), stored)["a"].to_pylist(), *before]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_positions_without_their_table_and_a_table_without_its_positions_are_errors(tmp_path: Path) -> None:
    """Anything else would write rows again."""
    path = tmp_path / "t"
    with closing(sink_at(path)) as sink:
        sink.claim(owner(1), every)
        sink.commit(owner(1), span(0, 1), rows(1))
    for file in states(path):
        file.rename(file.with_suffix(".away"))
    with closing(sink_at(path)) as sink, pytest.raises(SinkError, match="does not exist; allowed: the table's"):
        sink.claim(owner(2), every)
    with pytest.raises(SinkError, match="does not exist; allowed: the table's"):
        offsets_at(path).positions("c")
    for file in states(path):
        file.rename(file.with_suffix(".sqlite"))
    for file in (path / "_delta_log").iterdir():
        file.unlink()
    with closing(sink_at(path)) as sink, pytest.raises(SinkError, match="has no transaction connectgroup/c; allowed"):
        sink.claim(owner(2), every)


def test_positions_have_no_place_before_there_is_a_table(tmp_path: Path) -> None:
    with closing(offsets_at(tmp_path / "t")) as offsets:
        assert offsets.positions("c") == {}
        with pytest.raises(SinkError, match="is no Delta table yet"):
            offsets.alter("c", 1, {"s": 1})
    assert list(tmp_path.iterdir()) == []


def test_connectors_share_a_table_but_not_their_positions(tmp_path: Path) -> None:
    import dataclasses

    for name in ("..", "a/b", "c"):
        who = dataclasses.replace(owner(1), connector=name)
        with closing(sink_at(tmp_path / "t")) as sink:
            assert sink.claim(who, every) == {}
            assert sink.commit(who, span(0, 1), rows(1))
    assert read(tmp_path / "t") == [1, 1, 1]
    assert {file.name for file in (tmp_path / "t" / "_connectgroup").iterdir()} == {"%2E%2E", "a%2Fb", "c"}


def test_other_columns_need_auto_evolve(tmp_path: Path) -> None:
    path = tmp_path / "t"
    columns = from_ddl("A INT, c DATE")
    sink_at(path).close()
    with pytest.raises(SinkError, match=r"has no column c; allowed: .*auto\.evolve true"):
        sink_at(path, columns)
    with closing(sink_at(path, columns, auto_evolve="true")) as sink:
        sink.claim(owner(1), every)
        sink.commit(owner(1), span(0, 1), pa.table({"A": pa.array([1]), "c": pa.array([0], pa.date32())}))
    with closing(sink_at(path, from_ddl("a INT"))) as sink:
        sink.claim(owner(2), every)
        sink.commit(owner(2), span(1, 2), pa.table({"a": pa.array([2], pa.int32())}))
    table = DeltaTable(str(path)).to_pyarrow_table().sort_by("a")
    assert table.column_names == ["a", "b", "c"]
    assert table["c"].is_valid().to_pylist() == [True, False]


def test_other_fields_of_a_struct_need_auto_evolve(tmp_path: Path) -> None:
    path, columns = tmp_path / "t", (Column("s", "ARRAY<STRUCT<X:BIGINT,Y:BIGINT>>"),)
    write_deltalake(str(path), pa.table({"s": [[{"x": 1}], None]}))
    more = pa.table({"s": [[{"x": 2, "y": 3}]]})
    with closing(sink_at(path, columns)) as sink:
        sink.claim(owner(1), every)
        with pytest.raises(SinkError, match=r"the table has no field s\.y; allowed: .*sink\.auto\.evolve true"):
            sink.commit(owner(1), span(0, 1), more)
    with closing(sink_at(path, columns, auto_evolve="true")) as sink:
        sink.claim(owner(2), every)
        sink.commit(owner(2), span(0, 1), more)
    table = DeltaTable(str(path)).to_pyarrow_table()
    assert sorted(table["s"].to_pylist(), key=repr) == [None, [{"x": 1, "y": None}], [{"x": 2, "y": 3}]]


def test_column_that_a_table_has_lost_since_the_task_started_is_not_added_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    sink = sink_at(path)
    sink.claim(owner(1), every)
    sink.commit(owner(1), span(0, 1), rows(0))
    write_deltalake(str(path), rows(0).select(["a"]), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkError, match=r"the table has no column b; allowed: .*sink\.auto\.evolve true"):
        sink.commit(owner(1), span(1, 2), rows(1))
    sink.close()
    assert DeltaTable(str(path)).to_pyarrow_table().to_pylist() == [{"a": 0}]
    evolves = sink_at(path, auto_evolve="true")
    assert evolves.claim(owner(2), every) == {"s": 1}
    evolves.commit(owner(2), span(1, 2), rows(1))
    evolves.close()
    assert read(path) == [0, 1]


def test_types_of_transforms_and_partitions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    types = ["DECIMAL(10,2)", "BINARY", "TINYINT", "TIMESTAMP", "STRUCT<X:INT>", "ARRAY<STRING>", "STRING"]
    columns = tuple(Column(f"c{n}", kind) for n, kind in enumerate(types))
    values: list[Any] = [decimal.Decimal("1.50"), b"\0", 1, None, {"x": 1}, ["y"], "p q"]
    arrow = [pa.decimal128(10, 2), pa.binary(), pa.int8(), pa.timestamp("us", "UTC"), pa.struct({"x": pa.int32()})]
    arrow += [pa.list_(pa.string()), pa.string()]
    batch = pa.table([pa.array([v], t) for v, t in zip(values, arrow, strict=True)], [c.name for c in columns])
    for token in (1, 2):
        with closing(sink_at(path, columns, partition_by="c6")) as sink:
            sink.claim(owner(token), every)
            sink.commit(owner(token), span(token - 1, token), batch)
    table = DeltaTable(str(path))
    assert table.metadata().partition_columns == ["c6"]
    assert table.to_pyarrow_table().select(batch.column_names).to_pylist() == batch.to_pylist() * 2
    with pytest.raises(ConfigError, match=r"sink\.partition\.by: got 'c0'; allowed: as the table: c6"):
        sink_at(path, columns, partition_by="c0")
    for wrong in ("x", "c1", "c4"):
        with pytest.raises(ConfigError, match=rf"sink\.partition\.by: got '{wrong}'; allowed: columns c0, c2, c3, c6"):
            sink_at(tmp_path / "new", columns, partition_by=wrong)
    with pytest.raises(SinkError, match=r"is no Delta table; allowed: a table, or sink.auto.create true"):
        sink_at(tmp_path / "new", columns, auto_create="false")


_WIDE = decimal.Context(prec=38)


@pytest.mark.parametrize(
    ("kind", "good", "bad", "message"),
    [
        ("STRING", ["a/b", " ", None, "%20", "\u00fc=\n", ".."], "", "is empty or __HIVE_DEFAULT_PARTITION__, and"),
        ("STRING", ["null", None], "__HIVE_DEFAULT_PARTITION__", "is empty or __HIVE_DEFAULT_PARTITION__, and"),
        (
            "DECIMAL(10,2)",
            [decimal.Decimal("0.50"), decimal.Decimal("-3.00"), None],
            decimal.Decimal("-1.50"),
            "is a negative number with a fraction; allowed: numbers from 0",
        ),
        (
            "DECIMAL(38,38)",
            [decimal.Decimal("0." + "5" * 38), None],
            decimal.Decimal("-0.5"),
            "is a negative number with a fraction; allowed: numbers from 0",
        ),
        (
            "DECIMAL(38,20)",
            [decimal.Decimal("9" * 18 + ".5").quantize(decimal.Decimal("1e-20"), context=_WIDE)],
            None,
            "",
        ),
        ("DOUBLE", [-0.5, 1e22, None], None, ""),
        ("DATE", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)], None, ""),
    ],
)
def test_value_of_a_partition_is_kept_or_an_error(
    tmp_path: Path, kind: str, good: list[Any], bad: Any, message: str
) -> None:
    path, columns = tmp_path / "t", from_ddl(f"id INT, p {kind}")

    def batch(values: list[Any]) -> pa.Table:
        return pa.Table.from_pylist([{"id": n, "p": each} for n, each in enumerate(values)], to_arrow(columns))

    with closing(sink_at(path, columns, partition_by="p")) as sink:
        sink.claim(owner(1), every)
        if message:
            with pytest.raises(SinkError, match=f"column p, by which the table is partitioned, {message}"):
                sink.commit(owner(1), span(0, 1), batch([good[0], bad]))
        sink.commit(owner(1), span(0, 1), batch(good))
    found = sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [row["p"] for row in found] == good


def test_bytes_in_a_partition_of_an_existing_table_are_an_error(tmp_path: Path) -> None:
    path, columns = tmp_path / "t", (Column("id", "INT"), Column("p", "BINARY"))
    schema = to_arrow(columns)
    DeltaTable.create(str(path), schema, partition_by=["p"])
    with closing(sink_at(path, columns)) as sink:
        sink.claim(owner(1), every)
        with pytest.raises(SinkError, match="column p, by which the table is partitioned, is BINARY, which delta-rs"):
            sink.commit(owner(1), span(0, 1), pa.Table.from_pylist([{"id": 1, "p": b"a"}], schema))


@pytest.mark.parametrize("partition", ["", "v"])
def test_text_with_separators_of_lines_is_written(tmp_path: Path, partition: str) -> None:
    """The log of the table has the smallest and the greatest value of each file, one object a line."""
    path, columns = tmp_path / "t", from_ddl("id INT, v STRING")
    texts = [f"a{mark}b" for mark in ("\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\r", "\n")]
    for at, text in enumerate(texts):
        with closing(sink_at(path, columns, **({"partition_by": partition} if partition else {}))) as sink:
            assert sink.claim(owner(at), every) == ({"s": at} if at else {})
            rows = pa.Table.from_pylist([{"id": at, "v": text}], to_arrow(columns))
            assert sink.commit(owner(at), span(at, at + 1), rows) is True
    found = sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [row["v"] for row in found] == texts


def test_files_of_rows_and_their_commit_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the directories of partitions, whose names are escaped twice in a commit."""
    synced, path = list[Path](), tmp_path / "t"
    sync = new_files.sync

    def recorded(file: Path) -> None:
        sync(file)
        synced.append(file)

    with closing(sink_at(path, partition_by="b")) as sink:
        sink.claim(owner(1), every)
        monkeypatch.setattr(delta_offsets, "sync", recorded)
        sink.commit(owner(1), span(0, 1), pa.table({"a": pa.array([1], pa.int32()), "b": ["p q/é%"]}))
    assert read(path) == [1]
    (file,) = path.glob("b=*/*.parquet")
    commit = max((path / "_delta_log").glob("*.json"))
    assert [found for found in synced if found in (file, file.parent, commit, commit.parent)] == [
        *(file, file.parent, commit, commit.parent)
    ]


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for use in (lambda: sink_at(tmp_path / "t"), lambda: offsets_at(tmp_path / "t")):
        with pytest.raises(ConfigError) as error:
            use()
        assert str(error.value) == (
            "delta: got 'no package deltalake'; allowed: pip install 'connectgroup[delta]' on each worker"
        )


def test_batch_gives_up_after_the_busy_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    monkeypatch.setattr(delta_offsets, "_MAX_PAUSE_S", 0.0)
    with closing(sink_at(path)) as other:
        other.claim(owner(1), every)
        end = 0

        def write_late(table: DeltaTable, properties: CommitProperties) -> None:
            nonlocal end
            other.commit(owner(1), span(end, end + 1, "other"), rows(end))
            end += 1
            writer(99)(table, properties)

        with closing(DeltaOffsets(path, busy_timeout_s=0)) as offsets, pytest.raises(SinkError) as error:
            offsets.commit(owner(1), span(0, 1), write_late)
        assert "other writers committed first for more than 0 s" in str(error.value)
        assert "\n" not in str(error.value)
    assert read(path) == [*range(end)]


def test_pipeline_from_files_to_a_table_survives_a_change_of_owners(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "delta")
    bench.write("one.csv", range(10))
    first = bench.start(1)
    first.wait(lambda: sum(first.rows) == 10)
    second = bench.start(2)
    bench.write("two.csv", range(10, 20))
    second.wait(lambda: sum(second.rows) == 10)
    assert isinstance(first.failure(), TaskFenced)
    for run in (first, second):
        run.task.stop()
    assert read(bench.output) == [*range(20)]
