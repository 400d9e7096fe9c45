"""A copy of a group, driven by the rules of the coordinator, with members that respond at once.

The rules are those of ``group.connect``: the copy computes, limits moves, delays and validates as the coordinator does.
Nothing is sent and nothing is written; the original does not change. Time is an argument: no time passes while members
stop and start units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..assign.api import ConnectAssignor
from ..assign.convert import assignor_info, group_from_prepare, members_for_install
from ..assign.placement import NO_TRAITS
from ..assign.sandbox import configure_assignor, run_assignor
from ..coordinator.compute import as_server_assignor
from ..errors import ComputeAssignment, ConnectGroupError, PluginError, from_code
from ..group.connect.group_type import GroupInput, step
from ..group.connect.settings import GroupSettings
from ..group.connect.state import ConnectDraft, ConnectGroupState
from ..group.kernel.outcome import Compute, Computed, TimerKey, TimerKind
from ..group.registry import ClientInfo
from ..plugins import load_assignor
from ..protocol.messages.assignment import InstallRequest, PrepareRequest, PrepareResponse
from ..protocol.messages.common import AssignorInfo, grouped
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.records.connect import MemberRecord, Record, TargetRecord
from ..protocol.units import JOIN_EPOCH, LEAVE_EPOCH, Unit, printable

MAX_PASSES = 10_000
"""Upper bound on the heartbeats of all members until the copy is stable; a group that needs more does not converge."""

MAX_DELAYS = 200
"""Upper bound on the delays of an assignor that the copy waits for."""

REBALANCE_TIMEOUT_MS = 60_000


class NoPlan(ConnectGroupError):
    """The rules of the group reject the change, or the copy of the group does not become stable."""


def listed_as(assignor: ConnectAssignor, listed: Iterable[AssignorInfo], member_id: str) -> AssignorInfo:
    """What a member sends about an assignor: what it has sent, if it lists the assignor.

    Raises:
        NoPlan: the member does not list it, and the assignor has metadata, which only the member knows.
    """
    own = next((each for each in listed if each.name == assignor.name), None)
    if own is not None:
        return own
    if type(assignor).metadata is not ConnectAssignor.metadata:
        raise NoPlan(
            f"worker {printable(member_id)} has no metadata of the assignor {assignor.name}, because it does not list"
            f" it; let all workers list it after the one that they use (--assignor, repeated), then try again"
        )
    return assignor_info(assignor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One target assignment that was installed in the copy.

    Attributes:
        computed_by: a member, or ``coordinator``.
        changed: the units that are to run on another member, or to start: the member before (empty: none) and after.
        after_ms: time since the change, above 0 if the copy has waited for a delay that the assignor requested.
    """

    epoch: int
    assignor: str
    computed_by: str
    changed: Mapping[Unit, tuple[str, str]]
    after_ms: int


