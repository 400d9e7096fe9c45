"""Differential test: every input is given to the product and to the model, and the results are compared.

``Replay.step`` replaces ``connectgroup.group.connect.group_type.step``. The product decides first. Its choices, where
the specification leaves one, are inputs of the model. Response, state, records and timers are then compared.
``Replay.on_load`` replaces the function that returns the timers of a group read from the log: that group must equal
one that was decided before, and the model continues from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectgroup.group.connect import group_type
from connectgroup.group.connect.group_type import GroupInput, on_load
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Computed, Outcome, TimerKey, TimerKind
from connectgroup.group.registry import NO_CLIENT, ClientInfo
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest, PrepareResponse
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.consumer import ConsumerPrepareResponse
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import ComputationRecord, Record

from .compare import computations_differ, members_to_wake, records_differ, responses_differ, timers_differ, woken_differ
from .model import Model
from .product import (
    Difference,
    State,
    input_of,
    limits_of,
    model_of,
    product_state,
    proposal_of,
    state_of,
    states_differ,
)
from .words import Choice, Expected, NotAllowed, Timer as TimerName

MAX_LINE = 1_000
"""Maximum length of a line of a finding: a group of a hundred tasks fills pages."""


@dataclass(slots=True)
class Followed:
    """A product's group and its model.

    Attributes:
        shown: the model's state after the last input.
        armed: the armed timers by name, each with the key that it expires with.
        hear: the members for which an empty heartbeat would have had a changed response then.
    """

    group: ConnectGroupState
    model: Model
    shown: State
    armed: dict[TimerName, TimerKey]
    pending_responses: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One input with different results."""

    what: object
    now_ms: int
    differences: tuple[Difference, ...]
    before: State

    def __str__(self) -> str:
        lines = [f"input at {self.now_ms} ms: {self.what}"]
        for name, product, model in self.differences:
            lines += [f"  {name}", f"    product: {product}", f"    model:   {model}"]
        lines += ["  the group before it:", *(f"    {name}: {value}" for name, value in self.before.items())]
        return "\n".join(line[:MAX_LINE] for line in lines)


class Replay:
    """Follows every group of every coordinator of one run.

    Attributes:
        findings: inputs with different results.
        inputs: number of inputs.
    """

    def __init__(self, rules: Callable[..., Outcome[Response | None]] = group_type.step) -> None:
        """``rules``: the product's ``step``."""
        self.findings: list[Finding] = []
        self.inputs = 0
        self._rules = rules
        self._followed: dict[int, Followed] = {}
        self._decided: list[State] = []
        self._durable: list[State] = []

    def step(
        self,
        group: ConnectGroupState,
        what: GroupInput,
        now_ms: int,
        settings: GroupSettings,
        *,
        client: ClientInfo = NO_CLIENT,
    ) -> Outcome[Response | None]:
        """Give one input to both."""
        self.inputs += 1
        followed = self._followed.get(id(group)) or self.follow(group, settings)
        before, model = followed.shown, followed.model
        model.requested = False
        outcome = self._rules(group, what, now_ms, settings, client=client)
        response, computation = outcome.response, group.computation
        model.now_ms = now_ms
        model.choice = choice_of(group, response, computation)
        found: list[Difference] = []
        try:
            expected = None if is_stale(what, followed.armed) else decide(model, what)
            model.start_next_round()
        except NotAllowed as error:
            found.append(("choice", "as in the input", error))
        else:
            followed.shown = state_of(model)
            # Records are the only way in which a product's group changes.
            product = product_state(group) if outcome.records else before
            found += responses_differ(model, what, response, expected)
            found += states_differ(product, followed.shown)
            found += timers_differ(model, followed.armed, what, outcome.timers, before, expected)
            found += records_differ(what, before, followed.shown, outcome.records)
            found += computations_differ(model, outcome.effects, input_of)
            if outcome.parks and (response_units := members_to_wake(what, response)):
                found.append(("parked", response_units, "no change"))
            if outcome.records:
                pending_responses = model.pending_responses() | (before["members"].keys() - model.members.keys())
                found += woken_differ(
                    what,
                    followed.pending_responses,
                    pending_responses,
                    group.members_to_wake | group.members_to_wake_later,
                )
                followed.pending_responses = pending_responses
                found += [("invariant", "holds", violations) for violations in model.violations()]
                self._decided.append(followed.shown)
        if found:
            self._find(what, now_ms, found, before)
            self.follow(group, settings)
        return outcome

    def on_load(self, group: ConnectGroupState, now_ms: int, settings: GroupSettings) -> Outcome[None]:
        """A group was read from the log."""
        outcome = on_load(group, now_ms, settings)
        timers = outcome.timers
        shown = product_state(group)
        known = not group.created_ms or _is_among(shown, self._durable or self._decided)
        followed = self.follow(group, settings)
        followed.model.now_ms = now_ms
        followed.armed.clear()
        found = list(timers_differ(followed.model, followed.armed, None, timers, {}, None))
        if not known:
            found.append(("loaded", shown, "a group that was decided and is durable"))
        if found:
            self._find("read from the log", now_ms, found, {})
        return outcome

    def on_durable(self, group: ConnectGroupState) -> None:
        """A batch is durable: its group must equal one that was decided (D2, D3)."""
        shown = product_state(group)
        self._durable.append(shown)
        if not _is_among(shown, self._decided):
            self._find("a durable batch", 0, [("durable", shown, "a group that was decided")], {})

    def read(self, group_id: str, log: Iterable[Record], now_ms: int, settings: GroupSettings) -> ConnectGroupState:
        """The group that a new coordinator replays from a log."""
        group = ConnectGroupState.replay(group_id, log)
        self.on_load(group, now_ms, settings)
        return group

    def armed(self, group: ConnectGroupState) -> list[TimerKey]:
        """The armed timers of a group."""
        return sorted(self._followed[id(group)].armed.values()) if id(group) in self._followed else []

    def follow(self, group: ConnectGroupState, settings: GroupSettings) -> Followed:
        """Follow a group from its present state."""
        model = model_of(group, limits_of(settings))
        followed = self._followed[id(group)] = Followed(
            group=group,
            model=model,
            shown=state_of(model),
            armed={(str(key.kind), key.member_id): key for key in _armed(group, model)},
            pending_responses=model.pending_responses(),
        )
        self._decided.append(followed.shown)
        return followed

    def _find(self, what: object, now_ms: int, found: list[Difference], before: State) -> None:
        self.findings.append(Finding(what=what, now_ms=now_ms, differences=tuple(found), before=before))


