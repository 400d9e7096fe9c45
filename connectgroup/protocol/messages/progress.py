"""The numbers of a running task: what it has read and written, and what it has not read yet.

A worker reports them in heartbeats; the coordinator keeps them in memory only and shows them in descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

UNKNOWN: Final = -1
"""A number that the task does not know."""

MAX_TOPICS: Final = 100
"""Topics in one report of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The numbers of a task since it was assigned to its worker; -1: not known. Times are milliseconds since 1970.

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
        unfinished_files: files of which only a last line without a line feed is left.
        unreadable_files: files that cannot be read, or were rewritten.
        skipped_files: *(tagged)* files and directories that are not read because of their names (hidden, unfinished,
            without the form of the pattern), or because they are links to directories.
        dead_letters: *(tagged)* records that could not be processed and are in the dead letters.
        last_dead_letter: *(tagged)* place and reason of the last of them, without the record; empty if there is none.
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
