"""Completion of the command in a shell, by the package argcomplete (extra ``cli``).

The shell runs the command itself at each TAB, so that names of groups, connectors and workers are completed too: they
come from the coordinator. If it does not respond, nothing is completed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

from ..errors import ConfigError, ConnectGroupError

if TYPE_CHECKING:
    from ..plugins import Kind
    from ..protocol.messages.describe import DescribedGroup

SHELLS: Final = ("bash", "zsh", "fish", "tcsh", "powershell")
TIMEOUT_S: Final = 2.0
_MISSING: Final = "the package argcomplete: pip install 'connectgroup[cli]'"


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the completions and end the process if a shell asks for them; otherwise do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ModuleNotFoundError:
        raise SystemExit(1) from None  # nothing is completed
    argcomplete.autocomplete(parser, always_complete_options=False)


async def print_completion(options: argparse.Namespace) -> int:
    """Print the script that a shell reads once."""
    try:
        import argcomplete
    except ModuleNotFoundError as error:
        raise ConfigError("completion", "no such package: argcomplete", _MISSING) from error
    print(argcomplete.shell_integration.shellcode(["connectgroup"], shell=options.shell))
    return 0


def with_groups(action: argparse.Action) -> None:
    """Complete the ids of groups."""
    _complete_with(action, lambda options: _ask(options, None, lambda groups: [group.group_id for group in groups]))


def with_connectors(action: argparse.Action) -> None:
    """Complete the names of the connectors in ``--group``."""
    _complete_with(
        action,
        lambda options: _ask(options, options.group, lambda groups: [each.connector for each in groups[0].connectors]),
    )


def with_workers(action: argparse.Action) -> None:
    """Complete the names of the workers in the group."""
    _complete_with(
        action,
        lambda options: _ask(
            options,
            options.group,
            lambda groups: [name for each in groups[0].members for name in (each.member_id, each.instance_id) if name],
        ),
    )


def with_plugins(action: argparse.Action, *kinds: Kind) -> None:
    """Complete the names of installed plug-ins of these kinds."""

    def names(_: argparse.Namespace) -> Collection[str]:
        from ..plugins import available

        return sorted({name for kind in kinds for name in available(kind)})

    _complete_with(action, names)


def _complete_with(action: argparse.Action, names: Callable[[argparse.Namespace], Collection[str]]) -> None:
    def completer(*, parsed_args: argparse.Namespace, **_: object) -> Collection[str]:
        return names(parsed_args)

    action.completer = completer  # type: ignore[attr-defined]  # argcomplete looks for an attribute of this name


def _ask(
    options: argparse.Namespace, group_id: str | None, names: Callable[[tuple[DescribedGroup, ...]], Iterable[str]]
) -> list[str]:
    """Ask the coordinator for one group, or for all; an error completes nothing: it would garble the prompt."""

    async def ask() -> list[str]:
        from .requests import connected

        async with asyncio.timeout(TIMEOUT_S), connected(options, retry_for_s=0) as admin:
            return list(names(await admin.list_groups() if group_id is None else (await admin.describe(group_id),)))

    try:
        return asyncio.run(ask())
    except (ConnectGroupError, OSError, TimeoutError):
        return []
