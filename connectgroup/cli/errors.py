"""Errors of commands: their exit codes, and how they are printed: one line of text, or of JSON with ``--json``."""

from __future__ import annotations

import json
import sys
from typing import Final

from ..errors import (
    ConnectGroupError,
    ConnectorAlreadyExists,
    ConnectorNotFound,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    Fenced,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    NameNotFound,
    NonEmptyGroup,
    NotAuthenticated,
    NotCoordinator,
    PluginError,
    SaslAuthenticationFailed,
    TimedOut,
    TransportError,
    UnknownMemberId,
    VersionConflict,
)

FAILED: Final = 1
"""A command that ran to its end and found something wrong: ``validate``, ``groups list``."""

REJECTED: Final = 2
"""Wrong options, files or settings, and requests that are rejected for no other reason below. ``up``, ``coordinator``,
``worker``, ``proxy`` and ``rest`` have this code for every error: a restart would not help."""


class UsageError(ConnectGroupError):
    """Arguments that the command line does not have."""

    def __init__(self, program: str, message: str) -> None:
        super().__init__(message)
        self.program = program


class NotReached(ConnectGroupError):
    """A state that a command waits for was not reached."""


_KINDS: Final[tuple[tuple[type[ConnectGroupError], str, int], ...]] = (
    (ConnectorNotFound, "not_found", 3),
    (GroupIdNotFound, "not_found", 3),
    (UnknownMemberId, "not_found", 3),
    (NameNotFound, "not_found", 3),
    (ConnectorAlreadyExists, "conflict", 4),
    (VersionConflict, "conflict", 4),
    (NonEmptyGroup, "conflict", 4),
    (Fenced, "conflict", 4),
    (NotAuthenticated, "not_authenticated", 6),
    (GroupAuthorizationFailed, "not_authorized", 6),
    (SaslAuthenticationFailed, "not_authenticated", 6),
    (TransportError, "unavailable", 5),
    (CoordinatorNotAvailable, "unavailable", 5),
    (CoordinatorLoadInProgress, "unavailable", 5),
    (NotCoordinator, "unavailable", 5),
    (NotReached, "not_reached", 7),
    (TimedOut, "not_reached", 7),
)


def report_error(error: ConnectGroupError, *, as_json: bool, serves: bool) -> int:
    """Print an error on standard error; return the exit code.

    Args:
        serves: the command runs until it is stopped, as ``up`` and ``worker`` do.
    """
    kind, code = next(((kind, code) for cls, kind, code in _KINDS if isinstance(error, cls)), ("rejected", REJECTED))
    if serves:
        kind, code = "rejected", REJECTED
    text = error.with_location() if isinstance(error, PluginError) else str(error)
    if as_json:
        print(json.dumps({"error": kind, "message": text, "exit_code": code}), file=sys.stderr)
    else:
        program = error.program if isinstance(error, UsageError) else "connectgroup"
        print(f"{program}: {text}", file=sys.stderr)
    return code
