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
    """One change to one connector; null means "unchanged".

    Attributes:
        connector: the connector's name.
        expected_version: the connector's current version; 0 "does not exist yet", -1 any.
        delete: delete the connector and its tasks.
        config: the new configuration, complete.
        target_state: RUNNING 1, PAUSED 2 (no task runs), STOPPED 3 (no unit runs); 0 unchanged.
        task_configs: the new task list, from the member that owns the connector.
        owner_epoch: that member's owner epoch of the connector; required with ``task_configs``.
    """

    connector: str
    expected_version: int = -1
    delete: bool = False
    config: tuple[ConfigEntry, ...] | None = None
    target_state: int = 0
    task_configs: tuple[TaskConfig, ...] | None = None
    owner_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsRequest:
    """Changes to a group's connectors, each with compare-and-set on its version.

    Attributes:
        group_id: the worker group; created if it does not exist.
        member_id: the member that sends the request; null for an operator.
        changes: applied atomically, in order.
    """

    group_id: str
    member_id: str | None = None
    changes: tuple[ConnectorChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedConnector:
    """The result of one change; ``version`` is the connector's now: the epoch of its last change (0: no connector)."""

    connector: str
    error_code: int = 0
    error_message: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsResponse:
    """The results. With a top-level error nothing was changed; ``results`` then names the rejected change."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    group_epoch: int = 0
    results: tuple[ChangedConnector, ...] = ()
    coordinator_epoch: int = -1
