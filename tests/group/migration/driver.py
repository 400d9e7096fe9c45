"""Drives one group through conversions without a coordinator, and checks that its records rebuild it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from connectgroup.coordinator.listing import built_in_assignors
from connectgroup.errors import GroupError
from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.kernel.outcome import Compute, Computed, Outcome, SetTimer, TimerKey, TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import (
    EmbeddedAssignment,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    Subscription,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest, by_topic
from connectgroup.protocol.records.base import Key, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.protocol.units import Partitions, TopicPartition
from connectgroup.wire import embedded

GROUP, TOPIC = "g", "foo"
TOPIC_ID = TOPIC.encode().hex().ljust(32, "0")
SESSION_MS, REBALANCE_MS = 10_000, 60_000
ASSIGNORS = built_in_assignors()


def named(*numbers: int) -> Partitions:
    """Partitions of the topic, by its name."""
    return frozenset(TopicPartition(TOPIC, number) for number in numbers)


def numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    return sorted(number for _, number in partitions)


def offers(*names: str, owned: Iterable[int] = (), topics: Iterable[str] = (TOPIC,)) -> tuple[OfferedProtocol, ...]:
    """What a member of the classic protocol offers: these assignors, with its subscription and what it owns."""
    subscription = Subscription(topics=frozenset(topics), owned=named(*owned))
    metadata = embedded.encode_subscription(subscription)
    return tuple(OfferedProtocol(name=name, metadata=metadata) for name in names or ("range",))


def assignment(*assigned: int, user_data: bytes | None = None) -> bytes:
    return embedded.encode_assignment(EmbeddedAssignment(partitions=named(*assigned), user_data=user_data))


class Driver:
    """One group, of either type.

    Attributes:
        group: its state now.
        answers: the responses to parked requests that later steps have sent, by sender.
        parks: whether the last request may be parked.
        parked_as: the sender of the last request that was parked.
        records: those of the last input and of its effects.
        delays_computations: computations wait in ``computing`` until ``compute`` is called.
    """

    def __init__(self, partitions: int = 4, **settings: Any) -> None:
        ids = count(1)
        classic = ClassicSettings(initial_rebalance_delay_ms=0)
        consumer = ConsumerSettings(**{"server_assignors": ASSIGNORS, "assignment_interval_ms": 0, **settings})
        self.classic = ClassicGroupType(classic, new_id=lambda: str(next(ids)))
        self.consumer = ConsumerGroupType(consumer, new_id=lambda: str(next(ids)), embedded=embedded, classic=classic)
        self.consumer.topics = {TOPIC: TopicMetadata(topic_id=TOPIC_ID, topic_name=TOPIC, num_partitions=partitions)}
        self.type: Any = self.classic
        self.group: Any = self.classic.new(GROUP)
        self.log: dict[Key, Record] = {}
        self.history: list[Record] = []
        self.records: list[Record] = []
        self.answers: dict[str, Any] = {}
        self.parked: dict[str, Any] = {}
        self.timers: dict[TimerKey, SetTimer] = {}
        self.parks = False
        self.delays_computations = False
        self.computing: list[Compute] = []

    # ---- inputs

    def send(self, request: Any, client: str = "c") -> Any:
        """Decide a request; the response, or ``None`` if it is parked.

        A request that is parked with a response gets it at once if the computation that it waits for is delayed.
        """
        self.records = []
        try:
            self._convert(request)
        except GroupError as error:
            return self.consumer.error_response(request, error)
        outcome = self._step(request, client)
        self.parks = outcome.parks
        sender = outcome.sender or getattr(request, "member_id", "")
        if outcome.parks and outcome.response is None:
            self.parked[sender] = request
            return None
        if outcome.parks and not self.delays_computations:
            outcome = self._step(request, client)
        return outcome.response

    def _convert(self, request: Any) -> None:
        joins_new = isinstance(request, ConsumerHeartbeatRequest) and request.member_epoch == 0
        if self.type is self.classic and joins_new and self.group.exists:
            self._before = (self.type, self.group)
            if self.type.retire(self.group) is None:
                converted = self.consumer.convert("classic", self.group)
                self.type, self.group = self.consumer, converted.state
                self._take(Outcome(response=None, **_fields(converted)))
            else:
                self._replace(self.consumer)
        elif self.type is self.classic and joins_new:
            self._replace(self.consumer)
        elif self.type is self.consumer and isinstance(request, JoinGroupRequest) and not self.group.members:
            self._replace(self.classic)

    def _replace(self, group_type: Any) -> None:
        retired = self.type.retire(self.group)
        assert retired is not None
        self.type, self.group = group_type, group_type.new(GROUP)
        self._store(retired.removed if self.log else ())

    def _step(self, what: Any, client: str = "c") -> Outcome[Any]:
        outcome: Outcome[Any] = self.type.step(self.group, what, 1_000, ClientInfo("h", client))
        self._take(outcome)
        effects = list(outcome.effects)
        for effect in effects:
            if isinstance(effect, Compute):
                self.computing.append(effect)
        if not self.delays_computations:
            self.compute()
        return outcome

    def compute(self) -> None:
        """Run the computations that are waiting."""
        while self.computing:
            effect = self.computing.pop(0)
            if self.type is not self.consumer:
                continue
            result = self.consumer.run_assignor(effect)
            what = Computed(group_id=GROUP, epoch=effect.epoch, assignor=effect.assignor, result=result)
            self._step(what)

    def expire(self, kind: TimerKind, member_id: str = "") -> None:
        """Let an armed timer expire."""
        self.records = []
        self._step(self.timers.pop(TimerKey(kind, GROUP, member_id)).key)

    def restart(self) -> None:
        """Another coordinator loads the group."""
        self.group = self._loaded(list(self.log.values()))
        self.timers, self.parked, self.answers, self.computing = {}, {}, {}, []
        outcome = self.type.on_load(self.group, 2_000)
        self._take(outcome)
        self.computing += [effect for effect in outcome.effects if isinstance(effect, Compute)]
        if not self.delays_computations:
            self.compute()

    def _take(self, outcome: Outcome[Any]) -> None:
        self._store(outcome.records)
        for timer in outcome.timers:
            self.timers.pop(timer.key.identity, None)
            if isinstance(timer, SetTimer):
                self.timers[timer.key.identity] = timer
        for sender, response in outcome.parked_responses.items():
            if self.parked.pop(sender, None) is not None:
                self.answers[sender] = response
        if outcome.converted is not None:
            self.group, self.type = outcome.converted.state, self.classic
            self.computing.clear()
        self._check()

    def _store(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records.append(record)
            self.history.append(record)
            if isinstance(record, Tombstone):
                self.log.pop(record.key, None)
            else:
                self.log[record.key] = record

    def _loaded(self, records: list[Record]) -> Any:
        last = next(record for record in reversed(records) if isinstance(record, GroupRecord))
        assert last.group_type == self.type.name
        group = self.type.new(GROUP)
        for record in records:
            self.type.apply(group, record)
        return group

    def _check(self) -> None:
        """One owner for each partition; the log rebuilds the group, compacted or not."""
        if self.type is self.consumer:
            owners: dict[TopicPartition, str] = {}
            for member_id in self.group.members:
                for partition in self.group.current(member_id).held:
                    assert owners.setdefault(partition, member_id) == member_id, f"{partition} has two owners"
        if not any(isinstance(record, GroupRecord) for record in self.log.values()):
            return
        names: tuple[str, ...] = ("epoch", "target_epoch", "members", "targets", "currents", "topics")
        if self.type is self.classic:
            names = ("generation", "record", "members", "created_ms")
        # A log that is not compacted is replayed less often: it takes time in proportion to the whole history.
        logs = [list(self.log.values()), *([self.history] if len(self.history) % 10 == 0 else [])]
        for records in logs:
            again = self._loaded(records)
            for name in names:
                assert getattr(again, name) == getattr(self.group, name), f"{name} differs after a replay"

    # ---- requests of members

    def join(self, member_id: str = "", *names: str, owned: Iterable[int] = (), **changes: Any) -> JoinGroupResponse:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": offers(*names, owned=owned),
            "member_id": member_id,
        }
        response: JoinGroupResponse = self.send(JoinGroupRequest(**{**values, **changes}))
        return response

    def sync(self, member_id: str, generation: int, shares: Mapping[str, bytes] | None = None, **changes: Any) -> Any:
        assignments = tuple(MemberShare(member_id=each, assignment=data) for each, data in (shares or {}).items())
        request = SyncGroupRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation, assignments=assignments
        )
        return self.send(replace(request, **changes))

    def assigned(self, member_id: str, generation: int, instance: str | None = None) -> list[int]:
        """The assignment that SyncGroup gives."""
        response = self.sync(member_id, generation, group_instance_id=instance)
        assert response.error_code == 0
        return numbers(embedded.decode_assignment(response.assignment).partitions)

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None) -> int:
        request = GroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation, group_instance_id=instance
        )
        code: int = self.send(request).error_code
        return code

    def leave(self, member_id: str = "", instance: str | None = None) -> int:
        leaving = LeavingMember(member_id=member_id, group_instance_id=instance)
        response = self.send(LeaveGroupRequest(group_id=GROUP, members=(leaving,)))
        code: int = response.members[0].error_code
        return code

    def beat(self, member_id: str, epoch: int, owned: Iterable[int] = (), **changes: Any) -> Any:
        """A full ConsumerGroupHeartbeat; at epoch 0 the member joins, at -1 it leaves."""
        request = ConsumerHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=(TOPIC,),
            owned=by_topic(TopicPartition(TOPIC_ID, number) for number in owned),
        )
        return self.send(replace(request, **changes))

    # ---- whole groups

    def stable(self, *shares: tuple[int, ...], protocol: str = "range", user_data: bytes | None = None) -> list[str]:
        """A stable classic group whose members have these partitions; their member ids."""
        ids: list[str] = []
        for _ in shares:
            answer = self.join("", protocol)
            ids.append(answer.member_id if answer else next(reversed(self.group.members)))
            for member_id in ids[:-1]:
                self.join(member_id, protocol)
        generation = self.group.generation
        for member_id in ids[1:]:
            self.sync(member_id, generation)
        given = dict(zip(ids, (assignment(*share, user_data=user_data) for share in shares), strict=True))
        self.sync(ids[0], generation, given)
        self.answers.clear()
        return ids

    def held(self, member_id: str) -> list[int]:
        """The partitions that a member of a consumer group owns."""
        return numbers(self.group.current(member_id).held)


def _fields(converted: Any) -> dict[str, Any]:
    return {
        "records": converted.records,
        "timers": converted.timers,
        "parked_responses": converted.parked_responses,
    }
