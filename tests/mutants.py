"""Break the product on purpose, in many small ways, and see the suite notice each.

    python tests/mutants.py                      all of them
    python tests/mutants.py lease "torn tail"    those whose name or file has one of these words in it
    python tests/mutants.py --list               their names

A line a breakage: which test noticed, or SURVIVED, and how long that took. The last line is ``killed=K total=T``; the
exit code is 0 only where the two are equal. A hang counts as noticed.

The working tree is never touched: each breakage is made in a copy of its own below the system's temporary directory,
which is what the tests then import. Before anything is broken, the same tests must pass on an unbroken copy.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Run as a script from anywhere: the breakages beside this file, not those of an installed tree.
sys.path.insert(0, str(ROOT))

from tests.mutations import ALL  # noqa: E402
from tests.mutations.mutant import Mutant  # noqa: E402

TEMPORARY = Path(tempfile.gettempdir()).resolve()

PARTS = (
    *("assignors", "benchmarks", "connectgroup", "examples", "listeners", "tests"),
    *("pyproject.toml", "README.md", "Makefile"),
)
"""What a copy consists of."""

HANG_S = 10.0
"""A broken run may take this and five times what the unbroken one took; then it hangs."""

GREEN_S = 600.0
"""An unbroken run may take this."""

TIMED_OUT = "+ Timeout +"
"""What pytest-timeout says when it ends the process."""

PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0")


WHERE = """
import connectgroup.assignors, tests.mutations, pathlib
for module in connectgroup, tests:
    print(pathlib.Path(module.__file__).parents[1])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one breakage.

    Attributes:
        noticed_by: a test's id, or ``timeout``; empty: nobody noticed.
        unusable: why the breakage says nothing about the tests; empty: it does.
    """

    mutant: Mutant
    noticed_by: str = ""
    unusable: str = ""
    seconds: float = 0.0


class Unusable(Exception):
    """The list or the tree is not fit for a run; says which and why."""


async def judge_all(mutants: Sequence[Mutant], *, jobs: int) -> list[Verdict]:
    """Judge each in a copy of its own, at most ``jobs`` at a time, and print a line for each.

    Raises:
        Unusable: before anything is broken: the list is out of date, or a selection fails as it is.
    """
    turns = asyncio.Semaphore(jobs)
    verdicts: list[Verdict] = []
    if (whole_run := asyncio.current_task()) is not None:
        # As Ctrl-C: whoever asks us to end, the copies go.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, whole_run.cancel)
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=TEMPORARY, ignore_cleanup_errors=True) as folder:
        whole = Path(folder) / "whole"
        copy_tree(ROOT, whole)
        check_list(mutants, whole)
        await check_imports(whole)
        print(f"{len(mutants)} breakages; first, their tests on what is not broken", flush=True)
        limits = await check_green(mutants, whole, jobs=jobs)

        async def judge_one(number: int, mutant: Mutant) -> None:
            async with turns:
                verdict = await judge(mutant, whole, Path(folder) / f"copy-{number}", limit_s=limits[mutant.tests])
            verdicts.append(verdict)
            print(line(len(verdicts), len(mutants), verdict), flush=True)

        async with asyncio.TaskGroup() as group:
            for number, mutant in enumerate(mutants):
                group.create_task(judge_one(number, mutant))
    return verdicts


async def judge(mutant: Mutant, whole: Path, place: Path, *, limit_s: float) -> Verdict:
    """Break a copy of ``whole`` at ``place`` and run the tests that should notice."""
    began = time.monotonic()
    try:
        copy_tree(whole, place)  # not in a thread: that would go on when this is cancelled
        broken = place / mutant.file
        broken.write_text(mutant.applied(broken.read_text(encoding="utf-8")), encoding="utf-8")
        # Bytecode is told to be out of date by time and size; a breakage made at once may change neither.
        for compiled in (broken.parent / "__pycache__").glob(f"{broken.stem}.*.pyc"):
            compiled.unlink()
        tests = ("--basetemp", str(place / "t"), *mutant.tests.split())
        code, output = await python(*PYTEST, *tests, place=place, limit_s=limit_s)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    seconds = time.monotonic() - began
    if code is None or TIMED_OUT in output:
        return Verdict(mutant=mutant, noticed_by="timeout", seconds=seconds)
    if code == 0:
        return Verdict(mutant=mutant, seconds=seconds)
    culprit = first_failure(output)
    if code != 1 or not culprit:
        return Verdict(mutant=mutant, unusable=tail(output), seconds=seconds)
    return Verdict(mutant=mutant, noticed_by=culprit, seconds=seconds)


# --------------------------------------------------------------------------------------------------
# Before anything is broken


def check_list(mutants: Iterable[Mutant], tree: Path) -> None:
    """Each breakage has its place in the tree, once, and leaves a file that compiles."""
    faults = []
    for mutant in mutants:
        try:
            ast.parse(mutant.applied((tree / mutant.file).read_text(encoding="utf-8")))
        except (ValueError, OSError) as error:
            faults.append(str(error))
        except SyntaxError as error:
            faults.append(f"mutant {mutant.name!r}: {mutant.file} would not compile: {error}")
    if faults:
        raise Unusable("\n".join(faults))


async def check_imports(tree: Path) -> None:
    """What is imported is the copy: the package is installed from the working tree, and that must not win."""
    code, output = await python("-c", WHERE, place=tree)
    if code != 0 or set(output.split()) != {str(tree)}:
        raise Unusable(f"the copy {tree} is not what is imported: {tail(output)}")


async def check_green(mutants: Iterable[Mutant], tree: Path, *, jobs: int) -> dict[str, float]:
    """Every selection passes on an unbroken tree; how long each may take on a broken one before it hangs.

    One run a folder, and not one a selection: starting Python a hundred times takes longer than most of the tests.
    """
    turns = asyncio.Semaphore(jobs)
    seconds: dict[str, float] = {}
    slowest_start_s = 0.0
    faults = []
    selections = {mutant.tests for mutant in mutants}
    parts = {part for selection in selections for part in selection.split()}
    folders = sorted({"/".join(part.partition("::")[0].split("/")[:2]) for part in parts})

    async def check(folder: str) -> None:
        nonlocal slowest_start_s
        chosen = sorted(part for part in parts if is_part_of(part, folder))
        least = [part for part in chosen if not any(part != other and is_part_of(part, other) for other in chosen)]
        options = ("--durations=0", "--basetemp", str(tree.parent / folder.replace("/", "-")))
        async with turns:
            began = time.monotonic()
            code, output = await python(*PYTEST, *options, *least, place=tree, limit_s=GREEN_S, keep_bytecode=True)
        if code != 0:
            faults.append(f"{' '.join(least)}: fails with nothing broken: {first_failure(output) or tail(output)}")
        found = re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(tests/.+)$", output, re.MULTILINE)
        for took_s, test in found:
            seconds[test] = seconds.get(test, 0.0) + float(took_s)
        start_s = time.monotonic() - began - sum(float(took_s) for took_s, _ in found)
        slowest_start_s = max(slowest_start_s, start_s)

    async with asyncio.TaskGroup() as group:
        for folder in folders:
            group.create_task(check(folder))
    if faults:
        raise Unusable("\n".join(faults))
    return {
        selection: HANG_S
        + 5 * slowest_start_s
        + 5 * sum(s for test, s in seconds.items() if any(is_part_of(test, part) for part in selection.split()))
        for selection in selections
    }


def is_part_of(test: str, selection: str) -> bool:
    """Whether a folder, file, class or test is among what a path or id of pytest's selects."""
    return test == selection or test.startswith((f"{selection}/", f"{selection}::", f"{selection}["))


