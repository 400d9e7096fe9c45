"""Change the product in one piece of code at a time, and check that the tests detect it.

The working tree is never changed: each worker has a copy of the tree below the system's temporary directory, in which
one file at a time is changed, and a server (``server``) that runs pytest there. Before that the same tests must pass
on a copy in which the files to be changed are already written as ``ast.unparse`` writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .fault import ROOT

PARTS = (
    *("assignors", "benchmarks", "connectgroup", "examples", "listeners", "tests"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"),
)
"""The content of a copy."""

HANG_S = 10.0
"""A run with a mutant may take this and five times the duration without it; then it hangs."""

GREEN_S = 900.0
CLOSE_S = 5.0
TIMED_OUT = "+ Timeout +"
"""What pytest-timeout prints when it ends the process."""

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0")
ENVIRONMENT = {"TEST_VOLUME": "ci", "FUZZ_INPUTS": "2000", "PYTHONDONTWRITEBYTECODE": "1"}
"""The first few inputs of the fuzz tests kill the same mutants as all of them."""

PATHS = """
import importlib.util, pathlib, sys
for name in sys.argv[1:]:
    print(pathlib.Path(importlib.util.find_spec(name).origin).resolve())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed file and the tests that must fail.

    Attributes:
        name: the name in output.
        path: the file, below the repository.
        source: its changed text.
        tests: paths or ids of pytest, the fastest first; empty: no test runs the line.
        generated: whether a rule generated it.
        limit_s: a run that takes longer hangs.
    """

    name: str
    path: Path
    source: str
    tests: tuple[str, ...]
    generated: bool = False
    limit_s: float = GREEN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a mutant.

    Attributes:
        killed_by: a test's id, or ``timeout``; empty: it survived.
        unusable: why the run proves nothing; empty: the run is valid.
    """

    mutant: Mutant
    killed_by: str = ""
    unusable: str = ""
    seconds: float = 0.0


class Unusable(Exception):
    """The tree cannot be used for a run; the message has the reason."""


class Copies:
    """One unchanged copy of the tree, and one with a server for each worker; removed at the end of the context."""

    def __init__(self, jobs: int, plain: Mapping[Path, str], modules: Iterable[str]) -> None:
        """Create nothing yet.

        Args:
            plain: the files that will be changed, by path below the repository, as ``ast.unparse`` writes them.
            modules: their names.
        """
        self._jobs, self._plain, self._modules = jobs, plain, sorted(set(modules))
        self._folder = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
        self.whole = self._folder / "whole"
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers: list[_Worker] = []

    async def __aenter__(self) -> Copies:
        copy_tree(ROOT, self.whole)
        for path, text in self._plain.items():
            (self.whole / path).write_text(text, encoding="utf-8")
        await check_imports(self.whole, self._modules)
        return self

    async def start(self) -> None:
        """Copy the unchanged tree, with its present bytecode, for each worker."""
        for number in range(self._jobs):
            place = self._folder / f"copy-{number}"
            copy_tree(self.whole, place)
            self._workers.append(_Worker(place))
            await self._workers[-1].start()
            self._idle.put_nowait(self._workers[-1])

    async def judge(self, mutant: Mutant) -> Verdict:
        """Change a copy, run the tests, restore the copy."""
        if not mutant.tests:
            return Verdict(mutant=mutant, unusable="no test runs this line")
        worker = await self._idle.get()
        began = time.monotonic()
        try:
            code, output = await worker.run(mutant)
        finally:
            self._idle.put_nowait(worker)
        seconds = time.monotonic() - began
        if code is None or TIMED_OUT in output:
            return Verdict(mutant=mutant, killed_by="timeout", seconds=seconds)
        if code == 0:
            return Verdict(mutant=mutant, seconds=seconds)
        # A fault at import time ends pytest before any test, which is detected as well.
        culprit = first_failure(output) or ("import" if code in (2, 3, 4) and "Error" in output else "")
        return Verdict(mutant=mutant, killed_by=culprit, unusable="" if culprit else tail(output), seconds=seconds)

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            await worker.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Worker:
    """A copy and its server."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._output = place.with_name(f"{place.name}.txt")
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        self._process = await _python(
            "-P", "-m", "tests.mutation.server", place=self._place, env=ENVIRONMENT, pipes=True
        )

    async def run(self, mutant: Mutant) -> tuple[int | None, str]:
        broken = self._place / mutant.path
        whole = broken.read_text(encoding="utf-8")
        broken.write_text(mutant.source, encoding="utf-8")
        try:
            # Bytecode is compared by time and size; a quick change may have the same of both.
            for compiled in (broken.parent / "__pycache__").glob(f"{broken.stem}.*.pyc"):
                compiled.unlink()
            arguments = [*OPTIONS, "--basetemp", str(self._place / "t"), *mutant.tests]
            order = {"arguments": arguments, "output": str(self._output), "limit_s": mutant.limit_s}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            answer = await self._process.stdout.readline()
            if not answer:
                raise Unusable(f"the server in {self._place} has ended")
            return json.loads(answer), self._output.read_text(encoding="utf-8", errors="replace")
        finally:
            broken.write_text(whole, encoding="utf-8")

    async def close(self) -> None:
        """End the server and its forks."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), CLOSE_S)
        _kill(self._process)
        await self._process.wait()


