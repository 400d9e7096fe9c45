"""Worker groups: connectors and tasks are distributed over worker processes, and exactly one worker runs each of them.

Membership and assignments are versioned by epochs. Public names are loaded on first use: ``import connectgroup`` itself
imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import sync as sync
    from .analysis.explain import TaskExplanation as TaskExplanation, explain_task as explain_task
    from .analysis.model import NoPlan as NoPlan
    from .analysis.plan import Change as Change, Plan as Plan, PlannedMove as PlannedMove, plan as plan
    from .analysis.replay import GroupHistory as GroupHistory, replay as replay
    from .assign.api import (
        Assignor as Assignor,
        ConnectAssignment as ConnectAssignment,
        ConnectAssignor as ConnectAssignor,
        ConnectAssignorInput as ConnectAssignorInput,
        PartitionAssignment as PartitionAssignment,
        PartitionAssignor as PartitionAssignor,
        PartitionAssignorInput as PartitionAssignorInput,
        RebalanceProtocol as RebalanceProtocol,
        withhold as withhold,
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
        validate_subscription as validate_subscription,
    )
    from .assign.placement import Placement as Placement, WorkerTraits as WorkerTraits
    from .client.admin import Admin as Admin, PutResult as PutResult
    from .config.connector_file import ConnectorFile as ConnectorFile
    from .config.coordinator import CoordinatorConfig as CoordinatorConfig
    from .config.worker import WorkerConfig as WorkerConfig
    from .connector import (
        Batch as Batch,
        Config as Config,
        Connector as Connector,
        Lag as Lag,
        LocalPath as LocalPath,
        PartitionOffset as PartitionOffset,
        Task as Task,
        TaskContext as TaskContext,
        fencing_token as fencing_token,
    )
    from .coordinator.listing import ConsumerGroups as ConsumerGroups
    from .coordinator.runtime import Coordinator as Coordinator
    from .coordinator.server import CoordinatorServer as CoordinatorServer
    from .dataplane.errors import OffsetConflict as OffsetConflict, SinkError as SinkError, SourceError as SourceError
    from .dataplane.iterator import IteratorSource as IteratorSource
    from .dataplane.sink import Sink as Sink
    from .dataplane.source import Source as Source
    from .dataplane.transform import Predicate as Predicate, Transform as Transform
    from .embedding import EmbeddedGroup as EmbeddedGroup, worker_group as worker_group
    from .errors import (
        NO_VALUE as NO_VALUE,
        UNKNOWN_SETTING as UNKNOWN_SETTING,
        ConfigError as ConfigError,
        ConnectGroupError as ConnectGroupError,
        ConnectorAlreadyExists as ConnectorAlreadyExists,
        ConnectorNotFound as ConnectorNotFound,
        CoordinatorLoadInProgress as CoordinatorLoadInProgress,
        CoordinatorNotAvailable as CoordinatorNotAvailable,
        Fenced as Fenced,
        FencedInstanceId as FencedInstanceId,
        FencedMemberEpoch as FencedMemberEpoch,
        GroupAuthorizationFailed as GroupAuthorizationFailed,
        GroupError as GroupError,
        GroupIdNotFound as GroupIdNotFound,
        GroupMaxSizeReached as GroupMaxSizeReached,
        IllegalGeneration as IllegalGeneration,
        IllegalSaslState as IllegalSaslState,
        InconsistentGroupProtocol as InconsistentGroupProtocol,
        InvalidAssignment as InvalidAssignment,
        InvalidGroupId as InvalidGroupId,
        InvalidRegularExpression as InvalidRegularExpression,
        InvalidRequest as InvalidRequest,
        InvalidSessionTimeout as InvalidSessionTimeout,
        LogError as LogError,
        MemberIdRequired as MemberIdRequired,
        NonEmptyGroup as NonEmptyGroup,
        NotAuthenticated as NotAuthenticated,
        NotCoordinator as NotCoordinator,
        NotSent as NotSent,
        OffsetMetadataTooLarge as OffsetMetadataTooLarge,
        PluginError as PluginError,
        PolicyViolation as PolicyViolation,
        RebalanceInProgress as RebalanceInProgress,
        SaslAuthenticationFailed as SaslAuthenticationFailed,
        StaleGroupEpoch as StaleGroupEpoch,
        StaleMemberEpoch as StaleMemberEpoch,
        TimedOut as TimedOut,
        TransportError as TransportError,
        UnitFailed as UnitFailed,
        UnknownMemberId as UnknownMemberId,
        UnreleasedInstanceId as UnreleasedInstanceId,
        UnsupportedAssignor as UnsupportedAssignor,
        UnsupportedSaslMechanism as UnsupportedSaslMechanism,
        UnsupportedVersion as UnsupportedVersion,
        VersionConflict as VersionConflict,
        WireError as WireError,
        WorkerAlreadyRun as WorkerAlreadyRun,
    )
    from .group.connect.settings import GroupSettings as GroupSettings
    from .group.consumer.settings import ConsumerSettings as ConsumerSettings
    from .listener import WorkerRebalanceListener as WorkerRebalanceListener
    from .log.base import AppendRefused as AppendRefused, Log as Log, LogFenced as LogFenced
    from .log.memory import MemoryLog as MemoryLog
    from .log.registry import log_from_url as log_from_url
    from .log.sqlite.log import SqliteLog as SqliteLog
    from .member.actions import Grant as Grant
    from .member.settings import GroupProtocol as GroupProtocol, MemberSettings as MemberSettings
    from .plugins import load_assignor as load_assignor, load_listener as load_listener
    from .protocol.messages.assignment import DelayedUnits as DelayedUnits
    from .protocol.messages.common import (
        AssignorInfo as AssignorInfo,
        ConfigEntry as ConfigEntry,
        ConnectorTasks as ConnectorTasks,
    )
    from .protocol.messages.connectors import (
        ConnectorChange as ConnectorChange,
        UpdateConnectorsRequest as UpdateConnectorsRequest,
    )
    from .protocol.messages.describe import (
        DelayedUntil as DelayedUntil,
        DescribedConnector as DescribedConnector,
        DescribedGroup as DescribedGroup,
        DescribedMember as DescribedMember,
        DescribedUnit as DescribedUnit,
        DescribeRequest as DescribeRequest,
        Move as Move,
        Rebalance as Rebalance,
    )
    from .protocol.messages.heartbeat import TaskStatus as TaskStatus
    from .protocol.messages.progress import (
        ConnectorHistory as ConnectorHistory,
        Progress as Progress,
        UnitEvent as UnitEvent,
    )
    from .protocol.records.connect import TargetState as TargetState, UnitState as UnitState
    from .protocol.units import TopicPartition as TopicPartition, Unit as Unit, Units as Units
    from .supervisor import Supervisor as Supervisor
    from .topics import StaticTopics as StaticTopics
    from .transport.access import Access as Access, client_tls as client_tls
    from .transport.base import Client as Client
    from .transport.credentials import Credentials as Credentials
    from .transport.local import LocalClient as LocalClient
    from .transport.tcp_client import TcpClient as TcpClient
    from .worker.loop import Worker as Worker
    from .worker.runner import Runner as Runner, TaskRunner as TaskRunner, UnitsNotStopped as UnitsNotStopped
    from .worker.serving import serve_worker as serve_worker
    from .worker.settings import (
        Connections as Connections,
        RunnerSettings as RunnerSettings,
        WorkerSettings as WorkerSettings,
    )
    from .worker.state import StopReason as StopReason, WorkerState as WorkerState
    from .worker.unit_runner import ThreadUnitRunner as ThreadUnitRunner, UnitRunner as UnitRunner

__version__ = "0.1.0"

_HOME = {
    "analysis.explain": ("TaskExplanation", "explain_task"),
    "analysis.model": ("NoPlan",),
    "analysis.plan": ("Change", "Plan", "PlannedMove", "plan"),
    "analysis.replay": ("GroupHistory", "replay"),
    "assign.api": (
        "Assignor",
        "ConnectAssignment",
        "ConnectAssignor",
        "ConnectAssignorInput",
        "PartitionAssignment",
        "PartitionAssignor",
        "PartitionAssignorInput",
        "RebalanceProtocol",
        "withhold",
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
        "validate_subscription",
    ),
    "assign.placement": ("Placement", "WorkerTraits"),
    "client.admin": ("Admin", "PutResult"),
    "config.connector_file": ("ConnectorFile",),
    "config.coordinator": ("CoordinatorConfig",),
    "config.worker": ("WorkerConfig",),
    "connector": (
        "Batch",
        "Config",
        "Connector",
        "Lag",
        "LocalPath",
        "PartitionOffset",
        "Task",
        "TaskContext",
        "fencing_token",
    ),
    "coordinator.listing": ("ConsumerGroups",),
    "coordinator.runtime": ("Coordinator",),
    "coordinator.server": ("CoordinatorServer",),
    "dataplane.errors": ("OffsetConflict", "SinkError", "SourceError"),
    "dataplane.iterator": ("IteratorSource",),
    "dataplane.sink": ("Sink",),
    "dataplane.source": ("Source",),
    "dataplane.transform": ("Predicate", "Transform"),
    "embedding": ("EmbeddedGroup", "worker_group"),
    "errors": (
        "NO_VALUE",
        "UNKNOWN_SETTING",
        "ConfigError",
        "ConnectGroupError",
        "ConnectorAlreadyExists",
        "ConnectorNotFound",
        "CoordinatorLoadInProgress",
        "CoordinatorNotAvailable",
        "Fenced",
        "FencedInstanceId",
        "FencedMemberEpoch",
        "GroupAuthorizationFailed",
        "GroupError",
        "GroupIdNotFound",
        "GroupMaxSizeReached",
        "IllegalGeneration",
        "IllegalSaslState",
        "InconsistentGroupProtocol",
        "InvalidAssignment",
        "InvalidGroupId",
        "InvalidRegularExpression",
        "InvalidRequest",
        "InvalidSessionTimeout",
        "LogError",
        "MemberIdRequired",
        "NonEmptyGroup",
        "NotAuthenticated",
        "NotCoordinator",
        "NotSent",
        "OffsetMetadataTooLarge",
        "PluginError",
        "PolicyViolation",
        "RebalanceInProgress",
        "SaslAuthenticationFailed",
        "StaleGroupEpoch",
        "StaleMemberEpoch",
        "TimedOut",
        "TransportError",
        "UnitFailed",
        "UnknownMemberId",
        "UnreleasedInstanceId",
        "UnsupportedAssignor",
        "UnsupportedSaslMechanism",
        "UnsupportedVersion",
        "VersionConflict",
        "WireError",
        "WorkerAlreadyRun",
    ),
    "group.connect.settings": ("GroupSettings",),
    "group.consumer.settings": ("ConsumerSettings",),
    "listener": ("WorkerRebalanceListener",),
    "log.base": ("AppendRefused", "Log", "LogFenced"),
    "log.memory": ("MemoryLog",),
    "log.registry": ("log_from_url",),
    "log.sqlite.log": ("SqliteLog",),
    "member.actions": ("Grant",),
    "member.settings": ("GroupProtocol", "MemberSettings"),
    "plugins": ("load_assignor", "load_listener"),
    "protocol.messages.assignment": ("DelayedUnits",),
    "protocol.messages.common": ("AssignorInfo", "ConfigEntry", "ConnectorTasks"),
    "protocol.messages.connectors": ("ConnectorChange", "UpdateConnectorsRequest"),
    "protocol.messages.describe": (
        "DelayedUntil",
        "DescribeRequest",
        "DescribedConnector",
        "DescribedGroup",
        "DescribedMember",
        "DescribedUnit",
        "Move",
        "Rebalance",
    ),
    "protocol.messages.heartbeat": ("TaskStatus",),
    "protocol.messages.progress": ("ConnectorHistory", "Progress", "UnitEvent"),
    "protocol.records.connect": ("TargetState", "UnitState"),
    "protocol.units": ("TopicPartition", "Unit", "Units"),
    "supervisor": ("Supervisor",),
    "topics": ("StaticTopics",),
    "transport.access": ("Access", "client_tls"),
    "transport.base": ("Client",),
    "transport.credentials": ("Credentials",),
    "transport.local": ("LocalClient",),
    "transport.tcp_client": ("TcpClient",),
    "worker.loop": ("Worker",),
    "worker.runner": ("Runner", "TaskRunner", "UnitsNotStopped"),
    "worker.serving": ("serve_worker",),
    "worker.settings": ("Connections", "RunnerSettings", "WorkerSettings"),
    "worker.state": ("StopReason", "WorkerState"),
    "worker.unit_runner": ("ThreadUnitRunner", "UnitRunner"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE_OF, "sync"])


if not TYPE_CHECKING:  # otherwise a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name == "sync":
            return import_module(".sync", __name__)
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