# --------------------------------------------------------------------------------------------------
# Copies and processes


def copy_tree(source: Path, place: Path) -> None:
    """The product and its tests, with the times of their files, so that bytecode stays good."""
    leave = ["*.egg-info", "demo-data", ".*"]
    if source == ROOT:
        leave.append("__pycache__")
    place.mkdir()
    for part in PARTS:
        if (source / part).is_dir():
            shutil.copytree(source / part, place / part, symlinks=True, ignore=shutil.ignore_patterns(*leave))
        elif (source / part).exists():
            shutil.copy2(source / part, place / part)


async def python(
    *arguments: str, place: Path, limit_s: float = GREEN_S, keep_bytecode: bool = False
) -> tuple[int | None, str]:
    """Run Python in a copy; the exit code, ``None`` if it hung, and all it said. Nothing it started outlives this."""
    environment = {**os.environ, "PYTHONPATH": str(place)}
    if not keep_bytecode:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=place,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return process.returncode, output.decode("utf-8", "replace")


def first_failure(output: str) -> str:
    """The id of the first test that failed, out of pytest's summary."""
    found = re.search(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
    return found.group(1) if found else ""


def tail(output: str) -> str:
    """The last words, on one line."""
    return " | ".join(output.strip().splitlines()[-3:])[-400:]


# --------------------------------------------------------------------------------------------------


def line(number: int, total: int, verdict: Verdict) -> str:
    """A verdict for people."""
    said = f"killed by {verdict.noticed_by}" if verdict.noticed_by else "SURVIVED"
    if verdict.unusable:
        said = f"UNUSABLE: {verdict.unusable}"
    return f"[{number}/{total}] {verdict.mutant.file}: {verdict.mutant.name}: {said} ({verdict.seconds:.1f} s)"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="break the product on purpose and see the suite notice")
    parser.add_argument("words", nargs="*", help="only those whose name or file has one of these in it")
    parser.add_argument("--list", action="store_true", help="only say their names")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="how many at a time (default 2)")
    chosen = parser.parse_args(arguments)
    words = [word.lower() for word in chosen.words]
    mutants = [m for m in ALL if not words or any(word in f"{m.file} {m.name}".lower() for word in words)]
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.file}: {mutant.name}")
        return 0
    if not mutants:
        print(f"no breakage has one of {chosen.words} in its name; see --list", file=sys.stderr)
        return 2
    began = time.monotonic()
    try:
        verdicts = asyncio.run(judge_all(mutants, jobs=chosen.jobs))
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; the copies are gone", file=sys.stderr)
        return 130
    missed = [verdict for verdict in verdicts if not verdict.noticed_by]
    print(f"{time.monotonic() - began:.0f} s")
    for verdict in missed:
        print(f"{'unusable' if verdict.unusable else 'survived'}: {verdict.mutant.file}: {verdict.mutant.name}")
    print(f"killed={len(verdicts) - len(missed)} total={len(verdicts)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
