"""The rules, broken on purpose: a model that does not find these is no check of them.

Each is one promise broken in one place for as long as its context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from connectgroup.group import assignment, connectors, delay, heartbeat, reconcile, static
from connectgroup.group.state import Current
from connectgroup.names import Unit
from tests.simulation.breakages import instead as put

Breakage = AbstractContextManager[None]


def instead(place: Any, name: str, broken: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Breakage:
    """``place.name`` is made into something else meanwhile."""
    return put(place, name, broken(getattr(place, name)))


def always(answer: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that looks at nothing."""
    return lambda right: lambda *args, **kwargs: answer


def reconciles_with(**other: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The step of one member, told something that is not so."""
    return lambda right: lambda current, **kwargs: right(current, **{**kwargs, **other})


def of_any_configuration(right: Callable[..., Any]) -> Callable[..., Any]:
    """Every unit that may run has the configuration it always had."""

    def broken(current: Current, *, since_epoch: Mapping[Unit, int], **kwargs: Any) -> Any:
        return right(current, since_epoch=dict.fromkeys(since_epoch, 0), **kwargs)

    return broken


def silent(right: Callable[..., Any]) -> Callable[..., Any]:
    def broken(current: Current, **kwargs: Any) -> Any:
        return right(replace(current, pending={}), **{**kwargs, "owned": frozenset()} if current.pending else kwargs)

    return broken


def of_any_epoch(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda group, request: None if request.member_id in group.members else right(group, request)


def one_more(right: Callable[..., Any]) -> Callable[..., Any]:
    """The limit on moves, off by one."""
    return lambda draft, shares, most: right(draft, shares, most + 1 if most else most)


def forgets_the_token(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda draft, member_id: draft.set_current(member_id, Current()) if draft.current(member_id).epoch else None


BREAKAGES: dict[str, Callable[[], Breakage]] = {
    "a unit is given away while another member still stops it": lambda: instead(
        heartbeat, "reconcile", reconciles_with(holder=lambda unit: None)
    ),
    "any heartbeat acknowledges": lambda: instead(heartbeat, "reconcile", silent),
    "a grant outlives its configuration": lambda: instead(heartbeat, "reconcile", of_any_configuration),
    "a unit that must not run is revoked only after the acknowledgement": lambda: instead(
        reconcile, "_stop_too", lambda right: lambda current, since_epoch: current
    ),
    "every epoch is let in": lambda: instead(heartbeat, "_admit", of_any_epoch),
    "a token is given twice": lambda: instead(heartbeat, "_let_go", forgets_the_token),
    "nobody is told to compute": lambda: instead(heartbeat, "_acknowledges", always(True)),
    "the rebalance timer is never set": lambda: instead(heartbeat, "_rebalance_timer", always(())),
    "a lost answer is told again whatever it was": lambda: instead(heartbeat, "_can_be_told_again", always(True)),
    "every assignor is supported": lambda: instead(heartbeat, "check_assignors", always(None)),
    "anybody present may compute": lambda: instead(
        assignment, "able_to_compute", lambda right: lambda members, assignor, present: sorted(present)
    ),
    "an assignor is always right": lambda: instead(assignment, "offence_of", always("")),
    "the same install twice is a new one": lambda: instead(assignment, "_is_repeat", always(False)),
    "one move too many": lambda: instead(assignment, "stay_for_now", one_more),
    "no interval is kept": lambda: instead(assignment, "_too_early_ms", always(0)),
    "a lost worker's work is given on at once": lambda: instead(delay, "hold_back", always(())),
    "a delay ends and nobody is asked": lambda: instead(delay, "end", always(False)),
    "two may bear one static name": lambda: instead(static, "check_bearer", always(None)),
    "what was taken from a member that is away stays with it": lambda: instead(
        static, "release_for_others", always(None)
    ),
    "tasks.max is a change like any other": lambda: instead(connectors, "_without_limit", lambda right: set),
}
