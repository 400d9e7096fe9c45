"""Runs pytest repeatedly in one copy of the tree, each time in a new fork: ``python -m tests.mutation.server``.

Packages that are slow to import and never changed (pytest, hypothesis, numpy) are imported once. Each fork imports the
product itself, so that a fault at import time is detected as well. One JSON line in is one run, one line out is its
result.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time

import pytest

PRELOADED = (
    *("asyncio", "hypothesis.strategies", "numpy", "opentelemetry.sdk.trace", "pydantic", "tenacity"),
    *("pytest_asyncio.plugin", "pytest_timeout", "xdist.plugin"),
)
POLL_S = 0.01


def main() -> None:
    """Serve until standard input ends."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    ours = [name for name in sys.modules if name.startswith(("connectgroup", "assignors", "listeners"))]
    assert not ours, f"imported before the fork: {ours}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fork ends as well
    for line in sys.stdin:
        order = json.loads(line)
        code = run(order["arguments"], order["output"], order["limit_s"])
        print(json.dumps(code), flush=True)


def run(arguments: list[str], output: str, limit_s: float) -> int | None:
    """The exit code of pytest, or ``None`` after the time limit. All its child processes are ended."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor, to in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (out, 2)):
            os.dup2(descriptor, to)
        code = 3
        try:
            code = int(pytest.main(arguments))
            sys.stdout.flush()
        finally:
            os._exit(code)
    ends = time.monotonic() + limit_s
    try:
        while time.monotonic() < ends:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(POLL_S)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
