"""A plug-in of pytest, ``-p tests.mutation.recorder``: which test runs which line, and the duration of each test.

``MUTATION_SOURCES`` names the measured folders, ``MUTATION_RECORD`` the JSON file to write: ``seconds`` by test, and
``lines``: by file, by line, the tests that run it. A line that runs only while modules are imported has the
test ``""``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import coverage
import pytest


class LineRecorder:
    """Coverage with one context per test."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, source=os.environ["MUTATION_SOURCES"].split(os.pathsep)
        )
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Attribute the following lines to this test."""
        self._coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up, call and tear-down."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the record."""
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
        Path(os.environ["MUTATION_RECORD"]).write_text(json.dumps({"seconds": self._seconds, "lines": lines}))


def pytest_configure(config: pytest.Config) -> None:
    """Start before the product is imported."""
    config.pluginmanager.register(LineRecorder())
