"""Gives every input of a classic group to the product and to the model, and compares the results.

The product decides first. Its choices, where the sources leave one, are inputs of the model: the ids of new members,
and which assignor is selected when several have the most votes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicGroupState, ClassicSettings
from connectgroup.group.kernel.outcome import CancelTimer, Outcome, SetTimer, TimerKey, TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberShare,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse
from connectgroup.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from ..consumer.product import offsets_of
from ..product import Difference, State, states_differ, unequal
from ..replay import is_stale
from ..words import NotAllowed, Timer
from .model import ClassicModel
from .state import EMPTY, PREPARING, ClassicLimits, ClassicMember

Named = dict[str, Any]


class ClassicReplay:
    """Follows one classic group.

    Attributes:
        group: the product's group.
        model: its model.
    """

    def __init__(self, group_type: ClassicGroupType, group: ClassicGroupState) -> None:
        self._type = group_type
        self.group, self.model = group, model_of(group, group_type.settings)

    def step(
        self, what: Any, now_ms: int, armed: Mapping[Timer, TimerKey]
    ) -> tuple[Outcome[Any], list[Difference], State]:
        """Give one input to both; ``armed``: the product's timers. Returns the state before it, too."""
        model, before = self.model, state_of(self.model)
        model.begin()
        model.armed = set(armed)
        try:
            outcome = self._type.step(self.group, what, now_ms, ClientInfo())
        except Exception as error:  # of the product: one more way to differ
            return Outcome(response=None), [("decides", error, "without an error")], before
        response = outcome.response
        new_id = outcome.sender or getattr(response, "member_id", "")
        model.picked = self.group.selected_protocol() if self.group.common_protocols() else ""
        stale = is_stale(what, armed)
        if isinstance(what, TimerKey) and armed.get((what.kind, what.member_id)) == what:
            model.armed.discard((what.kind, what.member_id))
        try:
            expected = self._decide(what, new_id, stale=stale)
        except NotAllowed as error:
            found: list[Difference] = [("choice", "as in the input", error)]
        else:
            found = list(self._results_differ(what, outcome, new_id, expected))
        if found:
            self.model = model_of(self.group, self._type.settings)
        return outcome, found, before

    def load(self, group: ClassicGroupState, now_ms: int) -> tuple[Outcome[None], list[Difference]]:
        """A new coordinator reads the group from the log."""
        self.group = group
        self.model.load()
        outcome = self._type.on_load(group, now_ms)
        found = list(states_differ(state_of(model_of(group, self._type.settings)), state_of(self.model)))
        found += unequal("timers", durations(outcome), self.model.anew)
        return outcome, found

    def _results_differ(self, what: Any, outcome: Outcome[Any], new_id: str, expected: Any) -> Iterator[Difference]:
        """Responses, state and timers."""
        model = self.model
        sent: Named = {who: plain(response) for who, response in outcome.parked_responses.items()}
        due: Named = dict(model.sent)
        sender = getattr(what, "member_id", "") or new_id
        if outcome.response is not None:
            sent[sender] = plain(outcome.response)
        if expected is not None:
            due[sender] = expected
        for who in sorted(sent.keys() | due.keys()):
            yield from unequal(f"response to {who!r}", sent.get(who), due.get(who))
        waits = isinstance(what, JoinGroupRequest | SyncGroupRequest) and sender not in due
        yield from unequal("parks", outcome.parks and sender not in sent, waits)
        yield from states_differ(state_of(model_of(self.group, self._type.settings)), state_of(model))
        yield from unequal("timers", durations(outcome), model.anew)
        yield from unequal("no timer of", cancelled(outcome) & model.armed, set())
        for violation in model.violations():
            yield "invariant", "holds", violation

    def _decide(self, what: Any, new_id: str, *, stale: bool) -> Any:
        """The model's response; ``None``: it is parked, or the input has none."""
        model = self.model
        match what:
            case JoinGroupRequest():
                return model.join_group(what, new_id)
            case SyncGroupRequest():
                return model.sync_group(what)
            case GroupHeartbeatRequest():
                return model.heartbeat(what)
            case LeaveGroupRequest():
                return model.leave_group(what)
            case OffsetCommitRequest():
                return {model.commit(what)} if what.topics else set()
            case OffsetFetchRequest():
                return model.offsets
            case DeleteRequest():
                return model.delete()
            case TimerKey(kind=TimerKind.SESSION):
                model.expire_session(what.member_id)
            case TimerKey(kind=TimerKind.REBALANCE) if not stale:
                model.expire_rebalance()
        return None


