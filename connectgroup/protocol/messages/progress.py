"""The numbers of a running task: what it has read and written, and what it has not read yet; its log lines, its last
hour and its last events.

A worker reports numbers and lines in heartbeats; the coordinator keeps them in memory and shows them in descriptions.
The totals of a task are written with its status (``StatusRecord.progress``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

UNKNOWN: Final = -1
"""A number that the task does not know."""

MAX_NUMBER: Final = (1 << 63) - 1
MAX_COUNT: Final = (1 << 31) - 1
"""What a number of a message or a record can be at most, and ``UnitEvent.count``. A worker may report any, and a sum
that fits no field would cost the others of its group their heartbeats and their descriptions: it stays at the most."""

MAX_TOPICS: Final = 100
"""Topics in one report of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The numbers of a task; -1: not known. Times are milliseconds since 1970.

    Those that a worker reports count from the assignment of the task to it. Those of a description are the totals of
    all workers that have run the task; lag and rate are those of its present owner.

    Attributes:
        records_read: records read from the source.
        records_written: records after the transforms that the sink has made durable.
        bytes_read: bytes read from the source.
        bytes_written: bytes of the records as they were passed to the sink.
        records_per_minute: records made durable per minute, of the last 30 to 60 seconds.
        records_lag: records behind the end of the source, when they were last counted.
        bytes_lag: bytes that are not read yet.
        files_left: files that are not read to their end.
        last_record_ms: when records last became durable; 0: never.
        last_poll_ms: when a poll of the source was last complete, as far as measured; 0: never.
        unfinished_files: files of which only a last line without a line feed is left, and incomplete compressed files.
        unreadable_files: files that cannot be read, or were rewritten.
        skipped_files: *(tagged)* files and directories that are not read because of their names (hidden, unfinished,
            without the form of the pattern), or because they are links to directories.
        dead_letters: *(tagged)* records that could not be processed and are in the dead letters.
        last_dead_letter: *(tagged)* place and reason of the last of them, without the record; empty if there is none.
        errors: *(tagged)* how often the task has failed or stalled. The coordinator counts the statuses; 0 in a report.
    """

    records_read: int = UNKNOWN
    records_written: int = 0
    bytes_read: int = UNKNOWN
    bytes_written: int = UNKNOWN
    records_per_minute: int = 0
    records_lag: int = UNKNOWN
    bytes_lag: int = UNKNOWN
    files_left: int = UNKNOWN
    last_record_ms: int = 0
    last_poll_ms: int = 0
    unfinished_files: int = UNKNOWN
    unreadable_files: int = UNKNOWN
    skipped_files: int = UNKNOWN
    dead_letters: int = 0
    last_dead_letter: str = ""
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """The numbers of one task.

    Attributes:
        connector: the connector's name.
        task: the task number.
        owner_epoch: the owner epoch that the numbers belong to; those of an earlier owner are not shown.
        progress: the numbers.
        topics: *(tagged)* the Kafka topics that the task has used since it was last reported, at most ``MAX_TOPICS``.
    """

    connector: str
    task: int
    owner_epoch: int
    progress: Progress
    topics: tuple[str, ...] = ()

    def with_topics_of(self, earlier: TaskProgress) -> TaskProgress:
        """These numbers, with the topics of a report that was not sent."""
        return replace(self, topics=tuple(sorted({*self.topics, *earlier.topics}))[:MAX_TOPICS])


MAX_LINES: Final = 100
"""Log lines in one heartbeat."""

MAX_LINE: Final = 2_000
"""Characters of a log line, and of the message of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line that a worker has logged about one of its units.

    Attributes:
        connector: the connector's name.
        task: the task number, -1 for the connector itself.
        at_ms: the worker's wall clock, milliseconds since 1970.
        level: the name of the level, such as ``WARNING``.
        message: the text without credentials, at most ``MAX_LINE`` characters.
    """

    connector: str
    task: int
    at_ms: int
    level: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEvent:
    """Something that has happened to a unit: of those alike that follow each other, the last one.

    Attributes:
        at_ms: wall clock, milliseconds since 1970.
        task: the task number, -1 for the connector itself.
        member_id: the worker that ran it.
        kind: ``state``: it has started or runs; ``error``: it has failed or stalled; ``dead_letter``; ``log``: a line
            of its worker's log.
        level: the name of the level of a log line: INFO, WARNING, ERROR.
        message: what has happened, the cause first.
        count: how many events alike.
    """

    at_ms: int
    task: int
    member_id: str
    kind: str
    level: str
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorHistory:
    """The last hour of a connector in intervals of equal length, oldest first; before the first one nothing is known.

    Attributes:
        end_ms: the end of the last interval, milliseconds since 1970; it may be under way.
        interval_ms: length of an interval.
        rows: records that the sinks of its tasks have made durable in each interval.
        lag: what its tasks had not read at the end of each interval: records; if none knows them, bytes; else files.
        errors: failures and dead letters of its tasks in each interval.
    """

    end_ms: int
    interval_ms: int
    rows: tuple[int, ...]
    lag: tuple[int, ...]
    errors: tuple[int, ...]
