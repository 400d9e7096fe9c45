"""ConnectGroupUpdateConnectors: connector configurations, task lists and wanted states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...masking import masked_value
from .common import ConfigEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """The configuration of one task."""

    config: tuple[ConfigEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPatch:
    """A change of one setting: its new value; null removes the setting. Its ``repr`` shows no credential."""

    name: str
    value: str | None = None

    def __repr__(self) -> str:
        value = None if self.value is None else masked_value(self.name, self.value)
        return f"ConfigPatch(name={self.name!r}, value={value!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartedUnit:
    """A grant to be ended: the unit is revoked and assigned again at a later owner epoch.

    Attributes:
        task: the task number, -1 for the connector itself.
        owner_epoch: the owner epoch of the grant. A unit that has been granted again since is not restarted, so a
            repeated request has no effect.
    """

    task: int
    owner_epoch: int


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
        config_patch: *(tagged)* settings to change or remove; the other settings are kept (KIP-477). Not together with
            ``config``.
        restart: *(tagged)* units to restart, each by the owner epoch of its grant.
        credential_names: *(tagged)* the settings that are credentials whatever their names are, from the member that
            owns the connector, as ``task_configs``. They change neither the version nor the group epoch.
    """

    connector: str
    expected_version: int = -1
    delete: bool = False
    config: tuple[ConfigEntry, ...] | None = None
    target_state: int = 0
    task_configs: tuple[TaskConfig, ...] | None = None
    owner_epoch: int = -1
    config_patch: tuple[ConfigPatch, ...] | None = None
    restart: tuple[RestartedUnit, ...] = ()
    credential_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConnectorsRequest:
    """Changes to a group's connectors, each with compare-and-set on its version.

    Attributes:
        group_id: the worker group; created if it does not exist.
        member_id: the member that sends the request; null for an operator.
        changes: applied atomically, in order.
        process_id: *(tagged)* the process of the member that sends the request; see ``HeartbeatRequest``.
    """

    group_id: str
    member_id: str | None = None
    changes: tuple[ConnectorChange, ...] = ()
    process_id: int = -1


THOSE_THERE: Final = "; connectors of this group: "
"""In the error of a change of a connector that does not exist, before the names of those that do: they are only for
clients that may describe all of them."""


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


# --------------------------------------------------------------------------------------------------
# ConnectGroupResetTopics: forget the topics that a connector has used (KIP-558).


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTopicsRequest:
    """Forget the topics that the tasks of a connector have used so far."""

    group_id: str
    connector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTopicsResponse:
    """Whether the coordinator has forgotten them."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1
