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
from .errors import INTERRUPTED, OptionNames, OptionsInLog, UsageError, report_error
from .parser import arranged, build_parser

OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of a stream that cannot be written, other than a pipe without a reader."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: success; 1 to 7: an error (``errors``); 130: interrupted (Ctrl-C); 141: the reader of standard output has closed
    the pipe.
    """
    if arguments is None:
        _open_closed_streams()
    parser = build_parser()
    if arguments is None:
        complete(parser)
    words = arranged(sys.argv[1:] if arguments is None else arguments)
    try:
        options = parser.parse_args(words)
    except UsageError as error:
        return report_error(
            error, OptionNames(parser), as_json="--json" in words, serves=False, checks="--check" in words
        )
    options.own_process = arguments is None
    if options.own_process:
        is_lossy = hasattr(options, "serves")
        # A path may have characters, or bytes, that the terminal's encoding does not have.
        sys.stdout = _output(sys.stdout, is_lossy=is_lossy, errors="backslashreplace")
        sys.stderr = _output(sys.stderr, is_lossy=is_lossy)
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
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_unread():
            raise
        # Otherwise Python would report the error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for a process ended by SIGPIPE
    except OSError as error:
        if _failed_output() is not error:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        full = ConnectGroupError(f"standard output: cannot be written: {error.strerror}")
        as_json, checks = getattr(options, "json", False), getattr(options, "check", False)
        return report_error(full, options.names, as_json=as_json, serves=False, checks=checks)
    except ConnectGroupError as error:
        as_json, checks = getattr(options, "json", False), getattr(options, "check", False)
        return report_error(error, options.names, as_json=as_json, serves=hasattr(options, "serves"), checks=checks)
    except KeyboardInterrupt:
        return INTERRUPTED


def _open_closed_streams() -> None:
    """Open the standard streams that the shell has closed (``<&-``) on the null device.

    Otherwise they are ``None``, and the first sockets and pipes get their numbers: what is written to standard output,
    also by a process that is started, would go there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one, if it is still free
            os.set_inheritable(opened, opened == number)
            setattr(sys, name, open(opened, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


class _Output(io.FileIO):
    """A standard stream. What cannot be written is dropped, or the error kept.

    Attributes:
        is_lossy: a full disk for logs must not end what serves a group.
        error: the last error; changed by ``write``.
    """

    def __init__(self, number: int, *, is_lossy: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self.is_lossy = is_lossy
        self.error: OSError | None = None

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]  # None: it would block
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            if self.is_lossy and error.errno in OUTPUT_ERRORS:
                return memoryview(data).nbytes
            raise


def _output(stream: Any, *, is_lossy: bool, errors: str | None = None) -> Any:
    """The same stream with ``_Output``; unchanged if it is not one of this process."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(stream.fileno(), is_lossy=is_lossy)),
        encoding=stream.encoding,
        errors=errors or stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _failed_output() -> OSError | None:
    """Why standard output could not be written, other than for a pipe without a reader."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    error = raw.error if isinstance(raw, _Output) else None
    return error if error is not None and error.errno in OUTPUT_ERRORS else None


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
        try:
            return await command
        except KeyboardInterrupt:  # of ``at_interrupt``
            return INTERRUPTED

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
