"""The supervisor of ``connectgroup up`` when a worker process ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.errors import ConfigError
from connectgroup.loggers import FORMAT_VARIABLE, relay
from connectgroup.protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from connectgroup.supervisor import Supervisor, summary
from tests.distribution import make_distribution

from ..integration.processes import Program


def supervisor_of(scratch: Path, **options: Any) -> Supervisor:
    """A supervisor of one worker, or as many as given, with one idle task."""
    return Supervisor(
        options.pop("group", "sleepers"),
        workers=options.pop("workers", 1),
        scratch=scratch,
        coordinator=CoordinatorConfig(port=0, **options.pop("times", {})),
        connectors=[ConnectorFile(name="naps", config={"connector.class": "idle"})],
        **options,
    )


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(900):
        if condition():
            return
        await asyncio.sleep(0.1)
    raise AssertionError("never")


def test_a_group_is_not_said_to_be_stable_while_its_units_start() -> None:
    """They are assigned, but no rows flow yet; without Spark nothing says what they wait for."""

    def line(*units: DescribedUnit) -> str:
        return summary(DescribedGroup(state="Stable", connectors=(DescribedConnector(connector="c", units=units),)))

    assert line(DescribedUnit(task=-1, state="RUNNING"), DescribedUnit(task=0, state="STARTING")).startswith(
        "starting 1 unit | "
    )
    assert line(DescribedUnit(task=0, state="STARTING", message="starting Spark, 3 s")).startswith("starting Spark, 3")
    assert line(DescribedUnit(task=-1, state="RUNNING"), DescribedUnit(task=0, state="PAUSED")).startswith("Stable | ")


@pytest.mark.parametrize("group", ["", "g" * 300, "a\nb", " g", ".."])
def test_a_group_name_that_the_coordinator_would_reject_starts_nothing(tmp_path: Path, group: str) -> None:
    with pytest.raises(ConfigError, match=r"^group: got '.*'; allowed: "):
        supervisor_of(tmp_path, group=group)


async def test_a_worker_with_a_configuration_error_is_not_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Exit code 2: a new process would end in the same way."""
    caplog.set_level(logging.INFO)
    lines: list[str] = []
    supervisor = supervisor_of(tmp_path, assignors=["nosuch"], worker_log=lambda name, line: lines.append(line))
    async with supervisor:
        watch = supervisor.workers["worker-1"].watch
        assert watch is not None
        await asyncio.wait_for(watch, 90)
        assert not supervisor.workers["worker-1"].alive
        assert supervisor.all_rejected
    assert len(lines) == 1
    assert lines[0].startswith("connectgroup: --assignor: got 'nosuch'; allowed: ")
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert line == "worker-1 ended with exit code 2, a configuration error: it is not started again"


async def test_workers_use_the_protocol_that_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^group_protocol: got 'consumer'; allowed: "):
        supervisor_of(tmp_path, group_protocol="consumer")
    async with supervisor_of(tmp_path, group_protocol="classic") as supervisor:
        described = await supervisor.admin.wait_worker("sleepers", "worker-1", timeout_s=90)
        assert [member.classic for member in described.members] == [True]


@pytest.mark.parametrize("first", ["joins", "dies", "hangs"])
async def test_the_other_workers_start_after_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """With fewer processors than workers; neither a dead nor a hung first worker keeps the others away."""
    monkeypatch.setattr("connectgroup.supervisor.FIRST_WORKER_TIMEOUT_S", 2.0 if first == "hangs" else 90.0)
    async with supervisor_of(tmp_path, workers=3, one_first=True, restart=False) as supervisor:
        assert [worker.alive for worker in supervisor.workers.values()] == [True, False, False]
        if first != "joins":
            supervisor.signal_worker("worker-1", signal.SIGKILL if first == "dies" else signal.SIGSTOP)
        described = await supervisor.admin.wait_worker("sleepers", "worker-3", timeout_s=90)
        assert first == "joins" or "worker-1" not in [member.member_id for member in described.members]
        await supervisor.admin.wait_worker("sleepers", "worker-2", timeout_s=90)


async def test_a_supervisor_that_waits_for_its_first_worker_can_be_closed(tmp_path: Path) -> None:
    async with supervisor_of(tmp_path, workers=2, one_first=True) as supervisor:
        supervisor.signal_worker("worker-1", signal.SIGSTOP)
        assert await supervisor.stop_worker("worker-2") == 0, "it has not been started"
    assert [worker.alive for worker in supervisor.workers.values()] == [False, False]


@pytest.mark.parametrize("how", ["SIGTERM", "drain"])
async def test_worker_that_an_operator_has_ended_is_not_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO)
    async with supervisor_of(tmp_path, workers=2) as supervisor:
        await supervisor.admin.wait_worker("sleepers", "worker-1", timeout_s=90)
        watch = supervisor.workers["worker-1"].watch
        assert watch is not None
        if how == "drain":
            await supervisor.admin.drain_worker("sleepers", "worker-1")
        else:
            supervisor.signal_worker("worker-1", signal.SIGTERM)
        await asyncio.wait_for(watch, 90)
        assert not supervisor.workers["worker-1"].alive
        assert not supervisor.all_rejected
    ends = [record.levelname for record in caplog.records if "not started again" in record.getMessage()]
    assert ends == ["INFO"]


