"""The API for connector authors.

A connector has two duties: to divide its work into tasks (``task_configs``), and to create a task (``task``). The
worker that owns the connector calls ``task_configs`` periodically, so that a connector whose source grows can request
more tasks; the workers that own the tasks call ``task``.

All methods may block: the worker calls them off its event loop, one call at a time per task. Connectors are loaded
from the entry point group ``connectgroup.connectors``; ``connector.class`` is the name of the entry point. A dotted
path is never imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .errors import ConnectGroupError, PluginError
from .protocol.units import Unit

Config = Mapping[str, str]
"""Kafka Connect's configuration format: flat, with strings as keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of records that a task has passed to its sink, for metrics.

    Attributes:
        read: records read from the source; ``None`` if it is not known how many the transforms dropped.
        rows: records after the transforms.
        dead_letters: records that could not be processed.
        last_dead_letter: place and reason of the last of them.
        read_s: seconds to read and transform the batch; if Spark's workers write the rows, to write them, too.
        commit_s: seconds that the commit took.
        committed: false if the commit failed.
        read_bytes: bytes read from the source; ``None`` if it is not known.
        written_bytes: bytes of the records as they were passed to the sink (a pipeline: in Arrow's format); ``None`` if
            it is not known.
        topics: the Kafka topics that the batch was read from and written to.
    """

    read: int | None
    rows: int
    dead_letters: int = 0
    last_dead_letter: str = ""
    read_s: float
    commit_s: float
    committed: bool = True
    read_bytes: int | None = None
    written_bytes: int | None = None
    topics: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What a task has not read yet; ``None``: not known.

    Attributes:
        records: records behind the end of the source.
        bytes: bytes that are not read yet.
        files: files that are not read, or not read to their end.
        unfinished_files: those of which only a last line without a line feed is left, and incomplete compressed ones.
        unreadable_files: files that cannot be read, or were rewritten; not among ``files``.
        skipped_files: files and directories that are not read because of their names, or because they are links to
            directories; not among ``files``.
    """

    records: int | None = None
    bytes: int | None = None
    files: int | None = None
    unfinished_files: int | None = None
    unreadable_files: int | None = None
    skipped_files: int | None = None


@dataclass(frozen=True, slots=True)
class LocalPath:
    """Marks a setting that names a file or directory on the worker: ``path: Annotated[str, LocalPath(), Field(...)]``.

    For the models of ``Connector.settings_models``, and the ``Settings`` of a source or sink. Workers allow only the
    paths of their list (``worker.allowed.paths``). A class that opens files must mark all settings that name them.

    Attributes:
        within: for a setting whose text names files among other things, such as a connection string: returns the
            absolute paths in a text, each under its name there. ``None``: the whole text is the path.
    """

    within: Callable[[str], Mapping[str, str]] | None = None


def _ignore(_: object) -> None:
    """The default of ``TaskContext.batch`` and ``TaskContext.lag``."""


def _ignore_poll() -> None:
    """The default of ``TaskContext.polled``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The inputs and callbacks of a running task.

    Attributes:
        unit: connector and task number.
        owner_epoch: the group epoch at which this task was assigned to this worker; increases with each grant.
        incarnation: creation time of the group, in milliseconds since 1970. A group whose log was lost restarts at
            epoch 1; the incarnation distinguishes its grants from those of the earlier group.
        member_id: the worker's member id in the group.
        scratch: a directory on local disk, used by this grant only and deleted when the task ends.
        progress: the task calls it with the number of rows made durable since the last call; from any thread.
        failed: the task calls it at most once, from any thread, when it can no longer continue. The worker logs the
            error as one line and restarts the task after a back-off, under the same owner epoch.
        batch: the task may call it with each batch, from any thread, for the metrics of sources and sinks.
        polled: the task may call it from any thread when a poll of its source is complete, with or without records: the
            time of its last activity. See ``Task.reports_polls``.
        lag: the task may call it from any thread, every few seconds, with what it has not read yet.
        waits_for: ``start`` may call it with what it waits for ("starting Spark"), which is shown while it has not
            returned.
    """

    unit: Unit
    owner_epoch: int
    member_id: str
    scratch: Path
    progress: Callable[[int], None]
    failed: Callable[[BaseException], None]
    incarnation: int = 0
    batch: Callable[[Batch], None] = _ignore
    polled: Callable[[], None] = _ignore_poll
    lag: Callable[[Lag], None] = _ignore
    waits_for: Callable[[str], None] = _ignore

    @property
    def fencing_token(self) -> int:
        """The fencing token: strictly increases with each grant of the unit, also after the group is created again.

        It consists of the incarnation in seconds, followed by 32 bits of owner epoch; it fits a signed 64-bit integer.
        A sink that has seen a higher token for the same unit must reject a lower one.
        """
        return fencing_token(self.incarnation, self.owner_epoch)


def fencing_token(incarnation: int, owner_epoch: int) -> int:
    """Return the fencing token of an owner epoch in a group that was created at ``incarnation`` (milliseconds)."""
    return ((incarnation // 1000) << 32) | owner_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """The position of a connector in one partition of its source, in Kafka Connect's form (KIP-875).

    Attributes:
        partition: a JSON object that names the partition: ``{"slice": "a.csv"}``.
        offset: a JSON object with the position: ``{"position": 4096}``; null, in a change only, forgets the partition.
    """

    partition: Mapping[str, Any]
    offset: Mapping[str, Any] | None


class Task(ABC):
    """One task of a connector, while one worker owns it.

    Attributes:
        reports_polls: whether the task calls ``TaskContext.polled``. If so, its state is STARTING until the first call,
            or until its first rows are durable (``TaskContext.progress``); otherwise it is RUNNING when ``start`` has
            returned.
    """

    reports_polls: ClassVar[bool] = False

    @abstractmethod
    def start(self) -> None:
        """Start the work and return; the work itself runs elsewhere (a thread, a Spark query).

        Raises:
            ConfigError: a setting is invalid.
            Exception: any other error; it is logged as one line, and the task is retried after a back-off.
        """

    def interrupt_start(self) -> None:  # noqa: B027 (to do nothing is the usual case)
        """End a ``start`` that may wait for a long time: the task is to stop, and waits for it. It may fail then.

        Called from another thread while ``start`` is under way, or before; maybe twice. ``start`` may return, and
        ``stop`` begin, before the call.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the work; after this returns, the task no longer writes. Called once; may drain.

        Raises:
            Exception: the task may still write; logged as one line. The worker does not acknowledge the revocation, so
                that the group assigns the task to another worker only after the rebalance timeout. A worker that ends
                leaves the group nevertheless, and another worker is assigned the task at once.
        """

    def abandon(self) -> None:  # noqa: B027 (to do nothing is the usual case)
        """End what the task runs on, so that ``stop`` returns. Called from another thread if ``stop`` hangs.

        Only for a task that has stalled (``task.progress.timeout.ms``). Other tasks on the same engine fail and are
        started again.
        """


class Connector(ABC):
    """A connector: an instance of one ``connector.class`` with a name and a configuration."""

    def __init__(self, name: str, config: Config) -> None:
        """Store name and configuration. Must not access external systems: only the methods below may.

        Raises:
            ConfigError: a setting is missing, unknown or out of range.
        """
        self.name = name
        self.config = config

    @classmethod
    def settings_models(cls, config: Config) -> Mapping[str, type[Any]]:
        """Return the pydantic models of the settings, by the prefix of their names; empty if the class declares none.

        Validation reports all errors of these models at once, and ``GET /connector-plugins/{class}/config`` lists their
        fields: a field's alias is its name, its description states the allowed values, and ``exclude=True`` marks a
        field that is no setting.

        Args:
            config: may be incomplete or invalid; some classes have other settings for other values.
        """
        return {}

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Sequence[Config]:
        """Return one configuration per task: at most ``max_tasks`` (``tasks.max``); none while there is nothing to do.

        Called when the connector starts and every few seconds after that. A task whose configuration did not change
        keeps running; the other tasks are stopped and restarted under a later owner epoch.
        """

    def stop(self) -> None:  # noqa: B027 (to do nothing is the usual case)
        """Stop what ``task_configs`` has started. Called once, after the last call of it: the worker no longer owns the
        connector, or ``task_configs`` has failed. Not called for a connector that only creates tasks.

        Raises:
            Exception: logged as one line.
        """

    @abstractmethod
    def task(self, config: Config, context: TaskContext) -> Task:
        """Create a task, not yet started, for one of the configurations that ``task_configs`` returned.

        If the connector's own configuration changes in any setting but ``tasks.max``, all of its tasks stop and are
        restarted after the next call of ``task_configs``; otherwise tasks with an unchanged ``config`` continue.
        """

    @property
    def credential_names(self) -> Sequence[str]:
        """The settings that are credentials although their names do not say so (``masking``): descriptions of the
        connector and of its tasks mask their values. Read after each call of ``task_configs``, also if it has failed.
        """
        return ()

    @property
    def fenced(self) -> bool:
        """Whether the sink of this connector rejects what a former owner of a task still writes (fencing token).

        If not, the worker must have stopped a task before another worker starts it.

        Raises:
            ConfigError, PluginError: the configuration does not tell.
        """
        return False

    def offsets(self) -> Sequence[PartitionOffset]:
        """Return the committed offsets of this connector, in a stable order. May be called while tasks run."""
        return ()

    def alter_offsets(self, fencing_token: int, changes: Sequence[PartitionOffset] | None) -> bool | None:
        """Change the committed offsets of this connector, all or none. Called while the connector is STOPPED.

        A task that was granted under a lower token must not write after this returns, even if it still runs: the
        coordinator may have removed its worker, which does not know yet (a zombie).

        Args:
            fencing_token: higher than that of every task granted so far, lower than that of every later one.
            changes: the partitions to change; ``None`` resets all offsets.

        Returns:
            False if the system that the connector uses may have further offsets, which were not changed; else nothing
            or true.

        Raises:
            Fenced: a task runs under a higher token; nothing was changed.
            ConfigError: a change cannot be made; nothing was changed.
            PluginError: this connector does not offer it.
        """
        raise PluginError(f"connector class {type(self).__name__} doesn't support external modification of offsets")

    def check_access(self, max_tasks: int) -> Mapping[str, ConnectGroupError]:
        """Try to reach what the configuration names, and to log in; change nothing. For ``validate``, off any worker.

        Args:
            max_tasks: ``tasks.max``.

        Returns:
            The errors, by setting.
        """
        return {}

    @classmethod  # noqa: B027 (to do nothing is the usual case)
    def warm_up(cls) -> None:
        """Run slow initialization that all tasks of this class share (a Spark session).

        Called once per worker, before the worker joins the group; while its tasks run already, if ``starts_cold`` says
        so of all connectors of this class.
        """

    @classmethod
    def starts_cold(cls, config: Config) -> bool:
        """Whether tasks of this configuration can start, and process records, before ``warm_up`` has returned.

        Raises:
            ConfigError: this worker lacks what they need.
        """
        return False
