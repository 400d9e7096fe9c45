"""Rules for all tests: no skips in CI, and the order of the tests in several processes."""

from __future__ import annotations

import gc
import os
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tests.consumer.fixtures import broker as broker
from tests.spark.postgres_server import database as database, postgres as postgres
from tests.volume import SIZE

collect_ignore = [] if os.environ.get("COVERAGE") == "true" else ["test_coverage.py"]


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Coordinators announce their credentials here, and not to the other processes of this user."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def no_stale_notes(state_home: None) -> None:
    """Forget the coordinators that earlier tests killed: the system gives their ports to the servers of later tests."""
    for note in Path(os.environ["XDG_STATE_HOME"]).glob("connectgroup/coordinator-*"):
        with suppress(ValueError), socket.socket() as probe:  # ValueError: a file of credentials, beside its note
            if probe.connect_ex(("127.0.0.1", int(note.name.removeprefix("coordinator-")))) != 0:
                note.unlink(missing_ok=True)


@pytest.fixture(scope="session", autouse=True)
def allowed_paths(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers that tests start as processes may use the files of the tests."""
    paths = tempfile.gettempdir(), str(tmp_path_factory.getbasetemp())
    os.environ["CONNECTGROUP_ALLOWED_PATHS"] = os.pathsep.join(paths)


@pytest.fixture
def port_taken_late(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """``with port_taken_late():`` another process has each port that is bound here, too, and listens first."""
    real = socket.socket

    @contextmanager
    def taking() -> Iterator[None]:
        with ExitStack() as others, monkeypatch.context() as patched:

            class Bound(socket.socket):
                def bind(self, address: Any) -> None:
                    super().bind(address)
                    other = others.enter_context(real(self.family))
                    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    other.bind(self.getsockname())
                    other.listen()

            patched.setattr(socket, "socket", Bound)
            yield

    return taking


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


SHARED = {
    "broker": "kafka",
    "spark": "spark",
    "cluster": "processes",
    "process_group": "pipelines",
    "kafka": "kafka sinks",
    "connect_server": "kafka sinks",
}
"""Fixtures that take seconds to start, and the group of tests that share each: a Kafka broker, a Spark session, two
groups of worker processes, a Kafka broker without Spark, and a Spark Connect server, one of whose tests needs that
broker too. Of several, the first one counts."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Distribute the tests over several processes (``-n 4 --dist loadgroup``): the longest tests start first.

    Tests that share a broker, a Spark session or a group of processes run in one process, one after the other, so that
    each of these is started once. They wait more than they compute, so four processes are right for two cores. Long
    computations run in processes of a low priority: they take what the tests that wait leave.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: got an address in the id; allowed: the same id in every process")
        module = vars(getattr(item, "module", object))
        if not {"volume", "attack", "INPUTS"}.isdisjoint(module):
            item.add_marker("generated")
    if SIZE == "user" and (left_out := [item for item in items if item.get_closest_marker("ci_only") is not None]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("ci_only") is None]
    if not getattr(config.option, "loadgroup", False):
        return
    ordered = []
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        group = next((group for fixture, group in SHARED.items() if fixture in fixtures), "")
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
        long = "long" in item.keywords or "processes" in item.keywords
        rank = 0 if "first" in item.keywords else 1 if group == "processes" else 2 if group else 3 if long else 4
        ordered.append((rank, item))
    items[:] = [item for _, item in sorted(ordered, key=itemgetter(0))]
    _put_short_tests_second(items, getattr(config, "workerinput", {}).get("workercount", 0))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Each process sends the ids of all tests, and those of a test with each of its reports: a long value is cut."""
    if isinstance(val, str | bytes) and len(val) > LONG_VALUE:
        return f"{argname} of {len(val)} from {val[:20]!a}"
    return None


def pytest_report_header() -> str | None:
    return "volume: user; tests marked ci_only are left out (TEST_VOLUME=ci: none is)" if SIZE == "user" else None


def _put_short_tests_second(items: list[pytest.Item], processes: int) -> None:
    """pytest-xdist assigns each process two tests or groups at once: no group may wait for the longest test."""
    rest = len(items) - processes
    seen: set[str] = set()
    for position, item in enumerate(items[:rest]):
        marker = item.get_closest_marker("xdist_group")
        seen.add(item.nodeid if marker is None else marker.args[0])
        if len(seen) > processes:
            items[:] = [*items[:position], *items[rest:], *items[position:rest]]
            return


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_check_groups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Some versions of pytest-xdist ignore groups without a message; then every process starts its own Spark."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid.rpartition("]")[2]:
            raise pytest.UsageError(f"{item.nodeid}: pytest-xdist ignores its group; allowed: pytest below 9.2")


def pytest_collection_finish() -> None:
    """Thousands of collected tests are never garbage: no full collection need visit them (saves 13 % of the time)."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as ``table``, also if they ran in another process."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, text in getattr(report, "user_properties", ()):
            if name == "table" and report.when == "call":
                terminalreporter.section(report.nodeid)
                terminalreporter.write_line(str(text))


LONG_VALUE = 200
"""Characters or bytes of a parameter from which on it is not the id of its test."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""A Spark session of a test lives for seconds: with Java's second compiler, its start and some queries take twice the
processor time."""


def pytest_configure(config: pytest.Config) -> None:
    """Start each Spark without Java's second compiler, and load the pytest plug-in also from an older installation."""
    gc.set_threshold(50_000, 20, 100)  # also for the collection of the tests, which keeps nearly all it creates
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)  # inherited by the processes that a test starts
    if not config.pluginmanager.hasplugin("connectgroup"):
        config.pluginmanager.import_plugin("connectgroup.testing.pytest_plugin")
