"""What can go wrong between a source, Spark and a sink, each as one line: what, where, what is allowed.

Errors raised in Spark's Python workers reach the driver as text inside a Java stack trace; ``root_cause``
finds them there and makes them exceptions again.
"""

from __future__ import annotations

from .. import errors
from ..errors import ConnectGroupError


class DataPlaneError(ConnectGroupError):
    """Base of the errors of the data plane."""


class Fenced(errors.Fenced, DataPlaneError):
    """Somebody else owns this work now: a sink has seen a higher owner epoch.

    What the task must do: stop. Nothing it holds can be written any more.
    """


class OffsetConflict(DataPlaneError):
    """A batch does not start where the slice stands, and is not one that is in already.

    Nothing of it was written. A task that starts again reads the positions afresh and goes on.
    """


class SourceError(DataPlaneError):
    """The source cannot be read: missing, unreadable, shorter than what was read of it."""


class BadLine(SourceError):
    """A line is not what the format and the schema allow; names file, line, byte offset and what is allowed."""


class SinkError(DataPlaneError):
    """The sink cannot be written: locked, full, not ours. Nothing of the batch is in it."""
