"""Add the names of the units to the worker's spans, which have only their number."""

from __future__ import annotations

from typing import Final

from opentelemetry.trace import get_current_span

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Units
from connectgroup.telemetry.spans import MEMBER_EPOCH, UNIT

MAX_NAMES: Final = 100
"""Most names in one event: an exporter drops a span that is too large."""


class TracingListener(WorkerRebalanceListener):
    """Adds an event to the current span for each change: ``assigned``, ``revoked`` or ``lost``.

    Its attributes are ``connectgroup.unit`` (the names, sorted; at most 100) and ``connectgroup.member.epoch``.
    Without an OpenTelemetry SDK it does nothing.
    """

    # Coroutines: they run in the context of the worker's span, not in a thread.

    async def on_assigned(self, units: Units, epoch: int) -> None:
        """An event of the span ``connectgroup.assign``."""
        _add("assigned", units, epoch)

    async def on_revoked(self, units: Units, epoch: int) -> None:
        """An event of the span ``connectgroup.revoke``."""
        _add("revoked", units, epoch)

    async def on_lost(self, units: Units, epoch: int) -> None:
        """An event of the span ``connectgroup.lose``."""
        _add("lost", units, epoch)


def _add(name: str, units: Units, epoch: int) -> None:
    span = get_current_span()
    if span.is_recording():
        names = [str(unit) for unit in sorted(units)[:MAX_NAMES]]
        span.add_event(name, {UNIT: names, MEMBER_EPOCH: epoch})
