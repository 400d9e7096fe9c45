"""Builders for the tests of the group rules: groups made from records, and a harness that checks every step.

A ``Scene`` is one group, the log of all its records, and an upper bound of what its workers may be running: a worker
runs every unit it was ever assigned, until it reports otherwise or is removed. After every step the scene checks
the invariants of ``tests.group.invariants``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeVar

from connectgroup.errors import ComputeAssignment, FencedMemberEpoch, InvalidAssignment, StaleGroupEpoch
from connectgroup.group.connect.group_type import ConnectRequest, belongs_to
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Outcome, TimerKey, TimerKind
from connectgroup.group.kernel.reconcile import Current
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import AssignorInfo, entries, grouped, units_of
from connectgroup.protocol.messages.connectors import (
    ConnectorChange,
    TaskConfig,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from connectgroup.protocol.messages.describe import Rebalance
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, TaskStatus
from connectgroup.protocol.records.connect import (
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    RebalanceRecord,
    Record,
    TargetMemberRecord,
    TargetRecord,
    TaskEntry,
    Value,
    held,
)
from connectgroup.protocol.units import JOIN_EPOCH, NO_UNITS, Unit, Units

from . import invariants
from .effects import step_and_compute

GROUP = "workers"
FIXED = "fixed"
ROUND_ROBIN = "round-robin"
R = TypeVar("R", bound=Response)


def tasks(**numbers: Iterable[int]) -> Units:
    """``tasks(foo=[0, 1], bar=[-1])`` is foo-0, foo-1 and the connector bar itself."""
    return frozenset(Unit(connector, task) for connector, some in numbers.items() for task in some)


def foo(*numbers: int) -> Units:
    """``foo(-1, 0)`` is the connector foo and foo-0."""
    return tasks(foo=numbers)


def names(units: Iterable[Unit]) -> list[str]:
    """Units as sorted strings."""
    return [str(unit) for unit in sorted(units)]


class FixedAssignor:
    """A server-side assignor that returns a fixed target assignment."""

    def __init__(self) -> None:
        self.target: dict[str, Units] = {}
        self.inputs: list[PrepareResponse] = []
        self.error: Exception | None = None

    @property
    def calls(self) -> int:
        """How often the assignor has run."""
        return len(self.inputs)

    def __call__(self, prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
        self.inputs.append(prepared)
        if self.error is not None:
            raise self.error
        present = {member.member_id for member in prepared.members}
        return tuple(
            InstalledMember(member_id=member_id, units=grouped(units))
            for member_id, units in self.target.items()
            if member_id in present
        )


def round_robin(prepared: PrepareResponse) -> tuple[InstalledMember, ...]:
    """A sticky round robin: a member keeps units up to an even number; the rest goes to the member with the fewest."""
    units = sorted(prepared.all_units())
    limit = -(-len(units) // len(prepared.members))
    shares: dict[str, set[Unit]] = {}
    left = set(units)
    for member, share in zip(prepared.members, prepared.shares(), strict=True):
        shares[member.member_id] = set(sorted(share & left)[:limit])
        left -= shares[member.member_id]
    for unit in sorted(left):
        poorest = min(shares, key=lambda member_id: (len(shares[member_id]), member_id))
        shares[poorest].add(unit)
    # The version of the metadata is the lowest that every member can read.
    return tuple(
        InstalledMember(
            member_id=member.member_id, units=grouped(shares[member.member_id]), version=member.assignor.version
        )
        for member in prepared.members
    )


def settings(fixed: FixedAssignor | None = None, **changes: object) -> GroupSettings:
    """Settings with a fixed (if given) and a round robin server-side assignor."""
    assignors = {ROUND_ROBIN: round_robin} if fixed is None else {FIXED: fixed, ROUND_ROBIN: round_robin}
    name = ROUND_ROBIN if fixed is None else FIXED
    options: dict[str, object] = {"server_assignor": name, "server_assignors": assignors, **changes}
    return GroupSettings(**options)  # type: ignore[arg-type]


def info(name: str = "a", low: int = 0, high: int = 0, version: int | None = None, **more: int | bytes) -> AssignorInfo:
    """One entry of ClientAssignors; by default its metadata has the highest supported version."""
    metadata_version = high if version is None else version
    return AssignorInfo(name=name, minimum_version=low, maximum_version=high, version=metadata_version, **more)  # type: ignore[arg-type]


def group_records(
    *,
    epoch: int,
    connectors: Mapping[str, int],
    members: Mapping[str, Mapping[Unit, int]],
    rebalance_timeout_ms: int = 10_000,
    instances: Mapping[str, str] | None = None,
) -> list[Value]:
    """The records of a stable group: connectors with their task counts, members with units and their owner epochs."""
    records: list[Value] = [
        ConnectorRecord(
            group_id=GROUP,
            connector=name,
            version=1,
            config=entries({"name": name}),
            tasks=tuple(TaskEntry(config=entries({"task": str(number)})) for number in range(count)),
        )
        for name, count in connectors.items()
    ]
    records.append(GroupRecord(group_id=GROUP, epoch=epoch))
    records += [
        MemberRecord(
            group_id=GROUP,
            member_id=member_id,
            instance_id=(instances or {}).get(member_id),
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        for member_id in members
    ]
    records += [
        TargetMemberRecord(group_id=GROUP, member_id=member_id, units=grouped(units))
        for member_id, units in members.items()
    ]
    records.append(TargetRecord(group_id=GROUP, epoch=epoch, assignor=FIXED, computed_by="coordinator"))
    records += [
        CurrentRecord(group_id=GROUP, member_id=member_id, epoch=epoch, previous_epoch=epoch - 1, assigned=held(units))
        for member_id, units in members.items()
    ]
    past = Rebalance(epoch=epoch, causes=("former rebalance",), finished_ms=0, computed_by="coordinator")
    return [*records, RebalanceRecord(group_id=GROUP, rebalance=past)]


@dataclass(kw_only=True)
class Scene:
    """A group under test. Every call is one step, which is applied, logged and checked."""

    settings: GroupSettings
    group: ConnectGroupState = field(default_factory=lambda: ConnectGroupState(GROUP))
    log: list[Record] = field(default_factory=list)
    now_ms: int = 1_000_000
    may_run: dict[str, set[Unit]] = field(default_factory=dict)
    ledger: invariants.Ledger = field(default_factory=lambda: invariants.Ledger())
    last: Outcome[Response | None] | None = None
    check_replay: bool = True

    @classmethod
    def stable(
        cls,
        settings: GroupSettings,
        *,
        epoch: int,
        connectors: Mapping[str, int],
        members: Mapping[str, Iterable[Unit] | Mapping[Unit, int]],
        rebalance_timeout_ms: int = 10_000,
        instances: Mapping[str, str] | None = None,
    ) -> Scene:
        """A group that is stable at ``epoch``; units without an owner epoch were granted at that epoch."""
        owned = {
            member_id: dict(units) if isinstance(units, Mapping) else dict.fromkeys(units, epoch)
            for member_id, units in members.items()
        }
        scene = cls(settings=settings)
        for record in group_records(
            epoch=epoch,
            connectors=connectors,
            members=owned,
            rebalance_timeout_ms=rebalance_timeout_ms,
            instances=instances,
        ):
            scene.put(record)
        scene.may_run = {member_id: set(units) for member_id, units in owned.items()}
        return scene

    def put(self, *records: Record) -> None:
        """Apply and log records without a step."""
        for record in records:
            self.group.apply(record)
            self.log.append(record)
        self.ledger.note(self.group)

    def act(
        self, what: ConnectRequest | TimerKey, *, lost: bool = False, duplicate: bool = False
    ) -> Outcome[Response | None]:
        """One step.

        Args:
            what: a request, or the timer that fired.
            lost: the response is lost.
            duplicate: a late duplicate: it shows nothing of the worker's state, and its response is dropped.
        """
        before = {member_id: self.group.current(member_id) for member_id in self.group.members}
        previous_state = invariants.group_state(self.group)
        outcome = step_and_compute(self.group, what, self.now_ms, self.settings)
        self.log += outcome.records
        self.last = outcome
        if isinstance(what, HeartbeatRequest) and what.member_epoch == JOIN_EPOCH and outcome.records:
            self.ledger.forget(what.member_id)
        self.ledger.note(self.group)
        refused = getattr(outcome.response, "error_code", 0)
        # A stale assignment is followed by another computation, which is recorded.
        recorded = (FencedMemberEpoch.code, ComputeAssignment.code, InvalidAssignment.code, StaleGroupEpoch.code)
        if refused and refused not in recorded:
            assert not outcome.records, "a rejected request writes no record"
            assert invariants.group_state(self.group) == previous_state, "a rejected request changes nothing"
        if not outcome.records:
            assert invariants.group_state(self.group) == previous_state, "only records change a group"
        if isinstance(what, HeartbeatRequest) and not duplicate:
            self._track_request(what, outcome.response, before)
            if not lost:
                self._track_response(what, outcome.response)
        for member_id in list(self.may_run):
            if member_id not in self.group.members:
                del self.may_run[member_id]  # a zombie's writes are fenced by its owner epoch
        self.check()
        return outcome

    def check(self) -> None:
        """Check all invariants."""
        invariants.one_owner(self.group)
        invariants.epochs_in_order(self.group)
        invariants.indexes_match(self.group)
        invariants.rebalance_history_is_consistent(self.group)
        invariants.no_unit_runs_twice(self.may_run)
        if self.check_replay:
            invariants.replay_equals_live(self.group, self.log)

    def _track_request(self, request: HeartbeatRequest, response: object, before: Mapping[str, Current[Unit]]) -> None:
        """``owned`` lists what the worker runs when it sends the request; it starts nothing before the response."""
        assert isinstance(response, HeartbeatResponse)
        if request.owned is not None and response.error_code in (0, ComputeAssignment.code):
            self.may_run[request.member_id] = set(units_of(request.owned))
        if response.assignment is not None:
            invariants.revokes_or_assigns(request, response.assignment, before.get(request.member_id))

    def _track_response(self, request: HeartbeatRequest, response: object) -> None:
        assert isinstance(response, HeartbeatResponse)
        if response.assignment is not None:
            self.may_run.setdefault(request.member_id, set()).update(units_of(response.assignment.units))

    # ---- requests

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        owned: Units | None = None,
        *,
        full: bool = False,
        lost: bool = False,
        assignors: tuple[AssignorInfo, ...] | None = None,
        server_assignor: str | None = None,
        statuses: tuple[TaskStatus, ...] = (),
        instance: str | None = None,
        draining: bool = False,
    ) -> HeartbeatResponse:
        """Send a heartbeat; ``full`` sets the rebalance timeout as a worker does on join and after an error."""
        request = HeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout_ms=10_000 if full else -1,
            owned=None if owned is None else grouped(owned),
            client_assignors=assignors,
            server_assignor=server_assignor,
            statuses=statuses,
            instance_id=instance,
            draining=draining,
        )
        return self.response_of(self.act(request, lost=lost), HeartbeatResponse)

    def join(
        self,
        member_id: str,
        *assignors: AssignorInfo,
        server_assignor: str | None = None,
        rebalance_timeout_ms: int = 10_000,
        lost: bool = False,
        instance: str | None = None,
    ) -> HeartbeatResponse:
        """Join: a heartbeat with epoch 0 that owns nothing."""
        request = HeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=rebalance_timeout_ms,
            server_assignor=server_assignor,
            client_assignors=assignors or None,
            owned=(),
            instance_id=instance,
        )
        return self.response_of(self.act(request, lost=lost), HeartbeatResponse)

    def leave(self, member_id: str) -> HeartbeatResponse:
        """Leave: a heartbeat with epoch -1."""
        return self.heartbeat(member_id, -1)

    def leave_temporarily(self, member_id: str, instance: str) -> HeartbeatResponse:
        """A heartbeat with epoch -2: a static member leaves temporarily, after all its tasks have stopped."""
        self.may_run[member_id] = set()
        return self.heartbeat(member_id, -2, instance=instance)

    def reload(self) -> None:
        """Coordinator failover: replay the log."""
        self.group = ConnectGroupState.replay(GROUP, self.log)

    def expire(self, kind: TimerKind, member_id: str = "") -> Outcome[Response | None]:
        """Fire a timer of the group's current state."""
        key = TimerKey(kind, GROUP, member_id)
        return self.act(key._replace(belongs_to=belongs_to(self.group, key)))

    def prepare(self, member_id: str, epoch: int) -> PrepareResponse:
        """The chosen member sends Prepare."""
        request = PrepareRequest(group_id=GROUP, member_id=member_id, member_epoch=epoch)
        return self.response_of(self.act(request), PrepareResponse)

    def install(
        self,
        member_id: str,
        epoch: int,
        group_epoch: int,
        shares: Mapping[str, Units],
        *,
        error: int = 0,
        message: str = "",
    ) -> InstallResponse:
        """The chosen member sends Install with the units of each member."""
        members = tuple(InstalledMember(member_id=who, units=grouped(units)) for who, units in shares.items())
        return self.install_members(member_id, epoch, group_epoch, *members, error=error, message=message)

    def install_members(
        self, member_id: str, epoch: int, group_epoch: int, *members: InstalledMember, error: int = 0, message: str = ""
    ) -> InstallResponse:
        """The chosen member sends Install with complete entries for each member."""
        request = InstallRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            group_epoch=group_epoch,
            error=error,
            members=members,
            message=message,
        )
        return self.response_of(self.act(request), InstallResponse)

    def update(self, *changes: ConnectorChange, member_id: str | None = None) -> UpdateConnectorsResponse:
        """Change connectors as an operator, or as the connector's owner if ``member_id`` is set."""
        request = UpdateConnectorsRequest(group_id=GROUP, member_id=member_id, changes=changes)
        return self.response_of(self.act(request), UpdateConnectorsResponse)

    def response_of(self, outcome: Outcome[Response | None], kind: type[R]) -> R:
        """The response of a step, which must have the given type."""
        assert isinstance(outcome.response, kind)
        return outcome.response

    @property
    def records(self) -> tuple[Record, ...]:
        """The records of the last step."""
        assert self.last is not None
        return self.last.records

    def current(self, member_id: str) -> Current[Unit]:
        """A member's current assignment."""
        return self.group.current(member_id)

    def state(self, member_id: str) -> MemberState:
        """A member's state."""
        return self.group.current(member_id).state


