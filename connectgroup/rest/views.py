"""Kafka Connect's JSON shapes of connectors and tasks, and those of groups.

Kafka Connect has fewer states than a worker group. A unit that is starting, or whose worker is lost or restarting, is
UNASSIGNED there; ``GET /groups/{group}`` shows the state as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from ..analysis.explain import downtimes_ms, rebalance_json
from ..protocol.messages.cluster import DescribeCoordinatorsResponse
from ..protocol.messages.common import config_of, each_unit
from ..protocol.messages.describe import (
    LAST_ERROR,
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
)
from ..protocol.messages.progress import UNKNOWN, ConnectorHistory, UnitEvent
from ..protocol.units import CONNECTOR, Unit


def connector_info(connector: DescribedConnector) -> dict[str, Any]:
    """``GET /connectors/{name}``: name, configuration with credentials masked, tasks, type."""
    name = connector.connector
    return {
        "name": name,
        "config": connector_config(connector),
        "tasks": [{"connector": name, "task": unit.task} for unit in tasks_of(connector)],
        "type": connector_type(connector),
    }


def connector_type(connector: DescribedConnector) -> str:
    """``sink``: it takes records from Kafka to somewhere else, as Kafka Connect's sink connectors; else ``source``."""
    config = config_of(connector.config)
    if "source" not in config and (config.get("topics") or config.get("topics.regex")):
        # In Kafka Connect's own form; that of a source, which may have topics, too, needs no brokers to read from.
        return "sink" if config.get("source.bootstrap.servers") else "source"
    return "sink" if config.get("source") == "kafka" and config.get("sink", "kafka") != "kafka" else "source"


def connector_config(connector: DescribedConnector) -> dict[str, str]:
    """The configuration, credentials masked; Kafka Connect's always includes the name."""
    return {**config_of(connector.config), "name": connector.connector}


def connector_status(connector: DescribedConnector) -> dict[str, Any]:
    """``GET /connectors/{name}/status``."""
    itself, version = next(unit for unit in connector.units if unit.task == CONNECTOR), _version(connector)
    return {
        "name": connector.connector,
        "connector": _unit_status(connector, itself, version),
        "tasks": [{"id": unit.task, **_unit_status(connector, unit, version)} for unit in tasks_of(connector)],
        "type": connector_type(connector),
    }


def expanded(connectors: Iterable[DescribedConnector], parts: Container[str]) -> dict[str, Any]:
    """``GET /connectors?expand=``: by connector, ``status`` and ``info`` where they are among these parts."""
    shapes = {"status": connector_status, "info": connector_info}
    return {
        connector.connector: {name: shape(connector) for name, shape in shapes.items() if name in parts}
        for connector in connectors
    }


def task_status(connector: DescribedConnector, unit: DescribedUnit) -> dict[str, Any]:
    """``GET /connectors/{name}/tasks/{task}/status``."""
    return {"id": unit.task, **_unit_status(connector, unit, _version(connector))}


def tasks_info(connector: DescribedConnector) -> list[dict[str, Any]]:
    """``GET /connectors/{name}/tasks``: the configuration of each task, credentials masked."""
    return [
        {"id": {"connector": connector.connector, "task": unit.task}, "config": config_of(unit.config)}
        for unit in tasks_of(connector)
    ]


def tasks_of(connector: DescribedConnector) -> list[DescribedUnit]:
    """The tasks; a stopped connector has none (KIP-875), except those that a worker has not stopped yet."""
    stopped = connector.target_state == "STOPPED"
    return [unit for unit in connector.units if unit.task != CONNECTOR and (unit.member_id or not stopped)]


def _version(connector: DescribedConnector) -> str:
    """The version of its class; empty if that is not installed here."""
    return _version_of(config_of(connector.config).get("connector.class", ""))


def _version_of(name: str) -> str:
    """The version of the class that ``connector.class`` names; empty if it is not installed here."""
    # Imported here: the command that lists groups needs no plug-ins, and its start would take half as long again.
    from ..plugins import connector_class_name, installed_versions

    return installed_versions("connectors").get(connector_class_name(name), "")


def _unit_status(connector: DescribedConnector, unit: DescribedUnit, version: str) -> dict[str, Any]:
    status: dict[str, Any] = {"state": _state(connector, unit), "worker_id": unit.member_id, "version": version}
    if unit.message:
        # The cause first: clients show the first line.
        status["trace"] = "\n".join(filter(None, cause_of(unit)))
    return {**status, **progress_of(unit)}


