"""The settings of a task runner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checks import check_number, check_text
from ..config.paths import AllowedPaths, require_absolute_paths
from ..config.secrets import NO_SECRETS, Secrets
from ..errors import ConfigError


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
            default none, because a worker gets its connectors from a coordinator. Null: any, for a program that
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
