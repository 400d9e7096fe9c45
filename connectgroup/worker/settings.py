"""Settings of a worker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..checks import check_number, check_text
from ..config.paths import AllowedPaths, require_absolute_paths
from ..config.secrets import NO_SECRETS, Secrets
from ..errors import ConfigError
from ..transport.base import Client


class Connections(NamedTuple):
    """A worker's two connections to its coordinator: one delivers responses in order, and heartbeats are parked."""

    heartbeats: Client
    """For heartbeats only."""
    control: Client
    """For all other requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Timeouts and back-offs of a worker, in seconds; its first sequence and its process.

    Attributes:
        call_timeout_s: request timeout, in addition to the time a heartbeat is parked.
        assignor_timeout_s: how long an assignor may compute; after that the coordinator chooses another member.
        retry_initial_s: back-off after the first failed call; grows with each consecutive failure, with jitter.
        retry_max_s: maximum back-off.
        status_wait_s: batching delay for task statuses.
        lose_timeout_s: how long lost units may take to stop before the worker rejoins. Units that still run after it
            can no longer write, because their fencing token is stale. ``None``: the rebalance timeout.
        first_sequence: see ``Member``; ``None``: taken from the wall clock.
        process_id: see ``Member``; ``None``: drawn at random.
        os_process: the name of this process to the operating system, by which a coordinator on this machine notices at
            once that the process has ended. ``None``: ``os_process.this_process()`` over TCP; with
            ``supervised=True`` if a supervisor reports the end of the process.

    Raises:
        ConfigError: a time is out of its range.
    """

    call_timeout_s: float = 5.0
    assignor_timeout_s: float = 30.0
    retry_initial_s: float = 0.05
    retry_max_s: float = 2.0
    status_wait_s: float = 0.05
    lose_timeout_s: float | None = None
    first_sequence: int | None = None
    process_id: int | None = None
    os_process: str | None = None

    def __post_init__(self) -> None:
        for name in ("call_timeout_s", "assignor_timeout_s", "retry_initial_s", "retry_max_s", "status_wait_s"):
            check_number(name, getattr(self, name), 0, 3_600)
        if self.lose_timeout_s is not None:
            check_number("lose_timeout_s", self.lose_timeout_s, 0, 3_600)

    def lose_limit_s(self, rebalance_timeout_ms: int) -> float:
        """The time limit for stopping lost units."""
        return rebalance_timeout_ms / 1000 if self.lose_timeout_s is None else self.lose_timeout_s


def new_process_id() -> int:
    """Draw a process id: 63 random bits, so that two processes never have the same."""
    return secrets.randbits(63)


FIRST_INTERVAL_MS = 3_000
"""The heartbeat interval of a worker until the coordinator has sent one."""

PROCESS_ID_VARIABLE = "CONNECTGROUP_PROCESS_ID"
"""Environment variable with which a supervisor sets the process id of a worker, whose death it reports."""

STOP_SHARE = 0.875
"""Fraction of the rebalance timeout that stops and callbacks may take when a worker ends; the leave takes the rest."""


# --------------------------------------------------------------------------------------------------
# The settings of a task runner.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Settings of a runner; times in seconds.

    Attributes:
        scratch: parent of the tasks' directories, on local disk. It may be shared: each task gets a new directory,
            and nothing else in it is removed.
        refresh_s: interval at which the owner of a connector polls its task configurations.
        start_timeout_s: a task whose start takes longer is FAILED, with the place where it hangs; it is RUNNING if the
            start returns later.
        retry_initial_s: back-off before a failed task is restarted; doubles with each consecutive failure.
        retry_max_s: maximum back-off.
        group_id: the worker's group, for metrics.
        secrets: the secrets that connectors may refer to.
        allowed_paths: the files and directories that connectors may use, as absolute paths (``config.paths``); by
            default none, because a worker gets its connectors from a coordinator. ``None``: any, for a program that
            configures all connectors of the group itself.

    Raises:
        ConfigError: a field is out of its range: the field, its value, and what is allowed.
    """

    scratch: Path
    refresh_s: float = 5.0
    start_timeout_s: float = 300.0
    retry_initial_s: float = 1.0
    retry_max_s: float = 30.0
    group_id: str = ""
    secrets: Secrets = NO_SECRETS
    allowed_paths: AllowedPaths = ()

    def __post_init__(self) -> None:
        if not isinstance(self.scratch, Path):
            raise ConfigError("scratch", self.scratch, "a pathlib.Path")
        for name in ("refresh_s", "start_timeout_s", "retry_initial_s", "retry_max_s"):
            check_number(name, getattr(self, name), 0, 3_600)
        check_text("group_id", self.group_id)
        require_absolute_paths("allowed_paths", self.allowed_paths or ())
