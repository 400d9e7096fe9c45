"""The connector ``idle``: tasks that only log their starts and stops, for measurements of rebalances and for trials."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from ..connector import Config, Connector, LocalPath, Task, TaskContext
from ..dataplane.real_paths import open_to_append
from ..dataplane.settings import PluginSettings
from ..errors import ConfigError


class IdleSettings(PluginSettings):
    """The settings of ``idle``. Others are ignored, so that a configuration of any connector can be tried with it."""

    log: Annotated[str, LocalPath(), Field(description="a file to which each start and stop appends one line")] = ""
    stop_ms: Annotated[int, Field(ge=0, description="a whole number of milliseconds")] = 0


class IdleConnector(Connector):
    """``tasks.max`` tasks without work.

    Configuration: ``log``, a file to which each start and stop appends one line
    ``<wall clock ns> START|STOP <member> <unit> <owner epoch>``; none by default. ``stop.ms``: duration of a stop.
    """

    def __init__(self, name: str, config: Config) -> None:
        super().__init__(name, config)
        text = config.get("stop.ms", "0")
        if not text.isascii() or not text.isdigit():
            raise ConfigError("stop.ms", text, "a whole number of milliseconds")
        self.stop_s = int(text) / 1000
        self.log = config.get("log", "")

    @classmethod
    def settings_models(cls, config: Config) -> Mapping[str, type[BaseModel]]:
        return {"": IdleSettings}

    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        return [{"task": str(number)} for number in range(max_tasks)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return IdleTask(self, context)


class IdleTask(Task):
    """A task of ``IdleConnector``."""

    def __init__(self, connector: IdleConnector, context: TaskContext) -> None:
        self._connector, self._context = connector, context

    def start(self) -> None:
        self._write("START")

    def stop(self) -> None:
        if self._connector.stop_s:
            time.sleep(self._connector.stop_s)
        self._write("STOP")

    def _write(self, what: str) -> None:
        if not self._connector.log:
            return
        context = self._context
        line = f"{time.time_ns()} {what} {context.member_id} {context.unit} {context.owner_epoch}\n"
        # A single write of less than a page with O_APPEND: lines of several processes do not interleave.
        file = open_to_append(Path(os.path.abspath(self._connector.log)))
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
