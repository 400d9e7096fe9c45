"""Options that several subcommands have, and the conversions of their values."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..dataplane.java_plugins import PLUGIN_PATH
from ..protocol import DEFAULT_PORT
from ..protocol.units import name_violation, printable
from .completion import with_groups
from .requests import add_access, options_about

if TYPE_CHECKING:
    from ..config.secrets import Secrets


def subcommand(name: str) -> Callable[[argparse.Namespace], Coroutine[Any, Any, int]]:
    """The coroutine function ``module.function`` of this package, for a subcommand.

    The module is imported when the subcommand runs: to import those of all subcommands takes longer than most of them
    take to run.
    """
    module, _, function = name.partition(".")

    def run(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
        implementation: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
        implementation = getattr(import_module(f".{module}", __package__), function)
        return implementation(options)

    return run


DEFAULT_GROUP: Final = "workers"
GROUP_HELP: Final = f"group id ({DEFAULT_GROUP})"


def add_group(parser: argparse.ArgumentParser) -> None:
    """Add ``--group``."""
    with_groups(parser.add_argument("--group", type=name, default=DEFAULT_GROUP, help=GROUP_HELP))


GROUP_TYPES: Final = ("connect", "classic", "consumer")


def group_types(text: str) -> tuple[str, ...]:
    """Convert ``--type``: types of groups, separated by commas."""
    types = tuple(part.strip().lower() for part in text.split(","))
    for each in types:
        if each not in GROUP_TYPES:
            raise argparse.ArgumentTypeError(f"got {printable(each)!r}; allowed: {', '.join(GROUP_TYPES)}")
    return types


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_secrets(parser: argparse.ArgumentParser) -> None:
    """Add the allow-lists of secrets."""
    part = options_about(parser, "what connectors may use")
    part.add_argument(
        "--secret-env",
        action="append",
        default=[],
        metavar="NAME",
        help="an environment variable for ${env:NAME} in connectors; a prefix ends with *; may be repeated",
    )
    part.add_argument(
        "--secret-path",
        type=path,
        action="append",
        default=[],
        metavar="PATH",
        help="a file or directory for ${file:PATH:KEY} and ${dir:PATH:FILE} in connectors; may be repeated",
    )


def secrets_of(options: argparse.Namespace) -> Secrets:
    """Return the allow-lists of ``add_secrets``.

    Raises:
        ConfigError: a path is relative.
    """
    from ..config.secrets import Secrets
    from ..errors import ConfigError

    for each in options.secret_path:
        if not each.is_absolute():
            raise ConfigError("--secret-path", each, "an absolute path", is_path=True)
    return Secrets(env=tuple(options.secret_env), paths=tuple(options.secret_path))


ALLOWED_PATHS: Final = "CONNECTGROUP_ALLOWED_PATHS"
"""Environment variable with the default of ``--allowed-path``: absolute paths, separated by colons."""


def add_allowed_paths(parser: argparse.ArgumentParser, default: str) -> None:
    """Add ``--allowed-path``; ``default`` describes it."""
    part = options_about(parser, "what connectors may use")
    part.add_argument(
        "--allowed-path",
        type=path,
        action="append",
        metavar="PATH",
        help="a file or directory that sources, sinks and other connectors may use; may be repeated; the variable "
        f"{ALLOWED_PATHS} sets the default ({default})",
    )


def allowed_paths_of(options: argparse.Namespace) -> tuple[Path, ...] | None:
    """Return the list of ``add_allowed_paths``; ``None`` if neither an option nor the environment has one.

    Raises:
        ConfigError: a path is relative.
    """
    from ..config.paths import require_absolute_paths

    if options.allowed_path is not None:
        require_absolute_paths("--allowed-path", options.allowed_path)
        return tuple(options.allowed_path)
    text = os.environ.get(ALLOWED_PATHS)
    if not text:
        return None
    paths = tuple(map(Path, text.split(os.pathsep)))
    require_absolute_paths(ALLOWED_PATHS, paths)
    return paths


def add_plugin_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--plugin-path``; ``command.main`` sets it for this process and those that it starts."""
    parser.add_argument(
        "--plugin-path",
        type=path,
        action="append",
        metavar="DIR",
        help="a directory of Kafka Connect's Java plug-ins, each in a directory of its own with its jars (Kafka "
        f"Connect's plugin.path); may be repeated; the variable {PLUGIN_PATH} sets the default (none)",
    )


def add_wait(
    parser: argparse.ArgumentParser, help_: str = "wait until the connector and its tasks are in this state"
) -> None:
    """Add ``--wait`` and ``--timeout``."""
    parser.add_argument("--wait", action="store_true", help=help_)
    parser.add_argument("--timeout", type=count, default=60, metavar="SECONDS", help="maximum time to wait (60)")


def add_coordinator(parser: argparse.ArgumentParser) -> None:
    """Add ``--coordinator``."""
    default = os.environ.get("CONNECTGROUP_COORDINATOR") or f"127.0.0.1:{DEFAULT_PORT}"
    shown = default.replace("%", "%%")
    parser.add_argument(
        "--coordinator",
        default=default,
        metavar="HOST:PORT",
        help="address of the coordinator, or several with commas; "
        f"the variable CONNECTGROUP_COORDINATOR sets the default ({shown})",
    )
    add_access(parser)


def name(text: str) -> str:
    """Check an identifier with the coordinator's rule, before anything starts."""
    allowed = name_violation(text)
    if allowed is not None:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: {allowed}")
    return text


def path(text: str) -> Path:
    """Check a path."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: a path")
    return Path(text)


def number(text: str) -> int:
    """Convert a number; the settings check its range. A number of more than 100 digits is not converted."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 100:
        raise argparse.ArgumentTypeError(f"got {printable(text)!r}; allowed: a whole number")
    return int(text)


def count(text: str) -> int:
    """Convert a number from 1 to 10,000."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 10_000:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a whole number from 1 to 10000")
    return int(text)
