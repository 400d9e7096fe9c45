"""The process that forks Spark's Python workers, and what they inherit from it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from connectgroup.spark.python_daemon import MODULES
from connectgroup.spark.session import spark_session

PRELOAD = """
import gc, os
from connectgroup.spark.python_daemon import preload
preload()
print(len(os.listdir("/proc/self/task")), len(gc.get_objects()) < 1_000 < gc.get_freeze_count())
"""


def test_daemon_has_one_thread_when_it_forks_and_its_objects_are_never_collected() -> None:
    """A fork copies no threads: a lock that another thread holds would never be released in a worker."""
    ran = subprocess.run([sys.executable, "-c", PRELOAD], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1", "True"]


def test_workers_of_a_session_are_forked_with_the_modules_that_they_need(spark: None) -> None:
    def imported(batches: Iterator[Any]) -> Iterator[Any]:
        from sys import modules

        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": [name for name in MODULES if name in modules]})

    rows = spark_session().range(1).mapInArrow(imported, "name string").collect()
    assert {row.name for row in rows} == {*MODULES}
