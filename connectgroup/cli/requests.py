"""The connection of a subcommand to the coordinator."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError, ConnectGroupError, GroupIdNotFound, InvalidRequest, NotAuthenticated, TransportError
from ..protocol.units import printable, shown

if TYPE_CHECKING:
    from ..client.admin import Admin
    from ..transport.access import Access

TIMEOUT_S: Final = 10.0
"""For how long one request waits for its response."""

RETRY_FOR_S: Final = 2.0
"""A coordinator that is being started or restarted is waited for this long."""


class OtherServerAway(TransportError):
    """No response of a server that is no coordinator; the error says what is allowed."""


def admin_of(
    options: argparse.Namespace,
    *,
    client_id: str = "cli",
    timeout_s: float = TIMEOUT_S,
    retry_for_s: float = RETRY_FOR_S,
) -> Admin:
    """Create an admin client of the coordinators that ``--coordinator`` names; the caller closes it."""
    from ..client.admin import Admin

    addresses = options.coordinator.split(",")
    access = access_of(options)
    return Admin.connect(addresses, client_id=client_id, timeout_s=timeout_s, retry_for_s=retry_for_s, access=access)


@asynccontextmanager
async def connected(options: argparse.Namespace, *, retry_for_s: float = RETRY_FOR_S) -> AsyncIterator[Admin]:
    """Yield an admin client of the coordinators that ``--coordinator`` names."""
    try:
        async with admin_of(options, retry_for_s=retry_for_s) as admin:
            yield admin
    except GroupIdNotFound as error:
        raise await _no_such_group(options) from error
    except (NotAuthenticated, OtherServerAway):
        raise
    except TransportError as error:
        raise TransportError(f"{error}; allowed: --coordinator with the address of a running coordinator") from error


@contextmanager
def at_interrupt(handler: Callable[..., Any] = signal.default_int_handler) -> Iterator[None]:
    """Have Ctrl-C call this in the block; by default, it ends the command at once.

    Outside of it asyncio cancels the command, which does not notice while it blocks the event loop: where it reads what
    a person types.
    """
    if threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    ):
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def confirm(options: argparse.Namespace, what: str) -> None:
    """Ask whether to destroy something, unless ``--yes`` says so.

    Args:
        what: what goes, as the beginning of a sentence.

    Raises:
        InvalidRequest: the answer is no; or there is no terminal to ask at.
    """
    if options.yes:
        return
    if options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{what}; allowed: --yes, to delete them too")
    with at_interrupt():
        print(f"{what}. Delete them too? [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was deleted")


async def check_group(admin: Admin, options: argparse.Namespace) -> None:
    """Refuse to create a second group on a coordinator without ``--new-group``: its name is rather a typing error.

    Raises:
        ConfigError: there are groups, this one is not among them, and ``--new-group`` was not given.
    """
    names = [group.group_id for group in await admin.list_groups()]
    if names and options.group not in names and not options.new_group:
        raise ConfigError("--group", options.group, f"{shown(names)}; --new-group creates another group")


async def _no_such_group(options: argparse.Namespace) -> GroupIdNotFound:
    """The error for an unknown group; it names those that exist."""
    names: list[str] = []
    with suppress(ConnectGroupError):
        async with admin_of(options) as admin:
            names = [group.group_id for group in await admin.list_groups()]
    name = printable(options.group)
    if options.group in names:
        return GroupIdNotFound(f"group {name!r} has been created only now; allowed: the same command again")
    return GroupIdNotFound(f"no such group {name!r}; groups here: {shown(names)}")


# --------------------------------------------------------------------------------------------------
# Options about authentication and TLS: of a server, and of the programs that connect to it.


def options_about(parser: argparse.ArgumentParser, what: str) -> argparse._ArgumentGroup:
    """The part of a command's help with this title; created if there is none. Commands with many options have parts."""
    found = (each for each in parser._action_groups if each.title == what)
    return next(found, None) or parser.add_argument_group(what)


def add_access(parser: argparse.ArgumentParser) -> None:
    """Add the options of a program that connects to a coordinator."""
    part = options_about(parser, "users and TLS")
    part.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help="file with name=password; the variable CONNECTGROUP_CREDENTIALS sets the default (found on the "
        "coordinator's machine)",
    )
    _add_tls(parser, "the authorities of the coordinator's certificate; connects with TLS", "this client's certificate")


def add_security(parser: argparse.ArgumentParser, *, proxy: bool = False) -> None:
    """Add the options of a coordinator about its clients: authentication and TLS.

    Args:
        proxy: whether it is a proxy, whose brokers authenticate the clients by default.
    """
    part = options_about(parser, "users and TLS")
    default = "the brokers authenticate" if proxy else "credentials in the --data directory, created by itself"
    users = part.add_mutually_exclusive_group()
    users.add_argument(
        "--credentials",
        type=Path,
        metavar="FILE",
        help=f"file of the users, name=password on each line ({default})",
    )
    if not proxy:
        users.add_argument(
            "--no-authentication",
            action="store_true",
            help="let any process that can connect do everything: it may read and write files as the workers' user",
        )
    part.add_argument(
        "--group-users",
        type=_users_of_group,
        action="append",
        default=[],
        metavar="GROUP=USER,...",
        help="only these users of the credentials may use the group, or all groups that begin with GROUP if it ends "
        "in *; may be repeated (every user may use a group without this option)",
    )
    _add_tls(
        parser,
        "the authorities of client certificates, which are required then",
        "the coordinator's certificate; required for an address that other machines reach",
    )


def _users_of_group(text: str) -> tuple[str, tuple[str, ...]]:
    group, _, users = text.partition("=")
    names = tuple(name.strip() for name in users.split(","))
    if not group or not all(names):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: GROUP=USER, or GROUP=USER,USER")
    return group, names


def _add_tls(parser: argparse.ArgumentParser, ca: str, certificate: str) -> None:
    part = options_about(parser, "users and TLS")
    part.add_argument("--tls-ca", type=Path, metavar="FILE", help=f"PEM file with {ca}")
    part.add_argument("--tls-cert", type=Path, metavar="FILE", help=f"PEM file with {certificate}")
    part.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM file with the key of that certificate")


ACCESS_OPTIONS: Final = ("credentials", "tls_ca", "tls_cert", "tls_key")
"""The options of ``add_coordinator`` besides the address, by their names in ``AccessConfig``."""


def access_of(options: argparse.Namespace) -> Access:
    """Read the files that the options of ``add_coordinator`` name.

    Raises:
        ConfigError: one of them cannot be used.
    """
    given = {name: getattr(options, name) for name in ACCESS_OPTIONS}
    if all(value is None for value in given.values()):
        # Without the settings' models, which take longer to import than a short command takes to run.
        from ..transport.access import Access
        from ..transport.credentials import named_credentials

        named_credentials()  # reports an unusable file now, as ``AccessConfig.access`` does
        return Access()
    from ..config.access import AccessConfig
    from ..config.base import checked

    return checked(AccessConfig, given).access()
