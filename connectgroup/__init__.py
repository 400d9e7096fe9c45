"""Worker groups: connectors and tasks are distributed over worker processes, and exactly one worker runs each of them.

Membership and assignments are versioned by epochs. Public names are loaded on first use: ``import connectgroup`` itself
imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis.plan import Change as Change, Plan as Plan, plan as plan
    from .analysis.replay import GroupHistory as GroupHistory, replay as replay
    from .assign.api import (
        Assignor as Assignor,
        ConnectAssignment as ConnectAssignment,
        ConnectAssignor as ConnectAssignor,
        ConnectGroup as ConnectGroup,
        PartitionAssignment as PartitionAssignment,
        PartitionAssignor as PartitionAssignor,
        PartitionGroup as PartitionGroup,
        RebalanceProtocol as RebalanceProtocol,
    )
    from .assign.members import (
        ConnectMember as ConnectMember,
        ConnectMemberAssignment as ConnectMemberAssignment,
        ConnectorSpec as ConnectorSpec,
        DelayedWork as DelayedWork,
        Metadata as Metadata,
        PartitionMember as PartitionMember,
        PartitionMemberAssignment as PartitionMemberAssignment,
        TopicSpec as TopicSpec,
    )
    from .assign.placement import WorkerTraits as WorkerTraits
    from .client.admin import Admin as Admin
    from .config.connector_file import ConnectorFile as ConnectorFile
    from .config.coordinator import CoordinatorConfig as CoordinatorConfig
    from .config.worker import WorkerConfig as WorkerConfig
    from .connector import Connector as Connector, Task as Task, TaskContext as TaskContext
    from .coordinator.runtime import Coordinator as Coordinator
    from .coordinator.server import CoordinatorServer as CoordinatorServer
    from .embedding import EmbeddedGroup as EmbeddedGroup, worker_group as worker_group
    from .errors import (
        ConfigError as ConfigError,
        ConnectGroupError as ConnectGroupError,
        GroupError as GroupError,
        PluginError as PluginError,
        WorkerAlreadyRun as WorkerAlreadyRun,
    )
    from .group.connect.settings import GroupSettings as GroupSettings
    from .listener import WorkerRebalanceListener as WorkerRebalanceListener
    from .log.memory import MemoryLog as MemoryLog
    from .log.sqlite.log import SqliteLog as SqliteLog
    from .member.actions import Grant as Grant
    from .member.state_machine import MemberSettings as MemberSettings
    from .plugins import load_assignor as load_assignor
    from .protocol.messages.connectors import (
        ConnectorChange as ConnectorChange,
        UpdateConnectorsRequest as UpdateConnectorsRequest,
    )
    from .protocol.messages.describe import DescribedGroup as DescribedGroup, DescribeRequest as DescribeRequest
    from .protocol.records.connect import TargetState as TargetState
    from .protocol.units import TopicPartition as TopicPartition, Unit as Unit, Units as Units
    from .supervisor import Supervisor as Supervisor
    from .transport.local import LocalClient as LocalClient
    from .transport.tcp_client import TcpClient as TcpClient
    from .worker.loop import Worker as Worker
    from .worker.runner import Runner as Runner, RunnerSettings as RunnerSettings, TaskRunner as TaskRunner
    from .worker.settings import Connections as Connections, WorkerSettings as WorkerSettings

__version__ = "0.1.0"

_HOME = {
    "analysis.plan": ("Change", "Plan", "plan"),
    "analysis.replay": ("GroupHistory", "replay"),
    "assign.api": (
        "Assignor",
        "ConnectAssignment",
        "ConnectAssignor",
        "ConnectGroup",
        "PartitionAssignment",
        "PartitionAssignor",
        "PartitionGroup",
        "RebalanceProtocol",
    ),
    "assign.members": (
        "ConnectMember",
        "ConnectMemberAssignment",
        "ConnectorSpec",
        "DelayedWork",
        "Metadata",
        "PartitionMember",
        "PartitionMemberAssignment",
        "TopicSpec",
    ),
    "assign.placement": ("WorkerTraits",),
    "client.admin": ("Admin",),
    "config.connector_file": ("ConnectorFile",),
    "config.coordinator": ("CoordinatorConfig",),
    "config.worker": ("WorkerConfig",),
    "connector": ("Connector", "Task", "TaskContext"),
    "coordinator.runtime": ("Coordinator",),
    "coordinator.server": ("CoordinatorServer",),
    "embedding": ("EmbeddedGroup", "worker_group"),
    "errors": ("ConfigError", "ConnectGroupError", "GroupError", "PluginError", "WorkerAlreadyRun"),
    "group.connect.settings": ("GroupSettings",),
    "listener": ("WorkerRebalanceListener",),
    "log.memory": ("MemoryLog",),
    "log.sqlite.log": ("SqliteLog",),
    "member.actions": ("Grant",),
    "member.state_machine": ("MemberSettings",),
    "plugins": ("load_assignor",),
    "protocol.messages.connectors": ("ConnectorChange", "UpdateConnectorsRequest"),
    "protocol.messages.describe": ("DescribeRequest", "DescribedGroup"),
    "protocol.records.connect": ("TargetState",),
    "protocol.units": ("TopicPartition", "Unit", "Units"),
    "supervisor": ("Supervisor",),
    "transport.local": ("LocalClient",),
    "transport.tcp_client": ("TcpClient",),
    "worker.loop": ("Worker",),
    "worker.settings": ("Connections", "WorkerSettings"),
    "worker.runner": ("Runner", "RunnerSettings", "TaskRunner"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