def progress_of(unit: DescribedUnit) -> dict[str, Any]:
    """The numbers of a task as a field ``progress``; empty if its worker has not reported any. Unknown ones are null.

    Kafka Connect has no such field.
    """
    found = unit.numbers
    if found is None:
        return {}
    numbers = {name: None if value == UNKNOWN else value for name, value in asdict(found).items()}
    per_minute = numbers.pop("records_per_minute")
    for name in ("last_record_ms", "last_poll_ms"):
        numbers[name] = numbers[name] or None
    return {"progress": {**numbers, "records_per_second": round((per_minute or 0) / 60, 1)}}


def cause_of(unit: DescribedUnit) -> tuple[str, str]:
    """Why a unit has failed, and what its worker does about it; both empty without an error."""
    attempt, found, cause = unit.message.partition(LAST_ERROR)
    return (cause, attempt) if found else (attempt, "")


def connector_description(connector: DescribedConnector, downtimes: Mapping[Unit, int]) -> dict[str, Any]:
    """All of one connector: ``connectors describe --json``, and ``GET /groups/{group}/connectors/{name}``.

    Failed units come first. Events are in the order in which they happened; times are milliseconds since 1970.

    Args:
        downtimes: see ``explain.downtimes_of``.
    """
    return {
        "name": connector.connector,
        "version": connector.version,
        "target_state": connector.target_state,
        "state": connector.units[0].state if connector.units else "",
        "type": connector_type(connector),
        "config": connector_config(connector),
        "units": [
            {
                "task": unit.task,
                "state": unit.state,
                "worker": unit.member_id,
                "owner_epoch": unit.owner_epoch,
                "cause": cause_of(unit)[0],
                "attempt": cause_of(unit)[1],
                "downtime_ms": downtimes.get(Unit(connector.connector, unit.task)),  # as in ``group_description``
                **progress_of(unit),
            }
            for unit in failed_first(connector.units)
        ],
        "topics": list(connector.topics),
        "history": history_json(connector.history[0]) if connector.history else None,
        "events": [event_json(each) for each in connector.events],
    }


def event_json(event: UnitEvent) -> dict[str, Any]:
    """One event of a connector or task; its time is in milliseconds since 1970."""
    return {
        "at_ms": event.at_ms,
        "task": event.task,
        "worker": event.member_id,
        "kind": event.kind,
        "level": event.level,
        "message": event.message,
        "count": event.count,
    }


def failed_first(units: Iterable[DescribedUnit]) -> list[DescribedUnit]:
    """Units that have failed or stalled first, then in their order."""
    return sorted(units, key=lambda unit: not unit.has_failed)


