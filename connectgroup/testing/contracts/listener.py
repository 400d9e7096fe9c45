"""The contract of every rebalance listener, as tests: inherit ``ListenerContract`` and define ``listener``.

class TestMine(ListenerContract):
    listener = Mine

    def units_of(self, listener):  # optional: if the listener keeps state per unit
        return set(listener.caches)
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import ClassVar

import pytest

from ...listener import WorkerRebalanceListener
from ...protocol.units import Unit, Units, show
from ..pytest_plugin import StartGroup

CALLBACKS = ("on_assigned", "on_revoked", "on_lost")
SOME = frozenset({Unit("orders"), Unit("orders", 0), Unit("orders", 1), Unit("größe %s {0}", 7)})
OTHERS = frozenset({Unit("invoices"), Unit("invoices", 0)})


class ListenerContract:
    """Created without arguments, no misspelt callback, every sequence of callbacks that a worker makes.

    Attributes:
        listener: the class, as its entry point names it, or a function without arguments that creates one.
    """

    contract_requires: ClassVar[tuple[str, ...]] = ("listener",)
    listener: Callable[[], WorkerRebalanceListener]

    def units_of(self, listener: WorkerRebalanceListener) -> Iterable[Unit] | None:
        """The units for which the listener keeps state; ``None`` if it keeps none, or if this cannot be seen."""
        return None

    # ----------------------------------------------------------------------------------------------

    def make(self) -> WorkerRebalanceListener:
        """A new listener."""
        made = type(self).listener()
        assert isinstance(made, WorkerRebalanceListener), (
            f"listener: got {type(made).__name__}; allowed: a class that derives from WorkerRebalanceListener"
        )
        return made

    def call(self, listener: WorkerRebalanceListener, callback: str, units: Units, epoch: int) -> None:
        """Call it as a worker does: the callback may be ``async``, and must neither raise nor return a value."""
        what = f"{type(listener).__name__}.{callback}({show(units)}, epoch {epoch})"
        try:
            returned = getattr(listener, callback)(units, epoch)
            returned = asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned
        except Exception as error:
            raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
        assert returned is None, f"{what} returned {returned!r}; allowed: None or an awaitable of None"

    def check_state(self, listener: WorkerRebalanceListener, expected: Units, after: str) -> None:
        """The listener keeps state for exactly these units, if that can be seen."""
        kept = self.units_of(listener)
        if kept is not None:
            odd = frozenset(kept) ^ expected
            assert not odd, f"after {after}: state of {show(kept)}, expected of {show(expected)}"

    def test_is_created_without_arguments(self) -> None:
        self.make()

    def test_every_method_named_like_a_callback_is_one(self) -> None:
        """A callback with a misspelt name is never called."""
        listener = self.make()
        for name in dir(type(listener)):
            if name.startswith("on_") and callable(getattr(listener, name)):
                assert name in CALLBACKS, f"{name} is never called; the callbacks are {', '.join(CALLBACKS)}"

    def test_callbacks_take_units_and_epoch(self) -> None:
        listener = self.make()
        for name in CALLBACKS:
            callback = getattr(listener, name)
            try:
                inspect.signature(callback).bind(SOME, 1)
            except TypeError as error:
                raise AssertionError(f"{name}{inspect.signature(callback)}: expected (units, epoch): {error}") from None

    @pytest.mark.parametrize("end", ["on_revoked", "on_lost"])
    def test_units_are_assigned_and_end(self, end: str) -> None:
        """Assigned together, ended in parts; then assigned again at a later epoch."""
        listener = self.make()
        for epoch in (1, 2**31 - 10):
            self.call(listener, "on_assigned", SOME, epoch)
            self.call(listener, "on_assigned", OTHERS, epoch + 1)
            self.check_state(listener, SOME | OTHERS, "on_assigned twice")
            self.call(listener, end, SOME, epoch + 1)
            self.check_state(listener, OTHERS, f"{end} of the first units")
            self.call(listener, end, OTHERS, epoch + 2)
            self.check_state(listener, frozenset(), f"{end} of all units")

    def test_units_are_lost_while_others_are_revoked(self) -> None:
        """A lease may expire between the stop of the revoked units and the end of the revocation."""
        listener = self.make()
        self.call(listener, "on_assigned", SOME | OTHERS, 3)
        self.call(listener, "on_revoked", OTHERS, 3)
        self.call(listener, "on_lost", SOME, 3)
        self.check_state(listener, frozenset(), "on_revoked and on_lost")

    def test_two_listeners_are_independent(self) -> None:
        """Several workers may run in one process."""
        first, second = self.make(), self.make()
        self.call(first, "on_assigned", SOME, 1)
        self.call(second, "on_assigned", OTHERS, 1)
        self.check_state(first, SOME, "on_assigned of another listener")
        self.call(second, "on_lost", OTHERS, 1)
        self.check_state(first, SOME, "on_lost of another listener")
        self.call(first, "on_revoked", SOME, 2)

    def test_many_units_at_once(self) -> None:
        units = frozenset(Unit(f"connector-{number % 50}", number) for number in range(5000))
        listener = self.make()
        self.call(listener, "on_assigned", units, 1)
        self.call(listener, "on_lost", units, 1)
        self.check_state(listener, frozenset(), "on_lost of 5000 units")

    def test_rebalances_of_a_group(self, worker_group: StartGroup, caplog: pytest.LogCaptureFixture) -> None:
        """In a group that assigns, revokes and loses units, no callback raises or blocks a rebalance."""
        group = worker_group(2, connectors={"numbers": 6}, listeners=[type(self).listener])
        with caplog.at_level(logging.WARNING):
            group.wait_until_stable()
            group.add_worker("worker-3")
            group.wait_until_stable()
            group.partition("worker-1")
            group.wait_until_stable()
            group.advance(60)
            group.heal()
            group.wait_until_stable()
            group.stop("worker-2")
            group.wait_until_stable()
        failed = [record.getMessage() for record in caplog.records if record.getMessage().startswith("listener ")]
        assert not failed, "\n".join(failed)


async def _awaited(pending: object) -> object:
    assert inspect.isawaitable(pending)
    return await pending
