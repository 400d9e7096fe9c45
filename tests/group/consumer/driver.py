"""A consumer group without a coordinator: the effects of each step are performed at once, with a test's assignments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.settings import ConsumerServerAssignment, ConsumerSettings
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.outcome import (
    CancelTimer,
    Compute,
    Computed,
    Match,
    Matched,
    Outcome,
    Repeat,
    SetTimer,
    TimerKey,
    TimerKind,
    TopicsChanged,
)
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.consumer import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerPrepareResponse,
    InstalledConsumer,
    TopicPartitions,
    each_partition,
)
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.records.consumer import TopicMetadata
from connectgroup.protocol.units import TopicPartition

GROUP = "g"

Share = Mapping[str, tuple[int, ...]]
"""Partitions by topic."""


Plan = Mapping[str, Share]
"""Partitions of each member."""


def topic_id(name: str) -> str:
    return name.encode().hex().ljust(32, "0")


def wire(share: Share) -> tuple[TopicPartitions, ...]:
    """Partitions in their wire form."""
    return tuple(TopicPartitions(topic_id=topic_id(name), partitions=share[name]) for name in sorted(share))


def join(member_id: str, *names: str, **changes: Any) -> ConsumerHeartbeatRequest:
    fields: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": names or ("foo",), "owned": ()}
    return ConsumerHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=0, **{**fields, **changes})


def beat(member_id: str, epoch: int, owned: Share | None = None, **changes: Any) -> ConsumerHeartbeatRequest:
    reported = None if owned is None else wire(owned)
    return ConsumerHeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, owned=reported, **changes)


def full(member_id: str, epoch: int, owned: Share, *names: str, **changes: Any) -> ConsumerHeartbeatRequest:
    """A heartbeat with all fields set."""
    return beat(
        member_id, epoch, owned, rebalance_timeout_ms=60_000, subscribed_topic_names=names or ("foo",), **changes
    )


class Driver:
    """One group.

    Attributes:
        plan: what the server-side assignor returns: the partitions of each member; a member without an entry gets
            nothing. ``None``: it raises.
        records: the records of the last step and of the effects that followed.
        outcome: the outcome of the last request.
        timers: the armed timers, with their durations.
    """

    def __init__(self, *, members: int = 1_000, **topics: int) -> None:
        self.group_type = ConsumerGroupType(
            ConsumerSettings(
                server_assignors={"uniform": self._assign, "range": self._assign},
                regex_violation=lambda pattern: "RE2 syntax" if pattern.startswith("(") else "",
                max_members=members,
                assignment_interval_ms=0,
            ),
            new_id=lambda: "generated",
            match_topics=lambda pattern, names: frozenset(
                name for name in names if name.startswith(pattern.rstrip(".*"))
            ),
        )
        self.group: ConsumerGroupState = self.group_type.new(GROUP)
        self.plan: Plan | None = {}
        self.records: list[Record] = []
        self.log: list[Record] = []
        self.outcome: Outcome[Any] = Outcome(response=None)
        self.timers: dict[TimerKey, int] = {}
        self.now_ms = 1_000
        self.inputs: list[Compute] = []
        self.group_type.topics = _topics(topics)
        self.held_back = False

    def _assign(self, prepared: ConsumerPrepareResponse) -> ConsumerServerAssignment:
        if self.plan is None:
            raise RuntimeError("a faulty assignor")
        return ConsumerServerAssignment(
            members=tuple(
                InstalledConsumer(
                    member_id=member.member_id, topic_partitions=wire(self.plan.get(member.member_id, {}))
                )
                for member in prepared.members
            )
        )

    # ---- inputs

    def set_topics(self, **topics: int) -> None:
        """The topics of the cluster change."""
        self.group_type.topics = _topics(topics)
        self.input(TopicsChanged(group_id=GROUP))

    def recreate(self, name: str, partitions: int) -> None:
        """A topic is deleted and created again; the group does not know it yet."""
        topic = TopicMetadata(topic_id="f" * 32, topic_name=name, num_partitions=partitions)
        self.group_type.topics = {**(self.group_type.topics or {}), name: topic}

    def send(self, request: Any) -> Any:
        """Send one request, perform its effects, and return its response; a parked one is decided again."""
        self.input(request)
        outcome = self.outcome
        if outcome.parks and outcome.records and request.member_id:
            self.input(request, keep=True)
        return self.outcome.response

    def ask(self, request: ConsumerHeartbeatRequest, plan: Plan | None = None) -> tuple[int, Any]:
        """Send a heartbeat that succeeds; return epoch and assignment, ``None`` without an assignment."""
        if plan is not None:
            self.plan = plan
        response = self.send(request)
        assert isinstance(response, ConsumerHeartbeatResponse)
        assert response.error_code == 0, response.error_message
        return response.member_epoch, shown(response)

    def input(self, what: Any, *, keep: bool = False) -> None:
        """Process one input and the effects that follow."""
        if not keep:
            self.records = []
        self.outcome = outcome = self.group_type.step(self.group, what, self.now_ms, ClientInfo("host", "client"))
        self._take(outcome)
        pending = list(outcome.effects)
        while pending:
            effect = pending.pop(0)
            result: Any
            match effect:
                case Compute():
                    self.inputs.append(effect)
                    if self.held_back:
                        continue
                    result = self.computed(effect)
                case Match():
                    result = Matched(group_id=GROUP, pattern=effect.pattern, topics=self.group_type.match(effect))
                case Repeat():
                    result = effect.what
                case _:
                    continue
            follow_up = self.group_type.step(self.group, result, self.now_ms, ClientInfo())
            self._take(follow_up)
            pending += follow_up.effects

    def computed(self, effect: Compute) -> Computed:
        """The result of a server-side assignor."""
        common: dict[str, Any] = {"group_id": GROUP, "epoch": effect.epoch, "assignor": effect.assignor}
        try:
            return Computed(**common, result=self.group_type.run_assignor(effect))
        except RuntimeError as error:
            return Computed(**common, error=str(error))

    def expire(self, kind: TimerKind, member_id: str = "") -> None:
        """An armed timer expires."""
        [key] = [key for key in self.timers if (key.kind, key.member_id) == (kind, member_id)]
        del self.timers[key]
        self.input(key)

    def armed(self, kind: TimerKind, member_id: str = "") -> int | None:
        """The duration of an armed timer."""
        return next(
            (after for key, after in self.timers.items() if (key.kind, key.member_id) == (kind, member_id)), None
        )

    def _take(self, outcome: Outcome[Any]) -> None:
        self.records += outcome.records
        self.log += outcome.records
        for timer in outcome.timers:
            self.timers = {key: after for key, after in self.timers.items() if key.identity != timer.key.identity}
            match timer:
                case SetTimer():
                    self.timers[timer.key] = timer.after_ms
                case CancelTimer():
                    pass
        owners: dict[TopicPartition, str] = {}
        for member_id in self.group.members:
            for partition in self.group.current(member_id).held:
                assert owners.setdefault(partition, member_id) == member_id, f"{partition} has two owners"
        again = ConsumerGroupState.replay(GROUP, self.log)
        for name in ("epoch", "target_epoch", "members", "targets", "currents", "topics", "regexes", "behind"):
            assert getattr(again, name) == getattr(self.group, name), f"{name} differs after a replay"

    # ---- state

    def state(self, member_id: str) -> str:
        """The reconciliation state of a member."""
        return self.group.current(member_id).state.name

    def pending(self, member_id: str) -> dict[str, tuple[int, ...]]:
        """The pending revocations of a member."""
        return _by_name(self.group.current(member_id).pending)

    def held(self, member_id: str) -> dict[str, tuple[int, ...]]:
        """The assigned partitions of a member."""
        return _by_name(self.group.current(member_id).assigned)


def shown(response: ConsumerHeartbeatResponse) -> dict[str, tuple[int, ...]] | None:
    """The assignment in a response, by topic."""
    if response.assignment is None:
        return None
    return _by_name(each_partition(response.assignment.topic_partitions))


def _by_name(partitions: Any) -> dict[str, tuple[int, ...]]:
    shares: dict[str, list[int]] = {}
    for each, number in sorted(partitions):
        shares.setdefault(bytes.fromhex(each).rstrip(b"\0").decode(), []).append(number)
    return {name: tuple(numbers) for name, numbers in shares.items()}


def _topics(counts: Mapping[str, int]) -> dict[str, TopicMetadata]:
    return {
        name: TopicMetadata(topic_id=topic_id(name), topic_name=name, num_partitions=count)
        for name, count in counts.items()
    }
