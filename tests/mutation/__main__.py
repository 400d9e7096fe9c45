"""``python -m tests.mutation``: plant each fault in the product, one at a time; one of the fault's tests must fail.

    python -m tests.mutation                     all faults
    python -m tests.mutation lease group/delay   only those with one of these words in their name, address or tests
    python -m tests.mutation --list              their names

Each fault has a process of its own, in which it is planted before the tests are imported, and so have the processes
that these tests start. Afterwards the tests that have failed must pass without a fault.

The exit code is 0 only if every fault is killed: a test fails or hangs. Each survivor is equivalent to the product, or
a test is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

import pytest

from .fault import ROOT, Fault
from .faults import FAULTS

PRELOADED = (
    *("hypothesis.strategies", "numpy", "opentelemetry.sdk.trace", "pydantic", "tenacity"),
    *("pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin"),
)
"""Imported before the forks: slow, and never changed. Each fork imports the product itself."""

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0", "--timeout=90")
ENVIRONMENT = {"TEST_VOLUME": "ci", "FUZZ_INPUTS": "2000"}
"""The first few inputs of the fuzz tests kill the same faults as all of them."""

SITE = """from tests.mutation.faults import FAULTS
planted = FAULTS[{}].planted()
planted.__enter__()
"""
"""What the Python processes that a test starts run first."""

LIMIT_S = 3600.0
"""Of the tests of one fault."""


class Planting:
    """A plug-in of pytest: the fault is there before the tests are imported; the last test is written to a file."""

    def __init__(self, fault: Fault | None, last: Path) -> None:
        self._planted = contextlib.nullcontext() if fault is None else fault.planted()
        self._last = last

    def pytest_sessionstart(self) -> None:
        self._planted.__enter__()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._last.write_text(nodeid, encoding="utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._last.write_text(report.nodeid, encoding="utf-8")


@dataclass(eq=False)
class Run:
    """The tests of a fault, or without a fault, in a process of their own; ``folder`` has its output and files."""

    fault: Fault | None
    tests: Sequence[str]
    folder: Path
    process: ForkProcess = field(init=False)
    started_s: float = field(init=False)

    def start(self) -> None:
        self.folder.mkdir()
        self.process = multiprocessing.get_context("fork").Process(target=self._test)
        self.started_s = time.monotonic()
        self.process.start()

    def _test(self) -> None:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ |= ENVIRONMENT
        to = os.open(self.folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(to, 1)
        os.dup2(to, 2)
        if self.fault is not None:
            (self.folder / "sitecustomize.py").write_text(SITE.format(FAULTS.index(self.fault)))
            os.environ["PYTHONPATH"] = f"{self.folder}{os.pathsep}{ROOT}"
        plugin = Planting(self.fault, self.folder / "last")
        code = pytest.main([*OPTIONS, "--basetemp", str(self.folder / "t"), *self.tests], [plugin])
        sys.stdout.flush()
        os._exit(code)

    @property
    def left_s(self) -> float:
        """Seconds until the run counts as hanging."""
        return self.started_s + LIMIT_S - time.monotonic()

    def end(self) -> None:
        """End the process and those that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()

    @property
    def output(self) -> str:
        """What pytest has printed."""
        return (self.folder / "output").read_text(encoding="utf-8", errors="replace")

    def failed(self) -> str:
        """The test that has failed or hangs; empty: all have passed.

        Raises:
            ValueError: the run proves nothing: no test has run.
        """
        last = self.folder / "last"
        if self.process.exitcode == 0:
            return ""
        if last.exists():
            return last.read_text(encoding="utf-8")
        raise ValueError(f"exit code {self.process.exitcode}: {' | '.join(self.output.strip().splitlines()[-3:])}")


def ended(runs: Sequence[Run], jobs: int) -> Iterator[Run]:
    """Start these runs, ``jobs`` at a time, and return each when it has ended."""
    waiting, running = list(reversed(runs)), list[Run]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.pop())
                running[-1].start()
            wait([run.process.sentinel for run in running], timeout=max(0.0, min(run.left_s for run in running)))
            for run in [each for each in running if each.process.exitcode is not None or each.left_s <= 0]:
                running.remove(run)
                run.end()
                yield run
    finally:
        for run in running:
            run.end()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="break the product on purpose")
    parser.add_argument("words", nargs="*", help="only faults with one of these in their name, address or tests")
    parser.add_argument("--list", action="store_true", help="only print their names")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs (default 2)")
    options = parser.parse_args(arguments)
    words = [word.lower() for word in options.words]
    text = {fault: f"{fault.target}: {fault.name}" for fault in FAULTS if fault.tests}
    faults = [
        fault for fault in text if not words or any(each in f"{text[fault]} {fault.tests}".lower() for each in words)
    ]
    if options.list:
        print("\n".join(map(text.__getitem__, faults)))
        return 0
    if not faults:
        print(f"no fault has one of {options.words} in its name, address or tests; see --list", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the forks end as well
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    survivors: list[str] = []
    killers: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder:
        runs = [Run(fault, fault.tests.split(), Path(folder, str(n))) for n, fault in enumerate(faults)]
        for number, run in enumerate(ended(runs, options.jobs), 1):
            assert run.fault is not None
            try:
                killer = run.failed()
                verdict = f"killed by {killer}" if killer else "SURVIVED"
            except ValueError as error:
                killer, verdict = "", f"UNUSABLE: {error}"
            if killer:
                killers.add(killer)
            else:
                survivors.append(f"{verdict}: {text[run.fault]}")
            seconds = time.monotonic() - run.started_s
            print(f"[{number}/{len(runs)}] {text[run.fault]}: {verdict} ({seconds:.1f} s)", flush=True)
        without = Run(None, sorted(killers), Path(folder, "without"))
        for run in ended([without] if without.tests else [], 1):
            if run.process.exitcode != 0:
                print(f"without a fault, a test that has found one fails too:\n{run.output[-4000:]}", file=sys.stderr)
                return 2
    print("\n".join([*survivors, f"faults: killed={len(faults) - len(survivors)} total={len(faults)}"]))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
