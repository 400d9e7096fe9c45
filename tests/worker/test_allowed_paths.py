"""Connectors use files of the worker's list only (``worker.allowed.paths``)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectgroup.config.base import checked as checked_config
from connectgroup.config.connector_check import check_connector
from connectgroup.config.paths import path_settings
from connectgroup.config.secrets import Secrets
from connectgroup.config.worker import WorkerConfig
from connectgroup.connector import Config
from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.errors import ConfigError
from connectgroup.member.actions import Grant
from connectgroup.plugins import available, load_connector_class, load_sink_class, load_source_class
from connectgroup.protocol.messages.heartbeat import TaskStatus
from connectgroup.protocol.units import Unit
from connectgroup.worker.runner import TaskRunner
from connectgroup.worker.settings import RunnerSettings


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory ``in`` that is allowed, and a directory ``out`` that is not."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    return tmp_path


OUTSIDE = ("out/log", "in/../out/log", "in/link/log", "in/.bashrc", "in/.ssh/keys", "inside", "alias/link/log")
BELOW = ("in/log", "in/deep/log", "in/new/log", "alias/log", "out/../in/log")


def checked(path: Path, allowed: Sequence[Path]) -> None:
    check_connector("c", {"connector.class": "idle", "log": str(path)}, allowed)


@pytest.mark.parametrize("path", OUTSIDE)
def test_configuration_with_a_path_outside_the_list_is_rejected(place: Path, path: str) -> None:
    what = re.escape(f"log: got '{place / path}'; allowed: a path at or below one of allowed_paths ({place / 'in'})")
    with pytest.raises(ConfigError, match=what):
        checked(place / path, [place / "in"])


@pytest.mark.parametrize("path", BELOW)
def test_configuration_with_a_path_below_the_list_is_accepted(place: Path, path: str) -> None:
    for allowed in "in", "alias":
        checked(place / path, [place / allowed])


def test_empty_list_allows_nothing_and_a_listed_file_may_be_hidden(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"allowed_paths \(none\)"):
        checked(place / "in" / "log", [])
    checked(place / ".log", [place / ".log"])
    checked(place / ".hidden" / "log", [place / ".hidden"])


def test_worker_allows_no_path_by_default(place: Path) -> None:
    """A connector comes from a coordinator that others reach."""
    group = {"coordinator": "127.0.0.1:1", "group": "g", "name": "w", "scratch": place}
    for allowed in RunnerSettings(scratch=place).allowed_paths, checked_config(WorkerConfig, group).allowed_paths:
        assert allowed is not None
        with pytest.raises(ConfigError, match=r"allowed_paths \(none\)"):
            checked(place / "in" / "log", allowed)


def test_reference_is_checked_only_where_it_is_resolved(place: Path) -> None:
    check_connector("c", {"connector.class": "idle", "log": "${env:LOG}"}, [place])


@pytest.mark.parametrize("path", ["out/log", "in/link/log"])
@pytest.mark.parametrize("as_secret", [False, True], ids=["plain", "reference"])
async def test_worker_runs_no_task_with_a_file_outside_its_list(
    place: Path, path: str, as_secret: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever checks a client has left out: the worker decides."""
    monkeypatch.setenv("LOG", str(place / path))
    statuses: list[TaskStatus] = []
    both = asyncio.Event()

    def report(status: TaskStatus) -> None:
        statuses.append(status)
        if {status.task for status in statuses} == {-1, 0}:
            both.set()

    async def publish(name: str, owner_epoch: int, configs: Sequence[Config]) -> None:
        raise AssertionError("the connector must not be created")

    runner = TaskRunner(
        "w",
        RunnerSettings(scratch=place / "scratch", allowed_paths=[place / "in"], secrets=Secrets(env=("LOG",))),
        load_class=load_connector_class,
        publish=publish,
        report=report,
    )
    config = {"connector.class": "idle", "tasks.max": "1", "log": "${env:LOG}" if as_secret else str(place / path)}
    units = [Unit("c"), Unit("c", 0)]
    await runner.start([Grant(unit=unit, owner_epoch=7, connector_config=config) for unit in units])
    await asyncio.wait_for(both.wait(), 30)
    await runner.stop(frozenset(units))
    assert os.listdir(place / "out") == []
    for status in statuses:
        assert "log: got '" in status.message
        assert f"allowed: a path at or below one of allowed_paths ({place / 'in'}), not hidden" in status.message


def test_every_setting_of_the_shipped_plugins_that_is_a_path_is_checked() -> None:
    marked, described = set(), set()
    for kind, load in (("sources", load_source_class), ("sinks", load_sink_class)):
        for name in available(kind):  # type: ignore[arg-type]
            other = {"sources": ("sink", "sqlite"), "sinks": ("source", "files")}[kind]
            side = kind.removesuffix("s")
            found = path_settings(PipelineConnector, dict([(side, name), other]))
            marked |= {(name, setting) for setting in found if setting.startswith(f"{side}.")}
            described |= {
                (name, f"{side}.{field.alias or key}")
                for key, field in load(name).Settings.model_fields.items()
                if "absolute path" in (field.description or "")
            }
    assert marked == described
    assert ("files", "source.path") in marked
