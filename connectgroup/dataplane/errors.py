"""Errors of sources and sinks. Each message is one line: what happened, where, what is allowed.

Errors raised in Spark's Python workers reach the driver as text inside a Java stack trace;
``spark.errors.root_cause`` turns that text back into these exceptions.
"""

from __future__ import annotations

from .. import errors
from ..errors import ConnectGroupError


class DataPlaneError(ConnectGroupError):
    """Base of the errors of the data plane."""


class TaskFenced(errors.Fenced, DataPlaneError):
    """Another task owns this work now: the sink has seen a higher owner epoch.

    The task must stop. No data that it still holds can be written.
    """


class OffsetConflict(DataPlaneError):
    """A batch does not start at the position of its slice, and is not already committed.

    Nothing of the batch was written. A task that restarts reads the positions again and continues.
    """


class SourceError(DataPlaneError):
    """The source cannot be read: it is missing, unreadable, or shorter than the part already read."""


class BadLine(SourceError):
    """A line violates the format or the schema; names file, line, byte offset and what is allowed."""


class SinkError(DataPlaneError):
    """The sink cannot be written: locked, full, or not usable for this connector. Nothing of the batch was written."""
