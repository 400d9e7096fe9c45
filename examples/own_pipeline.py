"""Your own source and sink, one file each (``own_source.py``, ``own_sink.py``), run by two workers.

While rows flow, the tasks of one worker move to the other one. At the end every reading is counted: it must be in the
sink once.

    python examples/own_pipeline.py [--readings 20000]
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from connectgroup import sync

SENSORS = 6
PATIENCE_S = 120.0
ENTRY_POINTS = """
[connectgroup.sources]
sensors = own_source:SensorSource
[connectgroup.sinks]
journal = own_sink:JournalSink
"""


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pipeline; return 0 if every reading is in the sink exactly once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readings", type=int, default=20_000)
    readings: int = parser.parse_args(arguments).readings
    with tempfile.TemporaryDirectory(prefix="own-pipeline-") as scratch:
        install(Path(scratch, "site"))
        from own_sink import read_committed

        sink = Path(scratch, "readings.txt")
        connector = {
            "connector.class": "pipeline",
            "tasks.max": 3,
            "source": "sensors",
            "source.sensors": SENSORS,
            "source.readings": readings,
            "sink": "journal",
            "sink.path": str(sink),
            "trigger.ms": 50,
        }
        print("starting two workers ...")
        give_up_at = time.monotonic() + PATIENCE_S
        with sync.worker_group("example", workers=2, connectors={"readings": connector}) as group:
            group.wait_stable(timeout_s=PATIENCE_S)
            group.stop_worker("worker-1")
            print(f"worker-1 has left after {len(read_committed(sink)):,} rows; worker-2 continues")
            while len(read_committed(sink)) < SENSORS * readings and time.monotonic() < give_up_at:
                time.sleep(0.1)
        return check(read_committed(sink), readings)


def install(site: Path) -> None:
    """Make the plug-ins known to this process; stands for ``pip install`` of a distribution with these entry points."""
    information = site / "own_plugins-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-plugins\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path[:0] = [str(site), str(Path(__file__).parent)]
    importlib.invalidate_caches()


def check(lines: Sequence[str], readings: int) -> int:
    """Compare the lines of the sink with the readings of the service."""
    from own_source import reading

    expected = Counter(
        "\t".join(map(str, reading(f"sensor-{sensor}", number).values()))
        for sensor in range(SENSORS)
        for number in range(readings)
    )
    found = Counter(lines)
    lost, doubled = (expected - found).total(), (found - expected).total()
    print(f"{expected.total():,} readings, {found.total():,} rows")
    print(f"{lost} lost, {doubled} duplicated: {'FAILED' if lost or doubled else 'OK'}")
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
