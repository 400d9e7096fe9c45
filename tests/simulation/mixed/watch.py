"""The invariants of a group of consumers: those of ``invariants`` that its protocols can keep, checked at each event.

| id | here |
|---|---|
| S1 one owner | ``on_assigned``, ``_tick``: no two consumers own a partition, in their own view |
| S3 revoked before reassigned | ``on_durable``: no partition in two current assignments |
| S4, S5 epochs | ``on_durable``: no epoch and no generation decreases, also when the group is converted |
| S14 expired in time, not before | ``_on_step``, ``on_heard``: no member is removed or fenced without a reason |
| D2 replay | ``after_turn``, ``on_loaded``, ``_replay``: what is served is what the records make |
| D8 rules do not fail | ``_on_step`` |
| X1 no zombie writes | ``_on_step``: no offset of a partition is committed by one consumer while another owns it |
| L1 converges | ``MixedSchedule``: every partition has one owner, every row is committed |
| L2 no storm, no spin | ``on_request``; after convergence: ``on_over`` |
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicGroupState
from connectgroup.group.consumer.group_type import ConsumerGroupType
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.kernel.outcome import TimerKey, TimerKind
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest
from connectgroup.protocol.records.base import Key, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record
from connectgroup.protocol.records.consumer import ConsumerCurrentRecord, OffsetRecord
from connectgroup.protocol.units import JOIN_EPOCH, Partitions, TopicPartition
from tests.coordinator.builders import served

from ..invariants.calm import Calm
from ..loop import NODE, NOWHERE

if TYPE_CHECKING:
    from ..base import CoordinatorNode
    from .client import ConsumerNode
    from .cluster import MixedCluster

GroupState = ClassicGroupState | ConsumerGroupState
KEEPS_ALIVE = (ConsumerHeartbeatRequest, GroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest)
REPLAY_EVERY = 25
MAX_REQUESTS_PER_SECOND = 50
ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, STALE = 22, 27, 113


class MixedWatch:
    """Attributes:
    group: the group as made by the durable records.
    happened: as in ``invariants.Watch``.
    """

    def __init__(self, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.calm = Calm(cluster)
        self.happened = 0
        self.group: GroupState | None = None
        self._records: dict[Key, Record] = {}
        self._batches = 0
        self._heard_s: dict[str, float] = {}
        self._second, self._sent = 0, Counter[str]()
        self._epoch_at_rest = 0
        self._left_out: frozenset[str] = frozenset()

    @property
    def epoch(self) -> int:
        """The group epoch, or the generation."""
        return _epoch_of(self.group)

    @property
    def members(self) -> frozenset[str]:
        """The ids of the members."""
        return frozenset(self.group.members) if self.group is not None else frozenset()

    def broken(self, name: str, what: str) -> None:
        """Report that an invariant does not hold."""
        self.cluster.violated(name, what)

    # ---- the disk

    def on_durable(self, records: Sequence[Record], writer: int) -> None:
        """A batch is durable: apply it."""
        before, epoch, members = self.group, self.epoch, self.members
        heads = [record for record in records if isinstance(record, GroupRecord)]
        new = heads[-1] if heads else None
        # A group whose last member this batch has removed may be replaced in it by one of the other type (GT-01), which
        # the next join may convert at once. A conversion keeps the time of creation.
        replaced = before is not None and new is not None and new.created_ms != before.created_ms
        for record in records:
            if isinstance(record, Tombstone):
                self._records.pop(record.key, None)
            else:
                self._records[record.key] = record
            if isinstance(record, ConsumerCurrentRecord) and isinstance(before, ConsumerGroupState) and not replaced:
                former = before.current(record.member_id).epoch
                if 0 < record.epoch < former:
                    self.broken("S5 MemberEpochs", f"{record.member_id}: {former} became {record.epoch}")
        if before is None or replaced or any(head.group_type != _type_of(before) for head in heads):
            self._become(None if replaced else before)
        else:
            for record in records:
                before.apply(record)
        after = self.group
        if new is not None and self.epoch < epoch and members and not replaced:
            self.broken("S4 GroupEpochs", f"epoch {epoch} became {self.epoch}")
        if isinstance(after, ConsumerGroupState):
            self._check_owners(after)
        lost = members - self.members
        if new is not None and isinstance(after, ClassicGroupState) and self.epoch > epoch:
            # A static member that does not join within the rebalance timeout stays a member, without its partitions.
            # It does not know yet: its JoinGroup may be lost. The coordinator rejects its commits until it has joined.
            lost |= self._left_out
        for node in self.cluster.workers.values():
            if node.member_id in lost:
                node.removed = True
        self._batches += 1
        if self._batches % REPLAY_EVERY == 0 and after is not None and _facts(after) != _facts(self._replay()):
            self.broken("D2 ReplayGivesTheGroup", f"applied: {_facts(after)}; replayed: {_facts(self._replay())}")

    def _become(self, before: GroupState | None) -> None:
        self.group = self._replay()
        if before is not None and before.members and self.group.members:
            became = "consumer" if isinstance(self.group, ConsumerGroupState) else "classic"
            self.cluster.sometimes.reach(f"a group with members became a {became} group")

    def _replay(self) -> GroupState:
        head = next(record for record in self._records.values() if isinstance(record, GroupRecord))
        kind = ConsumerGroupState if head.group_type == "consumer" else ClassicGroupState
        group: GroupState = kind(self.cluster.group_id)
        for record in self._records.values():
            group.apply(record)
        return group

    def _check_owners(self, group: ConsumerGroupState) -> None:
        owners: dict[TopicPartition, str] = {}
        for member_id, current in group.currents.items():
            for partition in current.held:
                other = owners.setdefault(partition, member_id)
                if other != member_id:
                    self.broken("S3 RevokedBeforeReassigned", f"{partition} is assigned to {other} and {member_id}")
        if len({member.uses_classic_protocol for member in group.members.values()}) > 1:
            self.cluster.sometimes.reach("a group had members of both protocols")
            pending = any(
                current.pending and group.members[member_id].uses_classic_protocol
                for member_id, current in group.currents.items()
                if member_id in group.members
            )
            if pending:
                self.cluster.sometimes.reach("a member of the classic protocol revoked in a consumer group")

    # ---- coordinators

    def after_turn(self, peer: CoordinatorNode) -> None:
        """A coordinator has ended a turn."""
        self._compare(peer)

    def on_loaded(self, peer: CoordinatorNode) -> None:
        """A coordinator has loaded the group and is about to serve it."""
        self._compare(peer)

    def _compare(self, peer: CoordinatorNode) -> None:
        cluster, coordinator = self.cluster, peer.coordinator
        if coordinator is None or peer.dead or peer.log.epoch != cluster.disk.storage.epoch or cluster.disk.doubtful:
            return
        group = served(coordinator, cluster.group_id)
        if coordinator.shard.groups.loading or coordinator.shard.intake.not_serving is not None:
            return
        if group is None or self.group is None or not _exists(group) or not _exists(self.group):
            return
        if _facts(group) != _facts(self.group):
            self.broken("D2 ServedIsDurable", f"served: {_facts(group)}; durable: {_facts(self.group)}")

    @contextmanager
    def watching_the_rules(self) -> Iterator[None]:
        """Within this context, each decision of a coordinator is an event."""
        kinds: list[Any] = [ClassicGroupType, ConsumerGroupType]
        right = [kind.step for kind in kinds]

        def watched(step: Any) -> Any:
            @functools.wraps(step)
            def seen(rules: Any, group: GroupState, what: Any, now_ms: int, client: Any) -> Any:
                absent = _absent(group, what)
                try:
                    outcome = step(rules, group, what, now_ms, client)
                except Exception as error:
                    self.broken("D8 RulesDoNotFail", f"{type(what).__name__} raised {error!r}")
                    raise
                self._on_step(group, absent, what, outcome)
                return outcome

            return seen

        for kind in kinds:
            kind.step = watched(kind.step)
        try:
            yield
        finally:
            for kind, step in zip(kinds, right, strict=True):
                kind.step = step

    def _on_step(self, group: GroupState, absent: frozenset[str], what: Any, outcome: Any) -> None:
        node: Any = NODE.get()
        cluster = self.cluster
        if not outcome.records or node is None or node.log.epoch != cluster.disk.storage.epoch:
            return
        if isinstance(group, ClassicGroupState) and any(isinstance(record, GroupRecord) for record in outcome.records):
            self._left_out = absent & group.members.keys()
        if isinstance(what, TimerKey) and what.kind is TimerKind.SESSION and what.member_id in self._heard_s:
            silent_s = cluster.loop.now - self._heard_s[what.member_id]
            if silent_s < cluster.session_s * (1 - cluster.setting.drift) - 0.01:
                self.broken(
                    "S14 RemovedInTime", f"{what.member_id} is removed; its last request was {silent_s:.3f} s ago"
                )
        if isinstance(what, OffsetCommitRequest):
            for record in outcome.records:
                if isinstance(record, OffsetRecord):
                    self._see_commit(what.member_id, record)

    def _see_commit(self, member_id: str, record: OffsetRecord) -> None:
        partition = TopicPartition(record.topic, record.partition)
        for node in self.cluster.living():
            if partition in node.owned and node.member_id != member_id:
                self.broken("X1 NoZombieWrites", f"{member_id} commits {partition}, which {node.name} owns")

    # ---- responses

    def on_response(self, peer: CoordinatorNode, request: Request, response: Any, at_s: float, copy: bool) -> None:
        """A coordinator has sent a response."""
        if copy or peer.log.epoch != self.cluster.disk.storage.epoch:
            return
        code = getattr(response, "error_code", 0)
        leaves = isinstance(request, ConsumerHeartbeatRequest) and request.member_epoch < JOIN_EPOCH
        # As in Kafka, a SyncGroup that comes during the next rebalance of a classic group does not extend the session.
        too_late = code == REBALANCE_IN_PROGRESS and isinstance(request, SyncGroupRequest)
        counts = not leaves and not (too_late and isinstance(self.group, ClassicGroupState))
        if isinstance(request, KEEPS_ALIVE) and code in (0, REBALANCE_IN_PROGRESS) and counts:
            member_id = getattr(response, "member_id", "") or request.member_id
            self._heard_s[member_id] = max(at_s, self._heard_s.get(member_id, at_s))
        if isinstance(request, OffsetCommitRequest):
            codes = {each.error_code for topic in response.topics for each in topic.partitions}
            if STALE in codes:
                self.cluster.sometimes.reach("a commit at a stale member epoch was rejected")

    def on_fenced(self, node: ConsumerNode, code: int) -> None:
        """A consumer loses its membership by a response: it must have been removed from the group."""
        self.cluster.say(node.name, "is fenced", code)
        # A commit has a connection of its own, which may still lead to a coordinator that has been replaced.
        peers = [client.peer for client in node.clients if client.peer is not None]
        # A static member that has missed a generation of a classic group stays a member, and joins again.
        missed = code == ILLEGAL_GENERATION and node.instance_id and isinstance(self.group, ClassicGroupState)
        if (
            not missed
            and node.is_in_group()
            and node.member_id in self.members
            and not node.removed
            and peers
            and all(peer.log.epoch == self.cluster.disk.storage.epoch for peer in peers)
        ):
            self.broken("S14 RemovedInTime", f"{node.name} is fenced with {code} and is still a member")

    # ---- consumers

    def on_request(self, node: ConsumerNode, request: Request) -> None:
        """A consumer sends a request."""
        second = int(self.cluster.loop.now)
        if second != self._second:
            self._second = second
            self._sent.clear()
        self._sent[node.name] += 1
        if self._sent[node.name] == MAX_REQUESTS_PER_SECOND:
            self.broken("L2 NoBusySpin", f"{node.name} has sent {MAX_REQUESTS_PER_SECOND} requests within a second")
        joins = isinstance(request, JoinGroupRequest) or (
            isinstance(request, ConsumerHeartbeatRequest) and request.member_epoch == JOIN_EPOCH
        )
        if joins and not node.is_in_group():
            node.removed = False  # it owns nothing

    def on_assigned(self, node: ConsumerNode, partitions: Partitions, generation: int) -> None:
        """A consumer owns more partitions."""
        if isinstance(self.group, ClassicGroupState):
            # The response of SyncGroup may be late: the member was removed, or the next generation began without it.
            node.removed = generation < self.epoch or node.member_id not in self.members
        self.cluster.say(node.name, "owns", *sorted(map(str, partitions)), generation)
        self._check_one_owner()

    def _check_one_owner(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for node in self.cluster.living():
            for partition in node.owned:
                other = owners.setdefault(partition, node.name)
                if other != node.name:
                    self.broken("S1 OneOwner", f"{partition} is owned by {other} and by {node.name}")

    # ---- time

    def start(self) -> None:
        """Sample once a second from now on."""

        def tick() -> None:
            self._tick()
            self.cluster.loop.call_later(1.0, tick, context=NOWHERE)

        self.cluster.loop.call_later(1.0, tick, context=NOWHERE)

    def _tick(self) -> None:
        self.calm.look()
        self._check_one_owner()

    def on_quiet(self) -> None:
        """All faults are over."""

    def on_rest(self) -> None:
        """The group has converged."""
        self._epoch_at_rest = self.epoch

    def on_over(self) -> None:
        """Some time after it converged."""
        if self.epoch != self._epoch_at_rest:
            self.broken("L1 GroupConverges", f"settled, and epoch {self._epoch_at_rest} became {self.epoch}")


def _type_of(group: GroupState | None) -> str:
    return "consumer" if isinstance(group, ConsumerGroupState) else "classic"


def _epoch_of(group: GroupState | None) -> int:
    if group is None:
        return 0
    return group.epoch if isinstance(group, ConsumerGroupState) else group.generation


def _exists(group: GroupState) -> bool:
    return group.exists


def _absent(group: GroupState, what: Any) -> frozenset[str]:
    """The members of a classic group that have not joined its next generation, as the coordinator knows, by now."""
    if not isinstance(group, ClassicGroupState):
        return frozenset()
    joins = {what.member_id} if isinstance(what, JoinGroupRequest) else set()
    return frozenset(group.members.keys() - group.joining - joins)


def _facts(group: GroupState) -> tuple[Any, ...]:
    """What the records of a group make."""
    if isinstance(group, ClassicGroupState):
        return "classic", group.generation, group.record, group.members, group.offsets
    return (
        "consumer",
        group.epoch,
        group.members,
        group.target_epoch,
        group.targets,
        group.currents,
        group.computation,
        group.topics,
        group.regexes,
        group.offsets,
    )
