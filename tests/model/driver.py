"""Any input at any time, valid or not: a group of the product driven by small numbers and compared with the model.

An act is a handful of small numbers, so that hypothesis can draw and shrink them. Most inputs are what a correct
worker, operator or timer would send; the others are wrong in one way each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar, Self

from connectgroup.errors import PluginError
from connectgroup.group.connect.group_type import GroupInput
from connectgroup.group.connect.settings import GroupSettings, ServerAssignment
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Compute, Effect, TimerKey, TimerKind
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.assignment import InstalledMember, InstallRequest, PrepareRequest, PrepareResponse
from connectgroup.protocol.messages.common import AssignorInfo, entries, grouped
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.protocol.records.connect import (
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    MemberRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
    TaskEntry,
    held,
)
from connectgroup.protocol.units import NO_UNITS, Unit, Units
from tests.group.effects import computed
from tests.group.invariants import compacted

from .replay import Replay
from .shuffle import Shuffle

GROUP = "workers"
MEMBERS = ("a", "b", "c", "d", "e")
INSTANCES = (None, None, None, "i", "j")
RACKS = ("", "r")
CONNECTORS = ("files", "orders")

ACTS = 60
"""Acts of one seed."""

Act = tuple[int, int, int, int]
Kinds = tuple[Callable[[int, int, int], None], ...]


def acts(seed: int, count: int) -> list[Act]:
    """``count`` acts, drawn from a seed."""
    random = Random(seed)
    return [tuple(random.choices(range(64), k=4)) for _ in range(count)]  # type: ignore[misc]


def info(name: str, low: int, high: int, version: int, reason: int = 0) -> AssignorInfo:
    return AssignorInfo(name=name, minimum_version=low, maximum_version=high, version=version, reason=reason)


LISTS: tuple[tuple[AssignorInfo, ...], ...] = (
    (info("x", 0, 2, 1),),
    (info("x", 1, 3, 2), info("y", 0, 0, 0)),
    (info("y", 0, 1, 1), info("x", 1, 2, 1)),
    (info("x", 0, 2, 1, reason=1),),
    (info("x", 3, 4, 3),),
)


@dataclass(kw_only=True)
class BaseDriver(ABC):
    """A group of one type, and what the drivers of all types share.

    Attributes:
        log: all records, or the compacted ones of a load and those since.
        requested: effects whose results have not arrived yet.
        former: timers that were armed at some time.
    """

    STEP: ClassVar[int] = 1
    """From one number of an act to the next, among the kinds of acts."""

    replay: Any
    log: list[Record] = field(default_factory=list)
    requested: list[Effect] = field(default_factory=list)
    former: list[TimerKey] = field(default_factory=list)
    now_ms: int = 1_000_000

    @classmethod
    @abstractmethod
    def drawn(cls, seed: int) -> Self:
        """The settings and the group of a seed."""

    @abstractmethod
    def kinds(self) -> Kinds:
        """The acts, each as often as it is likely."""

    @abstractmethod
    def send(self, what: Any) -> Any:
        """Give one input to the product and the model; the product's response."""

    @abstractmethod
    def result_of(self, effect: Any) -> object:
        """The input that an effect leads to; ``None``: it leads to none."""

    def play(self, acts: Sequence[Act]) -> None:
        """Act by act, until the first difference."""
        for kind, *numbers in acts:
            kinds = self.kinds()
            kinds[kind * self.STEP % len(kinds)](*numbers)
            self.now_ms += 500
            if sum(numbers) % 4 and not self.replay.findings:
                self.deliver(twice=sum(numbers) % 7 == 3)
            if self.replay.findings:
                return

    def deliver(self, *, twice: bool = False) -> None:
        """The results of effects arrive, some of them late; ``twice``: duplicated."""
        requested, self.requested = self.requested, []
        for effect in requested:
            for _ in range(1 + twice):
                if (what := self.result_of(effect)) is not None:
                    self.send(what)


