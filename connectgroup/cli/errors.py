"""Errors of commands: their exit codes, and how they are printed: one line of text, or of JSON with ``--json``.

The library names arguments and settings in its errors, for programs that embed it. ``OptionNames`` replaces them by
the options of the command line wherever a command prints such a text: errors, warnings in its log, messages of units.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from ..errors import (
    ConfigError,
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
    PortInUse,
    SaslAuthenticationFailed,
    TimedOut,
    TransportError,
    UnknownMemberId,
    VersionConflict,
)
from ..loggers import LogLines
from ..protocol.units import escaped

FAILED: Final = 1
"""A command that ran to its end and found something wrong: ``validate``, ``groups list``."""

UNKNOWN: Final = 3
"""``REJECTED`` of ``status --check``, where 2 says that something has failed (``status.LEVELS``)."""

REJECTED: Final = 2
"""Wrong options, files or settings, and requests that are rejected for no other reason below. ``up``, ``coordinator``,
``worker``, ``proxy`` and ``rest`` have this code for every error: a restart would not help."""

INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


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


_SETTINGS: Final = {
    "addresses": "coordinator",
    "allowed_paths": "allowed_path",
    "assignors": "assignor",
    "labels": "label",
    "listeners": "listener",
    "scheduled_rebalance_max_delay_ms": "rebalance_delay_ms",
    "secret_paths": "secret_path",
}
"""Arguments and settings of the library that have another name than the option for them, and the name of the option."""

_PHRASES: Final = {
    "access=Access(credentials=...)": "--credentials FILE",
    "access=Access(tls=...)": "--tls-ca FILE (and --tls-cert, --tls-key)",
    "Changes.Connector:": "name:",
}
"""What a program writes that connects to a coordinator, and the options for it; a field of a request, as REST has it.
"""


_ABOUT_NAMES: Final = tuple(cls for cls, kind, _ in _KINDS if kind in ("not_found", "conflict"))
"""Errors whose texts have names of groups, workers and connectors: a connector may have the name of a setting."""


class OptionNames:
    """The options of a command, by the names of the arguments and settings that they give."""

    def __init__(self, parser: argparse.ArgumentParser, command: argparse.ArgumentParser | None = None) -> None:
        """Keep the parsers; the names are collected for the first text, as most commands print none.

        Args:
            parser: of all commands: an error may name a setting of another process, such as the coordinator.
            command: the parser of the command that runs; its options go before those of others.
        """
        self._parser, self._command = parser, command

    @cached_property
    def _own(self) -> dict[str, str]:
        return {} if self._command is None else _options_of(self._command)

    @cached_property
    def _known(self) -> dict[str, str]:
        """Options by name. Of other commands, only names that are neither words of a sentence nor likely in data."""
        names = dict(_options_of_all(self._parser)) | self._own
        known = names | {setting: names[name] for setting, name in _SETTINGS.items()}
        return {name: option for name, option in known.items() if "_" in name} | self._own

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        several = "|".join(sorted((name for name in self._known if "_" in name), key=len, reverse=True))
        return re.compile(
            "|".join(
                (
                    *map(re.escape, _PHRASES),
                    r"(?<!\w)'[^']*'|(?<!\w)\"[^\"]*\"",  # a value, which stays as it is
                    rf"(?<![\w./$-])(?P<name>{several})(?:=(?=\S)|(?![\w/=-]|\.\w))",
                    rf"(?<![\w./$-])(?P<given>{'|'.join(self._own) or '(?!)'})=(?=[A-Z/])",
                )
            )
        )

    def in_text(self, text: str) -> str:
        """Return a text with options in place of the arguments and settings that it names.

        ``tls_key`` becomes ``--tls-key``, ``scratch=DIRECTORY`` becomes ``--scratch DIRECTORY``. Words in quotation
        marks are values.
        """
        return self._pattern.sub(self._option, text)

    def in_error(self, error: ConnectGroupError) -> str:
        """Return the text of an error; its setting, too, is named by the option."""
        text = error.with_location() if isinstance(error, PluginError) else str(error)
        named = option = ""
        if isinstance(error, ConfigError):
            named = f"{error.field}:"
            option = self._known.get(_SETTINGS.get(error.field, error.field), "")
        if not option or not text.startswith(named):
            named = option = ""
        rest = text.removeprefix(named)
        told = rest if isinstance(error, _ABOUT_NAMES) else self.in_text(rest)
        return f"{option}:{told}" if option else told

    def _option(self, found: re.Match[str]) -> str:
        name = found["name"] or found["given"]
        if name is None:
            return _PHRASES.get(found[0], found[0])
        return self._known[name] + (" " if found[0].endswith("=") else "")


class OptionsInLog(LogLines):
    """Names options in the warnings and errors of this package, as ``OptionNames`` does."""

    def __init__(self, names: OptionNames, *, as_json: bool) -> None:
        super().__init__(as_json=as_json)
        self._names = names

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING and record.name.startswith(__package__.partition(".")[0]):
            record.message = self._names.in_text(record.message)
        return super().formatMessage(record)


def _options_of(command: argparse.ArgumentParser) -> dict[str, str]:
    """The long options of a command by the names of their values."""
    return {
        action.dest: option
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest != "help"
    }


def _options_of_all(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _options_of_all(command)
    yield from _options_of(parser).items()


@contextlib.contextmanager
def port_option(option: str) -> Iterator[None]:
    """Name the option of a port in the error that another process has the port."""
    try:
        yield
    except PortInUse as error:
        raise PortInUse(f"{error}; another port, or 0 for any: {option}") from error


def renamed(error: ConfigError, field: str) -> ConfigError:
    """Return an error about another setting, with the same value and what is allowed."""
    return type(error)(field, error.value, error.allowed, is_path=True)


def _kind_of(error: ConnectGroupError) -> tuple[str, int]:
    """The kind of an error, and its exit code."""
    return next(((kind, code) for cls, kind, code in _KINDS if isinstance(error, cls)), ("rejected", REJECTED))


def is_away(error: ConnectGroupError) -> bool:
    """Whether the coordinator does not respond, and the same request may succeed later."""
    return _kind_of(error)[0] == "unavailable"


def report_error(
    error: ConnectGroupError, names: OptionNames, *, as_json: bool, serves: bool, checks: bool = False
) -> int:
    """Print an error on standard error; return the exit code.

    Args:
        serves: the command runs until it is stopped, as ``up`` and ``worker`` do.
        checks: a monitor reads the exit code (``status --check``).
    """
    kind, code = ("rejected", REJECTED) if serves else _kind_of(error)
    if checks and code == REJECTED:
        code = UNKNOWN
    text = str(error) if isinstance(error, UsageError) else names.in_error(error)
    if as_json:
        print(json.dumps({"error": kind, "message": text, "exit_code": code}), file=sys.stderr)
    else:
        program = error.program if isinstance(error, UsageError) else "connectgroup"
        for line in f"{program}: {text}".split("\n"):  # the errors of a file, one each
            print(escaped(line), file=sys.stderr)
    return code
