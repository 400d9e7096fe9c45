"""The contracts of listeners and connectors: the shipped plug-ins pass, and each wrong plug-in fails its test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from connectgroup import Unit, Units
from connectgroup.connector import Config
from connectgroup.connectors.idle import IdleConnector
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.listeners.log import LoggingListener
from connectgroup.listeners.metrics import MetricsListener
from connectgroup.listeners.trace import TracingListener
from connectgroup.plugins import available
from connectgroup.testing import ConnectorContract, ListenerContract


class TestLoggingListener(ListenerContract):
    listener = LoggingListener


class TestMetricsListener(ListenerContract):
    listener = MetricsListener


class TestTracingListener(ListenerContract):
    listener = TracingListener


class Caches(WorkerRebalanceListener):
    """Keeps state per unit, with async callbacks."""

    def __init__(self) -> None:
        self.caches: set[Unit] = set()

    async def on_assigned(self, units: Units, epoch: int) -> None:
        self.caches |= units

    async def on_revoked(self, units: Units, epoch: int) -> None:
        self.caches -= units

    async def on_lost(self, units: Units, epoch: int) -> None:
        self.caches -= units


class TestCaches(ListenerContract):
    listener = Caches

    def units_of(self, listener: WorkerRebalanceListener) -> set[Unit]:
        assert isinstance(listener, Caches)
        return listener.caches


class TestIdleConnector(ConnectorContract):
    connector = IdleConnector
    config: ClassVar[Config] = {"connector.class": "idle", "stop.ms": "1"}
    rejected = ({"stop.ms": "-1"}, {"stop.ms": "soon"})


class TestPipelineConnector(ConnectorContract):
    connector = PipelineConnector
    config: ClassVar[Config] = {
        "connector.class": "pipeline",
        "source": "files",
        "source.path": "/nosuch/in",
        "source.format": "csv",
        "sink": "console",
    }
    rejected = (
        {"source": None},
        {"source": "nosuch"},
        {"source.path": ""},
        {"source.pth": "/data"},
        {"trigger.ms": "0"},
        {"layout": "x"},
    )
    runs_tasks = False  # tests/spark runs them


def test_every_shipped_listener_and_connector_has_its_contract() -> None:
    shipped = {*available("listeners"), *available("connectors")}
    assert {"log", "metrics", "trace", "idle", "pipeline"} == {name for name in shipped if not name.startswith("test-")}


WRONG = """
from connectgroup import Connector, Task, WorkerRebalanceListener
from connectgroup.testing import ConnectorContract, ListenerContract

class Base(WorkerRebalanceListener):
    def __init__(self):
        self.units = set()
    def on_assigned(self, units, epoch):
        self.units |= units
    def on_revoked(self, units, epoch):
        self.units -= units
    def on_lost(self, units, epoch):
        self.units -= units

class Misspelt(Base):
    def on_revoke(self, units, epoch): ...
class OneArgument(Base):
    def on_lost(self, units): ...
class KeepsLost(Base):
    def on_lost(self, units, epoch): ...
class Shared(Base):
    def __init__(self):
        self.units = Shared.all
    all = set()
class Raises(Base):
    def on_revoked(self, units, epoch):
        raise KeyError("cache")
class Returns(Base):
    async def on_assigned(self, units, epoch):
        return True

class OfListeners(ListenerContract):
    def units_of(self, listener):
        return listener.units
class TestMisspelt(OfListeners): listener = Misspelt
class TestOneArgument(OfListeners): listener = OneArgument
class TestKeepsLost(OfListeners): listener = KeepsLost
class TestShared(OfListeners): listener = Shared
class TestRaises(OfListeners): listener = Raises
class TestReturns(OfListeners): listener = Returns
class TestNotAListener(ListenerContract): listener = dict

class Runs(Task):
    def __init__(self, context):
        self.context, self.running = context, False
    def start(self):
        self.running = True
    def stop(self):
        self.running = False

class Good(Connector):
    def task_configs(self, max_tasks):
        return [{"task": str(number)} for number in range(max_tasks)]
    def task(self, config, context):
        return Runs(context)

class TooMany(Good):
    def task_configs(self, max_tasks):
        return [{}] * 5
class Numbers(Good):
    def task_configs(self, max_tasks):
        return [{"task": 0}]
class Unstable(Good):
    calls = 0
    def task_configs(self, max_tasks):
        Unstable.calls += 1
        return [{"call": str(self.calls)}]
class AcceptsAll(Good): ...
class Hangs(Good):
    def task(self, config, context):
        return HangingTask(context)
class HangingTask(Runs):
    def start(self):
        import threading
        threading.Event().wait()
class LateReports(Good):
    def task(self, config, context):
        return LateTask(context)
