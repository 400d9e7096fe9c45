"""``python -m tests.mutation``: all planted faults that tests must detect, and a sample of the generated mutants.

    python -m tests.mutation                     all faults, and a sample of the generated mutants
    python -m tests.mutation --all               all faults, and all generated mutants
    python -m tests.mutation lease group/delay   only those with one of these words in their name or address
    python -m tests.mutation --list              their names

The exit code is 0 only if every fault and ``MIN_PERCENT`` of the generated mutants are killed. A hang counts as
killed. Generated mutants on the list of equivalent ones (``accepted``) are left out. The other survivors are printed:
each is equivalent, or a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .accepted import is_accepted
from .fault import ROOT
from .faults import FAULTS
from .generated import PACKAGES, Generated, generated
from .runner import Copies, Mutant, Unusable, Verdict, check_green, judge_all, ordered, record

SAMPLE = 400
SEED = 1
MIN_PERCENT = 85


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    faults = [fault for fault in FAULTS if fault.tests and _chosen(f"{fault.target} {fault.name}", options.words)]
    candidates = [each for package in PACKAGES for each in generated(package)] if options.generated else []
    candidates = [
        each for each in candidates if not is_accepted(each) and _chosen(f"{each.target} {each.name}", options.words)
    ]
    if not options.all and len(candidates) > options.sample:
        candidates = sorted(random.Random(options.seed).sample(candidates, options.sample), key=lambda each: each.name)
    if options.list:
        print("\n".join([*(f"{fault.target}: {fault.name}" for fault in faults), *(each.name for each in candidates)]))
        return 0
    if not faults and not candidates:
        print(f"no fault or mutant has one of {options.words} in its name or address; see --list", file=sys.stderr)
        return 2
    mutants = [
        Mutant(
            name=f"{fault.target}: {fault.name}",
            path=fault.path,
            source=ast.unparse(fault.applied((ROOT / fault.path).read_text(encoding="utf-8"))),
            tests=tuple(fault.tests.split()),
        )
        for fault in faults
    ]
    start_s = time.monotonic()
    try:
        targets = [fault.target for fault in faults] + [each.target for each in candidates]
        verdicts = asyncio.run(
            _run(mutants, candidates, {target.partition(":")[0] for target in targets}, options.jobs)
        )
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; the copies were removed", file=sys.stderr)
        return 130
    print(f"{time.monotonic() - start_s:.0f} s")
    return 0 if all([_report("faults", verdicts, 100), _report("generated", verdicts, MIN_PERCENT)]) else 1


def _report(kind: str, verdicts: Sequence[Verdict], min_percent: float) -> bool:
    """Print the survivors and the count; returns whether enough were killed."""
    judged = [verdict for verdict in verdicts if verdict.mutant.generated == (kind == "generated")]
    missed = sorted((verdict for verdict in judged if not verdict.killed_by), key=lambda verdict: verdict.mutant.name)
    for verdict in missed:
        print(f"{verdict.unusable or 'survived'}: {verdict.mutant.name}")
    killed = len(judged) - len(missed)
    print(f"{kind}: killed={killed} total={len(judged)} (required: {min_percent:g} %)")
    return 100 * killed >= min_percent * len(judged)


async def _run(mutants: list[Mutant], candidates: list[Generated], modules: set[str], jobs: int) -> list[Verdict]:
    whole_run = asyncio.current_task()
    assert whole_run is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, whole_run.cancel)
    packages = {
        package: tests for package, tests in PACKAGES.items() if any(_is_in(each, package) for each in candidates)
    }
    paths = {mutant.path for mutant in mutants} | {each.path for each in candidates}
    plain = {path: ast.unparse(ast.parse((ROOT / path).read_text(encoding="utf-8"))) for path in paths}
    async with Copies(jobs, plain, modules) as copies:
        print(
            f"{len(mutants)} faults and {len(candidates)} generated; first, their tests on the unchanged product",
            flush=True,
        )
        seconds = await check_green({" ".join(mutant.tests) for mutant in mutants}, copies.whole, jobs=jobs)
        for package, tests in packages.items():
            recorded = await record(package, tests, copies.whole)
            seconds |= recorded["seconds"]
            mutants += [
                Mutant(
                    name=each.name,
                    path=each.path,
                    source=each.source,
                    tests=_tests_of(each, tests, recorded, copies.whole),
                    generated=True,
                )
                for each in candidates
                if _is_in(each, package)
            ]
        await copies.start()
        number = 0

        def on_verdict(verdict: Verdict) -> None:
            nonlocal number
            number += 1
            end = f"killed by {verdict.killed_by}" if verdict.killed_by else "SURVIVED"
            end = f"UNUSABLE: {verdict.unusable}" if verdict.unusable else end
            print(f"[{number}/{len(mutants)}] {verdict.mutant.name}: {end} ({verdict.seconds:.1f} s)", flush=True)

        return await judge_all(copies, [ordered(mutant, seconds) for mutant in mutants], on_verdict)


def _is_in(each: Generated, package: str) -> bool:
    return each.path.is_relative_to(package)


def _tests_of(each: Generated, tests: Sequence[str], recorded: dict[str, Any], tree: Path) -> tuple[str, ...]:
    """The tests that run the line; all tests of the package if an import runs it."""
    found = recorded["lines"].get(str(tree / each.path), {}).get(str(each.plain_line), [])
    return tuple(tests) if "" in found else tuple(found)


def _chosen(text: str, words: Sequence[str]) -> bool:
    return not words or any(word.lower() in text.lower() for word in words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="break the product on purpose")
    parser.add_argument("words", nargs="*", help="only those with one of these in their name or address")
    parser.add_argument("--list", action="store_true", help="only print their names")
    parser.add_argument("--all", action="store_true", help="all generated mutants, not a sample")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"generated mutants to run (default {SAMPLE})")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the sample")
    parser.add_argument("--faults", dest="generated", action="store_false", help="no generated mutants")
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel runs (default 2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
