"""The product, broken on purpose: a simulator that cannot find these proves nothing.

Each breaks one promise in one place, for as long as its context lasts, and names the invariants that may tell of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from connectgroup.coordinator import runtime
from connectgroup.group import heartbeat as rules, reconcile as reconciling
from connectgroup.group.state import Current
from connectgroup.log.base import Log
from connectgroup.messages import HeartbeatRequest
from connectgroup.names import Units
from connectgroup.records import Record
from connectgroup.worker import runner
from connectgroup.worker.perform import Performer


@contextmanager
def instead(place: Any, name: str, broken: Any) -> Iterator[None]:
    """``place.name`` is ``broken`` meanwhile."""
    kept = getattr(place, name)
    setattr(place, name, broken)
    try:
        yield
    finally:
        setattr(place, name, kept)


@contextmanager
def does_not_wait_for_the_release() -> Iterator[None]:
    """The group gives a unit away while another member still stops it."""
    right = reconciling.reconcile

    def broken(current: Current, **rest: Any) -> Current:
        return right(current, **{**rest, "holder": lambda unit: None})

    with instead(rules, "reconcile", broken):
        yield


@contextmanager
def takes_silence_for_an_acknowledgement() -> Iterator[None]:
    """The pending check is left out: any heartbeat ends a revocation."""
    right = reconciling.reconcile

    def broken(current: Current, *, owned: Units | None, **rest: Any) -> Current:
        return (
            right(replace(current, pending={}), owned=frozenset(), **rest)
            if current.pending
            else right(current, owned=owned, **rest)
        )

    with instead(rules, "reconcile", broken):
        yield


@contextmanager
def forgets_the_previous_epoch() -> Iterator[None]:
    """A member whose answer was lost is fenced."""
    right = rules._admit

    def broken(group: Any, request: HeartbeatRequest) -> str | None:
        current = group.currents.get(request.member_id)
        if current is not None and 0 < request.member_epoch == current.previous_epoch != current.epoch:
            return "a previous epoch"
        return right(group, request)

    with instead(rules, "_admit", broken):
        yield


@contextmanager
def acknowledges_before_it_has_stopped() -> Iterator[None]:
    """The worker says that it has let go, and then stops."""
    right = Performer._revoke

    async def broken(self: Performer, action: Any) -> None:
        self._member.mark_revoked(action.units)
        self._on_change()
        await right(self, action)

    with instead(Performer, "_revoke", broken):
        yield


@contextmanager
def answers_before_it_appends() -> Iterator[None]:
    """The answers go out, and the records follow."""
    right = runtime.Coordinator.start

    class Later:
        """A log that says yes at once."""

        def __init__(self, log: Log) -> None:
            self._log = log
            self._tasks: set[asyncio.Task[None]] = set()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._log, name)

        async def append(self, records: Sequence[Record]) -> None:
            task = asyncio.get_running_loop().create_task(self._log.append(records))
            self._tasks.add(task)

    async def broken(self: runtime.Coordinator) -> None:
        self._log = Later(self._log)
        await right(self)

    with instead(runtime.Coordinator, "start", broken):
        yield


@contextmanager
def keeps_a_failed_append_in_memory() -> Iterator[None]:
    """After an append that failed the group is served as if it had not."""

    def broken(self: runtime.Coordinator, group_id: str) -> None:
        return None

    with instead(runtime.Coordinator, "_drop", broken):
        yield


@contextmanager
def counts_late_copies() -> Iterator[None]:
    """The sequence of a heartbeat is not looked at."""

    def broken(self: runtime.Coordinator, who: Any, group: Any) -> int:
        return -1

    with instead(runtime.Coordinator, "_last_heard", broken):
        yield


@contextmanager
def gives_a_token_twice() -> Iterator[None]:
    """A member that joins again is given its units back under the epoch they had."""

    def broken(draft: Any, member_id: str) -> None:
        current = draft.current(member_id)
        if current.held or current.epoch:
            draft.set_current(member_id, Current())

    with instead(rules, "_let_go", broken):
        yield


@contextmanager
def does_not_wait_for_its_tasks() -> Iterator[None]:
    """The runner's stop returns before the tasks have stopped."""
    right = runner.TaskRunner.stop

    async def broken(self: runner.TaskRunner, units: Units) -> None:
        task = asyncio.get_running_loop().create_task(right(self, units))
        _kept.add(task)
        task.add_done_callback(_kept.discard)

    with instead(runner.TaskRunner, "stop", broken):
        yield


_kept: set[asyncio.Task[None]] = set()

ALL = (
    does_not_wait_for_the_release,
    takes_silence_for_an_acknowledgement,
    forgets_the_previous_epoch,
    acknowledges_before_it_has_stopped,
    answers_before_it_appends,
    keeps_a_failed_append_in_memory,
    counts_late_copies,
    gives_a_token_twice,
    does_not_wait_for_its_tasks,
)
"""Those that must be found."""