def plain(response: Any) -> Any:
    """A response as the model states it: one line for people is not compared."""
    match response:
        case JoinGroupResponse():
            return replace(response, error_message=None)
        case OffsetCommitResponse():
            return {each.error_code for topic in response.topics for each in topic.partitions}
        case OffsetFetchResponse(groups=(group,)):
            return {
                (topic.name, each.partition_index): each.committed_offset
                for topic in group.topics
                for each in topic.partitions
            }
        case DeleteResponse(results=(result,)):
            return result.error_code
    return response


def durations(outcome: Outcome[Any]) -> dict[Timer, int]:
    """The timers that a step arms, in ms."""
    last = {(str(timer.key.kind), timer.key.member_id): timer for timer in outcome.timers}
    return {name: timer.after_ms for name, timer in last.items() if isinstance(timer, SetTimer)}


def cancelled(outcome: Outcome[Any]) -> set[Timer]:
    """The timers that a step cancels."""
    last = {(str(timer.key.kind), timer.key.member_id): timer for timer in outcome.timers}
    return {name for name, timer in last.items() if isinstance(timer, CancelTimer)}


def model_of(group: ClassicGroupState, settings: ClassicSettings) -> ClassicModel:
    """A model with the state of a product's group."""
    limits = ClassicLimits(
        min_session_ms=settings.min_session_timeout_ms,
        max_session_ms=settings.max_session_timeout_ms,
        initial_delay_ms=settings.initial_rebalance_delay_ms,
        new_member_ms=settings.new_member_timeout_ms,
        max_members=settings.max_members,
    )
    return ClassicModel(
        limits=limits,
        exists=group.exists,
        phase=group.state.shown,
        generation=group.generation,
        protocol_type=group.record.protocol_type,
        protocol=group.record.protocol_name,
        leader=group.record.leader,
        members={
            who: ClassicMember(
                instance=member.instance_id,
                session_ms=member.session_timeout_ms,
                timeout_ms=member.rebalance_timeout_ms,
                offers=member.protocols,
                share=MemberShare(
                    member_id="",
                    assignment=member.assignment,
                    assignment_version=member.assignment_version,
                    assignment_error=member.assignment_error,
                ),
                former=member.former_epoch,
                joins=who in group.joining,
                syncs=who in group.syncing,
                new=who in group.new,
                synced=who in group.synced,
            )
            for who, member in group.members.items()
        },
        pending=dict(group.pending),
        left_ms=group.initial_left_ms,
        added=group.member_added,
        offsets=offsets_of(group.offsets),
    )


def state_of(model: ClassicModel) -> State:
    """Everything of a group that is compared; not what the next rebalance chooses anew, while one runs."""
    rebalances = model.phase in (EMPTY, PREPARING)
    return {
        "exists": model.exists,
        "phase": model.phase,
        "generation": model.generation,
        "protocol type": model.protocol_type if model.members else "",
        "assignor": "" if rebalances else model.protocol,
        "leader": model.leader if model.leader in model.members else "",
        "order": list(model.members),
        "members": {who: dict(vars(member)) for who, member in model.members.items()},
        "pending": list(model.pending),
        "left": model.left_ms,
        "added": model.added and model.left_ms >= 0,
        "offsets": dict(model.offsets),
    }
