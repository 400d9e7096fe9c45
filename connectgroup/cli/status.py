"""``connectgroup status``, and ``connectors status|describe|logs|errors``: how connectors and their tasks are."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..analysis.explain import downtimes_of
from ..errors import ConnectGroupError, ConnectorNotFound
from ..protocol.messages.common import config_of
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from ..protocol.messages.progress import UNKNOWN, Progress, UnitEvent
from ..protocol.units import CONNECTOR, Unit, counted, printable
from ..rest.views import NO_WRITES, cause_of, connector_description, connector_status, event_json, failed_first
from .errors import is_away
from .render import (
    age_text,
    ago_text,
    bytes_text,
    dead_letters_text,
    lag_text,
    print_json,
    print_line,
    print_table,
    rate_text,
    time_text as stamp,
)
from .requests import connected

if TYPE_CHECKING:
    from ..client.admin import Admin
    from .errors import OptionNames

OK: Final = 0
WARNING: Final = 1
CRITICAL: Final = 2
LEVELS: Final = {OK: "OK", WARNING: "WARNING", CRITICAL: "CRITICAL"}
"""Exit codes of ``--check``, those of monitors of the Nagios family; a coordinator that does not respond is 5."""

FOLLOW_S: Final = 1.0
"""Interval of ``connectors logs --follow``."""

MAX_REASONS: Final = 5
"""Failed units that one line names."""


# ---------------------------------------------------------------------------------------------- status


async def show_status(options: argparse.Namespace) -> int:
    """The connectors of the group, those that have failed first; or the tasks of the connectors that are named."""
    names: list[str] = list(dict.fromkeys(options.names_of_connectors))

    async def once(admin: Admin) -> int:
        # Without the workers, each unit's message says for whom it waits.
        alone = bool(names) and not options.check
        group = await admin.describe(options.group, connectors=names or None, history_points=1, connectors_only=alone)
        await _check_names(admin, options, names, group)
        if options.check:
            level, reasons = checked(group)
            _print_check(options, group, level, reasons)
            return level
        if options.json:
            shown = [connector_status(each) for each in group.connectors]
            print_json(shown[0] if len(names) == 1 else shown)
            return 0
        if not names:
            _print_overview(group, options.names)
        downtimes = await downtimes_of(admin, options.group, group.connectors) if names else {}
        for connector in group.connectors if names else ():
            _print_connector(connector, downtimes, options.names)
        return 0

    if options.watch is not None and (options.check or options.json):
        options.parser.error(f"argument --watch: not allowed with argument {'--check' if options.check else '--json'}")
    return await _repeated(options, once)


async def _check_names(admin: Admin, options: argparse.Namespace, names: Sequence[str], group: DescribedGroup) -> None:
    found = {each.connector for each in group.connectors}
    for name in names:
        if name not in found:
            await admin.describe_connector(options.group, name)  # its error lists those that exist
            raise ConnectorNotFound(f"connector {printable(name)} does not exist")


async def _repeated(options: argparse.Namespace, once: Callable[[Admin], Awaitable[int]]) -> int:
    """Show it once, or again and again with ``--watch``, each time on a cleared terminal.

    A coordinator that has answered before may be away for a while: it is asked again.
    """
    has_answered = False
    async with connected(options) as admin:
        while options.watch is not None:
            if sys.stdout.isatty():
                print("\x1b[H\x1b[2J\x1b[3J", end="")
            print(f"group {printable(options.group)} at {stamp(time.time_ns() // 1_000_000)}", flush=True)
            try:
                await once(admin)
                has_answered = True
            except ConnectGroupError as error:
                if not (has_answered and is_away(error)):
                    raise
                _note_away(options, error)
            sys.stdout.flush()
            await asyncio.sleep(options.watch)
        return await once(admin)


def _note_away(options: argparse.Namespace, error: ConnectGroupError) -> None:
    if not options.json:
        print_line(f"connectgroup: {options.names.in_error(error)}; asked again", is_error=True, flush=True)


def checked(group: DescribedGroup) -> tuple[int, list[str]]:
    """How bad the state of a group is, and why: a line for each reason, the worst first.

    Returns:
        ``CRITICAL``: the coordinator's log takes no writes, a unit has failed or stalled, or there is no worker for
        what should run. ``WARNING``: a unit that should run does not run yet, files cannot be read, or there were
        errors or dead letters within the last hour (if the description has it). ``OK``: neither.
    """
    critical = [f"{NO_WRITES}: {group.log_error}"] if group.log_error else []
    warning: list[str] = []
    units = [(Unit(each.connector, unit.task), unit) for each in group.connectors for unit in each.units]
    for unit, described in units:
        if described.has_failed:
            where = f" on {printable(described.member_id)}" if described.member_id else ""
            critical.append(f"{unit}{where}: {cause_of(described)[0]}")
    waiting = [str(unit) for unit, each in units if each.should_run and each.state in _NOT_YET]
    if waiting and not group.members:
        critical.append(f"no worker in the group; {_counted_units(len(waiting))} should run")
    elif waiting:
        named = ", ".join(waiting[:MAX_REASONS]) + (", ..." if len(waiting) > MAX_REASONS else "")
        warning.append(f"{_counted_units(len(waiting))} not running yet: {named}")
    for unit, described in units:
        if described.numbers is not None and described.numbers.unreadable_files > 0:
            warning.append(f"{unit}: {counted(described.numbers.unreadable_files, 'file')} cannot be read")
    recent = {each.connector: sum(each.history[0].errors) for each in group.connectors if each.history}
    warning += [f"{name}: {errors_text(count)} within the last hour" for name, count in recent.items() if count]
    if group.assignor_error:
        warning.append(f"assignment: {group.assignor_error}")
    return (CRITICAL if critical else WARNING if warning else OK), critical + warning


def _counted_units(count: int) -> str:
    return "1 connector or task" if count == 1 else f"{count:,} connectors or tasks"


_NOT_YET: Final = frozenset(("STARTING", "UNASSIGNED", "WAITING"))


def errors_text(count: int) -> str:
    """``1 error or dead letter``, ``2 errors or dead letters``."""
    return f"{count:,} {'error or dead letter' if count == 1 else 'errors or dead letters'}"


def _print_check(options: argparse.Namespace, group: DescribedGroup, level: int, reasons: Sequence[str]) -> None:
    if options.json:
        print_json({"status": LEVELS[level], "exit_code": level, "reasons": list(reasons)})
        return
    tasks = [unit for each in group.connectors for unit in each.units if unit.task != CONNECTOR]
    running = sum(unit.state == "RUNNING" for unit in tasks)
    first = options.names.in_text(reasons[0]) if reasons else f"{running:,} of {counted(len(tasks), 'task')} running"
    print(f"{LEVELS[level]}: {printable(first, limit=500)}")
    for reason in reasons[1:]:
        print(printable(options.names.in_text(reason), limit=500))


@dataclass(frozen=True, slots=True)
class Sums:
    """The numbers of all tasks of a connector.

    Attributes:
        progress: their sums; a lag is that of the tasks that know it. ``None``: there are none.
    """

    running: int
    tasks: int
    progress: Progress | None


def sums_of(connector: DescribedConnector) -> Sums:
    """Add the numbers of the tasks of a connector, and the errors of the connector itself."""
    tasks = [unit for unit in connector.units if unit.task != CONNECTOR]
    numbers = [unit.numbers for unit in connector.units if unit.numbers is not None]
    running = sum(unit.state == "RUNNING" for unit in tasks)
    if not numbers:
        return Sums(running, len(tasks), None)

    def known(name: str) -> int:
        values = [value for each in numbers if (value := getattr(each, name)) != UNKNOWN]
        return sum(values) if values else UNKNOWN

    summed = Progress(
        records_written=known("records_written"),
        records_per_minute=known("records_per_minute"),
        records_lag=known("records_lag"),
        bytes_lag=known("bytes_lag"),
        files_left=known("files_left"),
        unfinished_files=known("unfinished_files"),
        unreadable_files=known("unreadable_files"),
        skipped_files=known("skipped_files"),
        dead_letters=known("dead_letters"),
        errors=known("errors"),
        last_record_ms=max(each.last_record_ms for each in numbers),
        last_poll_ms=max(each.last_poll_ms for each in numbers),
    )
    return Sums(running, len(tasks), summed)


def _print_overview(group: DescribedGroup, names: OptionNames) -> None:
    """One line for each connector, the failed ones first; above them what has failed, the cause first."""
    if group.log_error:
        print_line(f"{NO_WRITES}: {names.in_text(group.log_error)}")
    failed = _failed(group.connectors)
    for line in _failure_lines(failed, names):
        print_line(line)
    bad = {unit.connector for unit, _ in failed}
    rows = []
    for connector in sorted(group.connectors, key=lambda each: each.connector not in bad):
        sums = sums_of(connector)
        numbers = sums.progress or Progress()
        state = "FAILED" if connector.connector in bad else state_of(connector)
        rows.append(
            (
                *(connector.connector, state, f"{sums.running}/{sums.tasks}"),
                *(numbers.records_written, rate_text(numbers), lag_text(numbers) or "-"),
                *(numbers.errors, numbers.dead_letters, ago_text(numbers.last_record_ms) or "-"),
            )
        )
    print_table(("NAME", "STATE", "TASKS", "ROWS", "ROWS/S", "LAG", "ERRORS", "DEAD LETTERS", "LAST RECORD"), rows)
    print(f"{counted(len(group.members), 'worker')}, group {group.state}, epoch {group.group_epoch}")


def _failed(connectors: Iterable[DescribedConnector]) -> list[tuple[Unit, DescribedUnit]]:
    return [(Unit(each.connector, unit.task), unit) for each in connectors for unit in each.units if unit.has_failed]


def _failure_lines(failed: Sequence[tuple[Unit, DescribedUnit]], names: OptionNames) -> Iterable[str]:
    for unit, described in failed[: 4 * MAX_REASONS]:
        cause, attempt = cause_of(described)
        where = f" on {printable(described.member_id)}" if described.member_id else ""
        yield f"{unit} {described.state}{where}: {printable(names.in_text(cause), limit=2_000)}"
        if attempt:
            yield f"  {printable(attempt)}"
    if len(failed) > 4 * MAX_REASONS:
        yield f"and {len(failed) - 4 * MAX_REASONS:,} more that have failed"


def state_of(connector: DescribedConnector) -> str:
    """The state of the connector itself; its tasks are counted apart."""
    state = connector.units[0].state
    # A paused connector itself keeps running.
    return connector.target_state if state == "RUNNING" else state


def _state_and_wanted(connector: DescribedConnector) -> str:
    state, wanted = state_of(connector), connector.target_state
    return wanted if state == wanted else f"{state} (wanted: {wanted})"


MEASURED: Final = ("ROWS", "ROWS/S", "LAG", "ERRORS", "LAST RECORD", "LAST POLL")
"""The columns with the numbers of a task."""


def _print_connector(connector: DescribedConnector, downtimes: Mapping[Unit, int], names: OptionNames) -> None:
    print(f"connector {printable(connector.connector)}: {_state_and_wanted(connector)}, version {connector.version}")
    _print_units(connector, downtimes)
    for unit in connector.units:
        if unit.message:
            print_line(f"{Unit(connector.connector, unit.task)}: {names.in_text(unit.message)}")
        if unit.numbers is not None and (letters := dead_letters_text(unit.numbers)):
            print_line(f"{Unit(connector.connector, unit.task)}: {letters}")


def _print_units(connector: DescribedConnector, downtimes: Mapping[Unit, int]) -> None:
    # Tasks of connectors without records have no numbers, and those that have not moved no downtime: then the columns
    # are left out.
    measured = any(unit.numbers is not None for unit in connector.units)
    moved = {unit.task: f"{ms} ms" for unit, ms in downtimes.items() if unit.connector == connector.connector}
    print_table(
        ("UNIT", "STATE", "WORKER", "OWNER EPOCH", *(("DOWNTIME",) if moved else ()), *(MEASURED if measured else ())),
        [
            (
                *(Unit(connector.connector, unit.task), unit.state, unit.member_id or "-"),
                max(unit.owner_epoch, 0) or "-",
                *((moved.get(unit.task, "-"),) if moved else ()),
                *(_numbers(unit) if measured else ()),
            )
            for unit in failed_first(connector.units)
        ],
    )


def _numbers(unit: DescribedUnit) -> tuple[object, ...]:
    numbers = unit.numbers
    if numbers is None:
        return ("-",) * len(MEASURED)
    times = ago_text(numbers.last_record_ms) or "-", ago_text(numbers.last_poll_ms) or "-"
    return numbers.records_written, rate_text(numbers), lag_text(numbers) or "-", numbers.errors, *times


# ---------------------------------------------------------------------------------------------- describe


async def describe_connector(options: argparse.Namespace) -> int:
    """All of one connector: what has failed first, then its tasks, events and configuration."""
    async with connected(options) as admin:
        connector = await admin.describe_connector(options.group, options.name, history_points=60, events=True)
        downtimes = await downtimes_of(admin, options.group, [connector])
    if options.json:
        print_json(connector_description(connector, downtimes))
        return 0
    config, name = config_of(connector.config), connector.connector
    print(f"connector {printable(name)}: {_state_and_wanted(connector)}, version {connector.version}")
    for line in _failure_lines(_failed([connector]), options.names):
        print_line(line)
    for line in _numbers_lines(connector):
        print_line(line)
    print()
    _print_units(connector, downtimes)
    for unit in connector.units:
        if unit.numbers is not None and (letters := dead_letters_text(unit.numbers)):
            print(f"{Unit(name, unit.task)}: {printable(letters, limit=1_000)}")
    if connector.events:
        print("\nlast events (connectgroup connectors logs, connectors errors):")
        for event in connector.events[-5:]:
            print_line(f"  {_event_line(name, event)}")
    print("\nconfiguration:")
    for setting, value in config.items():
        print(f"  {printable(setting)}={printable(value, limit=1_000)}")
    if connector.topics:
        print(f"\ntopics: {printable(', '.join(connector.topics), limit=1_000)}")
    return 0


def _numbers_lines(connector: DescribedConnector) -> Iterable[str]:
    numbers = sums_of(connector).progress
    if numbers is None:
        return
    lag, last = lag_text(numbers), ago_text(numbers.last_record_ms)
    yield (
        f"{numbers.records_written:,} rows, {rate_text(numbers)} rows/s"
        f"{f', lag {lag}' if lag else ''}{f', last record {last}' if last else ''}"
    )
    read = [(each, counted(getattr(numbers, each), "file")) for each in _FILES if getattr(numbers, each) > 0]
    for name, count in read:
        yield f"{count} {_FILES[name]}"
    if connector.history and (recent := sum(connector.history[0].errors)):
        yield f"{errors_text(recent)} within the last hour"


_FILES: Final = {
    "unfinished_files": "unfinished: no line feed at the end (source.final.newline), or compressed and incomplete",
    "unreadable_files": "cannot be read: damaged, incomplete if compressed, or rewritten; connectors logs names them",
    "skipped_files": "left out: hidden, unfinished or not of the pattern by their names, or links to directories",
}
"""Files that a source does not read, and why."""


# ---------------------------------------------------------------------------------------------- logs, errors


async def connector_logs(options: argparse.Namespace) -> int:
    """The last log lines and events of a connector and its tasks; with ``--follow`` those that come.

    With ``--follow --json``, each is an object on a line of its own. A coordinator that has answered before may be away
    for a while.
    """
    shown: UnitEvent | None = None
    has_answered = is_noted = False
    async with connected(options) as admin:
        while True:
            try:
                connector = await admin.describe_connector(options.group, options.name, events=True)
            except ConnectGroupError as error:
                if not (options.follow and has_answered and is_away(error)):
                    raise
                if not is_noted:
                    _note_away(options, error)
                is_noted = True
                await asyncio.sleep(FOLLOW_S)
                continue
            if not has_answered:
                _check_task(connector, options.task)
            has_answered, is_noted = True, False
            events = _of_task(connector.events, options.task)
            if shown is None:
                events = events[-options.last :]
            else:
                events = _after(events, shown)
            if options.json and not options.follow:
                print_json([event_json(each) for each in events])
                return 0
            for event in events:
                line = json.dumps(event_json(event)) if options.json else _event_line(connector.connector, event)
                print_line(line, flush=True)
            shown = events[-1] if events else shown
            if not options.follow:
                if not events:
                    print("no log lines: the coordinator has got none since it started", file=sys.stderr)
                return 0
            await asyncio.sleep(FOLLOW_S)


def _after(events: Sequence[UnitEvent], shown: UnitEvent) -> list[UnitEvent]:
    """The events behind the last one that was shown. If that is not there any more, those that are not older."""
    if shown in events:
        return list(events[len(events) - events[::-1].index(shown) :])
    return [each for each in events if each.at_ms >= shown.at_ms]


async def connector_errors(options: argparse.Namespace) -> int:
    """The last errors and dead letters of a connector, the newest last."""
    async with connected(options) as admin:
        connector = await admin.describe_connector(options.group, options.name, events=True)
    _check_task(connector, options.task)
    events = [each for each in _of_task(connector.events, options.task) if each.kind in ("error", "dead_letter")]
    events = events[-options.last :]
    if options.json:
        print_json([event_json(each) for each in events])
        return 0
    if not events:
        print("no errors and no dead letters since the coordinator started", file=sys.stderr)
        return 0
    print_table(
        ("WHEN", "TASK", "WORKER", "KIND", "COUNT", "CAUSE"),
        [
            (
                *(ago_text(each.at_ms), Unit(connector.connector, each.task), each.member_id or "-"),
                *(each.kind.replace("_", " "), each.count, options.names.in_text(each.message)),
            )
            for each in events
        ],
    )
    if any(each.kind == "dead_letter" for each in events) and (kept := _dead_letters_of(connector)):
        print(kept)
    return 0


def _dead_letters_of(connector: DescribedConnector) -> str:
    """Where the records of dead letters are."""
    config = config_of(connector.config)
    if name := config.get("errors.deadletterqueue.name"):
        return f"the records are in {printable(name)} of its sink (errors.deadletterqueue.name)"
    # Of a sink connector of Kafka Connect, in its own form.
    topic = config.get("errors.deadletterqueue.topic.name")
    return f"the records are in the topic {printable(topic)} (errors.deadletterqueue.topic.name)" if topic else ""


def _of_task(events: Iterable[UnitEvent], task: int | None) -> list[UnitEvent]:
    return [each for each in events if task is None or each.task == task]


def _check_task(connector: DescribedConnector, task: int | None) -> None:
    """Reject a task that there is not, and of which there are no events from before.

    Raises:
        ConnectorNotFound: there is none.
    """
    known = {unit.task for unit in connector.units} | {event.task for event in connector.events}
    if task is not None and task not in known:
        tasks = counted(sum(unit.task != CONNECTOR for unit in connector.units), "task")
        raise ConnectorNotFound(f"connector {printable(connector.connector)} has no task {task}: it has {tasks}")


def _event_line(connector: str, event: UnitEvent) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    unit, worker = Unit(connector, event.task), printable(event.member_id or "-")
    text = f"dead letter: {event.message}" if event.kind == "dead_letter" else event.message
    return f"{stamp(event.at_ms)} {event.level} {unit} {worker}: {text}{times}"


# ---------------------------------------------------------------------------------------------- workers


def worker_times(started_ms: int, memory_bytes: int) -> tuple[str, str]:
    """Since when a worker's process runs, and its memory; ``-`` if unknown."""
    uptime = age_text(max(0, time.time_ns() // 1_000_000 - started_ms) / 1000) if started_ms else "-"
    return uptime, bytes_text(memory_bytes) if memory_bytes else "-"
