"""Differential test: every input is given to the product's consumer group and to the model; the results are compared.

The product decides first. Its choices, where the specification leaves one, are inputs of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from connectgroup.errors import GroupIdNotFound
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.computation import computation_id
from connectgroup.group.kernel.outcome import (
    Computed,
    Effect,
    Matched,
    Outcome,
    TimerKey,
    TimerKind,
    TopicsChanged,
    revocation,
)
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.assignment import PrepareRequest
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from connectgroup.protocol.records.connect import ComputationRecord, Record

from ..compare import timers_differ, woken_differ
from ..product import Difference, State, states_differ
from ..replay import Finding, choice_of, is_stale
from ..words import Expected, NotAllowed, Timer
from .compare import effects_differ, records_differ, responses_differ
from .product import limits_of, model_of, state_of, topics_of
from .words import Reply, proposal


class Replay:
    """Follows one consumer group.

    Attributes:
        findings: inputs with different results.
        inputs: number of inputs.
        group: the product's group.
        model: its model.
    """

    def __init__(self, group_type: ConsumerGroupType, group_id: str) -> None:
        self.findings: list[Finding] = []
        self.inputs = 0
        self.group_type = group_type
        self._decided: list[State] = []
        self._new_id = ""
        self._follow(group_type.new(group_id))

    def _follow(self, group: ConsumerGroupState) -> None:
        """Continue with the product's group as it is."""
        topics = topics_of(self.group_type.topics or {})
        self.group, self.model = group, model_of(group, limits_of(self.group_type.settings), topics)
        self._shown = state_of(self.model)
        self._pending_responses = self.model.pending_responses()
        self._timers: dict[Timer, TimerKey] = {}
        for kind, who in self.model.timers():
            key = TimerKey(TimerKind(kind), group.group_id, who)
            numbers = {
                "compute": computation_id(group),
                "rebalance": revocation(group.current(who)),
            }
            self._timers[kind, who] = key._replace(belongs_to=numbers.get(kind, 0))
        self._decided = [*self._decided[-20:], self._shown]

    def armed(self) -> list[TimerKey]:
        """The armed timers."""
        return sorted(self._timers.values())

    def step(self, what: Any, now_ms: int) -> Outcome[Any]:
        """Give one input to both."""
        self.inputs += 1
        group, model, before = self.group, self.model, self._shown
        model.begin()
        group.members_to_wake.clear()
        outcome = self.group_type.step(group, what, now_ms, ClientInfo())
        if isinstance(what, ConsumerHeartbeatRequest) and not what.member_id:
            what = dataclasses.replace(what, member_id=getattr(outcome.response, "member_id", "") or "")
        response, computation = outcome.response, group.computation
        if outcome.converted is not None:  # one that this step has begun is over
            computation = next((each for each in outcome.records if isinstance(each, ComputationRecord)), None)
        model.now_ms = now_ms
        self._new_id = getattr(response, "member_id", "")
        model.choice = choice_of(group, response, computation)
        found: list[Difference] = []
        try:
            expected = self._decide(what)
        except NotAllowed as error:
            found.append(("choice", "as in the input", error))
        else:
            self._shown = state_of(model)
            found += responses_differ(model, outcome, expected, self.group_type.settings) if expected else ()
            found += self._results_differ(what, outcome, before, expected)
        if found:
            self._find(what, now_ms, found, before)
            self._follow(group)
        self._decided = [*self._decided[-20:], self._shown]
        return outcome

    def _results_differ(
        self, what: Any, outcome: Outcome[Any], before: State, expected: Expected | None
    ) -> Iterator[Difference]:
        """State, timers, records, effects and woken members."""
        group, model = self.group, self.model
        topics = topics_of(self.group_type.topics or {})
        yield from states_differ(state_of(model_of(group, model.limits, topics)), self._shown)
        # A step that sets a timer twice means the second.
        timers = {timer.key.identity: timer for timer in outcome.timers}.values()
        yield from timers_differ(model, self._timers, what, timers, before, expected)
        yield from records_differ(what, before, self._shown, outcome.records)
        yield from effects_differ(model, before, outcome.effects)
        pending_responses = model.pending_responses() | (before["members"].keys() - model.members.keys())
        if not isinstance(what, TopicsChanged | Matched):  # the next target assignment wakes all members
            yield from woken_differ(what, self._pending_responses, pending_responses, group.members_to_wake)
        self._pending_responses = pending_responses
        for violation in model.violations() if outcome.records else ():
            yield "invariant", "holds", violation

    def load(self, log: Iterable[Record], now_ms: int) -> tuple[Effect, ...]:
        """A new coordinator reads the group from the log: it equals one that was decided. Returns its effects."""
        self._follow(ConsumerGroupState.replay(self.group.group_id, log))
        if self._shown != self._decided[-2]:
            self._find("read from the log", now_ms, [*states_differ(self._shown, self._decided[-2])], {})
        outcome = self.group_type.on_load(self.group, now_ms)
        self.model.has_timer, self.model.now_ms = self.model.epoch > self.model.target_epoch, now_ms
        self._timers.clear()
        found = list(timers_differ(self.model, self._timers, None, outcome.timers, {}, None))
        if found:
            self._find("read from the log", now_ms, found, {})
        return outcome.effects

    def _find(self, what: object, now_ms: int, found: list[Difference], before: State) -> None:
        self.findings.append(Finding(what=what, now_ms=now_ms, differences=tuple(found), before=before))

    def _decide(self, what: Any) -> Expected | None:
        """The model's result for an input; ``None``: it has no response."""
        model = self.model
        match what:
            case ConsumerHeartbeatRequest():
                return model.heartbeat(what)
            case ConsumerPrepareRequest():
                return model.prepare(
                    PrepareRequest(group_id=what.group_id, member_id=what.member_id, member_epoch=what.member_epoch)
                )
            case ConsumerInstallRequest():
                return model.install_consumers(what)
            case OffsetCommitRequest():
                return model.commit(what)
            case OffsetFetchRequest(groups=(asked,)):
                return model.fetch(asked)
            case DeleteRequest():
                return model.delete()
            case ConsumerDescribeRequest():
                return Reply(code=0 if model.epoch else GroupIdNotFound.code)
            case Computed():
                model.computed(what.epoch, what.assignor, None if what.error else proposal(what.result.members))
            case Matched():
                model.matched(what.pattern, what.topics)
            case TopicsChanged():
                model.change_topics(topics_of(self.group_type.topics or {}))
            case TimerKey() if not is_stale(what, self._timers):
                inputs = {
                    TimerKind.SESSION: lambda: model.expire_session(what.member_id),
                    TimerKind.REBALANCE: lambda: model.expire_rebalance(what.member_id),
                    TimerKind.COMPUTE: model.expire_computation,
                }
                inputs[what.kind]()
        return None
