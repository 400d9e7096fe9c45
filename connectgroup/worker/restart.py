"""Restart of a worker process: its supervisor starts it again; without a supervisor, the process executes itself again.

The new process runs the same command line in the same environment under the same process id, so systemd, a container
and a shell keep track of it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

RESTART_EXIT_CODE: Final = 75
"""Exit code of a supervised worker that has stopped to be started again under the same name (EX_TEMPFAIL)."""


class ReplaceAtExit:
    """Executes this command line again once the interpreter has shut down, if ``wanted``.

    ``os.execve`` alone would skip the exit handlers of libraries. They run in reverse order of registration, so this
    object is created before the libraries with such handlers are loaded.
    """

    def __init__(self) -> None:
        # A copy of the current environment: Spark and Java change it.
        self._environment: Mapping[str, str] = dict(os.environ)
        self._command: list[str] = []
        atexit.register(self._replace)

    def wanted(self, *options: str) -> None:
        """Request that the command line is executed again at exit, with these options appended."""
        self._command = [sys.executable, *sys.orig_argv[1:], *options]

    def _replace(self) -> None:
        if not self._command:
            return
        _stop_java()
        # Ignored until the new process has its handler: a restart is already under way.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        try:
            os.execve(sys.executable, self._command, self._environment)
        except OSError as error:
            logger.error("the worker cannot be started again: %s: %s", sys.executable, error.strerror)
            os._exit(1)


def kill_java() -> None:
    """Kill the Java process, if there is one; for a process that ends while a thread still uses it."""
    spark = sys.modules.get("connectgroup.spark.session")
    if spark is not None:
        spark.kill_session(level=logging.INFO)


def exit_without_finalizing(code: int) -> None:
    """Have this process exit with this code as soon as the interpreter begins to exit.

    A thread that still runs the code of an extension, such as Arrow's, would crash the interpreter's finalization.
    """

    def end() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)

    atexit.register(end)


def _stop_java() -> None:
    """End and reap the Java process, if there is one: the new process would not know this child process."""
    spark = sys.modules.get("connectgroup.spark.session")
    if spark is not None:
        try:
            spark.stop_session()
        except Exception as error:
            logger.warning("the Java process may still be ending: %s", error)
