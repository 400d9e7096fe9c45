"""The contract of every connector class, as tests: inherit ``ConnectorContract`` and define ``connector``, ``config``.

class TestMine(ConnectorContract):
    connector = Mine
    config = {"connector.class": "mine", "path": "/data"}
    rejected = ({"path": ""}, {"path": None}, {"pth": "/data"})

A configuration that needs a directory of the test: a fixture with ``autouse=True`` that sets ``type(self).config``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from ...connector import Config, Connector, PartitionOffset, Task, TaskContext
from ...errors import ConfigError, ConnectGroupError, PluginError
from ...protocol.units import Unit

T = TypeVar("T")

LIMITS = (1, 2, 7)
"""Values of ``tasks.max``."""


@dataclass
class Reports:
    """What one task has reported.

    Attributes:
        failures: the arguments of ``failed``.
        late: the names of the callbacks called after ``stop`` had returned.
    """

    failures: list[BaseException] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    stopped: bool = False

    def context(self, unit: Unit, epoch: int, scratch: Path) -> TaskContext:
        """The context of a task that reports here."""

        def failed(error: BaseException) -> None:
            self._called("failed")
            self.failures.append(error)

        return TaskContext(
            unit=unit,
            owner_epoch=epoch,
            incarnation=1_700_000_000_000,
            member_id="worker-1",
            scratch=scratch,
            progress=lambda rows: self._called("progress"),
            failed=failed,
            batch=lambda batch: self._called("batch"),
        )

    def _called(self, name: str) -> None:
        if self.stopped:
            self.late.append(name)


class ConnectorContract:
    """Settings are checked on creation, task configurations are stable, tasks start, stop and start again.

    Attributes:
        connector: the class.
        config: a valid configuration, of strings, with which tasks can start.
        rejected: changes of ``config`` that must be rejected, each by itself; a null removes the setting.
        runs_tasks: whether tasks are started: false if they need a system that the test does not have.
        limit_s: seconds of real time in which a call must return; a start that does the work itself never returns.
    """

    contract_requires: ClassVar[tuple[str, ...]] = ("connector",)
    connector: type[Connector]
    config: ClassVar[Config] = {}
    rejected: ClassVar[Sequence[Mapping[str, str | None]]] = ()
    runs_tasks: ClassVar[bool] = True
    limit_s: ClassVar[float] = 60.0

    def __init_subclass__(cls, **more: Any) -> None:
        """Leave out the tests that start tasks if they cannot run."""
        super().__init_subclass__(**more)
        if not cls.runs_tasks:
            for name in ("test_tasks_start_and_stop_and_start_again", "test_task_that_was_not_started_can_be_stopped"):
                setattr(cls, name, None)

    def make(self, config: Config | None = None) -> Connector:
        """A new connector, as a worker creates one."""
        return self.connector("mine", dict(self.config if config is None else config))

    def within_limit(self, what: str, call: Callable[[], T]) -> T:
        """Call in a thread of its own, as a worker does, and return the result."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name=what, daemon=True)
        thread.start()
        thread.join(self.limit_s)
        assert not thread.is_alive(), f"{what} has not returned within {self.limit_s:g} s"
        if errors:
            raise AssertionError(f"{what} raised {type(errors[0]).__name__}: {errors[0]}") from errors[0]
        return results[0]

    # ----------------------------------------------------------------------------------------------
    # Settings

    def test_stores_name_and_configuration(self) -> None:
        made = self.make()
        assert isinstance(made, Connector)
        assert made.name == "mine"
        assert made.config == self.config

    def test_rejects_invalid_settings_by_name(self) -> None:
        for change in self.rejected:
            config = {**self.config, **change}
            message = None
            try:
                self.make({name: value for name, value in config.items() if value is not None})
            except ConfigError as error:
                message = str(error)
            assert message is not None, f"{dict(change)} is accepted; the constructor must raise ConfigError"
            assert any(name in message for name in change), f"{dict(change)}: the error names no setting: {message}"
            assert "\n" not in message, f"{dict(change)}: the error has several lines: {message}"

    def test_settings_models_take_any_configuration(self) -> None:
        """Validation asks for them before it knows whether the configuration is complete or valid."""
        for config in (self.config, {}, dict.fromkeys(self.config, ""), dict.fromkeys(self.config, "\N{SNOWMAN}")):
            models = self.connector.settings_models(config)
            for prefix, model in models.items():
                assert isinstance(prefix, str), f"settings_models: the prefix {prefix!r} is no string"
                assert issubclass(model, BaseModel), f"settings_models: {model!r} is no pydantic model"

    def test_errors_of_access_are_by_setting(self) -> None:
        """``validate`` shows each beside its setting; an error that is raised would hide the others."""
        for setting, error in self.make().check_access(max(LIMITS)).items():
            assert isinstance(setting, str), f"check_access: the setting {setting!r} is no string"
            assert isinstance(error, ConnectGroupError), f"check_access: {error!r} is no ConnectGroupError"

    # ----------------------------------------------------------------------------------------------
    # Task configurations

    def test_one_task_to_tasks_max_tasks(self) -> None:
        for limit in LIMITS:
            configs = self._task_configs(self.make(), limit)
            assert 1 <= len(configs) <= limit, f"task_configs({limit}) returned {len(configs)} configurations"

    def test_task_configurations_are_strings(self) -> None:
        for config in self._task_configs(self.make(), max(LIMITS)):
            for name, value in config.items():
                assert isinstance(name, str), f"task_configs: the name {name!r} is no string"
                assert isinstance(value, str), f"task_configs: {name} is {value!r}, which is no string"

    def test_task_configurations_change_only_if_the_source_does(self) -> None:
        """A changed configuration restarts the task. The connector may be on another worker at the next call."""
        first = self.make()
        for limit in LIMITS:
            before = self._task_configs(first, limit)
            assert self._task_configs(first, limit) == before, f"task_configs({limit}): the second call differs"
            again = self._task_configs(self.make(), limit)
            assert again == before, f"task_configs({limit}): another instance with the same settings differs"

    def test_configuration_of_the_connector_is_not_changed(self) -> None:
        config = dict(self.config)
        made = self.connector("mine", config)
        self._task_configs(made, max(LIMITS))
        assert config == self.config, f"the configuration was changed to {config}"

    def _task_configs(self, connector: Connector, limit: int) -> list[dict[str, Any]]:
        found = self.within_limit(f"task_configs({limit})", lambda: connector.task_configs(limit))
        return [dict(config) for config in found]

    # ----------------------------------------------------------------------------------------------
    # Tasks

    def test_tasks_start_and_stop_and_start_again(self, tmp_path: Path) -> None:
        """Also on another worker, at a later owner epoch; after a stop, a task reports nothing more."""
        configs = self._task_configs(self.make(), 2)
        for epoch in (1, 2):
            tasks = [self._start(number, config, epoch, tmp_path) for number, config in enumerate(configs)]
            for name, task, reports in tasks:
                self._stop(name, task, reports)
            for name, _, reports in tasks:
                assert len(reports.failures) <= 1, f"{name}: failed was called {len(reports.failures)} times"
                assert not reports.failures, f"{name} failed: {reports.failures[0]!r}"
                assert not reports.late, f"{name}: {', '.join(reports.late)} was called after stop had returned"

    def test_task_that_was_not_started_can_be_stopped(self, tmp_path: Path) -> None:
        """A worker stops a task whose start has failed."""
        config = self._task_configs(self.make(), 1)[0]
        name, task, reports = self._create(0, config, 1, tmp_path)
        self._stop(f"{name}, not started,", task, reports)

    def test_tasks_leave_their_configuration_as_it_is(self, tmp_path: Path) -> None:
        config = self._task_configs(self.make(), 1)[0]
        given = dict(config)
        self._create(0, given, 1, tmp_path)
        assert given == config, f"task() changed the task's configuration to {given}"

    def _create(self, number: int, config: Config, epoch: int, folder: Path) -> tuple[str, Task, Reports]:
        unit, reports = Unit("mine", number), Reports()
        (scratch := folder / f"{unit}-{epoch}").mkdir()
        context = reports.context(unit, epoch, scratch)
        # A task is created by an instance of its own, on the worker that runs it.
        task = self.within_limit(f"task() of {unit}", lambda: self.make().task(config, context))
        assert isinstance(task, Task), f"task() of {unit} returned {task!r}; allowed: an instance of Task"
        return f"{unit} at owner epoch {epoch}", task, reports

    def _start(self, number: int, config: Config, epoch: int, folder: Path) -> tuple[str, Task, Reports]:
        name, task, reports = self._create(number, config, epoch, folder)
        self.within_limit(f"start() of {name}", task.start)
        return name, task, reports

    def _stop(self, name: str, task: Task, reports: Reports) -> None:
        self.within_limit(f"stop() of {name}", task.stop)
        reports.stopped = True

    # ----------------------------------------------------------------------------------------------
    # Offsets

    def test_offsets_are_in_a_stable_order(self) -> None:
        made = self.make()
        before = list(made.offsets())
        assert all(isinstance(each, PartitionOffset) for each in before), f"offsets: {before}"
        assert list(made.offsets()) == before, "offsets: the second call differs"

    def test_reset_leaves_no_offsets_or_is_not_offered(self) -> None:
        made = self.make()
        try:
            made.alter_offsets(1 << 61, None)
        except PluginError:
            return
        left = list(made.offsets())
        assert not left, f"alter_offsets(token, None) leaves {left}"
