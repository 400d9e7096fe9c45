"""Count the units of each connector on this worker; the worker's own metrics do not tell connectors apart."""

from __future__ import annotations

from collections import Counter

from opentelemetry.metrics import MeterProvider, get_meter_provider

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.protocol.units import Units


class MetricsListener(WorkerRebalanceListener):
    """Exports, by OpenTelemetry, with the attribute ``connectgroup.connector``:

    - ``connectgroup.listener.owned``: the connectors and tasks that this process owns;
    - ``connectgroup.listener.changes``: how many were assigned, revoked and lost (attribute ``connectgroup.change``).

    Without an OpenTelemetry SDK it exports nothing.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        """``provider``: by default OpenTelemetry's global one."""
        meter = (provider or get_meter_provider()).get_meter("connectgroup.listeners.metrics")
        self._owned = meter.create_up_down_counter(
            "connectgroup.listener.owned", "{unit}", "connectors and tasks that this process owns"
        )
        self._changes = meter.create_counter(
            "connectgroup.listener.changes", "{unit}", "connectors and tasks assigned, revoked and lost"
        )

    async def on_assigned(self, units: Units, epoch: int) -> None:
        """Add the units."""
        self._count("assigned", units, 1)

    async def on_revoked(self, units: Units, epoch: int) -> None:
        """Subtract the units."""
        self._count("revoked", units, -1)

    async def on_lost(self, units: Units, epoch: int) -> None:
        """Subtract the units."""
        self._count("lost", units, -1)

    def _count(self, change: str, units: Units, sign: int) -> None:
        for connector, count in Counter(unit.connector for unit in units).items():
            self._owned.add(sign * count, {"connectgroup.connector": connector})
            self._changes.add(count, {"connectgroup.connector": connector, "connectgroup.change": change})
