"""Differential test of a group whose members use either protocol, with its conversions.

The model of the mixed group begins with the classic group that is converted, and its last result is the classic group
that it becomes. In between, the group is compared with the model of classic groups (``tests.model.classic``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from connectgroup.errors import GroupError, GroupIdNotFound, RebalanceInProgress, UnknownMemberId, WireError
from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicGroupState
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.kernel.outcome import Effect, Outcome, SetTimer, Timer, TimerKey
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    GroupRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    Subscription,
    SyncGroupRequest,
    SyncGroupResponse,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.records.consumer import ClassicMemberRecord, ClassicState
from connectgroup.wire import embedded

from ..classic.replay import ClassicReplay
from ..product import Difference, State, states_differ, unequal
from ..words import Expected
from .classic import ClassicForm, ClassicMember, MixedModel
from .product import limits_of, model_of, offsets_with_ids, state_of, topics_of
from .replay import Replay
from .words import Reply

CLASSIC_INPUTS = GroupRequest | OffsetCommitRequest | OffsetFetchRequest | DeleteRequest | TimerKey


class MixedReplay(Replay):
    """Follows one group of either type.

    Attributes:
        classic: the product's classic group; ``None``: the group is a consumer group now.
        conversions: number of conversions of groups with members.
    """

    def __init__(self, group_type: ConsumerGroupType, classic_type: ClassicGroupType, group_id: str) -> None:
        super().__init__(group_type, group_id)
        self.classic_type, self.group_id = classic_type, group_id
        self.classic: ClassicGroupState | None = classic_type.new(group_id)
        self._followed = ClassicReplay(classic_type, self.classic)
        self.conversions = 0

    def step(self, what: Any, now_ms: int) -> Outcome[Any]:
        """Give one input to both; the records include those of a conversion."""
        if self.classic is not None:
            joins = isinstance(what, ConsumerHeartbeatRequest) and what.member_epoch == 0
            return self._convert(self.classic, what, now_ms) if joins else self._step_classic(what, now_ms)
        if isinstance(what, JoinGroupRequest) and not self.group.members:
            retired = self.group_type.retire(self.group)
            assert retired is not None
            self.classic = self.classic_type.new(self.group_id)
            for record in retired.kept:
                self.classic.apply(record)
            armed, self._timers = self._timers, {}
            outcome = self._step_classic(what, now_ms)
            if not outcome.records:  # the join is rejected
                self.classic, self._timers = None, armed
                return outcome
            return replace(outcome, records=(*retired.removed, *outcome.records))
        outcome = super().step(what, now_ms)
        if outcome.converted is not None:
            self.classic = outcome.converted.state
            self.conversions += 1
        return outcome

    def _step_classic(self, what: Any, now_ms: int) -> Outcome[Any]:
        """An input of a classic group; those of a consumer group have no effect on it."""
        assert self.classic is not None
        if not isinstance(what, CLASSIC_INPUTS):
            return Outcome(response=None)
        self.inputs += 1
        if self._followed.group is not self.classic:
            self._followed = ClassicReplay(self.classic_type, self.classic)
        outcome, found, before = self._followed.step(what, now_ms, self._timers)
        if isinstance(what, TimerKey) and self._timers.get((what.kind, what.member_id)) == what:
            del self._timers[what.kind, what.member_id]
        self._arm(outcome.timers)
        found = found or list(unequal("armed", set(self._timers), self._followed.model.armed))
        if found:
            self._find(what, now_ms, found, before)
        return outcome

    def _arm(self, timers: Iterable[Timer]) -> dict[tuple[str, str], int]:
        """Returns what is armed anew, with its duration."""
        anew = {}
        for timer in timers:
            name = str(timer.key.kind), timer.key.member_id
            self._timers.pop(name, None)
            if isinstance(timer, SetTimer):
                self._timers[name], anew[name] = timer.key, timer.after_ms
        return anew

    # ---- classic to consumer

    def _convert(self, former: ClassicGroupState, what: ConsumerHeartbeatRequest, now_ms: int) -> Outcome[Any]:
        """A member of the consumer protocol joins. If its join is rejected, the group stays as it was."""
        retired, armed = self.classic_type.retire(former), dict(self._timers)
        removed: tuple[Record, ...]
        if retired is not None:
            group = self.group_type.new(self.group_id)
            for record in retired.kept:
                group.apply(record)
            removed = retired.removed
            self._timers.clear()
            self._follow(group)
        else:
            limits, cluster = limits_of(self.group_type.settings), topics_of(self.group_type.topics or {})
            form = form_of(former)
            expected = MixedModel.from_classic(limits, form, cluster)
            before = {"classic group": form}
            try:
                converted = self.group_type.convert(self.classic_type.name, former)
            except GroupError as error:
                response = self.group_type.error_response(what, error)
                found = list(unequal("code", getattr(response, "error_code", 0), GroupIdNotFound.code))
                found += unequal("converted", False, expected is not None)
                if found:
                    self._find(what, now_ms, found, before)
                return Outcome(response=response)
            anew = self._arm(converted.timers)
            found = list(unequal("converted", True, expected is not None))
            if expected is not None:
                found += states_differ(state_of(model_of(converted.state, limits, cluster)), state_of(expected))
                found += unequal("timers", anew, expected.timers())
                found += unequal("armed", self._timers.keys(), expected.timers().keys())
            codes = {each: getattr(response, "error_code", 0) for each, response in converted.parked_responses.items()}
            parked = dict.fromkeys([*former.joining, *former.syncing], RebalanceInProgress.code)
            found += unequal("parked responses", codes, parked)
            if found:
                self._find(what, now_ms, found, before)
            sessions, removed = dict(self._timers), converted.records
            self._follow(converted.state)
            self._timers = sessions
        self.classic = None
        outcome = super().step(what, now_ms)
        if not outcome.records:
            self.classic, self._timers = former, armed
            return outcome
        self.conversions += retired is None
        return replace(outcome, records=(*removed, *outcome.records))

    # ---- consumer to classic

    def _results_differ(
        self, what: Any, outcome: Outcome[Any], before: State, expected: Expected | None
    ) -> Iterator[Difference]:
        model = self.model
        gone = before["members"].keys() - model.members.keys()
        codes = {each: getattr(response, "error_code", 0) for each, response in outcome.parked_responses.items()}
        waiting = [who for who in gone if before["members"][who]["classic"] and not before["members"][who]["instance"]]
        yield from unequal("parked responses", codes, dict.fromkeys(waiting, UnknownMemberId.code))
        if isinstance(what, GroupRequest) and isinstance(expected, Reply) and not expected.code:
            yield from self._classic_responses_differ(outcome, expected)
        yield from unequal("becomes classic", outcome.converted is not None, model.becomes_classic())
        if outcome.converted is None:
            yield from super()._results_differ(what, outcome, before, expected)
            return
        form, should = form_of(outcome.converted.state), model.to_classic()
        for name in ("created_ms", "generation", "preparing", "protocol_type", "members", "offsets"):
            ours, theirs = getattr(form, name), getattr(should, name)
            if name == "members":  # their offers are the bytes of their subscriptions
                ours = {who: replace(member, offer=None) for who, member in ours.items()}
            yield from unequal(name, ours, theirs)
        leader = outcome.converted.state.record.leader
        yield from unequal("leader", leader if leader not in should.members else "a member", "a member")
        self._arm(outcome.timers)
        sessions = {("session", who) for who in should.members}
        yield from unequal("timers", self._timers.keys(), {*sessions, ("rebalance", "")})

    def _classic_responses_differ(self, outcome: Outcome[Any], expected: Reply) -> Iterator[Difference]:
        match outcome.response:
            case JoinGroupResponse() as response:
                yield from unequal("generation", response.generation_id, expected.epoch)
                yield from unequal("member id", response.member_id, expected.member_id)
                yield from unequal("assignor", response.protocol_name, expected.assignor)
                yield from unequal("leads", response.leader == response.member_id or bool(response.members), False)
                yield from unequal("parks", outcome.parks, expected.parks)
            case SyncGroupResponse() as response:
                names = {topic_id: name for name, (topic_id, _) in self.model.cluster.items()}
                units = {(names[each.connector], each.task) for each in expected.units or () if each.connector in names}
                yield from unequal("assignment", set(embedded.decode_assignment(response.assignment).partitions), units)
            case LeaveGroupResponse() as response:
                codes = {(each.member_id, place): each.error_code for place, each in enumerate(response.members)}
                yield from unequal("codes", codes, expected.codes)

    # ---- as of the base class

    def load(self, log: Iterable[Record], now_ms: int) -> tuple[Effect, ...]:
        """A new coordinator reads the group from the log."""
        if self.classic is None:
            return super().load(log, now_ms)
        former, self.classic = self.classic, self.classic_type.new(self.group_id)
        for record in log:
            self.classic.apply(record)
        found = list(unequal("read from the log", form_of(self.classic), form_of(former)))
        if self._followed.group is not former:
            self._followed = ClassicReplay(self.classic_type, former)
        outcome, differences = self._followed.load(self.classic, now_ms)
        if found or differences:
            self._find("read from the log", now_ms, [*found, *differences], {})
        self._timers.clear()
        self._arm(outcome.timers)
        return ()

    def _decide(self, what: Any) -> Expected | None:
        match what:
            case JoinGroupRequest():
                return self.model.join_group(what, offer_of(what), self._new_id)
            case SyncGroupRequest():
                return self.model.sync_group(what)
            case GroupHeartbeatRequest():
                return self.model.heartbeat_group(what)
            case LeaveGroupRequest():
                return self.model.leave_group(what)
        return super()._decide(what)


def offer_of(request: JoinGroupRequest | ClassicMemberRecord) -> Subscription | None:
    """The subscription of the assignor that a member prefers, or ``None``."""
    try:
        return embedded.decode_subscription(request.protocols[0].metadata if request.protocols else b"")
    except WireError:
        return None


def form_of(group: ClassicGroupState) -> ClassicForm:
    """A classic group with what its members exchange."""
    return ClassicForm(
        created_ms=group.created_ms if group.exists else 0,
        generation=group.generation,
        preparing=group.state is ClassicState.PREPARING_REBALANCE,
        protocol_type=group.record.protocol_type,
        assignor=group.record.protocol_name,
        members={
            who: ClassicMember(
                instance=member.instance_id,
                session_ms=member.session_timeout_ms,
                timeout_ms=member.rebalance_timeout_ms,
                offers=member.protocols,
                offer=offer_of(member),
                assignment=_assignment(member.assignment),
                former_epoch=member.former_epoch,
            )
            for who, member in group.members.items()
        },
        offsets=offsets_with_ids(group.offsets),
    )


def _assignment(data: bytes) -> EmbeddedAssignment | None:
    try:
        return embedded.decode_assignment(data) if data else EmbeddedAssignment()
    except WireError:
        return None