async def judge_all(copies: Copies, mutants: Sequence[Mutant], on_verdict: Callable[[Verdict], None]) -> list[Verdict]:
    """Judge each mutant, as many in parallel as there are copies."""
    verdicts: list[Verdict] = []

    async def judge(mutant: Mutant) -> None:
        verdicts.append(await copies.judge(mutant))
        on_verdict(verdicts[-1])

    async with asyncio.TaskGroup() as group:
        for mutant in mutants:
            group.create_task(judge(mutant))
    return verdicts


# --------------------------------------------------------------------------------------------------
# Checks on the unchanged tree


async def check_imports(tree: Path, modules: Sequence[str]) -> None:
    """The copy must be imported, and not the working tree, from which the package is installed."""
    process = await _python("-P", "-c", PATHS, *modules, place=tree, env={})
    output, _ = await process.communicate()
    found = output.decode().split()
    if process.returncode != 0 or not all(Path(path).is_relative_to(tree) for path in found):
        raise Unusable(f"the copy {tree} is not imported: {tail(output.decode())}")


async def check_green(selections: Iterable[str], tree: Path, *, jobs: int) -> dict[str, float]:
    """Run every selected test on the unchanged tree; the seconds by test, and by folder (its start).

    Raises:
        Unusable: a test fails.
    """
    turns = asyncio.Semaphore(jobs)
    seconds: dict[str, float] = {}
    faults: list[str] = []
    parts = {part for selection in selections for part in selection.split()}
    folders = sorted({"/".join(part.partition("::")[0].split("/")[:2]) for part in parts})

    async def check(folder: str) -> None:
        chosen = sorted(part for part in parts if is_part_of(part, folder))
        least = [part for part in chosen if not any(part != other and is_part_of(part, other) for other in chosen)]
        options = ("--durations=0", "--durations-min=0", "--basetemp", str(tree.parent / folder.replace("/", "-")))
        async with turns:
            code, output = await pytest(*options, *least, place=tree)
        if code != 0:
            faults.append(f"{' '.join(least)}: fails on the unchanged product: {first_failure(output) or tail(output)}")
        for took_s, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(tests/.+)$", output, re.MULTILINE):
            seconds[test] = seconds.get(test, 0.0) + float(took_s)

    async with asyncio.TaskGroup() as group:
        for folder in folders:
            group.create_task(check(folder))
    if faults:
        raise Unusable("\n".join(faults))
    return seconds


async def record(package: str, tests: Sequence[str], tree: Path) -> dict[str, Any]:
    """Run a package's tests on the unchanged tree, and record which test runs which line: see ``recorder``."""
    place = tree.parent / "record.json"
    environment = {"MUTATION_SOURCES": str(tree / package), "MUTATION_RECORD": str(place)}
    options = ("-p", "tests.mutation.recorder", "--basetemp", str(tree.parent / "recorded"))
    code, output = await pytest(*options, *tests, place=tree, env=environment)
    if code != 0:
        raise Unusable(f"{' '.join(tests)}: fails on the unchanged product: {first_failure(output) or tail(output)}")
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def ordered(mutant: Mutant, seconds: Mapping[str, float]) -> Mutant:
    """The mutant with its tests one by one, the fastest first, and with its time limit."""
    whole = [part for part in mutant.tests if part not in seconds]
    tests = {part for part in mutant.tests if part in seconds}
    tests |= {test for test in seconds if any(is_part_of(test, part) for part in whole)}
    limit_s = HANG_S + 5 * sum(seconds[test] for test in tests)
    return replace(mutant, tests=tuple(sorted(tests, key=lambda test: (seconds[test], test))), limit_s=limit_s)


def is_part_of(test: str, selection: str) -> bool:
    """Whether a folder, file, class or test is selected by a path or id of pytest."""
    return test == selection or test.startswith((f"{selection}/", f"{selection}::", f"{selection}["))


# --------------------------------------------------------------------------------------------------
# Copies and processes


def copy_tree(source: Path, place: Path) -> None:
    """The product and its tests, with the times of their files, so that bytecode stays valid. Links stay links."""
    leave = ["*.egg-info", "demo-data", ".*"]
    if source == ROOT:
        leave.append("__pycache__")
    place.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, place / part, symlinks=True, ignore=shutil.ignore_patterns(*leave))
        elif (source / part).exists():
            shutil.copy2(source / part, place / part)


async def pytest(*arguments: str, place: Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code and the output of a run on the unchanged tree, which leaves its bytecode there."""
    environment = {**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "", **(env or {})}
    process = await _python("-m", "pytest", *OPTIONS, *arguments, place=place, env=environment)
    try:
        async with asyncio.timeout(GREEN_S):
            output, _ = await process.communicate()
    finally:
        _kill(process)
    assert process.returncode is not None
    return process.returncode, output.decode("utf-8", "replace")


async def _python(
    *arguments: str, place: Path, env: Mapping[str, str], pipes: bool = False
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), **env},
        stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=None if pipes else asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def first_failure(output: str) -> str:
    """The id of the first failed test, from pytest's summary."""
    found = re.search(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
    return found.group(1) if found else ""


def tail(output: str) -> str:
    """The end of an output, on one line."""
    return " | ".join(output.strip().splitlines()[-3:])[-400:]
