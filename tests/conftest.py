"""Rules for all tests: no skips in CI, and the order of the tests in two processes."""

from __future__ import annotations

import os
from collections.abc import Generator
from operator import itemgetter
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that cannot run gives the reason and is skipped; where CI=true, it fails."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: nothing may be skipped under CI=true: {reason}"
    return report


SHARED_FIXTURES = {"broker", "cluster", "spark"}
"""A Kafka broker, a group of worker processes, a Spark session: each takes seconds to start and uses both cores."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Distribute the tests over two processes (``-n 2 --dist loadgroup``): the longest tests start first.

    Tests that share a broker, a group of processes or a Spark session run in one process, one after the other: it
    starts each of them once, and no two of them compete for the cores.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: got an address in the id; allowed: the same id in every process")
    if not getattr(config.option, "loadgroup", False):
        return
    ordered = []
    for item in items:
        shared = bool(SHARED_FIXTURES & set(getattr(item, "fixturenames", ()))) or "processes" in item.keywords
        if shared:
            item.add_marker(pytest.mark.xdist_group("processes"))
        rank = 0 if "first" in item.keywords else 1 if shared else 2 if "long" in item.keywords else 3
        ordered.append((rank, item))
    items[:] = [item for _, item in sorted(ordered, key=itemgetter(0))]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as ``table``, also if they ran in another process."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, text in getattr(report, "user_properties", ()):
            if name == "table" and report.when == "call":
                terminalreporter.section(report.nodeid)
                terminalreporter.write_line(str(text))


def pytest_configure(config: pytest.Config) -> None:
    """Load the pytest plug-in also from a checkout that was installed before its entry point was added."""
    if not config.pluginmanager.hasplugin("connectgroup"):
        config.pluginmanager.import_plugin("connectgroup.testing.pytest_plugin")
