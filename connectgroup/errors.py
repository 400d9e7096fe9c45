"""Every error this package raises on purpose.

    ConnectGroupError
    ├── GroupError               a request turned down: has a wire code, costs no record
    │   ├── InvalidRequest 42             ├── UnknownMemberId 25
    │   ├── FencedInstanceId 82           ├── FencedMemberEpoch 110
    │   ├── GroupIdNotFound 69            ├── StaleMemberEpoch 113
    │   ├── UnsupportedAssignor 112       ├── UnsupportedVersion 35
    │   ├── ComputeAssignment 20480       ├── NotCoordinator 16
    │   ├── InvalidAssignment 20481       ├── CoordinatorNotAvailable 15
    │   ├── StaleGroupEpoch 20482         ├── CoordinatorLoadInProgress 14
    │   ├── UnreleasedInstanceId 111      ├── GroupMaxSizeReached 81
    │   ├── NonEmptyGroup 68              ├── PolicyViolation 44
    │   ├── InvalidGroupId 24
    │   └── UnknownServerError -1
    ├── LogError                 the log failed: the runtime drops the group and loads it again
    ├── TransportError           no answer: the caller may ask again
    ├── WireError                bytes that are not a message of ours
    ├── Fenced                   a write refused: a later grant of the same work has been seen
    ├── ConfigError              a setting: field, value, what is allowed
    ├── PluginError              an assignor, listener or connector that misbehaved: which, and how
    └── WorkerAlreadyRun         a second ``Worker.run``: a Worker runs once

A bug in this package is an ``AssertionError``: it is logged with its trace where it must not take others down, and
never handled as one of these.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .masking import masked_value
from .protocol.units import printable

NO_VALUE: Final = "nothing"
"""Shown in place of the value of a setting that is not there."""

UNKNOWN_SETTING: Final = "an unknown setting"
"""Shown in place of the value of a setting that is not known."""

MAX_SHOWN: Final = 1_000
"""Characters of a value that are looked at; fewer are shown."""


class ConnectGroupError(Exception):
    """Base of all errors raised on purpose."""


class GroupError(ConnectGroupError):
    """A request turned down by the coordinator.

    ``code`` is the wire's number; ``retriable`` says whether the same request may be sent again.
    """

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False


class UnknownServerError(GroupError):
    """The coordinator failed in a way it has no word for."""

    code = -1


class CoordinatorLoadInProgress(GroupError):
    """The group is being read from the log. Ask again shortly."""

    code = 14
    retriable = True


class CoordinatorNotAvailable(GroupError):
    """The coordinator cannot make anything durable just now. Ask again shortly."""

    code = 15
    retriable = True


class NotCoordinator(GroupError):
    """This process does not coordinate the group (any more). Find the coordinator and ask there."""

    code = 16
    retriable = True


class InvalidGroupId(GroupError):
    """The group id is not one that a group can have; the message says what is allowed."""

    code = 24


class UnknownMemberId(GroupError):
    """The group has no such member. The worker must stop everything and join at epoch 0."""

    code = 25


class UnsupportedVersion(GroupError):
    """The API, or this version of it, is not served here."""

    code = 35


class InvalidRequest(GroupError):
    """A field of the request breaks a rule; the message names field, value and what is allowed."""

    code = 42


class GroupIdNotFound(GroupError):
    """There is no such group; only a join at epoch 0 makes one."""

    code = 69


class GroupMaxSizeReached(GroupError):
    """The group has as many members as it may have; those it has may join again."""

    code = 81


class FencedMemberEpoch(GroupError):
    """The worker speaks from an epoch that is not the one the group last gave it.

    What the worker must do: stop everything it runs, then join again at epoch 0.
    """

    code = 110


class UnsupportedAssignor(GroupError):
    """No assignor (or version of one) is left that the whole group could use."""

    code = 112


class StaleMemberEpoch(GroupError):
    """What was sent belongs to an earlier grant or an earlier request; it changes nothing."""

    code = 113


class ComputeAssignment(GroupError):
    """Not a failure: the member has been chosen to compute the group's next target."""

    code = 20480


class InvalidAssignment(GroupError):
    """The installed assignment is not legal; the message names the first offence. Nothing was stored."""

    code = 20481


class StaleGroupEpoch(GroupError):
    """The assignment was computed for a group epoch that has passed. Nothing was stored."""

    code = 20482


def _subclasses(cls: type[GroupError]) -> list[type[GroupError]]:
    return [cls, *(deeper for child in cls.__subclasses__() for deeper in _subclasses(child))]


class FencedInstanceId(GroupError):
    """Another process has taken over this static member's name. The worker must stop everything and end."""

    code = 82


class UnreleasedInstanceId(GroupError):
    """The static member's name is in use by a member that has not left. Ask again: it may be dead already."""

    code = 111
    retriable = True


class NonEmptyGroup(GroupError):
    """The group has members, so it cannot be deleted."""

    code = 68


class PolicyViolation(GroupError):
    """A limit that the operator has set."""

    code = 44


def from_code(code: int, message: str | None) -> GroupError:
    """The error a response carries, as an exception; an unknown code becomes ``UnknownServerError``."""
    by_code = {cls.code: cls for cls in _subclasses(GroupError)}
    cls = by_code.get(code, UnknownServerError)
    return cls(message or f"error {code}")


class LogError(ConnectGroupError):
    """The log could not be read or written, or holds what it should not. Names the place."""


class TransportError(ConnectGroupError):
    """No answer came: not connected, connection lost, or timed out. The request may have been carried out."""


class WireError(ConnectGroupError):
    """Bytes that are not a message of ours, or a value that a message cannot hold."""


class Fenced(ConnectGroupError):
    """A sink has seen a later grant of the same work: whoever writes with this one is out of date and must end.

    Not to be tried again: the work is in newer hands.
    """


class ConfigError(ConnectGroupError):
    """A setting that cannot be used.

    Reads ``field: got value; allowed: what`` on one line. The value of a setting whose name looks like a credential's
    is not shown, and not kept. For a setting that is not known at all give ``UNKNOWN_SETTING`` as the value: what was
    written there may be anything.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        key = field.rpartition(": ")[2]
        if value not in (NO_VALUE, UNKNOWN_SETTING) and "/" not in key:
            # Cut first: a value of megabytes must not be searched.
            value = masked_value(key, value[:MAX_SHOWN] if isinstance(value, str) else value)
        super().__init__(f"{field}: got {printable(value)!r}; allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


class PluginError(ConnectGroupError):
    """A plug-in misbehaved; the message names it and the offence on one line.

    ``location`` is ``file:line`` of the innermost frame of the plug-in's own code that an exception passed
    through; empty if there is none. It is for logs: the message goes to other machines, where the file says nothing.
    """

    def __init__(self, message: str, *, location: str = "") -> None:
        super().__init__(message)
        self.location = location

    def with_location(self) -> str:
        """The message, and the location if there is one."""
        return f"{self} (at {self.location})" if self.location else str(self)


class WorkerAlreadyRun(ConnectGroupError, RuntimeError):
    """``Worker.run`` has been called before: a Worker runs once, a new membership needs a new one."""
