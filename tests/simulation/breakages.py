"""The product, broken on purpose: a simulator that cannot find these proves nothing.

Each breaks one promise in one place, for as long as its context lasts, and names the invariants that may tell of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from connectgroup.assignors import balanced
from connectgroup.coordinator import runtime
from connectgroup.group import (
    assignment,
    delay,
    handle as handling,
    heartbeat as rules,
    reconcile as reconciling,
    timing,
)
from connectgroup.group.draft import Draft
from connectgroup.group.outcome import Outcome
from connectgroup.group.state import Current, Group
from connectgroup.log.base import Log
from connectgroup.member.machine import Member, Phase
from connectgroup.messages import HeartbeatRequest
from connectgroup.names import Units
from connectgroup.records import Record
from connectgroup.worker import runner
from connectgroup.worker.loop import Worker
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


@contextmanager
def never_removes_the_silent() -> Iterator[None]:
    """The end of a session does nothing."""
    with instead(handling, "session_timed_out", _nothing):
        yield


@contextmanager
def ends_sessions_early() -> Iterator[None]:
    """A member is removed after half of its session timeout."""
    right = timing.session

    def broken(group_id: str, member_id: str, settings: Any) -> timing.SetTimer:
        timer = right(group_id, member_id, settings)
        return replace(timer, after_ms=timer.after_ms // 4)

    with instead(timing, "session", broken):
        yield


@contextmanager
def never_asks_another_assignor() -> Iterator[None]:
    """A member that was asked for an assignment and says nothing is waited for, for ever."""
    with instead(handling, "compute_timed_out", _nothing):
        yield


@contextmanager
def takes_an_install_for_another() -> Iterator[None]:
    """An install that is repeated, because its answer was lost, is not known again."""
    with instead(assignment, "_is_repeat", lambda group, request: False):
        yield


@contextmanager
def leaves_the_assignment_out() -> Iterator[None]:
    """A change of assignment is in the log, and is not in the answer to a short heartbeat."""
    right = runtime.step  # type: ignore[attr-defined]

    def broken(group: Any, what: Any, *rest: Any, **named: Any) -> Any:
        outcome: Any = right(group, what, *rest, **named)
        if isinstance(what, HeartbeatRequest) and what.owned is None and not outcome.response.error_code:
            return replace(outcome, response=replace(outcome.response, assignment=None))
        return outcome

    with instead(runtime, "step", broken):
        yield


@contextmanager
def gives_what_shall_not_run_yet() -> Iterator[None]:
    """Units whose configuration is newer than the target are handed out all the same."""

    def broken(self: Draft, member_id: str) -> Units:
        return self.target(member_id).units

    with instead(Draft, "eligible", broken):
        yield


@contextmanager
def forgets_who_wants_a_unit() -> Iterator[None]:
    """An index is not kept: a unit that has left a target is still looked up there."""
    with instead(Group, "_forget_wanted", lambda self, member_id: None):
        yield


@contextmanager
def does_not_join_again() -> Iterator[None]:
    """A worker that has lost everything stays as it is."""
    right = Member.mark_lost

    def broken(self: Member) -> None:
        right(self)
        self.phase = Phase.LOSING

    with instead(Member, "mark_lost", broken):
        yield


@contextmanager
def speaks_without_rest() -> Iterator[None]:
    """After each answer the next heartbeat, at once."""

    async def broken(self: Worker, seconds: float | None) -> None:
        await asyncio.sleep(0.001)

    with instead(Worker, "_rest", broken):
        yield


@contextmanager
def shares_out_anew_each_time() -> Iterator[None]:
    """The assignor does not look at who has what."""
    right = balanced.share_out

    def broken(home: Any, kind: Any, members: int) -> Any:
        return right(home * 0 + balanced.NOBODY, kind, members)

    with instead(balanced, "share_out", broken):
        yield


@contextmanager
def remembers_between_calls() -> Iterator[None]:
    """The assignor's answer hangs on how often it has been asked before."""
    right = balanced.share_out
    calls = count()

    def broken(home: Any, kind: Any, members: int) -> Any:
        return (right(home, kind, members) + next(calls)) % members

    with instead(balanced, "share_out", broken):
        yield


@contextmanager
def takes_long_to_serve() -> Iterator[None]:
    """A coordinator reads its log for a quarter of a minute."""
    right = runtime.Coordinator.start

    async def broken(self: runtime.Coordinator) -> None:
        await asyncio.sleep(15)
        await right(self)

    with instead(runtime.Coordinator, "start", broken):
        yield


@contextmanager
def raises_the_epoch_for_nothing() -> Iterator[None]:
    """Each heartbeat that says everything asks for another assignment."""
    right = rules._update

    def broken(draft: Draft, request: HeartbeatRequest, settings: Any) -> None:
        right(draft, request, settings)
        if request.owned is not None:
            draft.bump("why not")

    with instead(rules, "_update", broken):
        yield


@contextmanager
def takes_orders_from_a_former_coordinator() -> Iterator[None]:
    """A worker believes whoever speaks, also one that has been replaced."""
    right = Member.on_response

    def broken(self: Member, request: HeartbeatRequest, response: Any) -> Any:
        self.coordinator_epoch = -1
        return right(self, request, response)

    with instead(Member, "on_response", broken):
        yield


@contextmanager
def gives_away_what_waits() -> Iterator[None]:
    """What waits for a lost worker is not taken out of a new target."""
    with instead(Draft, "lost_work", lambda self: frozenset()):
        yield


@contextmanager
def waits_for_ever() -> Iterator[None]:
    """The end of a delay does nothing."""
    right = handling.expire

    def broken(group: Any, key: timing.TimerKey, *rest: Any) -> Any:
        return _nothing() if key.kind is timing.TimerKind.DELAY else right(group, key, *rest)

    with instead(handling, "expire", broken):
        yield


@contextmanager
def asks_for_everybody_who_returns() -> Iterator[None]:
    """A worker that is back in time is one more cause for another target."""
    with instead(delay, "give_back", lambda draft, kept, member: draft.bump("why not") or ()):
        yield


def _nothing(*_: Any) -> Outcome[None]:
    return Outcome(response=None)


_kept: set[asyncio.Task[None]] = set()

ALL: dict[Callable[[], AbstractContextManager[None]], str] = {
    does_not_wait_for_the_release: "S1 S3",
    takes_silence_for_an_acknowledgement: "S3 S16",
    forgets_the_previous_epoch: "S16",
    acknowledges_before_it_has_stopped: "S2 S3 S11",
    answers_before_it_appends: "D1 D2",
    keeps_a_failed_append_in_memory: "D1 D2",
    counts_late_copies: "S3 S16",
    gives_a_token_twice: "S6",
    does_not_wait_for_its_tasks: "S3 S11 X6 L4",
    never_removes_the_silent: "S14",
    ends_sessions_early: "S14",
    never_asks_another_assignor: "L5",
    takes_an_install_for_another: "S16",
    leaves_the_assignment_out: "S17",
    gives_what_shall_not_run_yet: "S10 S16",
    forgets_who_wants_a_unit: "D2 S9",
    does_not_join_again: "L4",
    speaks_without_rest: "L2",
    shares_out_anew_each_time: "S19",
    remembers_between_calls: "S18",
    takes_long_to_serve: "L6",
    raises_the_epoch_for_nothing: "L2 S4 S16",
    takes_orders_from_a_former_coordinator: "D5",
    gives_away_what_waits: "S9 S15",
    waits_for_ever: "S15",
    asks_for_everybody_who_returns: "L8",
}
"""Those that must be found, and the promises that may tell of each."""
