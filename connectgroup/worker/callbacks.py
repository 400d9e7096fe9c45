"""Calling code that is not ours: listeners, and the assignor's word on an assignment; one at a time, off the loop."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from ..assignor import Assignor, ConnectMemberAssignment
from ..assignor_guard import describe, tell_assignor
from ..errors import PluginError
from ..listener import WorkerRebalanceListener
from ..member.actions import Assign
from ..names import Units, show
from .offload import off_loop

logger = logging.getLogger(__name__)

Event = Literal["on_assigned", "on_revoked", "on_lost"]


async def tell_listeners(
    listeners: Sequence[WorkerRebalanceListener], event: Event, units: Units, epoch: int
) -> PluginError | None:
    """Tell each listener in turn; one that raises does not keep it from the others.

    Returns:
        The first failure, already logged as one line, or ``None``.
    """
    first: PluginError | None = None
    if not units:
        return None
    for listener in listeners:
        try:
            call: Callable[[Units, int], Awaitable[None] | None] = getattr(listener, event)
            result = await off_loop(event, call, units, epoch)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            told = PluginError(f"listener {type(listener).__name__}: {event} of {show(units)} raised {describe(error)}")
            logger.error("%s", told)
            first = first or told
    return first


async def tell_chosen_assignor(
    assignors: Sequence[Assignor[Any, Any, Any]], member_id: str, units: Units, action: Assign
) -> None:
    """``onAssignment`` of every assignor this worker offers: the answer does not say which of them the group used."""
    share = ConnectMemberAssignment(
        member_id=member_id, units=units, error=action.error, version=action.version, metadata=action.metadata
    )
    for assignor in assignors:
        try:
            await off_loop("on_assignment", tell_assignor, assignor, share)
        except PluginError as error:
            logger.error("%s", error)