class Model:
    """A copy of a group.

    Attributes:
        group: the copy.
        installed: the target assignments installed since the copy was made, in order.
    """

    def __init__(
        self,
        group: ConnectGroupState,
        settings: GroupSettings,
        *,
        now_ms: int,
        find_assignor: Callable[[str], ConnectAssignor] = load_assignor,
    ) -> None:
        """Take ownership of ``group``, which must not be the coordinator's.

        Args:
            find_assignor: the assignors by name; the default is the installed ones.
        """
        self.group, self._now_ms, self._started_ms = group, now_ms, now_ms
        self._find, self._assignors = find_assignor, dict[str, ConnectAssignor]()
        self._settings = settings
        self._draining: set[str] = set()
        self._last_owner = {unit: member_id for unit, (member_id, _) in group.holders.items()}
        self.installed: list[Installed] = []

    # ---------------------------------------------------------------------------------------------- changes

    def drain(self, member_id: str) -> None:
        """The member requests that its units be moved."""
        self._draining.add(member_id)

    def join(self, member_id: str, like: MemberRecord | None, assignor: str) -> None:
        """A new member joins.

        Args:
            like: a member whose assignors, labels, capacity and rack it has; ``None``: it lists ``assignor``.
        """
        if like is None:
            info = listed_as(self._assignor(assignor), (), member_id)
            member = MemberRecord(group_id=self.group.group_id, member_id=member_id, assignors=(info,))
        else:
            member = replace(like, member_id=member_id, instance_id=None, host="", draining=False)
        self._beat(member, JOIN_EPOCH, computes=False)  # others may join before the next computation

    def leave(self, member_id: str) -> None:
        """The member stops and leaves."""
        member = self.group.members[member_id]
        request = HeartbeatRequest(
            group_id=self.group.group_id, member_id=member_id, member_epoch=LEAVE_EPOCH, instance_id=member.instance_id
        )
        self.send(request)

    def list_assignor(self, assignor: str) -> None:
        """All members list this assignor alone, as after a rolling restart with another configuration.

        Raises:
            NoPlan: it has metadata, and a member does not list it.
        """
        other = self._assignor(assignor)
        draft = ConnectDraft(self.group, self._now_ms)
        for member in list(draft.members()):
            info = listed_as(other, member.assignors, member.member_id)
            draft.set_member(replace(member, assignors=(info,), server_assignor=None))
        draft.bump(f"all workers list the assignor {assignor}")
        for record in draft.records:
            self.group.apply(record)

    # ---------------------------------------------------------------------------------------------- steps

    def send(self, what: GroupInput) -> Any:
        """Process one input by the rules of the group.

        Raises:
            NoPlan: the rules reject it.
        """
        outcome = step(self.group, what, self._now_ms, self._settings, client=ClientInfo("copy", "copy"))
        self._observe(outcome.records)
        for effect in outcome.effects:
            if isinstance(effect, Compute):
                self._compute_on_coordinator(effect)
        response = outcome.response
        code = getattr(response, "error_code", 0)
        if code not in (0, ComputeAssignment.code):
            raise NoPlan(str(from_code(code, getattr(response, "error_message", None))))
        return response

    def settle(self, *, wait: bool = True) -> None:
        """Let all members send heartbeats until nothing changes; units that are starting have started then.

        Args:
            wait: whether to let the delays pass that an assignor requests; delays for lost workers never pass.

        Raises:
            NoPlan: the copy does not become stable.
            PluginError, ConfigError: an assignor failed, or is not installed here.
        """
        self._beat_all()
        if self.group.deferred_starts:
            # The units have started, or the limit on starts has passed.
            self.send(TimerKey(TimerKind.START, self.group.group_id))
            self._beat_all()
        for _ in range(MAX_DELAYS if wait else 0):
            delay = self.group.delays.get("")
            if delay is None:
                return
            before = dict(self.group.holders)
            self._now_ms = max(self._now_ms, delay.deadline_ms)
            self.send(TimerKey(TimerKind.DELAY, self.group.group_id))
            self._beat_all()
            if self.group.holders == before:
                return  # the assignor leaves the same units out again: it cannot assign them

    def _beat_all(self) -> None:
        for _ in range(MAX_PASSES):
            changed = [member for member in sorted(self.group.members) if self._is_changed_by(member)]
            if not changed:
                return
        raise NoPlan(f"the copy of the group is not stable after {MAX_PASSES} heartbeats of each worker")

    def _is_changed_by(self, member_id: str) -> bool:
        """Send a heartbeat of a member; returns whether it changed the group."""
        current = self.group.current(member_id)
        if member_id not in self.group.members or current.temporarily_left:
            return False
        before = (self.group.epoch, self.group.target_epoch, current, len(self.installed))
        self._beat(self.group.members[member_id], current.epoch)
        return before != (
            self.group.epoch,
            self.group.target_epoch,
            self.group.current(member_id),
            len(self.installed),
        )

    def _beat(self, member: MemberRecord, epoch: int, *, computes: bool = True) -> None:
        """Send a full heartbeat: the member has stopped the revoked units and runs the assigned ones.

        Args:
            computes: whether the member computes if it is asked to; the coordinator repeats the request.
        """
        request = HeartbeatRequest(
            group_id=self.group.group_id,
            member_id=member.member_id,
            member_epoch=epoch,
            instance_id=member.instance_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS,
            server_assignor=member.server_assignor,
            client_assignors=member.assignors or None,
            owned=grouped(self.group.current(member.member_id).assigned) if epoch else (),
            draining=member.draining or member.member_id in self._draining,
            labels=member.labels,
            rack=member.rack,
            capacity=member.capacity,
            host=member.host,
        )
        response = self.send(request)
        assert isinstance(response, HeartbeatResponse)
        if response.error_code == ComputeAssignment.code and computes:
            self._compute(member.member_id)

    def _compute(self, member_id: str) -> None:
        """Compute on the chosen member, by the two requests that a worker sends."""
        epoch = self.group.current(member_id).epoch
        prepared = self.send(PrepareRequest(group_id=self.group.group_id, member_id=member_id, member_epoch=epoch))
        assert isinstance(prepared, PrepareResponse)
        assignment = run_assignor(self._assignor(prepared.assignor_name), group_from_prepare(prepared))
        if assignment.error:
            message = assignment.message or f"error {assignment.error}"
            raise PluginError(f"assignor {prepared.assignor_name!r}: {message}")
        self.send(
            InstallRequest(
                group_id=self.group.group_id,
                member_id=member_id,
                member_epoch=epoch,
                group_epoch=prepared.group_epoch,
                members=members_for_install(assignment),
                delayed=grouped(assignment.delayed),
                delay_ms=assignment.delay_ms,
                message=assignment.message,
            )
        )

    def _compute_on_coordinator(self, effect: Compute) -> None:
        result = as_server_assignor(self._assignor(effect.assignor))(effect.input)
        if result.error:
            raise PluginError(f"assignor {effect.assignor!r}: {result.message or f'error {result.error}'}")
        self.send(Computed(group_id=effect.group_id, epoch=effect.epoch, assignor=effect.assignor, result=result))

    def _assignor(self, name: str) -> ConnectAssignor:
        if name not in self._assignors:
            assignor = self._find(name)
            configure_assignor(assignor, NO_TRAITS)
            self._assignors[name] = assignor
        return self._assignors[name]

    def _observe(self, records: tuple[Record, ...]) -> None:
        """Note the target assignments among the records of a step, which have been applied."""
        group = self.group
        for record in records:
            if isinstance(record, TargetRecord) and record.at_ms:
                changed = {
                    unit: (self._last_owner.get(unit, ""), member_id)
                    for unit, member_id in sorted(group.wanted_by.items())
                    if unit in group.runnable
                    and (self._last_owner.get(unit) != member_id or group.holders.get(unit, ("", -1))[0] != member_id)
                }
                self.installed.append(
                    Installed(
                        epoch=record.epoch,
                        assignor=record.assignor,
                        computed_by=record.computed_by,
                        changed=changed,
                        after_ms=self._now_ms - self._started_ms,
                    )
                )
        self._last_owner.update({unit: member_id for unit, (member_id, _) in group.holders.items()})