class LateTask(Runs):
    def stop(self):
        LateTask.held.append(self.context)
        LateTask.held[0].progress(1)
    held = []
class StopNeedsStart(Good):
    def task(self, config, context):
        return NeedsStart(context)
class NeedsStart(Runs):
    def start(self):
        self.query = "query"
    def stop(self):
        del self.query
class KeepsOffsets(Good):
    def offsets(self):
        from connectgroup.connector import PartitionOffset
        return [PartitionOffset(partition={"slice": "a"}, offset={"position": 1})]
    def alter_offsets(self, fencing_token, changes): ...

class OfConnectors(ConnectorContract):
    config = {"path": "/data"}
    limit_s = 1
class TestGood(OfConnectors): connector = Good
class TestTooMany(OfConnectors): connector = TooMany
class TestNumbers(OfConnectors): connector = Numbers
class TestUnstable(OfConnectors): connector = Unstable
class TestAcceptsAll(OfConnectors):
    connector = AcceptsAll
    rejected = [{"path": ""}]
class TestHangs(OfConnectors): connector = Hangs
class TestLateReports(OfConnectors): connector = LateReports
class TestStopNeedsStart(OfConnectors): connector = StopNeedsStart
class TestKeepsOffsets(OfConnectors): connector = KeepsOffsets
"""

EXPECTED = [
    ("TestMisspelt", "on_revoke is never called; the callbacks are on_assigned, on_revoked, on_lost"),
    ("TestOneArgument", r"on_lost\(units\): expected \(units, epoch\)"),
    ("TestKeepsLost", "after on_lost of the first units: state of .*orders-0.*, expected of invoices, invoices-0"),
    ("TestShared", "after on_assigned of another listener: state of .*invoices, .*, expected of größe"),
    ("TestRaises", r"Raises\.on_revoked\(.*orders.*, epoch 2\) raised KeyError: 'cache'"),
    ("TestReturns", r"Returns\.on_assigned\(.*\) returned True; allowed: None or an awaitable of None"),
    ("TestNotAListener", "listener: got dict; allowed: a class that derives from WorkerRebalanceListener"),
    ("TestTooMany", r"task_configs\(1\) returned 5 configurations"),
    ("TestNumbers", "task_configs: task is 0, which is no string"),
    ("TestUnstable", r"task_configs\(1\): the second call differs"),
    ("TestAcceptsAll", r"\{'path': ''\} is accepted; the constructor must raise ConfigError"),
    ("TestHangs", r"start\(\) of mine-0 at owner epoch 1 has not returned within 1 s"),
    ("TestLateReports", "mine-0 at owner epoch 1: progress was called after stop had returned"),
    ("TestStopNeedsStart", r"stop\(\) of mine-0 at owner epoch 1, not started, raised AttributeError: .*'query'"),
    ("TestKeepsOffsets", r"alter_offsets\(token, None\) leaves \[PartitionOffset"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of pytest on ``WRONG``."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "test_wrong.py").write_text(WRONG, encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--tb=short",
        "-k",
        "not rebalances and not many_units",
    ]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False).stdout


@pytest.mark.parametrize(("contract", "message"), EXPECTED, ids=[name for name, _ in EXPECTED])
def test_wrong_plugin_fails_with_a_readable_message(report: str, contract: str, message: str) -> None:
    sections = re.findall(rf"^_+ {contract}\.\S+ _+$(.*?)(?=^_+ \w+\.|^=+ )", report, re.MULTILINE | re.DOTALL)
    assert any(re.search(message, section) for section in sections), "\n".join(sections) or report


def test_plugin_without_a_mistake_passes(report: str) -> None:
    assert "TestGood" not in report


INCOMPLETE = {
    "AssignorContract": ("even = False", "assignor"),
    "ListenerContract": ("pass", "listener"),
    "ConnectorContract": ("config = {}", "connector"),
    "LogContract": ("pass", "make_log"),
    "TransportContract": ("pass", "serving"),
    "SinkContract": ("def make_sink(self, place): ...", "read"),
    "SourceContract": ("pass", "make_source, write"),
}
"""Bodies of classes of tests, and what they do not define."""


def test_class_that_does_not_define_what_its_contract_needs_is_one_readable_error(tmp_path: Path) -> None:
    for contract, (body, _) in INCOMPLETE.items():
        text = f"from connectgroup.testing import {contract}\n\nclass TestMine({contract}):\n    {body}\n"
        (tmp_path / f"test_{contract}.py").write_text(text, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False).stdout
    for contract, (_, missing) in INCOMPLETE.items():
        message = f"TestMine: {missing}: missing; a class of {contract} defines "
        assert re.search(rf"^_+ ERROR collecting test_{contract}.py _+\n{message}.*$", said, re.MULTILINE), said
    assert f"{len(INCOMPLETE)} errors" in said
