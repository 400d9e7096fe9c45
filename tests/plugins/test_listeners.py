"""The listener interface, and the listener that logs."""

from __future__ import annotations

import inspect
import logging

import pytest

from connectgroup.listener import WorkerRebalanceListener
from connectgroup.listeners.log import LoggingListener
from connectgroup.protocol.units import Unit, Units

SOME = frozenset({Unit("a", 0), Unit("a")})


def test_listener_without_overrides_does_nothing() -> None:
    listener = WorkerRebalanceListener()
    assert listener.on_assigned(SOME, 1) is listener.on_revoked(SOME, 1) is listener.on_lost(SOME, 1) is None


async def test_callback_may_be_async() -> None:
    """Checked by mypy as much as at run time: an ``async def`` is a valid override."""
    heard: list[tuple[Units, int]] = []

    class Async(WorkerRebalanceListener):
        async def on_revoked(self, units: Units, epoch: int) -> None:
            heard.append((units, epoch))

    listener: WorkerRebalanceListener = Async()
    pending = listener.on_revoked(SOME, 4)
    assert inspect.isawaitable(pending)
    await pending
    assert heard == [(SOME, 4)]


def test_every_change_of_ownership_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    listener = LoggingListener()
    with caplog.at_level(logging.INFO, logger="connectgroup.units"):
        listener.on_assigned(SOME, 4)
        listener.on_revoked(frozenset({Unit("a", 0)}), 5)
        listener.on_lost(SOME, 6)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "epoch 4: assigned 2 units: a, a-0"),
        ("INFO", "epoch 5: revoked 1 unit: a-0"),
        ("WARNING", "epoch 6: lost 2 units: a, a-0"),
    ]
