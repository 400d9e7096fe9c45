"""What workers report of their units, in memory only, because it changes all the time: the numbers of tasks, the topics
they use, log lines; and the memory of the workers.

No rule of a group depends on it, so it is no records. The numbers of a task are the totals of all workers that have run
it. A status that is written anyway has them (``StatusRecord.progress``), and a coordinator that stops in order writes
those that have changed since; the next one goes on from there. It lacks what a worker that is gone, too, has reported
in between. The last hour of a connector is written with its status in the same way, and besides every five minutes,
because no worker could report it again. A status in between has what was written last: many change at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar

from ..errors import InvalidRequest
from ..group.connect.state import ConnectGroupState
from ..loggers import LEVELS
from ..protocol.messages.classic import GroupHeartbeatRequest, GroupHeartbeatResponse
from ..protocol.messages.common import LoggerLevel, SetLoggerLevelRequest
from ..protocol.messages.describe import (
    LAST_ERROR,
    DescribedConnector,
    DescribedGroup,
    DescribedMember,
    DescribedUnit,
    DescribeRequest,
)
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from ..protocol.messages.progress import MAX_NUMBER, UNKNOWN, ConnectorHistory, Progress, TaskProgress, UnitEvent
from ..protocol.records.connect import Record, StatusRecord, UnitState
from ..protocol.units import CONNECTOR, Unit, printable
from .history import MAX_WRITTEN, Histories

Owner = tuple[str, int]
"""Member id and owner epoch: one run of a unit."""

MAX_TOPICS: Final = 1_000
"""Topics of one connector; more are not kept."""

ERRORS: Final = (UnitState.FAILED, UnitState.STALLED)
"""States of a unit that count as an error."""

_MAX_STARTS: Final = 100
"""A heartbeat that reports more units as running or starting is no event for each of them."""


@dataclass(slots=True)
class Account:
    """The numbers of one task.

    Attributes:
        owner: the run that has reported last; changed by ``begin``.
        numbers: what it has reported; changed by ``report``.
        earlier: the totals of the runs before; changed by ``begin``.
        errors: statuses that report an error; changed by ``ReportedProgress``.
        lag: what the history of the connector has of this task; changed by ``report``.
        status: the last error that was noted, which a worker may send again; changed by ``ReportedProgress``.
        is_restored: whether its numbers are of an earlier coordinator, and its owner has not reported since; changed by
            ``begin`` and ``report``.
        written: the numbers in the last record; changed by ``write``.
        is_written: whether they are the present ones; changed by ``write``, ``begin`` and ``report``.
    """

    owner: Owner = ("", -1)
    numbers: Progress | None = None
    earlier: Progress | None = None
    errors: int = 0
    lag: int = 0
    status: TaskStatus | None = None
    is_restored: bool = False
    written: tuple[Progress, ...] = ()
    is_written: bool = True

    def begin(self, owner: Owner) -> None:
        """Another run begins."""
        self.earlier, self.owner, self.numbers = self.total(), owner, None
        self.is_restored = self.is_written = False

    def report(self, numbers: Progress) -> tuple[int, int, int]:
        """Keep the numbers of the present run; return how many records, dead letters and how much lag they add."""
        before = self.numbers or Progress()
        if numbers.records_written < before.records_written or numbers.dead_letters < before.dead_letters:
            return 0, 0, 0  # a late copy of an earlier report
        lag = _lag(numbers)
        more = lag - self.lag
        self.is_written = self.is_written and numbers == self.numbers
        self.numbers, self.lag = numbers, lag
        if self.is_restored:
            # It is not known when they came.
            self.is_restored = False
            return 0, 0, more
        return numbers.records_written - before.records_written, numbers.dead_letters - before.dead_letters, more

    def total(self) -> Progress | None:
        """The numbers of the present run with the totals of those before."""
        if self.earlier is None or self.numbers is None:
            return self.numbers or self.earlier
        earlier, now = self.earlier, self.numbers
        return replace(
            now,
            records_read=_sum(earlier.records_read, now.records_read),
            records_written=_sum(earlier.records_written, now.records_written),
            bytes_read=_sum(earlier.bytes_read, now.bytes_read),
            bytes_written=_sum(earlier.bytes_written, now.bytes_written),
            dead_letters=_sum(earlier.dead_letters, now.dead_letters),
            last_record_ms=now.last_record_ms or earlier.last_record_ms,
            last_poll_ms=now.last_poll_ms or earlier.last_poll_ms,
            last_dead_letter=now.last_dead_letter or earlier.last_dead_letter,
        )

    def to_write(self, owner: Owner, *, more_errors: int = 0) -> tuple[Progress, ...]:
        """``StatusRecord.progress`` of this run; the first status of a run comes before its first numbers."""
        is_present = owner == self.owner
        numbers = (self.numbers if is_present else None) or Progress()
        earlier = self.earlier if is_present else self.total()
        found = (replace(numbers, errors=self.errors + more_errors), *(() if earlier is None else (earlier,)))
        return () if found == (Progress(),) else found

    def write(self, owner: Owner, *, more_errors: int = 0) -> None:
        """A status of this run is about to be written, with the numbers; see ``to_write``."""
        self.written, self.is_written = self.to_write(owner, more_errors=more_errors), True

    def shown(self, owner: Owner) -> Progress | None:
        """The numbers as they are described while this run has the task."""
        total = self.total()
        if total is None:
            return Progress(errors=self.errors) if self.errors else None
        if owner != self.owner:
            total = replace(
                total,
                records_per_minute=0,
                # Only the present owner knows what is left to read.
                records_lag=UNKNOWN,
                bytes_lag=UNKNOWN,
                files_left=UNKNOWN,
                unfinished_files=UNKNOWN,
                unreadable_files=UNKNOWN,
                skipped_files=UNKNOWN,
            )
        return replace(total, errors=self.errors) if self.errors else total


def _lag(numbers: Progress) -> int:
    """What a task has not read, as the history has it: records, bytes or files."""
    return next(
        (max(each, 0) for each in (numbers.records_lag, numbers.bytes_lag, numbers.files_left) if each != UNKNOWN), 0
    )


def _sum(earlier: int, now: int) -> int:
    both = max(-MAX_NUMBER, min(earlier + now, MAX_NUMBER))
    return now if earlier == UNKNOWN else earlier if now == UNKNOWN else both


class _Process(NamedTuple):
    """What a worker has reported of its process: attributes of ``DescribedMember``."""

    started_ms: int
    memory_bytes: int
    allowed_paths: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Reported:
    """What the workers of one group have reported, as a request selects it.

    Attributes:
        accounts: by task.
        topics, history, events: by connector.
        workers: by member id: when its process started, its memory.
    """

    accounts: Mapping[Unit, Account]
    topics: Mapping[str, Collection[str]]
    workers: Mapping[str, _Process] = field(default_factory=dict)
    history: Mapping[str, ConnectorHistory] = field(default_factory=dict)
    events: Mapping[str, tuple[UnitEvent, ...]] = field(default_factory=dict)

    def add_to(self, described: DescribedGroup) -> DescribedGroup:
        """Add it to a description."""
        if not (self.accounts or self.workers or self.history or self.events):
            return described
        connectors = [self._with(each) for each in described.connectors]
        members = [self._worker(each) for each in described.members]
        return replace(described, connectors=tuple(connectors), members=tuple(members))

    def _with(self, connector: DescribedConnector) -> DescribedConnector:
        name = connector.connector
        history = (self.history[name],) if name in self.history else ()
        return replace(
            connector,
            units=tuple([self._unit(name, unit) for unit in connector.units]),
            topics=tuple(sorted(self.topics.get(name, ()))),
            history=history,
            events=self.events.get(name, ()),
        )

    def _unit(self, connector: str, unit: DescribedUnit) -> DescribedUnit:
        account = self.accounts.get(Unit(connector, unit.task))
        numbers = account.shown((unit.member_id, unit.owner_epoch)) if account is not None else None
        return unit if numbers is None else replace(unit, progress=(numbers,))

    def _worker(self, member: DescribedMember) -> DescribedMember:
        reported = self.workers.get(member.member_id)
        return replace(member, **reported._asdict()) if reported is not None else member


class _Known:
    """What is known of one group; changed by ``ReportedProgress``."""

    def __init__(self) -> None:
        self.accounts: dict[Unit, Account] = {}
        self.topics: dict[str, set[str]] = {}
        self.workers: dict[str, _Process] = {}
        self.pruned_epoch = -1
        self.ending: set[Unit] = set()
        """Tasks that must not run, whose last numbers may not be written yet."""

    def ended(self, group: ConnectGroupState, units: Iterable[Unit]) -> Iterator[Unit]:
        """Yield those of some units that no worker has, and whose numbers are still to be written to their statuses."""
        for unit in units:
            if unit in group.statuses and unit not in group.holders and not self.accounts[unit].is_written:
                yield unit


class ReportedProgress:
    """What workers have reported, by group."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """``clock_ms``: the wall clock."""
        self._clock_ms = clock_ms
        self._groups: dict[str, _Known] = {}
        self._histories = Histories()

    def record(self, group: Any, request: HeartbeatRequest) -> None:
        """Keep the numbers of a heartbeat, those of runs that its sender has, or of which it has reported before.

        Called as the heartbeat arrives: one that acknowledges a revocation has the last numbers of the task. Nothing
        but the owner epoch proves the sender, and a late report of a run changes nothing but its own numbers.

        Args:
            group: the state of the request's group; ``None`` if there is none.
        """
        if not isinstance(group, ConnectGroupState):
            return
        known, now_ms = self._of(group), self._clock_ms()
        for each in request.progress:
            unit, owner = Unit(each.connector, each.task), (request.member_id, each.owner_epoch)
            account = known.accounts.get(unit)
            if account is None or account.owner != owner:
                if group.holders.get(unit) != owner:
                    continue
                account = known.accounts.setdefault(unit, Account())
                account.begin(owner)
            rows, letters, lag = account.report(each.progress)
            if unit not in group.runnable:
                known.ending.add(unit)
            name = group.group_id, each.connector
            self._histories.add(name, now_ms, rows=rows, errors=letters, lag=lag)
            if letters:
                self._histories.note(name, _dead_letter(each, request.member_id, letters, now_ms))

    def record_accepted(self, group: Any, request: HeartbeatRequest) -> None:
        """Keep what a heartbeat that the group has accepted says of the worker and of the state of its units.

        Topics are among it, and not in ``record``: a worker sends them again until it has an answer, and they may be
        reset in between.
        """
        if not isinstance(group, ConnectGroupState):
            return
        known, now_ms = self._of(group), self._clock_ms()
        for each in request.progress:
            account = known.accounts.get(Unit(each.connector, each.task))
            if each.topics and account is not None and account.owner == (request.member_id, each.owner_epoch):
                _add_topics(known, each)
        if request.started_ms:
            if len(known.workers) > 2 * len(group.members):
                known.workers = {name: each for name, each in known.workers.items() if name in group.members}
            process = _Process(request.started_ms, max(request.memory_bytes, 0), request.allowed_paths)
            known.workers[request.member_id] = process
        for status in request.statuses:
            unit = Unit(status.connector, status.task)
            is_start = status.state in (UnitState.RUNNING, UnitState.STARTING)
            if is_start and len(request.statuses) > _MAX_STARTS:
                continue
            if group.holders.get(unit) == (request.member_id, status.owner_epoch):
                self._note_status(known, group.group_id, unit, status, request.member_id, now_ms)
        for line in request.log_lines:
            if line.connector in group.connectors:
                self._histories.note(
                    (group.group_id, line.connector),
                    UnitEvent(
                        at_ms=min(max(line.at_ms, 0), now_ms),
                        task=line.task,
                        member_id=request.member_id,
                        kind="log",
                        level=printable(line.level),
                        message=line.message,
                    ),
                )

    def _note_status(
        self, known: _Known, group_id: str, unit: Unit, status: TaskStatus, member_id: str, now_ms: int
    ) -> None:
        is_error = status.state in ERRORS
        if is_error:
            account = known.accounts.setdefault(unit, Account())
            if account.status == status:
                return
            account.status = status
            account.errors += 1
            self._histories.add((group_id, unit.connector), now_ms, errors=1)
        attempt, found, cause = status.message.partition(LAST_ERROR)
        message = cause if found else attempt
        words = {UnitState.RUNNING: "runs", UnitState.STARTING: "is starting", UnitState.STALLED: "has stalled"}
        event = UnitEvent(
            at_ms=now_ms,
            task=unit.task,
            member_id=member_id,
            kind="error" if is_error else "state",
            level="ERROR" if is_error else "INFO",
            message=message or words.get(UnitState(status.state), "has failed"),
        )
        self._histories.note((group_id, unit.connector), event)

    def with_numbers(self, record: Record) -> Record:
        """A record that is about to be written: the status of a task has its numbers, that of a connector its hour."""
        if not isinstance(record, StatusRecord) or (known := self._groups.get(record.group_id)) is None:
            return record
        if record.history or record.progress:
            return record  # of ``due``
        record = replace(record, history=self._history_of(record, again=False))
        account = known.accounts.get(Unit(record.connector, record.task))
        if account is None:
            return record
        # An error is counted when its record is durable.
        more = int(record.state in ERRORS)
        account.write((record.member_id, record.owner_epoch), more_errors=more)
        return replace(record, progress=account.written)

    def due(self, group: Any) -> list[Record]:
        """The statuses to write again, at most ``MAX_WRITTEN``: those of connectors with their history, and those of
        tasks that no worker has, such as of a paused connector, with numbers that no worker would report again."""
        if not isinstance(group, ConnectGroupState) or (known := self._groups.get(group.group_id)) is None:
            return []
        names = self._histories.due(group.group_id, self._clock_ms())
        units = [unit for name in names if (unit := Unit(name, CONNECTOR)) in group.statuses]
        found: list[Record] = []
        for unit in [*known.ended(group, known.accounts), *units][:MAX_WRITTEN]:
            status, account = group.statuses[unit], known.accounts.get(unit)
            if account is not None and not unit.is_connector:
                account.write((status.member_id, status.owner_epoch))
            progress = () if account is None else account.written
            found.append(replace(status, progress=progress, history=self._history_of(status)))
        return found

    def has_last_numbers(self, group: Any) -> bool:
        """Whether there are numbers to write of a task that must not run, or of any if the group has no workers.

        A task that moves has no worker for a moment, too: the first status of its next owner has its totals.
        """
        if not isinstance(group, ConnectGroupState) or group.group_id not in self._groups:
            return False
        known = self._of(group)
        known.ending = {unit for unit in known.ending if not known.accounts[unit].is_written}
        units = known.ending if group.members else known.accounts
        return any(True for _ in known.ended(group, units))

    def _history_of(self, status: StatusRecord, *, again: bool = True) -> tuple[ConnectorHistory, ...]:
        """``StatusRecord.history``; ``again``: see ``Histories.to_write``."""
        name = status.group_id, status.connector
        return self._histories.to_write(name, self._clock_ms(), again=again) if status.task == CONNECTOR else ()

    def unwritten(self, group: Any) -> list[Record]:
        """The statuses of tasks whose numbers have changed since they were written, with the numbers; those of
        connectors with their history."""
        if not isinstance(group, ConnectGroupState) or (known := self._groups.get(group.group_id)) is None:
            return []
        changed: list[Record] = []
        for unit, status in group.statuses.items():
            account, owner = known.accounts.get(unit), (status.member_id, status.owner_epoch)
            progress: tuple[Progress, ...] = () if account is None else account.to_write(owner)
            has_changed = account is not None and progress != account.written
            if account is not None:
                account.write(owner)
            history = self._history_of(status)
            if has_changed or history:
                changed.append(replace(status, progress=progress, history=history))
        return changed

    def restore(self, group: Any, records: Iterable[Record]) -> None:
        """Take the numbers from the records of a group that is loaded, unless newer ones are known."""
        if not isinstance(group, ConnectGroupState) or not group.statuses:
            return
        written = {Unit(each.connector, each.task): each for each in records if isinstance(each, StatusRecord)}
        known = self._of(group)
        restored: dict[str, list[Account]] = {}
        for unit, status in group.statuses.items():
            if unit in known.accounts:
                continue
            progress = written[unit].progress if unit in written else ()
            account = Account(owner=(status.member_id, status.owner_epoch), is_restored=True, written=progress)
            if progress:
                account.numbers, account.errors = replace(progress[0], errors=0), progress[0].errors
                account.earlier = progress[1] if len(progress) > 1 else None
            if status.state in ERRORS:
                account.errors = max(account.errors, 1)
                account.status = TaskStatus(
                    connector=unit.connector,
                    task=unit.task,
                    owner_epoch=status.owner_epoch,
                    state=status.state,
                    message=status.message,
                    fenced=status.fenced,
                    idle_ms=status.idle_ms,
                )
            known.accounts[unit] = account
            restored.setdefault(unit.connector, []).append(account)
        now_ms = self._clock_ms()
        for unit in [each for each in group.statuses if each.is_connector]:
            accounts = restored.get(unit.connector, ())
            lags = [0 if each.numbers is None else _lag(each.numbers) for each in accounts]
            history = written[unit].history if unit in written else ()
            if history and self._histories.restore((group.group_id, unit.connector), history[0], sum(lags), now_ms):
                for account, lag in zip(accounts, lags, strict=True):
                    account.lag = lag

    def forget(self, group_id: str) -> None:
        """Drop what is known of a group that is deleted."""
        self._groups.pop(group_id, None)
        self._histories.forget(group_id)

    def forget_connectors(self, group_id: str, connectors: Collection[str]) -> None:
        """Drop what is known of connectors that are deleted."""
        if not connectors:
            return
        for connector in connectors:
            self.reset_topics(group_id, connector)
        self._histories.forget(group_id, connectors)
        if (known := self._groups.get(group_id)) is not None:
            known.accounts = {unit: each for unit, each in known.accounts.items() if unit.connector not in connectors}
            known.ending &= known.accounts.keys()

    def reset_topics(self, group_id: str, connector: str) -> None:
        """Forget the topics that a connector has used (KIP-558)."""
        if (known := self._groups.get(group_id)) is not None:
            known.topics.pop(connector, None)

    def of(self, group_id: str, request: DescribeRequest) -> Reported:
        """What is known of a group, for use before anything else is recorded."""
        known = self._groups.get(group_id) or _Known()
        points, histories = request.history_points, self._histories
        return Reported(
            known.accounts,
            known.topics,
            known.workers,
            histories.shown(group_id, points, self._clock_ms(), request.connectors) if points > 0 else {},
            histories.events(group_id, request.connectors) if request.include_events else {},
        )

    def snapshot(self, group_id: str, request: DescribeRequest) -> Reported:
        """A copy of what is known of a group, for a thread."""
        found = self.of(group_id, request)
        return replace(
            found,
            accounts={unit: replace(each) for unit, each in found.accounts.items()},
            topics={connector: tuple(used) for connector, used in found.topics.items()},
            workers=dict(found.workers),
        )

    def _of(self, group: ConnectGroupState) -> _Known:
        """What is known of a group, without tasks that it has no more: looked for once in each group epoch."""
        known = self._groups.setdefault(group.group_id, _Known())
        if known.pruned_epoch != group.epoch:
            known.pruned_epoch = group.epoch
            for unit in [each for each in known.accounts if not _exists(group, each)]:
                account = known.accounts[unit]
                if account.lag:
                    self._histories.add((group.group_id, unit.connector), self._clock_ms(), lag=-account.lag)
                    account.lag = 0
                if not _is_between_lists(group, unit):
                    del known.accounts[unit]
            known.ending = {each for each in known.accounts.keys() - group.runnable.keys() if _exists(group, each)}
        return known


def _exists(group: ConnectGroupState, unit: Unit) -> bool:
    connector = group.connectors.get(unit.connector)
    return connector is not None and CONNECTOR <= unit.task < len(connector.tasks)


def _is_between_lists(group: ConnectGroupState, unit: Unit) -> bool:
    """Whether the connector has no tasks: a change of its configuration has cleared their list, until it has made the
    new one. Their totals go on."""
    connector = group.connectors.get(unit.connector)
    return connector is not None and not connector.tasks


def _dead_letter(reported: TaskProgress, member_id: str, letters: int, now_ms: int) -> UnitEvent:
    return UnitEvent(
        at_ms=now_ms,
        task=reported.task,
        member_id=member_id,
        kind="dead_letter",
        level="ERROR",
        message=reported.progress.last_dead_letter or "a dead letter",
        count=letters,
    )


def _add_topics(known: _Known, reported: TaskProgress) -> None:
    used = known.topics.setdefault(reported.connector, set())
    used.update(reported.topics[: MAX_TOPICS - len(used)])


# --------------------------------------------------------------------------------------------------
# The levels of loggers that operators have set for the workers of a group (KIP-976): in memory only.
#
# As in Kafka Connect they do not outlive the processes: no rule of a group depends on them, so they are no records. A
# worker gets the levels that it does not have yet with each heartbeat response, also a worker that joins later.


Responded = TypeVar("Responded", HeartbeatResponse, GroupHeartbeatResponse)

MAX_LOGGERS: Final = 100
"""Levels of one group. The oldest one is dropped for a new one: most workers have set it long ago."""


class LoggerLevels:
    """The newest level of each logger, by group."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """``clock_ms``: the wall clock; the stamps of a later coordinator are higher."""
        self._clock_ms = clock_ms
        self._groups: dict[str, dict[str, LoggerLevel]] = {}
        self._stamp = 0

    def set(self, request: SetLoggerLevelRequest) -> None:
        """Keep the level of a logger.

        Raises:
            InvalidRequest: there is no such level, or the name of the logger is empty or cannot be printed.
        """
        if not request.logger or not request.logger.isprintable():
            raise InvalidRequest(f"Logger: got {printable(request.logger)!r}; allowed: the name of a logger, or root")
        if request.level not in LEVELS:
            raise InvalidRequest(f"Level: got {printable(request.level)!r}; allowed: {', '.join(LEVELS)}")
        self._stamp = max(self._stamp + 1, self._clock_ms())
        levels = self._groups.setdefault(request.group_id, {})
        # The order of a dict is that of its insertions: the newest level is last.
        levels.pop(request.logger, None)
        levels[request.logger] = LoggerLevel(logger=request.logger, level=request.level, stamp=self._stamp)
        if len(levels) > MAX_LOGGERS:
            del levels[next(iter(levels))]

    def forget(self, group_id: str) -> None:
        """Drop the levels of a group that is deleted."""
        self._groups.pop(group_id, None)

    def add_to(self, response: Responded, request: HeartbeatRequest | GroupHeartbeatRequest) -> Responded:
        """Add the levels that the sender of an accepted heartbeat, of either protocol, has not set yet."""
        levels = self._groups.get(request.group_id)
        if not levels or response.error_code:
            return response
        newer = tuple([level for level in levels.values() if level.stamp > request.logger_stamp])
        return replace(response, logger_levels=newer) if newer else response
