"""All exceptions that this package raises deliberately.

    ConnectGroupError
    ├── GroupError               a rejected request: has an error code on the wire, writes no record
    │   ├── InvalidRequest 42             ├── UnknownMemberId 25
    │   ├── FencedInstanceId 82           ├── FencedMemberEpoch 110
    │   ├── GroupIdNotFound 69            ├── StaleMemberEpoch 113
    │   ├── UnsupportedAssignor 112       ├── UnsupportedVersion 35
    │   ├── ComputeAssignment 20480       ├── NotCoordinator 16
    │   ├── InvalidAssignment 20481       ├── CoordinatorNotAvailable 15
    │   ├── StaleGroupEpoch 20482         ├── CoordinatorLoadInProgress 14
    │   ├── UnreleasedInstanceId 111      ├── GroupMaxSizeReached 81
    │   ├── NonEmptyGroup 68              ├── PolicyViolation 44
    │   ├── InvalidGroupId 24             ├── ConnectorNotFound 20483
    │   ├── ConnectorAlreadyExists 20484  ├── VersionConflict 20485
    │   ├── IllegalGeneration 22          ├── RebalanceInProgress 27
    │   ├── InvalidSessionTimeout 26      ├── MemberIdRequired 79
    │   ├── OffsetMetadataTooLarge 12     ├── InvalidRegularExpression 128
    │   ├── GroupAuthorizationFailed 30   ├── SaslAuthenticationFailed 58
    │   └── UnknownServerError -1
    ├── LogError                 the log failed: the runtime drops the group and loads it again
    ├── TransportError           no response: the request may have been processed
    │   └── NotSent              no connection: the request was not sent and may be retried
    ├── WireError                bytes that are not a message of this protocol
    ├── Fenced                   a rejected write: a later owner epoch of the same unit has been seen
    ├── ConfigError              an invalid setting: field, value, allowed values
    │   └── NameNotFound         the setting names a worker, connector or task that does not exist
    ├── PluginError              a faulty assignor, listener or connector: its name and the violation
    ├── TimedOut                 a state was not reached in time
    └── WorkerAlreadyRun         a second ``Worker.run``: a Worker runs once

A bug in this package is an ``AssertionError``. It is logged with its traceback where it must not affect other groups or
connections, and is never handled as one of these errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import ClassVar, Final

from .masking import masked_value, without_secrets
from .protocol.units import printable

_MAX_TEXT: Final = 10_000
"""Characters of an error message that are processed; its first line is shown, truncated to 400."""


class Problem(str):
    """Passed to ``ConfigError`` instead of a value: what is wrong, if that is not the value that it got."""

    __slots__ = ()


NO_VALUE: Final = Problem("missing")
"""Passed to ``ConfigError`` instead of the value of a missing setting."""

UNKNOWN_SETTING: Final = Problem("unknown")
"""Passed to ``ConfigError`` instead of the value of an unknown setting."""

MAX_SHOWN: Final = 1_000
"""Characters of a value that are examined; fewer are shown."""

MAX_PATH: Final = 500
"""Characters of a path in a message: its end tells which file it is."""


class ConnectGroupError(Exception):
    """Base class of all exceptions that this package raises deliberately."""


class GroupError(ConnectGroupError):
    """A request rejected by the coordinator.

    ``code`` is the error code on the wire; ``retriable`` says whether the same request may be retried.
    """

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False


class UnknownServerError(GroupError):
    """The coordinator failed in a way that has no error code of its own."""

    code = -1


class CoordinatorLoadInProgress(GroupError):
    """The group is being loaded from the log. Retry after a short back-off."""

    code = 14
    retriable = True


class CoordinatorNotAvailable(GroupError):
    """The coordinator cannot make records durable at the moment. Retry after a short back-off."""

    code = 15
    retriable = True


class NotCoordinator(GroupError):
    """This process does not, or no longer, coordinate the group. Find the coordinator and retry there."""

    code = 16
    retriable = True


class InvalidGroupId(GroupError):
    """The group id is invalid; the message gives the rule."""

    code = 24


class UnknownMemberId(GroupError):
    """The group has no such member. The worker must stop all units and join at epoch 0."""

    code = 25


class UnsupportedVersion(GroupError):
    """This server does not support the API, or this version of it."""

    code = 35


class UnsupportedSaslMechanism(GroupError):
    """The server does not support the SASL mechanism."""

    code = 33


class IllegalSaslState(GroupError):
    """A SASL request at a wrong time: out of order, or to a server that does not authenticate its clients."""

    code = 34


class GroupAuthorizationFailed(GroupError):
    """The user is not authorized to use the group."""

    code = 30


class SaslAuthenticationFailed(GroupError):
    """The client is not authenticated; the server closes the connection."""

    code = 58


class InvalidRequest(GroupError):
    """A field of the request is invalid; the message gives field, value and allowed values."""

    code = 42


class GroupIdNotFound(GroupError):
    """The group does not exist; only a join at epoch 0 creates one."""

    code = 69


class GroupMaxSizeReached(GroupError):
    """The group has reached its maximum number of members; existing members may rejoin."""

    code = 81


class InconsistentGroupProtocol(GroupError):
    """The group is of another type than the request, or of a type that the coordinator does not serve."""

    code = 23


class FencedMemberEpoch(GroupError):
    """The member epoch in the request does not match the epoch that the group has for the member.

    The worker must stop all units and rejoin at epoch 0.
    """

    code = 110


class UnsupportedAssignor(GroupError):
    """No assignor, or no version of one, remains that all members of the group support."""

    code = 112


class StaleMemberEpoch(GroupError):
    """The request is stale: it belongs to an earlier owner epoch or precedes a later request. It changes nothing."""

    code = 113


class ComputeAssignment(GroupError):
    """Not a failure: the member has been chosen to compute the group's next target assignment."""

    code = 20480