async def test_supervisor_leaves_for_a_worker_that_died(tmp_path: Path) -> None:
    """The worker had connected as a user, and the supervisor has no connection; nothing else ends a session here."""
    times = {"session_timeout_ms": 300_000, "connection_loss_grace_ms": 0}
    async with supervisor_of(tmp_path, times=times, restart=False) as supervisor:
        await supervisor.admin.wait_worker("sleepers", "worker-1", timeout_s=90)
        watch = supervisor.workers["worker-1"].watch
        assert watch is not None
        supervisor.signal_worker("worker-1", signal.SIGKILL)
        await asyncio.wait_for(watch, 90)
        described = await supervisor.admin.describe("sleepers")
        assert described.members == ()
        assert "worker-1 died (SIGKILL)" in [cause for each in described.rebalances for cause in each.causes]


async def test_worker_that_does_not_respond_is_killed_when_the_group_has_removed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process stopped by SIGSTOP keeps its locks; its session ends, and a new process joins under its name."""
    times = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500, "scheduled_rebalance_max_delay_ms": 0}
    async with supervisor_of(tmp_path, times=times) as supervisor:
        worker = supervisor.workers["worker-1"]

        async def runs() -> None:
            await supervisor.admin.wait_until(
                "sleepers", lambda group: any(unit.state == "RUNNING" for unit in group.connectors[0].units),
                what="a unit that runs", timeout_s=60,
            )  # fmt: skip

        await runs()
        stopped = worker.process
        assert stopped is not None
        supervisor.signal_worker("worker-1", signal.SIGSTOP)
        await until(lambda: stopped.returncode is not None)
        assert stopped.returncode == -signal.SIGKILL
        await until(lambda: worker.process is not stopped)
        await runs()
    assert "worker-1 has not responded for 2 s and was removed: it is killed" in caplog.messages


SLOW_END = """
import atexit, sys, time
if "--supervised" in sys.argv:
    atexit.register(time.sleep, 6)
"""


async def test_drained_worker_that_ends_slowly_is_neither_killed_nor_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left, so it is silent and no member; the end of Spark may take longer than a session."""
    caplog.set_level(logging.INFO)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW_END)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "slow"), prepend=os.pathsep)
    times = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500, "scheduled_rebalance_max_delay_ms": 0}
    async with supervisor_of(tmp_path, workers=2, times=times) as supervisor:
        await supervisor.admin.wait_until(
            "sleepers", lambda group: len(group.members) == 2, what="two workers", timeout_s=60
        )
        worker = supervisor.workers["worker-2"]
        await supervisor.admin.drain_worker("sleepers", "worker-2")
        await until(lambda: worker.ended)
        await until(lambda: not worker.wanted)
        assert worker.process is not None
        assert worker.process.returncode == 0
    assert "worker-2 was stopped or drained: it is not started again" in caplog.messages


ONLY_UP = """
import sys

from connectgroup.assignors.balanced import BalancedAssignor

if "worker" in sys.argv:
    raise RuntimeError("not in a worker")


class OnlyUp(BalancedAssignor):
    name = "only-up"
"""


def test_up_ends_when_every_worker_has_a_configuration_error(tmp_path: Path) -> None:
    make_distribution(tmp_path / "plugins", "only_up", "connectgroup.assignors", ONLY_UP, **{"only-up": ":OnlyUp"})
    environment = {"PYTHONPATH": str(tmp_path / "plugins")}
    arguments = ("--assignor", "only-up", "--workers", 2, "--port", 0, "--data", tmp_path / "data")
    with Program("up", *arguments, environment=environment) as up:
        assert up.ended() == 2, up.output()
    for name in ("worker-1", "worker-2"):
        errors = [line for line in up.lines if line.startswith(f"{name} | connectgroup: ")]
        assert len(errors) == 1, up.output()
        assert "RuntimeError: not in a worker" in errors[0]
    assert up.lines[-1].startswith("connectgroup: up: got 'no worker that runs'; allowed: ")


@pytest.mark.parametrize("mutual", [False, True])
async def test_workers_join_whatever_issuer_and_names_the_coordinators_certificate_has(
    tmp_path: Path, mutual: bool
) -> None:
    def openssl(*words: str | Path) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=tmp_path)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *new_key, "-subj", "/CN=connect.example.org", "-keyout", "key.pem", "-out", "request.pem")
    issued_by = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", "request.pem", *issued_by, "-days", "2", "-out", "cert.pem")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    if mutual:
        files["tls_ca"] = tmp_path / "ca.pem"
    async with supervisor_of(tmp_path, times=files) as supervisor:
        await supervisor.admin.wait_until(
            "sleepers", lambda group: len(group.members) == 1, what="joined", timeout_s=90
        )


def test_line_of_another_process_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Java logs names of files and texts of records as they are."""
    relay("w1", "\tat a.b(C.java:1) é \x1b[2J")
    assert capsys.readouterr().err == "w1 | \tat a.b(C.java:1) é \\x1b[2J\n"


@pytest.mark.parametrize("line", ["plain", '{"message": "x"', "[" * 100_000, '{"a":' * 100_000, "[1]", "9" * 10_000])
def test_line_that_is_no_object_is_the_message_of_one(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    relay("w1", line)
    shown = json.loads(capsys.readouterr().err)
    assert (shown["message"], shown["process"]) == (line, "w1")
