"""The process that forks Spark's Python workers: ``pyspark.daemon``, with the modules that they need already imported.

Spark forks a Python worker for each task that runs at the same time, and each of its workers imports what it needs:
most of a second of processor time, at each start of a task. And after each batch a worker collects garbage, which takes
longer the more it has imported. Here the daemon imports once, and what it has imported is exempt from collection
(``gc.freeze``): workers start and end their batches at once, and share that memory.

Spark itself imports nothing before it forks, because some modules start threads, and a fork copies no threads. The two
threads that these modules would start are disabled: OpenBLAS (numpy) and jemalloc (pyarrow).
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Final

from pyspark import daemon

WITHOUT_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Environment variables. Workers inherit them: they run side by side, one for each core."""

MODULES: Final = (
    "pyarrow",
    "pyspark.worker",
    "connectgroup.spark.sources.files",
    "connectgroup.spark.sources.sliced_reader",
)
"""What each worker and the readers of files import. The modules of databases are left to the workers that need them."""


def preload() -> None:
    """Import what Python workers need, and exempt it from garbage collection."""
    os.environ.update(WITHOUT_THREADS)
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    preload()
    daemon.manager()
