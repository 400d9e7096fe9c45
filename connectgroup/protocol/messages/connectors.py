"""ConnectGroupUpdateConnectors: connector configurations, task lists and wanted states."""

from __future__ import annotations

from dataclasses import dataclass

from .common import ConfigEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The configuration of one task."""

    config: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorChange:
    """One change to one connector; what is null stays as it is.

    Attributes:
        connector: its name.
        expected_version: the version it must have; 0 "does not exist yet", -1 any.
        delete: remove it and its tasks.
        config: the new configuration, whole.
        wanted_state: RUNNING 1, PAUSED 2 (no task runs), STOPPED 3 (nothing runs); 0 as it is.
        task_configs: the new task list, from the member that owns the connector.
        owner_epoch: that member's grant of the connector; needed with ``task_configs``.
    """

    connector: str
    expected_version: int = -1
    delete: bool = False
    config: tuple[ConfigEntry, ...] | None = None
    wanted_state: int = 0
    task_configs: tuple[TaskConfig, ...] | None = None
    owner_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsRequest:
    """Changes to a group's connectors, each with compare-and-set on its version.

    Attributes:
        group_id: the worker group; made if it does not exist.
        member_id: the member that speaks; null for an operator.
        changes: taken all or none, in order.
    """

    group_id: str
    member_id: str | None = None
    changes: tuple[ConnectorChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedConnector:
    """One change's outcome; ``version`` is that of the connector now: its last change's epoch (0: there is none)."""

    connector: str
    error_code: int = 0
    error_message: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsResponse:
    """The outcome. With a top-level error nothing was changed; ``results`` then names the offender."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    group_epoch: int = 0
    results: tuple[ChangedConnector, ...] = ()
    coordinator_epoch: int = -1
