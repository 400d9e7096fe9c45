"""Memory of a worker while it moves many bytes: lines of text to Parquet files, with the memory printed over time.

    python benchmarks/memory.py [--gigabytes 10] [--every-s 10]

The worker is this process with Spark's processes. Flat means: the last tenth of the samples is not above the largest
of the first half by more than a tenth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    # Run as a script from any directory: the modules next to this file are imported as benchmarks.NAME.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.pipelines import MEGABYTE, RECORD_BYTES, run_pipeline, value, worker_cpu_s, worker_rss_mb
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.spark.session import stop_session

FILE_BYTES: Final = 1 << 30


def written(path: Path) -> int:
    """Write the input; return its number of rows."""
    rows = FILE_BYTES // (RECORD_BYTES + 1)
    with path.open("w") as file:
        for begin in range(0, rows, 10_000):
            file.write("".join(value(number) + "\n" for number in range(begin, min(rows, begin + 10_000))))
    return rows


def is_flat(samples: Sequence[float]) -> bool:
    """Whether the memory has stopped to grow."""
    first, last = samples[: max(1, len(samples) // 2)], samples[-max(1, len(samples) // 10) :]
    return statistics.median(last) <= 1.1 * max(first)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a line for each sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=int, default=10, help="gigabytes of input (10)")
    parser.add_argument("--every-s", type=float, default=10, help="seconds between two samples (10)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="connectgroup-memory-") as scratch:
        source = Path(scratch, "in")
        source.mkdir()
        rows = written(source / "0.txt")
        for number in range(1, options.gigabytes):
            shutil.copyfile(source / "0.txt", source / f"{number}.txt")
        PipelineConnector.warm_up()
        samples, ended = [worker_rss_mb()], threading.Event()
        began, cpu = time.monotonic(), worker_cpu_s()

        def watch() -> None:
            while not ended.wait(options.every_s):
                samples.append(worker_rss_mb())
                moved = sum(f.stat().st_size for f in Path(scratch).glob("out/*.parquet")) / MEGABYTE
                passed, load = time.monotonic() - began, os.getloadavg()[0]
                print(
                    f"{passed:6.0f} s  {samples[-1]:6,.0f} MB  {moved:6,.0f} MB in the sink  load {load:.1f}",
                    flush=True,
                )

        watcher = threading.Thread(target=watch)
        watcher.start()
        config = {"source": "files", "source.path": str(source), "source.format": "text"}
        try:
            run_pipeline(config | {"sink": "parquet", "sink.path": f"{scratch}/out"}, rows * options.gigabytes, 36_000)
            passed, used = time.monotonic() - began, worker_cpu_s() - cpu
        finally:
            ended.set()
            watcher.join()
            stop_session()
    total = rows * options.gigabytes
    print(f"{total:,} rows, {options.gigabytes} GB in {passed:,.0f} s: {total / passed:,.0f} rows/s,"
          f" {used / total * 1e6:.1f} CPU s per million rows")  # fmt: skip
    shown = "flat" if is_flat(samples) else "GROWS"
    print(
        f"memory: {samples[0]:,.0f} MB warm, {max(samples):,.0f} MB at most, {samples[-1]:,.0f} MB at the end: {shown}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