class InvalidAssignment(GroupError):
    """The installed assignment is invalid; the message gives the first violation. Nothing was stored."""

    code = 20481


class StaleGroupEpoch(GroupError):
    """The assignment was computed for an outdated group epoch. Nothing was stored."""

    code = 20482


class ConnectorNotFound(GroupError):
    """The group has no connector of this name."""

    code = 20483


class ConnectorAlreadyExists(GroupError):
    """The change expects that the connector does not exist yet, but the group has a connector of this name."""

    code = 20484


class VersionConflict(GroupError):
    """The connector has another version than the change expects: read the connector again, then change it."""

    code = 20485


class IllegalGeneration(GroupError):
    """The generation in the request is not that of the classic group."""

    code = 22


class InvalidSessionTimeout(GroupError):
    """The session timeout of a member of a classic group is outside the coordinator's limits."""

    code = 26


class RebalanceInProgress(GroupError):
    """The classic group is rebalancing: the member must join again."""

    code = 27
    retriable = True


class MemberIdRequired(GroupError):
    """Not a failure: the member must join again with the member id in the response (KIP-394)."""

    code = 79


class OffsetMetadataTooLarge(GroupError):
    """The metadata committed with an offset is too large."""

    code = 12


class UnstableOffsetCommit(GroupError):
    """A transaction that has not ended yet commits an offset of this partition."""

    code = 88
    retriable = True


class GroupSubscribedToTopic(GroupError):
    """The offset cannot be deleted: the group is subscribed to the topic."""

    code = 86


class UnknownTopicOrPartition(GroupError):
    """The cluster has no such topic, or the topic no such partition."""

    code = 3


class UnknownTopicId(GroupError):
    """The cluster has no topic with this id."""

    code = 100


class InvalidRegularExpression(GroupError):
    """A regular expression is not in RE2 syntax."""

    code = 128


class FencedInstanceId(GroupError):
    """Another process uses this group.instance.id or member id now. The worker must stop all units and exit."""

    code = 82


class UnreleasedInstanceId(GroupError):
    """The group.instance.id is in use by a member that has not left. Retry: the member may be dead already."""

    code = 111
    retriable = True


class NonEmptyGroup(GroupError):
    """The group has members, so it cannot be deleted."""

    code = 68


class PolicyViolation(GroupError):
    """The request exceeds a limit set by the operator."""

    code = 44


def from_code(code: int, message: str | None) -> GroupError:
    """The exception for the error in a response; an unknown code becomes ``UnknownServerError``."""
    cls = _by_code().get(code, UnknownServerError)
    return cls(message or f"error {code}")


@cache
def _by_code() -> dict[int, type[GroupError]]:
    """The classes of this module by their codes."""
    found, kinds = dict[int, type[GroupError]](), [GroupError]
    for cls in kinds:
        found[cls.code] = cls
        kinds += cls.__subclasses__()
    return found


