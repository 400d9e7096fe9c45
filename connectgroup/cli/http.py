"""The HTTP servers of commands: the REST API with the live page, and the metrics of a process."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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
    SaslAuthenticationFailed,
    TimedOut,
    TransportError,
    UnknownMemberId,
    VersionConflict,
)
from .arguments import allowed_paths_of, secrets_of

if TYPE_CHECKING:
    from ..client.admin import Admin
    from ..rest.events import Rates


def print_rest(url: str) -> None:
    """Print where the REST API and the live page are."""
    print(f"REST at {url}", flush=True)
    print(f"page at {url}/page", flush=True)


@contextlib.asynccontextmanager
async def rest_server(
    admin: Admin, options: argparse.Namespace, port: int, *, rates: Rates | None = None
) -> AsyncIterator[str]:
    """Serve the REST API; yields its URL.

    Raises:
        ConfigError: a connector class that clients may use is not installed.
    """
    from ..plugins import available

    installed = available("connectors")
    for name in options.rest_connector_classes or ():
        if name not in installed:
            raise ConfigError(
                f"{options.rest_prefix}connector-class",
                name,
                ", ".join(installed) or "none (connectors are not installed)",
            )
    values = {
        "host": options.rest_host,
        "port": port,
        "group": options.group,
        "users": options.rest_users,
        "certificate": options.rest_certificate,
        "key": options.rest_key,
        "allowed_hosts": tuple(options.rest_allowed_hosts or ()),
        "readers": options.rest_readers,
        "connector_classes": tuple(options.rest_connector_classes or ()),
        "requests_per_second": options.rest_requests_per_second,
        "max_connections": options.rest_max_connections,
        "max_connections_per_address": options.rest_max_connections_per_address,
        "idle_timeout_s": options.rest_idle_timeout_s,
        "allowed_paths": allowed_paths_of(options),
        **_known_secrets(options),
        "new_group": getattr(options, "new_group", False),
    }
    names = {field: f"rest_{field}" for field in values if hasattr(options, f"rest_{field}")}
    async with _http_server(admin, values, names, rates) as url:
        yield url


def _known_secrets(options: argparse.Namespace) -> dict[str, Any]:
    """The secrets that connectors may refer to. ``up`` gives its own to all workers; others know what they are told."""
    secrets = secrets_of(options)
    if not options.gives_secrets and not secrets.env and not secrets.paths:
        return {}
    return {"secret_env": secrets.env, "secret_paths": secrets.paths}


@contextlib.asynccontextmanager
async def metrics_server(port: int | None) -> AsyncIterator[str]:
    """Serve the metrics of this process on the loopback address; yields the URL, empty without a port."""
    if port is None:
        yield ""
        return
    async with _http_server(None, {"port": port}, {"port": "metrics_port"}) as url:
        yield f"{url}/metrics"


@contextlib.asynccontextmanager
async def _http_server(
    admin: Admin | None, values: dict[str, Any], names: Mapping[str, str], rates: Rates | None = None
) -> AsyncIterator[str]:
    """Run a ``RestServer`` with these settings; yields its URL.

    Args:
        names: of the options for them, as far as these have other names.
    """
    from ..config.base import checked
    from ..config.rest import RestConfig

    try:
        from ..rest.server import RestServer

        if admin is None:
            import_module("..rest.metrics", __package__)  # fails now, and not at each scrape
    except ModuleNotFoundError as error:
        what = "the REST API" if admin is not None else "--metrics-port"
        raise PluginError(f"{what} requires {error.name}; allowed: pip install 'connectgroup[rest]'") from error
    try:
        server = RestServer(admin, checked(RestConfig, values), rates=rates)
        await server.start()
    except ConfigError as error:
        raise renamed(error, names.get(error.field, error.field)) from error
    try:
        yield server.url
    finally:
        await server.close()


# --------------------------------------------------------------------------------------------------
# Errors of commands: their exit codes, and how they are printed: one line of text, or of JSON with ``--json``.
#
# The library names arguments and settings in its errors, for programs that embed it. ``OptionNames`` replaces them by
# the options of the command line wherever a command prints such a text: errors, warnings in its log, messages of units.


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
}
"""What a program writes that connects to a coordinator, and the options for it."""


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


class OptionsInLog(logging.Formatter):
    """Names options in the warnings and errors of this package, as ``OptionNames`` does."""

    def __init__(self, names: OptionNames, form: str, times: str) -> None:
        super().__init__(form, times)
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


def renamed(error: ConfigError, field: str) -> ConfigError:
    """Return an error about another setting, with the same value and what is allowed."""
    return type(error)(field, error.value, error.allowed, is_path=True)


def report_error(error: ConnectGroupError, names: OptionNames, *, as_json: bool, serves: bool) -> int:
    """Print an error on standard error; return the exit code.

    Args:
        serves: the command runs until it is stopped, as ``up`` and ``worker`` do.
    """
    kind, code = next(((kind, code) for cls, kind, code in _KINDS if isinstance(error, cls)), ("rejected", REJECTED))
    if serves:
        kind, code = "rejected", REJECTED
    text = str(error) if isinstance(error, UsageError) else names.in_error(error)
    if as_json:
        print(json.dumps({"error": kind, "message": text, "exit_code": code}), file=sys.stderr)
    else:
        program = error.program if isinstance(error, UsageError) else "connectgroup"
        print(f"{program}: {text}", file=sys.stderr)
    return code
