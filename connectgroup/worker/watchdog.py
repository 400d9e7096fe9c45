"""Gray failures: a task that neither fails nor completes a poll within ``task.progress.timeout.ms`` has stalled.

Its engine or its sink does not respond. The task is reported as STALLED, stopped and started again. If its stop does
not return, the engine is ended (``Task.abandon``). If that does not help either, or the task stalls again soon, the
worker gives its tasks up: it drains, so that they run elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ..connector import Task
from ..errors import ConnectGroupError
from ..protocol.units import Unit
from ..threads import off_loop
from .run import Run

logger = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""How long the stop of a stalled task may take before its engine is ended, and then before the worker gives up."""

AGAIN_SHARE: Final = 10
"""A task that stalls within this many timeouts of its last stall has stalled again."""


class TaskStalled(ConnectGroupError):
    """A task has completed no poll of its source in time."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no poll completed within {timeout_s:g} s (task.progress.timeout.ms)")


def stalls_at_s(active_at_s: float, timeout_s: float, *, reports_polls: bool) -> float | None:
    """When a task stalls unless it completes a poll before; ``None``: never, because it does not report its polls.

    Args:
        active_at_s: when it last completed a poll, made rows durable or was started.
        timeout_s: ``task.progress.timeout.ms``; 0: never.
    """
    return active_at_s + timeout_s if reports_polls and timeout_s else None


def stalls_again(last_stall_s: float | None, now_s: float, timeout_s: float) -> bool:
    """Whether a stall follows so soon after the last one that starting the task again has not helped."""
    return last_stall_s is not None and now_s - last_stall_s < AGAIN_SHARE * timeout_s


async def stop_stalled(
    run: Run, task: Task, stop: asyncio.Task[None], give_up: Callable[[Unit], None], *, fenced: bool
) -> None:
    """Wait for the stop of a stalled task.

    Args:
        stop: the stop under way.
        give_up: called if ending the engine does not end the stop.
        fenced: whether the task's sink rejects what it still writes: a revocation then does not wait for the stop.

    Raises:
        Exception: the stop raised it.
    """
    unit = run.grant.unit
    await asyncio.wait({stop}, timeout=STOP_S)
    if not stop.done():
        logger.error("%s: its stop has not returned within %g s; its engine is ended", unit, STOP_S)
        abandon = asyncio.create_task(off_loop(f"abandon {unit}", task.abandon))
        abandon.add_done_callback(_ignore)
        await asyncio.wait({stop}, timeout=STOP_S)
    if not stop.done():
        give_up(unit)
    if stop.done() or not fenced:
        await stop
        return
    stop.add_done_callback(_ignore)
    stopped = asyncio.create_task(run.stopped())
    await asyncio.wait({stop, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


def _ignore(task: asyncio.Task[None]) -> None:
    """Retrieve the error of a call whose result no caller waits for."""
    if not task.cancelled():
        task.exception()
