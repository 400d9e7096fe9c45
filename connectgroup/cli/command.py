"""The command ``connectgroup``: runs a subcommand and reports an error as one line on standard error (``errors``)."""

from __future__ import annotations

import argparse
import asyncio
import errno
import io
import logging
import os
import select
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from ..dataplane.java_plugins import set_plugin_path
from ..errors import ConfigError, ConnectGroupError
from ..loggers import FORMAT_VARIABLE, FORMATS, limit_repeats
from .completion import complete
from .errors import OptionNames, OptionsInLog, UsageError, report_error
from .parser import arranged, build_parser

OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1 to 7: an error (``errors``); 130: interrupted (Ctrl-C); 141: the reader of standard output has closed
    the pipe.
    """
    parser = build_parser()
    if arguments is None:
        complete(parser)
    words = arranged(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser.parse_args(words)
    except UsageError as error:
        return report_error(error, OptionNames(parser), as_json="--json" in words, serves=False)
    options.own_process = arguments is None
    if options.own_process and isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have characters, or bytes, that the terminal's encoding does not have.
        sys.stdout.reconfigure(errors="backslashreplace")
    options.names = OptionNames(parser, options.parser)
    if options.log_format not in FORMATS:
        wrong = ConfigError(FORMAT_VARIABLE, options.log_format, ", ".join(FORMATS))
        return report_error(wrong, options.names, as_json=getattr(options, "json", False), serves=False)
    others = logging.getLogger().handlers.copy()  # of a program that calls this function
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        stream=sys.stderr,
    )
    own = [each for each in logging.getLogger().handlers if each not in others]
    if options.own_process:
        os.environ[FORMAT_VARIABLE] = options.log_format  # for the processes that it starts
    for handler in own:
        handler.setFormatter(OptionsInLog(options.names, as_json=options.log_format == "json"))
    limit_repeats(*own)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        if hasattr(options, "serves"):
            _check_current_directory()
        if (directories := getattr(options, "plugin_path", None)) is not None:
            set_plugin_path(tuple(directories))
        loop_factory = _loop_factory(options)
        code = _run(options.run(options), loop_factory)
        if sys.stdout is not None:  # None if the shell has closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_unread():
            raise
        # Otherwise Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for a process ended by SIGPIPE
    except ConnectGroupError as error:
        as_json, serves = getattr(options, "json", False), hasattr(options, "serves")
        return report_error(error, options.names, as_json=as_json, serves=serves)
    except KeyboardInterrupt:
        return 130


def _check_current_directory() -> None:
    """Relative paths mean something, here and to the processes that the command starts."""
    try:
        os.getcwd()
    except OSError as error:
        allowed = f"one that exists and this user can enter ({error.strerror})"
        raise ConfigError("current directory", os.environ.get("PWD", "none"), allowed, is_path=True) from error


def _loop_factory(options: argparse.Namespace) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of a command; only those that serve groups have the option."""
    asked = getattr(options, "uvloop", False)
    return new_event_loop("auto" if asked is None else "uvloop" if asked else "asyncio")


def _run(command: Coroutine[Any, Any, int], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> int:
    async def run() -> int:
        asyncio.get_running_loop().set_exception_handler(_on_loop_error)
        return await command

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(run())


def _is_unread() -> bool:
    """Whether the reader of standard output has closed the pipe (``| head``)."""
    if sys.stdout is None:
        return False
    output = select.poll()
    output.register(sys.stdout, 0)  # poll always reports an error for a pipe without a reader
    return bool(output.poll(0))


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log one line instead of a traceback if asyncio cannot accept a connection; asyncio retries every second."""
    error = context.get("exception")
    if isinstance(error, OSError) and "socket" in context and error.errno in OUT_OF_RESOURCES:
        logging.error("cannot accept a connection: %s; open connections are not affected", error.strerror)
    else:
        loop.default_exception_handler(context)


def new_event_loop(kind: Literal["asyncio", "uvloop", "auto"]) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory for ``asyncio.Runner``: asyncio's own (``None``), or uvloop's (the extra ``uvloop``).

    Args:
        kind: ``auto`` is uvloop's if it is installed.

    Raises:
        ConfigError: uvloop is not installed.
    """
    if kind == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if kind == "auto":
            return None
        raise ConfigError("event loop", "uvloop, not installed", "pip install 'connectgroup[uvloop]'") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
