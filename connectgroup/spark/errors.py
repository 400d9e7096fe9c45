"""Errors of Spark queries. Each message is one line: what happened, where, what is allowed.

Errors raised in Spark's Python workers reach the driver as text inside a Java stack trace; ``root_cause``
turns that text back into exceptions.
"""

from __future__ import annotations

import re

from ..dataplane.errors import BadLine, DataPlaneError, OffsetConflict, SinkError, SourceError, TaskFenced
from ..errors import ConnectGroupError
from ..protocol.units import printable


def root_cause(error: BaseException) -> BaseException:
    """Return the one error a user should see, without the wrapping that Spark adds.

    An error of this package is returned unchanged, whether it arrives as an object or as text in a stack trace.
    Any other error becomes a ``SparkError`` with the last line of a Python traceback, or the innermost line of Spark's
    message.
    """
    if isinstance(error, ConnectGroupError):
        return error
    text = str(error)
    found = [match for match in _OURS.finditer(text) if match["name"] in _BY_NAME]
    if found:
        # The last match in a Python trace is the raised exception; the same text may be quoted several times.
        return _BY_NAME[found[-1]["name"]](found[-1]["message"].strip())
    raised = _raised(text)
    causes = raised or [match["message"].strip() for match in _CAUSED_BY.finditer(text)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    summary = causes[-1] if causes else lines[0] if lines else type(error).__name__
    # Equal failures have equal messages: logs and lists of errors count them instead of repeating them.
    summary = _NUMBERS.sub("", summary)
    hint = f"; allowed: {_IN_TIME}" if _TOO_SLOW.search(summary[:2000]) else ""
    return SparkError(f"Spark query failed: {printable(summary, limit=300)}{hint}")


def _raised(text: str) -> list[str]:
    """The message of each Python traceback in a text: the line after its indented lines. One pass: texts are long."""
    found: list[str] = []
    indented: int | None = None  # lines of the traceback so far; none outside of one
    for line in text.split("\n"):
        if indented is not None and line[:1] in (" ", "\t"):
            indented += 1
            continue
        if indented and line[:1].strip():
            found.append(line.strip())
            indented = None
        else:
            indented = 0 if line.endswith(_TRACEBACK) else None
    return found


class SparkError(DataPlaneError):
    """Spark itself failed."""


_BY_NAME: dict[str, type[DataPlaneError]] = {
    cls.__name__: cls for cls in (TaskFenced, OffsetConflict, SourceError, BadLine, SinkError, SparkError)
}


_OURS = re.compile(r"connectgroup\.(?:spark\.|dataplane\.)?errors\.(?P<name>\w+): (?P<message>[^\n]*)")


_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = re.compile(r"^Caused by: (?P<message>[^\n]*)", re.MULTILINE)
_NUMBERS = re.compile(
    r"^(?:\[STREAM_FAILED\] Query \[id = [^\]]{1,100}\] terminated with exception: )?"
    r"(?:Job aborted due to stage failure: [^\n]{1,300}?\(TID \d{1,20}\) \([^)\n]{1,200}\): )?"
)
"""Spark's words around the cause: the numbers of the query, its run, stage and task differ at each attempt."""
_TOO_SLOW = re.compile(r"Python worker failed to connect back|\[CANNOT_OPEN_SOCKET\][^\n]*timed out")
_IN_TIME = "a machine that starts Spark's Python processes in time; fewer tasks on each core (tasks.max)"
