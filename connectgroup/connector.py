"""What a connector author writes against.

A connector is asked two things: how its work is cut into tasks, and to make one of those tasks. The worker
that owns the connector asks the first, again from time to time, so that a connector whose source grows can
ask for more tasks; the workers that own the tasks ask the second.

All methods may block: the worker calls them off its event loop, one call at a time for one task.
A connector is found by the entry point ``connectgroup.connectors``; its entry point's name is what
``connector.class`` says. A dotted path is never imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .protocol.units import Unit

Config = Mapping[str, str]
"""Connect's configuration: flat, and both sides are strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a running task is told, and whom it tells.

    Attributes:
        unit: connector and task number.
        owner_epoch: the epoch at which this worker was given this task; grows with each grant of it.
        incarnation: milliseconds since 1970 at which the group was made. A group whose log was lost begins again at
            epoch 1; this tells its grants from those of the one before.
        member_id: the worker's name in the group.
        scratch: a directory on local disk for this grant alone; it is thrown away when the task ends.
        progress: called with the number of rows made durable since the last call; any thread.
        failed: called at most once, from any thread, when the task can no longer go on by itself. The worker
            shows the error as one line and starts the task again after a while, under the same owner epoch.
    """

    unit: Unit
    owner_epoch: int
    member_id: str
    scratch: Path
    progress: Callable[[int], None]
    failed: Callable[[BaseException], None]
    incarnation: int = 0

    @property
    def fencing_token(self) -> int:
        """The fencing token: strictly grows with each grant of the unit, also over a group made anew.

        Incarnation in seconds above 32 bits of owner epoch; fits a signed 64-bit integer. A sink that has seen a higher
        one for the same work must refuse a lower one.
        """
        return ((self.incarnation // 1000) << 32) | self.owner_epoch


class Task(ABC):
    """One task of a connector, while one worker holds it."""

    @abstractmethod
    def start(self) -> None:
        """Begin to work and return; the work itself goes on elsewhere (a thread, a Spark query).

        Raises:
            ConfigError: a setting cannot be used.
            Exception: anything else is shown as one line, and the task is tried again after a while.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the work; when this returns, nothing of it writes any more. Called once; may drain."""


class Connector(ABC):
    """The work of one ``connector.class`` under one name and configuration."""

    def __init__(self, name: str, config: Config) -> None:
        """Keep name and configuration. Must not touch the outside world: that is for the methods below.

        Raises:
            ConfigError: a setting is missing, unknown or out of range.
        """
        self.name = name
        self.config = config

    @abstractmethod
    def task_configs(self, most: int) -> Sequence[Config]:
        """How the work is cut now: one configuration a task, at most ``most`` (``tasks.max``), at least one.

        Asked when the connector starts and every few seconds after that. A task whose configuration did not
        change keeps running; the others are stopped and started again under a later owner epoch.
        """

    @abstractmethod
    def task(self, config: Config, context: TaskContext) -> Task:
        """A new, not yet started task for one of the configurations that ``task_configs`` gave.

        When the connector's own configuration changes in anything but ``tasks.max``, all of its tasks stop, and
        start anew when ``task_configs`` has been asked again; otherwise those whose ``config`` stays the same go on.
        """

    @classmethod  # noqa: B027 (to do nothing is the usual case)
    def warm_up(cls) -> None:
        """Whatever is slow and the same for every task of this class (a Spark session).

        Called once a worker, before it joins the group.
        """