def history_json(history: ConnectorHistory) -> dict[str, Any]:
    """The last hour of a connector: the end of the last interval, the length of each, and the numbers of each."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(history).items()}


def _state(connector: DescribedConnector, unit: DescribedUnit) -> str:
    if not unit.should_run:
        return unit.state
    # A paused connector itself keeps running here; in Kafka Connect it is shown as paused.
    if unit.task == CONNECTOR and unit.state == "RUNNING" and connector.target_state == "PAUSED":
        return "PAUSED"
    # Kafka Connect's tools do not know STALLED; the trace says it.
    states = {"RUNNING": "RUNNING", "FAILED": "FAILED", "STALLED": "FAILED"}
    return states.get(unit.state, "UNASSIGNED")


# ---------------------------------------------------------------------------------------------- groups


def coordinators_description(found: DescribeCoordinatorsResponse, address: str) -> dict[str, Any]:
    """``GET /coordinators``: the coordinators of the log, the one that serves first, and the last fail-over.

    Of a log with several partitions: an entry for each partition that has an owner, then the coordinators that own
    none. ``unserved_partitions`` have no owner at present; that of a log with one partition is 0.

    Args:
        address: of the coordinator that has responded.
    """
    failover = {"at_ms": found.failover_ms, "took_ms": found.failover_took_ms, "cause": found.failover_cause}
    if found.partitions > 1:
        failover["partition"] = found.failover_partition
    served = {max(0, each.partition) for each in found.coordinators if each.epoch >= 0}
    return {
        "coordinators": [
            {
                "address": each.address or address,
                "role": "serves" if each.epoch >= 0 else "stands by",
                "epoch": each.epoch if each.epoch >= 0 else None,
                "since_ms": each.since_ms,
                "lag_ms": each.lag_ms if each.lag_ms >= 0 else None,
                "partition": each.partition if each.partition >= 0 else None,
            }
            for each in found.coordinators
        ],
        "partitions": found.partitions,
        "unserved_partitions": [number for number in range(found.partitions) if number not in served],
        "last_failover": failover if found.failover_ms >= 0 else None,
    }


NO_WRITES: Final = "changes are rejected, the coordinator's log takes no writes"
"""Followed by the reason."""


def group_summary(group: DescribedGroup) -> dict[str, Any]:
    """One entry of ``GET /groups``."""
    return {
        "group_id": group.group_id,
        "state": group.state,
        "group_epoch": group.group_epoch,
        "workers": len(group.members),
        **({"error": group.error_message} if group.error_code else {}),
        **({"log_error": group.log_error} if group.log_error else {}),
    }


def group_description(group: DescribedGroup) -> dict[str, Any]:
    """``GET /groups/{group}``: epochs, workers, delayed units, and connectors with the state of each unit."""
    downtimes = downtimes_ms(group)
    return {
        **group_summary(group),
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor_name,
        "computing_worker": group.computing_member,
        "assignor_error": group.assignor_error,
        "workers": [{**_worker(member), "protocol": member_protocol(group, member)} for member in group.members],
        "delayed": [
            {
                "worker": delayed.member_id,
                "instance": delayed.instance_id,
                "remaining_ms": delayed.left_ms,
                "units": [str(unit) for unit in each_unit(delayed.units)],
            }
            for delayed in group.delayed
        ],
        "connectors": [
            {
                "name": connector.connector,
                "version": connector.version,
                "target_state": connector.target_state,
                "units": [
                    {
                        "task": unit.task,
                        "state": unit.state,
                        "worker": unit.member_id,
                        "owner_epoch": unit.owner_epoch,
                        "message": unit.message,
                        "fenced": unit.fenced,
                        # Of its last move, if it runs; null: it has not moved, or it is not known any more.
                        "downtime_ms": downtimes.get(Unit(connector.connector, unit.task)),
                        **progress_of(unit),
                    }
                    for unit in connector.units
                ],
            }
            for connector in group.connectors
        ],
    }


def member_protocol(group: DescribedGroup, member: DescribedMember) -> str:
    """The group protocol of a member: ``classic``, or that of the group's type."""
    return "classic" if member.classic else group.group_type


def _worker(member: DescribedMember) -> dict[str, Any]:
    return {
        "worker_id": member.member_id,
        "instance": member.instance_id,
        "address": member.client_host,
        "state": member.state,
        "member_epoch": member.member_epoch,
        "assigned": [str(unit) for unit in each_unit(member.assigned)],
        "pending_revocation": [str(unit) for unit in each_unit(member.pending_revocation)],
        "target": [str(unit) for unit in each_unit(member.target)],
        "labels": config_of(member.labels),
        "rack": member.rack,
        "capacity": member.capacity,
        "host": member.host,
        "client_id": member.client_id,
        "joined_epoch": member.joined_epoch,
        # For how long the units of a temporarily left worker are kept for it.
        "kept_ms": None if member.kept_ms < 0 else member.kept_ms,
        # Why the last restart that was requested has not happened; empty: no error.
        "restart_error": member.restart_error,
        # When its process started, and its memory with that of the processes that it has started.
        "started_ms": member.started_ms or None,
        "memory_bytes": member.memory_bytes or None,
        # The files and directories that its connectors may use; null: unknown.
        "allowed_paths": None if member.allowed_paths is None else list(member.allowed_paths),
    }


def histories(group: DescribedGroup) -> dict[str, Any]:
    """``GET /groups/{group}/history``: the last hour of each connector that has one."""
    return {each.connector: history_json(each.history[0]) for each in group.connectors if each.history}


def rebalances(group: DescribedGroup) -> list[dict[str, Any]]:
    """``GET /groups/{group}/rebalances``: the last 100, oldest first; times in milliseconds since 1970."""
    return [rebalance_json(rebalance) for rebalance in group.rebalances]