@dataclass(kw_only=True)
class Driver(BaseDriver):
    """One group of workers and its inputs."""

    settings: GroupSettings
    shuffle: Shuffle
    replay: Replay = field(default_factory=Replay)
    group: ConnectGroupState = field(default_factory=lambda: ConnectGroupState(GROUP))
    inputs_of: dict[str, PrepareResponse] = field(default_factory=dict)
    sent: dict[str, list[HeartbeatRequest]] = field(default_factory=dict)
    installed: InstallRequest | None = None

    @classmethod
    def drawn(cls, seed: int) -> Driver:
        random = Random(seed)
        shuffle = Shuffle(random=random)
        settings = GroupSettings(
            server_assignor="shuffle",
            server_assignors={"shuffle": shuffle, "other": shuffle},
            max_members=4,
            max_units=random.choice([9, 200_000]),
            max_moves=random.choice([0, 0, 1, 2]),
            scheduled_delay_ms=random.choice([0, 0, 8_000]),
            assignment_interval_ms=random.choice([0, 0, 3_000]),
        )
        driver = cls(settings=settings, shuffle=shuffle)
        if random.random() < 0.7:
            driver.create_group(random)
        return driver

    def create_group(self, random: Random) -> None:
        """A group that is stable already, so that short sequences reach states in which units move."""
        units = [Unit(name, task) for name in CONNECTORS for task in range(-1, random.randrange(5))]
        counts = {name: sum(unit.connector == name for unit in units) - 1 for name in CONNECTORS}
        lists, epoch = random.choice([LISTS[0], LISTS[1], ()]), 20
        self.put(
            GroupRecord(group_id=GROUP, epoch=epoch, created_ms=self.now_ms - 60_000),
            *(
                ConnectorRecord(
                    group_id=GROUP,
                    connector=name,
                    version=2,
                    config=entries({"name": name, "n": "0", "tasks.max": "1"}),
                    tasks=tuple(TaskEntry(config=entries({"n": str(n), "v": "0"})) for n in range(counts[name])),
                )
                for name in CONNECTORS
            ),
        )
        shares: dict[str, Units] = {who: frozenset(units[turn::3]) for turn, who in enumerate(MEMBERS[:3])}
        for turn, (who, share) in enumerate(shares.items()):
            instance = INSTANCES[turn + 2]
            self.put(
                MemberRecord(
                    group_id=GROUP, member_id=who, instance_id=instance, rebalance_timeout_ms=10_000, assignors=lists
                ),
                TargetMemberRecord(group_id=GROUP, member_id=who, units=grouped(share)),
                CurrentRecord(
                    group_id=GROUP,
                    member_id=who,
                    epoch=epoch,
                    previous_epoch=epoch - 1,
                    assigned=held({unit: random.randrange(10, 21) for unit in share}),
                ),
            )
        self.put(TargetRecord(group_id=GROUP, epoch=epoch, assignor="shuffle", computed_by="coordinator"))
        self.replay.follow(self.group, self.settings)

    def put(self, *records: Record) -> None:
        """Apply records without a step."""
        for record in records:
            self.group.apply(record)
            self.log.append(record)

    def send(self, what: GroupInput) -> object:
        self.group.members_to_wake.clear()
        self.group.members_to_wake_later.clear()
        outcome = self.replay.step(self.group, what, self.now_ms, self.settings)
        self.log += outcome.records
        self.requested += [effect for effect in outcome.effects if isinstance(effect, Compute)]
        if isinstance(what, HeartbeatRequest):
            self.sent.setdefault(what.member_id, []).append(what)
        return outcome.response

    def kinds(self) -> Kinds:
        """The acts, each as often as it is likely."""
        return (
            *(self.join, self.join, self.beat, *(self.heartbeat_all,) * 5, *(self.compute,) * 3),
            *(self.change_connector, self.publish_task_list, self.leave, self.timer, self.timer, self.timer),
            *(self.late_duplicate, self.lost_response, self.lost_response, self.rare),
        )

    def result_of(self, effect: Any) -> object:
        return computed(effect, self.settings)

    # ---- correct workers

    def join(self, who: int, how: int, lists: int) -> None:
        """A process that starts, under a new or a known member id."""
        assignors = LISTS[max(0, lists % 9 - 4)] if how % 3 else None
        self.send(
            HeartbeatRequest(
                group_id=GROUP,
                member_id=MEMBERS[who % 5],
                member_epoch=0,
                instance_id=INSTANCES[how % 5],
                rebalance_timeout_ms=10_000 + how,
                client_assignors=assignors,
                server_assignor=("other", "unheard of")[lists % 2] if assignors is None and lists > 5 else None,
                owned=(),
                draining=how % 6 == 5,
                rack=RACKS[lists % 7 == 6],
            )
        )

    def heartbeat_all(self, *numbers: int) -> None:
        """All members send a heartbeat, and acknowledge their revocations."""
        for who in sorted(self.group.members):
            self.heartbeat_of(who)

    def heartbeat_of(self, who: str) -> None:
        """Reports the owned units; its revocations are acknowledged."""
        if who in self.group.members and not (current := self.group.current(who)).temporarily_left:
            self.send(
                HeartbeatRequest(
                    group_id=GROUP,
                    member_id=who,
                    member_epoch=current.epoch,
                    owned=grouped(current.assigned) if current.epoch else (),
                    rebalance_timeout_ms=10_000 if not current.epoch else -1,
                    client_assignors=self.group.members[who].assignors or None if not current.epoch else None,
                    server_assignor=self.group.members[who].server_assignor if not current.epoch else None,
                    instance_id=self.group.members[who].instance_id,
                    draining=self.group.members[who].draining,
                    rack=self.group.members[who].rack,
                    statuses=self.statuses_of(current),
                )
            )

    def statuses_of(self, current: Current[Unit]) -> tuple[TaskStatus, ...]:
        """Some units start, run or fail, one of them under an earlier owner epoch."""
        turn = self.now_ms // 500
        found = [
            TaskStatus(connector=unit.connector, task=unit.task, owner_epoch=epoch, state=(1, 4, 4, 2)[(turn + n) % 4])
            for n, (unit, epoch) in enumerate(sorted(current.held.items())[: turn % 5])
        ]
        return tuple(replace(each, owner_epoch=each.owner_epoch - (n == 1)) for n, each in enumerate(found))

    def compute(self, how: int, which: int, delay: int) -> None:
        """The chosen member, or a replaced one, prepares and installs; or an Install is outdated or invalid."""
        computation = self.group.computation
        asked = computation.member_id if computation is not None else ""
        replaced = computation.replaced_members if computation is not None else ()
        who = replaced[0] if replaced and which % 2 else asked or MEMBERS[which % 5]
        epoch = self.group.current(who).epoch
        if how % 4 == 0 or who not in self.inputs_of:
            response = self.send(PrepareRequest(group_id=GROUP, member_id=who, member_epoch=epoch))
            assert isinstance(response, PrepareResponse)
            if response.error_code:
                return
            self.inputs_of[who] = response
        if how % 4 == 1 and self.installed is not None:
            self.send(self.installed)
            return
        assignor_input = self.inputs_of.pop(who)
        try:
            answer = self.shuffle(assignor_input)
        except PluginError:
            answer = ServerAssignment()
        more = (InstalledMember(member_id="unknown"),) if how % 7 == 6 and answer.members else ()
        failed = how % 11 == 10 or not answer.members
        self.installed = InstallRequest(
            group_id=GROUP,
            member_id=who,
            member_epoch=epoch,
            group_epoch=assignor_input.group_epoch,
            error=int(failed),
            keeps_target=failed and which % 3 > 0,
            members=answer.members + more,
            delayed=answer.delayed,
            delay_ms=0 if delay % 9 == 8 else answer.delay_ms or (delay % 5 == 4) * 2_000,
        )
        self.send(self.installed)

    def publish_task_list(self, which: int, count: int, version: int) -> None:
        """The owner of a connector publishes its task list; sometimes with an old grant, or it is not the owner."""
        unit = Unit(CONNECTORS[which % 2])
        holder, epoch = self.group.holders.get(unit, (MEMBERS[which % 5], 3))
        tasks = tuple(TaskConfig(config=entries({"n": str(n), "v": str(version % 2)})) for n in range(count % 5))
        change = ConnectorChange(connector=unit.connector, task_configs=tasks, owner_epoch=epoch - (version % 5 == 4))
        self.send(UpdateConnectorsRequest(group_id=GROUP, member_id=holder, changes=(change,)))

    # ---- operators and time

    def change_connector(self, which: int, how: int, value: int) -> None:
        """An operator creates, changes, pauses, stops, resumes or deletes a connector."""
        name = CONNECTORS[which % 2]
        config = entries({"name": name, "n": str(value % 3), "tasks.max": str(1 + how % 2)})
        version = (-1, -1, -1, 0, 1, 2)[value // 6 % 6]
        match how % 6:
            case 0 | 1 | 2 if value % 3:
                change = ConnectorChange(connector=name, expected_version=version, config=config)
            case 3:
                change = ConnectorChange(connector=name, expected_version=version, target_state=value % 3 + 1)
            case 4:
                change = ConnectorChange(connector=name, expected_version=version, target_state=1, config=config)
            case 5 if value % 2:
                change = ConnectorChange(connector=name, expected_version=version, delete=True)
            case _:
                config = entries({"name": name, "n": "0", "tasks.max": str(1 + value % 2)})
                change = ConnectorChange(connector=name, expected_version=version, config=config)
        more = (ConnectorChange(connector=CONNECTORS[1], target_state=1),) if value % 7 == 6 else ()
        self.send(UpdateConnectorsRequest(group_id=GROUP, changes=(change, *more)))

    def timer(self, which: int, who: int, pause: int) -> None:
        """A timer fires; sometimes a stale one."""
        self.now_ms += 1_000 * (pause % 10)
        armed = self.replay.armed(self.group)
        if armed and pause % 3:
            self.former += [key for key in armed if key not in self.former[-20:]]
            stale = self.former[-20:] if pause % 3 == 2 else armed
            self.send(stale[who % len(stale)])
            return
        kind = tuple(TimerKind)[which % 5]
        name = MEMBERS[who % 5] if kind not in (TimerKind.COMPUTE, TimerKind.START) else ""
        if kind is TimerKind.DELAY and self.group.delays:
            name = sorted(self.group.delays)[who % len(self.group.delays)]
        self.send(TimerKey(kind, GROUP, name))

    def leave(self, who: int, how: int, what: int) -> None:
        """A member leaves, for good, temporarily, or to restart."""
        member_id = MEMBERS[who % 5]
        member = self.group.members.get(member_id)
        instance = member.instance_id if member is not None and how % 4 else INSTANCES[how % 5]
        epoch = -2 if (instance is not None and how % 3) or how % 7 == 6 else -1
        leave = HeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch, instance_id=instance)
        self.send(replace(leave, returns=what % 2 == 1))

    # ---- incorrect workers

    def beat(self, who: int, how: int, what: int) -> None:
        """A heartbeat with any epoch and any owned units."""
        member_id = MEMBERS[who % 5]
        current = self.group.current(member_id)
        epoch = (current.epoch, current.epoch, current.previous_epoch, current.epoch + 1, current.epoch - 1)[how % 5]
        reports: tuple[Units | None, ...] = (
            None,
            frozenset(current.assigned),
            frozenset(current.held),
            NO_UNITS,
            frozenset(sorted(current.assigned)[1:]),
            frozenset(sorted(current.pending)[:1]),
            frozenset(self.group.runnable),
        )
        owned = reports[what % 7]
        full = how % 2 == 0
        member = self.group.members.get(member_id)
        self.send(
            HeartbeatRequest(
                group_id=GROUP,
                member_id=member_id,
                member_epoch=epoch,
                owned=None if owned is None else grouped(owned),
                rebalance_timeout_ms=(4_000_000 if what % 13 == 12 else 12_000) if full else -1,
                client_assignors=LISTS[what % 5] if full and what % 2 else None,
                instance_id=member.instance_id if member is not None and how % 3 else INSTANCES[what % 5],
                draining=what % 9 == 8,
                rack=RACKS[what % 8 == 7],
            )
        )

    def late_duplicate(self, who: int, how: int, which: int) -> None:
        """A late duplicate of a former heartbeat; or a full retry after a lost response."""
        member_id = MEMBERS[who % 5]
        for request in self.sent.get(member_id, [])[-1 - which % 3 :][:1]:
            current = self.group.current(member_id)
            owned = (request.owned or (), grouped(current.assigned), grouped(current.held))[how % 3]
            twice = (*owned, *owned) if how % 7 == 6 else owned
            self.send(request if how % 4 == 3 else replace(request, owned=twice, rebalance_timeout_ms=10_000))

    def lost_response(self, who: int, how: int, which: int) -> None:
        """A response is lost, connectors change, and the member retries its heartbeat in full."""
        member_id = sorted(self.group.members)[who % len(self.group.members)] if self.group.members else ""
        before = self.group.current(member_id)
        if before.epoch <= 0:
            return
        request = HeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=before.epoch,
            owned=grouped(before.assigned),
            rebalance_timeout_ms=10_000,
        )
        self.send(request)
        for turn in range(how % 3):
            self.change_connector(which + turn, which // 2, how + 3)
        self.send(request)
        self.send(request if which % 2 else replace(request, owned=grouped(before.held)))

    def rare(self, which: int, how: int, _: int) -> None:
        """Rare inputs: a coordinator failover, a description, the deletion of the group."""
        match which % 4:
            case 0 | 1:
                self.log = compacted(self.log, tombstones=how % 3 == 0) if how % 2 else self.log
                self.group = self.replay.read(self.group.group_id, self.log, self.now_ms, self.settings)
            case 2:
                self.send(DescribeRequest(group_ids=(GROUP,)))
            case _:
                for member_id in sorted(self.group.members) if how % 2 else ():
                    self.send(HeartbeatRequest(group_id=GROUP, member_id=member_id, member_epoch=-1))
                self.send(DeleteRequest(group_ids=(GROUP,)))
                self.now_ms -= 1_000 * (how % 9) ** 2  # the clock may go back