def decide(model: Model, what: GroupInput) -> Expected | None:
    """The model's result for an input."""
    inputs: dict[Any, Callable[[Any], Expected | None]] = {
        HeartbeatRequest: model.heartbeat,
        PrepareRequest: model.prepare,
        InstallRequest: model.install,
        UpdateConnectorsRequest: model.update_connectors,
        DeleteRequest: lambda _: model.delete(),
        Computed: lambda result: model.computed(
            result.epoch, result.assignor, None if result.error else proposal_of(result.result)
        ),
        TimerKind.SESSION: lambda key: model.expire_session(key.member_id),
        TimerKind.REBALANCE: lambda key: model.expire_rebalance(key.member_id),
        TimerKind.COMPUTE: lambda _: model.expire_computation(),
        TimerKind.DELAY: lambda key: model.expire_delay(key.member_id),
        TimerKind.START: lambda _: model.expire_start(),
    }
    decided = inputs.get(what.kind if isinstance(what, TimerKey) else type(what))
    return decided(what) if decided else None  # a description changes nothing


def choice_of(group: Any, response: object, computation: ComputationRecord | None) -> Choice:
    """The product's choices where the specification leaves one; ``computation``: the one in progress."""
    prepared = response if isinstance(response, PrepareResponse | ConsumerPrepareResponse) else None
    on_coordinator = computation is not None and computation.prepared and not computation.member_id
    return Choice(
        computer=computation.member_id if computation is not None else "",
        assignor=group.target_assignor if prepared is None else prepared.assignor_name,
        created_ms=group.created_ms,
        server_assignor=computation.assignor if computation is not None and on_coordinator else None,
    )


def _armed(group: ConnectGroupState, model: Model) -> Iterator[TimerKey]:
    """The keys of all timers that must be armed."""
    for kind, who in model.timers():
        key = TimerKey(TimerKind(kind), group.group_id, who)
        yield key._replace(belongs_to=group_type.belongs_to(group, key))


def is_stale(what: object, armed: Mapping[TimerName, TimerKey]) -> bool:
    """Whether an expired timer is not the one that was armed last: it belongs to an older epoch and does nothing."""
    if not isinstance(what, TimerKey) or what.kind not in (TimerKind.COMPUTE, TimerKind.REBALANCE):
        return False
    return armed.get((str(what.kind), what.member_id)) != what


def _is_among(shown: State, pictures: Sequence[State]) -> bool:
    """Usually one of the last; different states usually have different epochs, so this is fast."""
    return any(shown == each for each in reversed(pictures))
