"""The command ``connectgroup``: runs a subcommand; every error is one line on standard error and exit code 2."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import sys
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConnectGroupError

if TYPE_CHECKING:
    pass
from .parser import build_parser

OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went: 0 done, 1 ended by an error on the way, 2 refused.

    130: interrupted (Ctrl-C); 141: nobody reads what it prints any more.
    """
    options = build_parser().parse_args(arguments)
    options.own_process = arguments is None
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        code = _run(options.run(options))
        if sys.stdout is not None:  # as it is where the shell has closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_unread():
            raise
        # Python would say so again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as the shell says of who is ended by SIGPIPE
    except ConnectGroupError as error:
        print(f"connectgroup: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _run(command: Coroutine[Any, Any, int]) -> int:
    async def run() -> int:
        asyncio.get_running_loop().set_exception_handler(_on_loop_error)
        return await command

    return asyncio.run(run())


def _is_unread() -> bool:
    """Whether whoever reads our lines has read enough (``| head``)."""
    if sys.stdout is None:
        return False
    output = select.poll()
    output.register(sys.stdout, 0)  # a pipe without a reader is in error, whatever one asks for
    return bool(output.poll(0))


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line, and no traceback, where asyncio cannot take in a connection; it tries again every second."""
    error = context.get("exception")
    if isinstance(error, OSError) and "socket" in context and error.errno in OUT_OF_RESOURCES:
        logging.error("no new connection can be taken in: %s; those that are open go on", error.strerror)
    else:
        loop.default_exception_handler(context)
