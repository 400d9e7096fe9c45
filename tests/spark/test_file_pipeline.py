"""The source ``files`` on real Spark, by the settings a user writes."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3

from connectgroup.dataplane.errors import SourceError

from .conftest import Bench, Run


def test_rotated_file_is_read_once_by_a_running_task_and_by_its_successor(bench: Bench) -> None:
    bench.write("log", range(10))
    first = bench.start(1)
    first.wait(lambda: bench.seen() == [*range(10)])
    bench.write("log", range(10, 12), mode="a")
    (bench.input / "log").rename(bench.input / "log.1")
    bench.write("log", range(12, 20))
    first.wait(lambda: bench.seen() == [*range(20)])
    first.task.stop()
    (bench.input / "log.1").rename(bench.input / "log.2")
    (bench.input / "log").rename(bench.input / "log.1")
    bench.write("log", range(20, 25))
    bench.write("log.1", range(25, 30), mode="a")
    second = bench.start(2)
    second.wait(lambda: len(bench.seen()) >= 30)
    assert bench.seen() == [*range(30)]
    second.wait(lambda: sum(second.rows) == 10)


def test_rewritten_file_fails_the_task_until_it_may_be_read_again(table: Bench) -> None:
    table.write("one.csv", range(3))
    run = table.start(1)
    run.wait(lambda: table.seen() == [0, 1, 2])
    table.write("one.csv", range(5, 9))
    error = run.failure()
    assert isinstance(error, SourceError)
    assert str(error) == (
        f"{table.input / 'one.csv'}: was rewritten: it no longer begins with the 28 bytes that were read of it;"
        " allowed: files that only grow (write a new file instead), or source.on.rewrite=read"
    )
    run.task.stop()
    again = table.start(2, source_on_rewrite="read")
    again.wait(lambda: table.seen() == [0, 1, 2, 5, 6, 7, 8])


def test_bad_files_are_put_aside_while_the_others_are_read(table: Bench) -> None:
    (table.input / "header.csv").write_text("x,y\n1,2\n")
    damaged = bytearray(gzip.compress(b"a,b\n" + b"1,x\n" * 5000))
    damaged[20:24] = b"\xff\xff\xff\xff"
    (table.input / "damaged.csv.gz").write_bytes(damaged)
    (table.input / "lost.csv").symlink_to("nowhere")
    (table.input / ".hidden.csv").write_text("a,b\n100,x\n")
    (table.input / "whole.csv.gz").write_bytes(gzip.compress(b"a,b\n7,x\n8,y"))
    table.write("good.csv", range(5))
    with (table.input / "good.csv").open("a") as file:
        file.write("5,last")
    os.utime(table.input / "good.csv", (1, 1))
    run = table.start(1, errors_tolerance="all", errors_deadletterqueue_name="dead", source_final_newline="accept")
    run.wait(lambda: table.seen() == [0, 1, 2, 3, 4, 5, 7, 8])
    with sqlite3.connect(table.output) as connection:
        places = [place for (place,) in connection.execute("SELECT place FROM dead ORDER BY place")]
    assert [place.partition(",")[0] for place in places] == [
        str(table.input / "damaged.csv.gz"),
        str(table.input / "header.csv"),
    ]
    run.wait(lambda: bool(run.lags))
    assert (run.lags[-1].unreadable_files, run.lags[-1].skipped_files) == (1, 1)


def test_columns_of_a_header_are_taken_once_and_stored_with_the_offsets(table: Bench) -> None:
    def start(epoch: int, drift: str, evolve: str = "false") -> Run:
        return table.start(
            epoch,
            source="files",
            source_path=str(table.input),
            source_format="csv",
            source_schema_drift=drift,
            sink_auto_evolve=evolve,
        )

    (table.input / "a.csv").write_text("a,`b\n1,x\n")
    first = start(1, "ignore")
    first.wait(lambda: sum(first.rows) == 1)
    first.task.stop()
    (table.input / "a.csv").unlink()
    (table.input / "b.csv").write_text("more,a\nz,2\n")
    second = start(2, "ignore")
    second.wait(lambda: sum(second.rows) == 1)
    second.task.stop()
    third = start(3, "evolve", "true")
    third.wait(lambda: bool(third.polls))
    table.input.joinpath("c.csv").write_text("new,a\n9,3\n")
    assert str(third.failure()).endswith("c.csv: has the new columns new; allowed: the task starts again and adds them")
    third.task.stop()
    last = start(3, "evolve", "true")
    last.wait(lambda: sum(last.rows) == 1)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT a, new FROM t WHERE a = '3'").fetchall() == [("3", "9")]
    with sqlite3.connect(table.output) as connection:
        assert connection.execute('SELECT a, "`b" FROM t WHERE a < 3 ORDER BY a').fetchall() == [
            ("1", "x"),
            ("2", None),
        ]


def test_new_fields_of_json_lines_become_columns_when_the_task_starts_again(table: Bench) -> None:
    """Also fields far behind the beginning of a file, and those of a file that was renamed."""

    def start(epoch: int) -> Run:
        return table.start(
            epoch,
            source="files",
            source_path=str(table.input),
            source_format="jsonl",
            source_schema_drift="evolve",
            sink_auto_evolve="true",
        )

    lines = "".join(json.dumps({"a": n, "filler": "x" * 1000}) + "\n" for n in range(3000))
    (table.input / "f.jsonl").write_text(lines)
    first = start(1)
    first.wait(lambda: sum(first.rows) == 3000)
    (table.input / "f.jsonl").rename(table.input / "g.jsonl")
    with (table.input / "g.jsonl").open("a") as file:
        file.write('{"a": 3000, "": 2}\n{"a": 3001, "New": {"x": 1}, "n": 0.5}\n')
    error = str(first.failure())
    assert error.endswith("g.jsonl: has the new fields New, n; allowed: the task starts again and adds them"), error
    first.task.stop()
    second = start(2)
    second.wait(lambda: sum(second.rows) == 2)
    second.task.stop()
    third = start(3)  # The columns are stored, also if no file has them.
    (table.input / "h.jsonl").write_text('{"a": 3002}\n')
    third.wait(lambda: sum(third.rows) == 1)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT a) FROM t").fetchone() == (3003, 3003)
        assert connection.execute("SELECT a, New, n FROM t WHERE a >= 3000").fetchall() == [
            (3000, None, None),
            (3001, '{"x":1}', 0.5),
            (3002, None, None),
        ]


def test_decimals_pass_through_spark_and_a_transform_with_all_their_digits(table: Bench) -> None:
    texts = ["19.9000000000", "-12345678901234567890.1234567890", "0.0000000001"]
    (table.input / "one.csv").write_text(
        "a,d\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)) + "9,1e-11\n"
    )
    run = table.start(
        1,
        source_schema="a INT, d DECIMAL(30,10)",
        transforms="k",
        transforms_k_type="InsertField",
        transforms_k_static_field="k",
        transforms_k_static_value="v",
        errors_tolerance="all",
        errors_deadletterqueue_name="dead",
    )
    run.wait(lambda: sum(run.rows) == 3)
    with sqlite3.connect(table.output) as connection:
        assert connection.execute("SELECT d, typeof(d), k FROM t ORDER BY a").fetchall() == [
            (text, "text", "v") for text in texts
        ]
        ((reason,),) = connection.execute("SELECT reason FROM dead").fetchall()
    assert reason == "d is '1e-11'; allowed: DECIMAL(30,10) or null"
