"""``connectgroup groups`` and ``connectgroup replay``: list, describe, explain, plan and delete groups."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..analysis.explain import downtimes_ms
from ..errors import NO_VALUE, ConfigError, CoordinatorNotAvailable, LogError, from_code
from ..protocol.messages.common import each_unit
from ..protocol.messages.describe import DescribedGroup, DescribedMember, DescribedUnit
from ..protocol.messages.offsets import FetchedTopic
from ..protocol.records.connect import GROUP_TYPE
from ..protocol.units import CONNECTOR, Unit, counted, printable, show
from ..rest.views import NO_WRITES, group_description, group_summary, member_protocol
from .render import ago_text, dead_letters_text, lag_text, print_json, print_line, print_table, rate_text
from .requests import at_interrupt, confirm, connected

if TYPE_CHECKING:
    from ..client.admin import Admin
    from ..consumer.broker_groups import BrokerGroups
    from ..log.base import Log
    from .errors import OptionNames


async def list_groups(options: argparse.Namespace) -> int:
    async with _groups_of(options) as admin:
        groups = [group for group in await admin.list_groups() if _is_wanted(group, options)]
    if options.json:
        print_json([{**group_summary(group), "type": group.group_type} for group in groups])
        return 0
    served = [group for group in groups if not group.error_code]
    rows = {
        group.group_id: (group.group_type, group.state, str(group.group_epoch or "-"), str(len(group.members)))
        for group in served
    }
    print_table(
        ("GROUP", "TYPE", "STATE", "EPOCH", "MEMBERS"),
        [(group.group_id, *rows.get(group.group_id, ("", "NOT SERVED", "", ""))) for group in groups],
    )
    for group in groups:
        if group.error_code:
            print_line(f"connectgroup: {from_code(group.error_code, group.error_message)}", is_error=True)
    return 0 if len(served) == len(groups) else 1


def _is_wanted(group: DescribedGroup, options: argparse.Namespace) -> bool:
    """Whether a group passes ``--type`` and ``--state``; a group that cannot be served has neither."""
    types = {each for given in options.type or [] for each in given}
    states = options.state or []
    return (not types or group.group_type in types) and (not states or group.state.lower() in states)


@asynccontextmanager
async def _groups_of(options: argparse.Namespace) -> AsyncIterator[Admin | BrokerGroups]:
    """Yield a client of the coordinator, or of the Kafka brokers that ``--bootstrap-server`` names."""
    if options.command_config is not None and options.bootstrap_server is None:
        raise ConfigError("--command-config", options.command_config, "a file together with --bootstrap-server")
    if options.bootstrap_server is None:
        async with connected(options) as admin:
            yield admin
    else:
        from ..consumer.broker_groups import BrokerGroups

        yield BrokerGroups(options.bootstrap_server, options.command_config)


async def describe_groups(options: argparse.Namespace) -> int:
    if options.type and (options.members or options.offsets):
        options.parser.error(
            f"argument --type: not allowed with argument --{'members' if options.members else 'offsets'}"
        )
    async with _groups_of(options) as admin:
        group = await admin.describe(options.group)
        if options.offsets and group.group_type in ("", GROUP_TYPE):
            raise ConfigError("--offsets", group.group_id, "a group of consumers; connectgroup connectors offsets NAME")
        offsets = _offsets(await admin.committed_offsets(options.group)) if options.offsets else []
    if options.type:
        _print_type(group, options)
        return 0
    if options.json:
        described = group_description(group)
        if options.members or options.offsets:
            described = {"group_id": group.group_id} | ({"workers": described["workers"]} if options.members else {})
        if options.offsets:
            described["offsets"] = offsets
        print_json(described)
        return 0
    if options.members:
        _print_members(group)
    if options.offsets:
        print_table(("TOPIC", "PARTITION", "OFFSET", "METADATA"), [list(each.values()) for each in offsets])
    for line in _description(group, options.names) if not (options.members or options.offsets) else ():
        print_line(line)
    return 0


def _print_type(group: DescribedGroup, options: argparse.Namespace) -> None:
    shown = (group.group_id, group.group_type, group.protocol_type, group.state)
    if options.json:
        print_json(dict(zip(("group_id", "type", "protocol_type", "state"), shown, strict=True)))
    else:
        print_table(("GROUP", "TYPE", "PROTOCOL TYPE", "STATE"), [shown])


def _offsets(topics: Iterable[FetchedTopic]) -> list[dict[str, object]]:
    """The committed offset of each partition, sorted."""
    return [
        {
            "topic": topic.name,
            "partition": partition.partition_index,
            "offset": partition.committed_offset,
            "metadata": partition.metadata or "",
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]


def _print_members(group: DescribedGroup) -> None:
    print_table(
        ("MEMBER", "PROTOCOL", "STATE", "EPOCH", "ASSIGNED", "INSTANCE", "CLIENT ID", "ADDRESS"),
        [
            (
                member.member_id,
                member_protocol(group, member),
                member.state,
                member.member_epoch,
                sum(1 for _ in each_unit(member.assigned)),
                member.instance_id or "",
                member.client_id,
                member.client_host,
            )
            for member in group.members
        ],
    )


def _description(group: DescribedGroup, names: OptionNames) -> Iterable[str]:
    """Format a group: its epochs and assignor, its workers, its delayed units, its connectors and tasks.

    Not all types have a target assignment.
    """
    if group.log_error:
        yield f"{NO_WRITES}: {group.log_error}"
    has_workers = group.group_type in ("", GROUP_TYPE)
    name = group.group_id if has_workers else f"{group.group_id} of type {group.group_type}"
    if not has_workers and not group.assignment_epoch:
        # A Kafka broker does not tell epochs.
        yield f"group {name}: {group.state}{f', epoch {group.group_epoch}' if group.group_epoch else ''}"
        if group.assignor_name:
            yield f"assignor: {group.assignor_name}"
    else:
        all_units = (unit for connector in group.connectors for unit in connector.units)
        waiting = next((f", {each.message}" for each in all_units if each.state == "STARTING" and each.message), "")
        yield f"group {name}: {group.state}{waiting}, epoch {group.group_epoch}, target {group.assignment_epoch}"
        computing = f", {group.computing_member} is computing the next assignment" if group.computing_member else ""
        yield f"assignor: {group.assignor_name or 'none yet'}{computing}"
    # Units that the assignment in force leaves out: its assignor says why.
    left_out = group.state != "Assigning" and any(not delayed.member_id for delayed in group.delayed)
    if group.assignor_error:
        yield f"{'unschedulable' if left_out else 'last assignor error'}: {group.assignor_error}"
    for member in group.members:
        state = f": {_state(member)}" if member.state else ""
        yield f"{'worker' if has_workers else 'member'} {member.member_id} ({member.client_host}){state}"
        yield f"  {_about(member)}"
        yield f"  assigned {show(each_unit(member.assigned), limit=20)}"
        if member.pending_revocation:
            yield f"  pending revocation {show(each_unit(member.pending_revocation), limit=20)}"
    for delayed in group.delayed:
        left_s, units = delayed.left_ms / 1000, show(each_unit(delayed.units), limit=20)
        if delayed.member_id:
            yield f"delayed {left_s:.1f} s more for worker {delayed.instance_id or delayed.member_id}: {units}"
        else:
            yield f"not assigned: {units}; the assignor is run again in {left_s:.0f} s"
    away = {member.member_id: member.instance_id for member in group.members if member.state == "AWAY"}
    downtimes = downtimes_ms(group)
    for connector in group.connectors:
        yield f"connector {connector.connector}: {connector.target_state}, version {connector.version}"
        for unit in connector.units:
            where = f"on {unit.member_id} since epoch {unit.owner_epoch}" if unit.member_id else ""
            if unit.member_id in away:
                where = f"for instance {away[unit.member_id]}"
            if (downtime_ms := downtimes.get(Unit(connector.connector, unit.task))) is not None:
                where += f", downtime {downtime_ms} ms"
            if unit.state == "RUNNING" and not unit.fenced:
                where += ", not fenced"
            yield f"  {Unit(connector.connector, unit.task)}: {unit.state} {where}{_measured(unit)}".rstrip()
            if unit.message:
                yield f"    {names.in_text(unit.message)}"
            if unit.numbers is not None and (letters := dead_letters_text(unit.numbers)):
                yield f"    {letters}"


def _measured(unit: DescribedUnit) -> str:
    """Format the numbers that the worker of a task has reported; empty if there are none."""
    numbers = unit.numbers
    if numbers is None:
        return ""
    lag, last = lag_text(numbers), ago_text(numbers.last_record_ms)
    return (
        f", {rate_text(numbers)} rows/s, {numbers.records_written:,} rows"
        f"{f', lag {lag}' if lag else ''}{f', last record {last}' if last else ''}"
    )


def _state(member: DescribedMember) -> str:
    """Format the state of a member; of a temporarily left one, how long its units are kept."""
    if member.state != "AWAY":
        return f"{member.state}, epoch {member.member_epoch}"
    kept = f"for {member.kept_ms / 1000:.1f} s" if member.kept_ms >= 0 else "until its session timeout"
    return f"temporarily left, kept {kept}"


def _about(member: DescribedMember) -> str:
    """Format the properties with which a member joined: client id, epoch, and its properties for assignors."""
    labels = ",".join(f"{label.name}={label.value}" for label in member.labels)
    given = {
        "protocol": "classic" if member.classic else "",
        "instance": member.instance_id,
        "client id": member.client_id,
        "joined at epoch": member.joined_epoch,
        "capacity": member.capacity,
        "labels": labels,
        "rack": member.rack,
        "host": member.host,
    }
    return (
        ", ".join(f"{name} {value}" for name, value in given.items() if value)
        or "no client id, labels, rack, capacity or host"
    )


async def delete_groups(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        if lost := _lost_with(await admin.describe(options.group)):
            confirm(options, f"group {printable(options.group)} {lost}")
        await admin.delete_group(options.group)
    if options.json:
        print_json({"group_id": options.group, "deleted": True})
    else:
        print(f"group {options.group}: deleted")
    return 0


def _lost_with(group: DescribedGroup) -> str:
    """What the deletion of a group deletes besides its name and history; empty: nothing."""
    connectors = [each.connector for each in group.connectors]
    if group.members or not connectors:  # one with members is not deleted: the coordinator says so
        return ""
    tasks = sum(unit.task != CONNECTOR for each in group.connectors for unit in each.units)
    named = printable(", ".join(connectors), limit=200)
    return f"has {counted(len(connectors), 'connector')} with {counted(tasks, 'task')}: {named}"


async def explain_groups(options: argparse.Namespace) -> int:
    from ..analysis.explain import explain_task, find_unit, rebalance_json, rebalance_lines, task_lines

    if options.task and options.moves:
        options.parser.error("argument --task: not allowed with argument --moves")
    async with connected(options) as admin:
        group = await admin.describe(options.group, connectors=None if options.task else ())
    if options.task:
        explanation = explain_task(group, find_unit(group, options.task))
        for line in [json.dumps(asdict(explanation))] if options.json else task_lines(explanation):
            print_line(line)
        return 0
    rebalances = group.rebalances[-options.last :]
    if options.json:
        print(json.dumps([rebalance_json(rebalance) for rebalance in rebalances]))
        return 0
    for line in rebalance_lines(rebalances, moves=options.moves):
        print_line(line)
    return 0


async def plan_groups(options: argparse.Namespace) -> int:
    from ..analysis.plan import Change, plan, plan_json, plan_lines
    from ..config.connector_file import read_connector

    with at_interrupt():
        connector = read_connector(options.connector) if options.connector else None
    change = Change(
        drain=options.drain or "",
        add_workers=options.add_workers or 0,
        remove=options.remove or "",
        connector=connector,
        assignor=options.assignor or "",
    )
    if change == Change():
        raise ConfigError("plan", NO_VALUE, "--drain, --add-workers, --remove, --connector or --assignor")
    async with connected(options) as admin:
        planned = await plan(admin, options.group, change)
    for line in [json.dumps(plan_json(planned))] if options.json else plan_lines(planned, hint="--json lists all"):
        print_line(line)
    return 0


async def replay_log(options: argparse.Namespace) -> int:
    from ..analysis.replay import replay

    if options.max_moves < 0:
        raise ConfigError("--max-moves", str(options.max_moves), "0 or more")
    if options.max_moves and not options.assignor:
        options.parser.error("argument --max-moves: not allowed without argument --assignor")
    with at_interrupt():
        history = replay(options.log, options.group, assignor=options.assignor, max_moves=options.max_moves)
    for line in [json.dumps(history.to_json())] if options.json else history.lines():
        print_line(line)
    return 0


async def recover_log(options: argparse.Namespace) -> int:
    """Recover the groups of a log that no coordinator has open."""
    from ..coordinator.loading import recover
    from ..coordinator.runtime import wall_clock_ms
    from ..log.base import LogAway, SharedLog
    from ..log.leased import LEASE_S
    from ..log.registry import SHARED, log_from_url
    from ..log.sqlite.log import SqliteLog
    from ..log.sqlite.reader import log_file

    logs: list[Log]
    if options.log.partition(":")[0] in SHARED:
        log = log_from_url(options.log, field="LOG", restored=True)
        assert isinstance(log, SharedLog)
        try:
            await log.connect()
        except LogAway as error:
            raise CoordinatorNotAvailable(str(error)) from error
        shared = [log.partition(number) for number in range(log.partitions)]
        with suppress(TimeoutError):  # one that was killed holds its lease for some seconds
            async with asyncio.timeout(2 * LEASE_S):
                await asyncio.gather(*(each.stand_by() for each in shared))
        logs = [*shared]
    else:
        logs = [SqliteLog(log_file(options.log), restored=True)]
    recovered: list[str] = []
    unreadable: list[LogError] = []
    try:
        for each in logs:
            names, errors = await recover(each, now_ms=wall_clock_ms())
            recovered += names
            unreadable += errors
    finally:  # also of the partitions before one that another coordinator owns
        if options.json and recovered:
            print_json({"recovered": sorted(recovered)})
        for group_id in sorted(recovered) if not options.json else ():
            print(f"group {printable(group_id)}: recovered")
    if unreadable:
        raise LogError("; ".join(map(str, unreadable)))
    if not recovered:
        print('{"recovered": []}' if options.json else "no group to recover")
    return 0