def response_units(response: HeartbeatResponse) -> Units | None:
    """The units of a response; ``None`` if the response leaves the assignment unchanged."""
    return None if response.assignment is None else units_of(response.assignment.units)


def units_at(response: HeartbeatResponse) -> tuple[int, list[str] | None]:
    """The member epoch and the units of a response without error."""
    assert response.error_code == 0, response.error_message
    units = response_units(response)
    return response.member_epoch, None if units is None else names(units)


def added(connector: str, **config: str) -> ConnectorChange:
    """A new connector."""
    return ConnectorChange(connector=connector, expected_version=0, config=entries({"name": connector, **config}))


def task_list(connector: str, configs: Iterable[Mapping[str, str]], owner_epoch: int) -> ConnectorChange:
    """A task list, fenced by the owner's grant."""
    return ConnectorChange(
        connector=connector,
        task_configs=tuple(TaskConfig(config=entries(config)) for config in configs),
        owner_epoch=owner_epoch,
    )


def numbered(count: int, **more: str) -> list[dict[str, str]]:
    """``count`` task configurations, each different."""
    return [{"task": str(number), **more} for number in range(count)]


UNASSIGNED: Units = NO_UNITS


def table_of(module: ModuleType) -> list[tuple[str, ...]]:
    """The rows of the table at the beginning of a module."""
    lines = [line.strip("|").split("|") for line in str(module.__doc__).splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line) for line in lines[2:]]
