"""Two small group types, to test the behaviour of a shard that does not depend on the group type.

A ``counter`` counts; a request may be parked until the count changes. A ``barrier`` parks each arrival without a
response until enough members have arrived, or its timer expires; then one step responds to all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from connectgroup.errors import GroupError
from connectgroup.group.kernel.outcome import CancelTimer, Compute, Outcome, SetTimer, TimerKey, TimerKind
from connectgroup.group.kernel.state import ANY_PROCESS, Process
from connectgroup.group.registry import NO_CLIENT, ClientInfo, GroupNumbers, RequestTraits
from connectgroup.protocol.messages.describe import DescribedGroup, DescribeRequest
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, MemberRecord, Record

IDLE_MS = 10_000
"""After this time without a request a counter counts one more."""

PATIENCE_MS = 5_000
"""A barrier opens after this time with the members that have arrived."""


@dataclass(frozen=True, kw_only=True)
class Add:
    """Count one more."""

    group_id: str
    sender: str = "a"
    sequence: int = -1


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Respond when the count is not ``seen`` any more."""

    group_id: str
    sender: str = "w"
    seen: int = 0
    max_wait_ms: int = 3_000


@dataclass(frozen=True, kw_only=True)
class Arrive:
    """Respond when ``size`` members have arrived."""

    group_id: str
    sender: str
    size: int = 2


@dataclass(frozen=True, kw_only=True)
class Value:
    """The response to all of them: the group epoch, or an error."""

    value: int = 0
    error_code: int = 0
    error_message: str = ""


@dataclass
class Toy:
    """The state of a group of either type."""

    group_id: str
    epoch: int = 0
    members: set[str] = field(default_factory=set)
    members_to_wake: set[str] = field(default_factory=set)
    members_to_wake_later: set[str] = field(default_factory=set)

    @property
    def exists(self) -> bool:
        return self.epoch > 0 or bool(self.members)

    def process_of(self, sender: str) -> Process:
        return ANY_PROCESS


class ToyType:
    """What both types have in common."""

    name: str
    request_types: tuple[type, ...]

    def new(self, group_id: str) -> Toy:
        return Toy(group_id)

    def traits(self, request: Any, client: ClientInfo = NO_CLIENT) -> RequestTraits:
        return RequestTraits(
            group_id=request.group_id,
            sender=request.sender,
            sequence=getattr(request, "sequence", -1),
            max_wait_ms=getattr(request, "max_wait_ms", 0),
            creates_group=not isinstance(request, Watch),
        )

    def apply(self, group: Toy, record: Record) -> None:
        match record:
            case GroupRecord():
                group.epoch = record.epoch
                group.members_to_wake.add("w")
            case MemberRecord():
                group.members.add(record.member_id)
            case Tombstone():
                group.members.discard(record.key.name)

    def describe(self, group: Toy, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        return DescribedGroup(group_id=group.group_id, state="Active", group_epoch=group.epoch)

    def takes_long_to_describe(self, group: Toy, request: DescribeRequest) -> bool:
        return False

    def measure(self, group: Toy) -> GroupNumbers:
        return GroupNumbers(members=len(group.members), epoch=group.epoch)

    def error_response(self, request: Any, error: GroupError) -> Any:
        return Value(error_code=error.code, error_message=str(error))

    def run_assignor(self, effect: Compute) -> Any:
        raise NotImplementedError

    def step(self, group: Toy, what: Any, now_ms: int, client: ClientInfo) -> Outcome[Any]:
        outcome = self.decide(group, what)
        for record in outcome.records:
            self.apply(group, record)
        return outcome

    def decide(self, group: Toy, what: Any) -> Outcome[Any]:
        raise NotImplementedError

    def record(self, group: Toy) -> GroupRecord:
        return GroupRecord(group_id=group.group_id, epoch=group.epoch + 1, group_type=self.name)


class CounterType(ToyType):
    name = "counter"
    request_types = (Add, Watch)

    def decide(self, group: Toy, what: Any) -> Outcome[Any]:
        if isinstance(what, Watch):
            return Outcome(response=Value(value=group.epoch), parks=what.seen == group.epoch)
        response = None if isinstance(what, TimerKey) else Value(value=group.epoch + 1)
        timers = () if isinstance(what, TimerKey) else (self.idle(group),)
        return Outcome(response=response, records=(self.record(group),), timers=timers)

    def on_load(self, group: Toy, now_ms: int) -> Outcome[None]:
        return Outcome(response=None, timers=(self.idle(group),))

    def idle(self, group: Toy) -> SetTimer:
        return SetTimer(TimerKey(TimerKind.SESSION, group.group_id), IDLE_MS)


class BarrierType(ToyType):
    name = "barrier"
    request_types = (Arrive,)

    def decide(self, group: Toy, what: Any) -> Outcome[Any]:
        timer = TimerKey(TimerKind.REBALANCE, group.group_id)
        if isinstance(what, Arrive):
            here = {*group.members, what.sender}
            if len(here) < what.size:
                records = (
                    GroupRecord(group_id=group.group_id, epoch=group.epoch, group_type=self.name),
                    MemberRecord(group_id=group.group_id, member_id=what.sender),
                )
                return Outcome(response=None, records=records, timers=(SetTimer(timer, PATIENCE_MS),), parks=True)
        else:
            here = group.members
        opened: Any = Value(value=group.epoch + 1)
        gone = tuple(Tombstone(Key(Kind.MEMBER, group.group_id, member)) for member in sorted(group.members))
        return Outcome(
            response=opened if isinstance(what, Arrive) else None,
            records=(*gone, self.record(group)),
            timers=(CancelTimer(timer),),
            parked_responses=dict.fromkeys(sorted(here), opened),
        )

    def on_load(self, group: Toy, now_ms: int) -> Outcome[None]:
        timer = SetTimer(TimerKey(TimerKind.REBALANCE, group.group_id), PATIENCE_MS)
        return Outcome(response=None, timers=(timer,) if group.members else ())
