"""A worker process of ``worker_group(real=True)``: as ``connectgroup worker``, with the plug-ins of a test file.

The process takes its settings as JSON from its command line, and appends each start and stop to a journal file.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..assign.placement import WorkerTraits
from ..connector import Connector
from ..errors import ConfigError
from ..member.settings import MemberSettings
from ..own_plugins import make_assignor
from ..transport.tcp_client import TcpClient
from ..worker.loop import Worker
from ..worker.runner import TaskRunner
from ..worker.serving import handle_signals
from ..worker.settings import Connections, RunnerSettings
from .history import History
from .plugins import RecordingRunner, guarded_classes, make_listeners
from .virtual_time import Node


class Journal(History):
    """A history that another process reads: one JSON line per start and stop, with the monotonic clock in seconds."""

    def __init__(self, path: Path) -> None:
        super().__init__(time.monotonic)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def started(
        self, worker: str, unit: str, owner_epoch: int, at_s: float | None = None, *, fenced: bool = False
    ) -> None:
        self._write({"event": "start", "worker": worker, "unit": unit, "epoch": owner_epoch, "fenced": fenced})

    def fences(self, worker: str, unit: str) -> None:
        self._write({"event": "fenced", "worker": worker, "unit": unit})

    def stopped(self, worker: str, unit: str, at_s: float | None = None, *, quietly: bool = False) -> None:
        self._write({"event": "stop", "worker": worker, "unit": unit})

    def _write(self, entry: Mapping[str, Any]) -> None:
        # One write of less than a page with O_APPEND: lines of several processes do not interleave.
        os.write(self._file, (json.dumps({"at_s": time.monotonic(), **entry}) + "\n").encode())


def reference(plugin: object) -> Any:
    """A plug-in as JSON: an entry-point name, or the file and name of a class at the top level of a module.

    Raises:
        ConfigError: the plug-in is an instance, or a class that another process cannot import.
    """
    if isinstance(plugin, str):
        return plugin
    if not inspect.isclass(plugin) or "." in plugin.__qualname__:
        raise ConfigError(
            "plug-in of a group with real=True",
            repr(plugin),
            "an entry-point name, or a class at the top level of a file",
        )
    return {"file": inspect.getfile(plugin), "module": plugin.__module__, "name": plugin.__qualname__}


def load(plugin: Any) -> Any:
    """The plug-in of a ``reference``."""
    if isinstance(plugin, str):
        return plugin
    module = sys.modules.get(plugin["module"])
    if module is None:
        spec = importlib.util.spec_from_file_location(plugin["module"], plugin["file"])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[plugin["module"]] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(module, plugin["name"])


async def run(settings: Mapping[str, Any]) -> None:
    """Run one worker until SIGTERM."""
    name = settings["name"]
    # JSON has no tuples.
    labels = tuple((label, value) for label, value in settings["traits"]["labels"])
    traits = WorkerTraits(**{**settings["traits"], "labels": labels})
    clients = [TcpClient("127.0.0.1", settings["port"], name) for _ in range(2)]
    worker = Worker(
        MemberSettings(group_id=settings["group"], member_id=name, traits=traits),
        Connections(heartbeats=clients[0], control=clients[1]),
        assignors=[make_assignor(load(plugin)) for plugin in settings["assignors"]],
        listeners=make_listeners([load(plugin) for plugin in settings["listeners"]]),
    )
    node = Node(name)
    recorder = RecordingRunner(name, Journal(Path(settings["journal"])), node)

    def load_class(cls: str) -> type[Connector]:
        # Read again each time: the test may add connectors of other classes.
        classes = json.loads(Path(settings["classes"]).read_text(encoding="utf-8"))
        own = {cls: load(classes[cls])} if cls in classes else {}
        return guarded_classes(own, node, set(), recorder)(cls)

    runner = TaskRunner(
        name,
        RunnerSettings(scratch=Path(settings["scratch"]), group_id=settings["group"], allowed_paths=None),
        load_class=load_class,
        publish=worker.publish_tasks,
        report=worker.report,
    )
    worker.set_runner(recorder.around(runner))
    try:
        with handle_signals(lambda: worker.stop(for_good=True), worker.drain, worker.restart):
            await worker.run()
    finally:
        for client in clients:
            await client.close()


def main(arguments: Sequence[str]) -> None:
    sys.path[:0] = [path for path in json.loads(arguments[1]) if path not in sys.path]
    asyncio.run(run(json.loads(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