class LogError(ConnectGroupError):
    """The log cannot be read or written, or has invalid content. The message gives the position."""


class TransportError(ConnectGroupError):
    """No response: not connected, connection lost, or timed out. The request may have been processed."""


class PortInUse(TransportError):
    """A server cannot listen, because another process has its port."""


class NotSent(TransportError):
    """The request was not sent, because there is no connection: any request may be retried."""


class NotAuthenticated(NotSent):
    """The server rejects the credentials of this client, or this client has none, or the server cannot prove its own.

    A retry succeeds only with other credentials.
    """


class WireError(ConnectGroupError):
    """Bytes that are not a message of this protocol, or a value that a message field cannot hold."""


class Fenced(ConnectGroupError):
    """A sink has seen a later owner epoch of the same unit: the writer is a zombie and must stop.

    Do not retry: another member owns the unit.

    Attributes:
        token: the fencing token that the sink has seen; -1 if unknown.
    """

    def __init__(self, message: str, *, token: int = -1) -> None:
        super().__init__(message)
        self.token = token


class ConfigError(ConnectGroupError):
    """A setting that cannot be used.

    The message is ``field: got value; allowed: what`` on one line: that of ``ConfigError("beat.ms", "x", "a number")``
    is ``beat.ms: got 'x'; allowed: a number``. With ``NO_VALUE`` it begins with ``beat.ms: missing;``, with
    ``UNKNOWN_SETTING`` with ``beat.ms: unknown;``. The value of a setting whose name looks like that of a credential is
    neither shown nor kept, nor that of an unknown setting: it may be anything.

    Args:
        field: the name of the setting.
        value: what it got; ``NO_VALUE`` if it is missing, ``UNKNOWN_SETTING`` if there is no such setting, another
            ``Problem`` if its text says more.
        allowed: what is allowed, for the reader of the message; may be empty.
        is_path: whether the value is the path of a file, which is shown even if the setting is named ``credentials``.
    """

    def __init__(self, field: str, value: object, allowed: str, *, is_path: bool = False) -> None:
        key = "" if is_path else field.rpartition(": ")[2]
        if isinstance(value, Problem):
            problem = printable(str(value))
        else:
            if "/" not in key:
                # Truncate first: a value of megabytes must not be searched.
                value = masked_value(key, value[:MAX_SHOWN] if isinstance(value, str) else value)
            shown = printable(value, limit=MAX_PATH) if is_path else printable(value)
            # ``printable`` has escaped control characters already.
            problem = f"got {shown!r}".replace("\\\\", "\\")
        super().__init__(f"{field}: {problem}" + (f"; allowed: {allowed}" if allowed else ""))
        self.field, self.value, self.allowed = field, value, allowed


class NameNotFound(ConfigError):
    """A setting names a worker, a connector or a task that the group does not have."""


class PluginError(ConnectGroupError):
    """A plug-in misbehaved; the message names it and the violation on one line.

    ``location`` is ``file:line`` of the innermost frame of the plug-in's own code in the traceback; empty if there is
    none. It is for logs only: the message is sent to other machines, where the file means nothing.
    """

    def __init__(self, message: str, *, location: str = "") -> None:
        super().__init__(message)
        self.location = location

    def with_location(self) -> str:
        """The message, followed by the location if there is one."""
        return f"{self} (at {self.location})" if self.location else str(self)


class UnitFailed(ConnectGroupError):
    """A unit has failed, and its worker does not try again: waiting for it is in vain.

    ``Admin.restart_task`` and ``Admin.restart_connector`` start it again, and so does a change of its connector.
    """


class TimedOut(ConnectGroupError, TimeoutError):
    """A state was not reached in time; the message names the state and the time."""


class WorkerAlreadyRun(ConnectGroupError, RuntimeError):
    """``Worker.run`` was called before: a Worker runs once, and a new membership needs a new Worker."""


def one_line(error: BaseException | None, *configs: Mapping[str, str]) -> str:
    """Format an error as one line: its message, and its type unless it is a ``ConfigError``.

    Args:
        configs: configurations of the connector or task; the values of credentials in them are masked.
    """
    if error is None:
        return ""
    text = printable(without_secrets(str(error)[:_MAX_TEXT].strip(), *configs).split("\n")[0], limit=400)
    return text if isinstance(error, ConfigError) else f"{text} ({type(error).__name__})".strip()
