"""What can go wrong between a source, Spark and a sink, each as one line: what, where, what is allowed.

Errors raised in Spark's Python workers reach the driver as text inside a Java stack trace; ``root_cause``
finds them there and makes them exceptions again.
"""

from __future__ import annotations

import re

from .. import errors
from ..errors import ConnectGroupError
from ..names import printable


def root_cause(error: BaseException) -> BaseException:
    """The one error a user should see, dug out of what Spark wrapped around it.

    An error of this package is returned as itself, whether it comes as an object or as text in a trace;
    anything else becomes a ``SparkError`` with the innermost line of Spark's message.
    """
    if isinstance(error, ConnectGroupError):
        return error
    text = str(error)
    found = [match for match in _OURS.finditer(text) if match["name"] in _BY_NAME]
    if found:
        # The last one in a Python trace is the one that was raised; the same text may be quoted several times.
        return _BY_NAME[found[-1]["name"]](found[-1]["message"].strip())
    causes = [match["message"].strip() for match in _CAUSED_BY.finditer(text)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    summary = causes[-1] if causes else lines[0] if lines else type(error).__name__
    return SparkError(f"Spark query failed: {printable(summary, most=300)}")


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


class SparkError(DataPlaneError):
    """Spark itself failed."""


_BY_NAME: dict[str, type[DataPlaneError]] = {
    cls.__name__: cls for cls in (Fenced, OffsetConflict, SourceError, BadLine, SinkError, SparkError)
}
_OURS = re.compile(r"connectgroup\.spark\.errors\.(?P<name>\w+): (?P<message>[^\n]*)")
_CAUSED_BY = re.compile(r"^Caused by: (?P<message>[^\n]*)", re.MULTILINE)
