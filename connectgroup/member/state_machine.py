"""The worker's side of the protocol as a state machine, without a clock, a socket or a thread.

Only one heartbeat is outstanding at a time. If the worker has something to send while a request is outstanding (usually
a parked one), it abandons that request: its response, if it still arrives, is dropped, and the next request is a full
one. So a request always reports all units that the worker may be running, and a unit assigned in a response in flight
cannot be mistaken for an acknowledged revocation.

| phase                    | event                                  | phase then | action                            |
|--------------------------|----------------------------------------|------------|-----------------------------------|
| JOINING, MEMBER          | response                               | MEMBER     | Revoke, Assign or none            |
| JOINING, MEMBER          | asked to compute                       | MEMBER     | ComputeTarget                     |
| JOINING, MEMBER          | error: fenced, or unknown              | LOSING     | Lose                              |
| JOINING, MEMBER          | error: may pass                        | same       | none                              |
| JOINING, MEMBER          | error: final                           | LOSING     | Fail                              |
| MEMBER                   | lease expired, a task is fenced        | MEMBER     | Lapse or none                     |
| MEMBER                   | lease expired, no task is fenced       | LOSING     | Lose                              |
| MEMBER                   | a unit did not stop with the lease     | LOSING     | Lose                              |
| LOSING                   | all units have stopped                 | JOINING    | none                              |
| JOINING, MEMBER, LOSING  | close                                  | LEAVING    | none                              |
| LEAVING                  | the leave is sent                      | GONE       | none                              |

Any other event changes nothing and has no action: a response in LOSING, LEAVING and GONE is dropped. A response may
have ``TellAssignor``, ``Restart`` and ``Drain`` besides its action.

If the coordinator does not respond, the lease expires: units that no sink fences stop before the group may assign them
again. Fenced units run on, under the same member epoch, until the coordinator says otherwise: the claim of a successor
ends their writes, whenever it comes, so to stop them would only cost rows. A worker without a fenced task loses all
units.

Source: "Response Handling (Only for Connect)"; PD-02, PD-04, PD-10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from ..errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    StaleMemberEpoch,
    UnknownMemberId,
    from_code,
)
from ..fault_points import fault_point
from ..protocol.messages.common import AssignorInfo, ConfigEntry, config_of, grouped, unit_list
from ..protocol.messages.heartbeat import HeartbeatAssignment, HeartbeatRequest, HeartbeatResponse, TaskStatus
from ..protocol.units import JOIN_EPOCH, LEAVE_EPOCH, NO_UNITS, STATIC_LEAVE_EPOCH, Unit, Units
from .actions import Action, Assign, ComputeTarget, Drain, Fail, Grant, Lapse, Lose, Restart, Revoke, TellAssignor
from .settings import MemberSettings, lease_ms, parked_ms

MAX_STATUSES: Final = 1_000
"""Statuses in one heartbeat: the coordinator stores those of one request in one batch of the log, which has a limit."""


class Phase(StrEnum):
    """The state of the worker's membership."""

    JOINING = "joining"
    MEMBER = "member"
    LOSING = "losing"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """The only request whose response is processed."""

    request: HeartbeatRequest
    sent_ms: int


class Member:
    """The state of one worker in its group. Methods return actions; the caller performs them in order.

    The caller reads the public attributes; only methods change them.
    """

    def __init__(
        self,
        settings: MemberSettings,
        assignors: Sequence[AssignorInfo] = (),
        *,
        first_sequence: int = 0,
        process_id: int = -1,
        os_process: str = "",
    ) -> None:
        """Create a worker that has not joined yet.

        Args:
            assignors: in order of preference; empty means that the group uses a server-side assignor.
            first_sequence: the sequence before that of the first heartbeat.
            process_id: identifies this process; random. -1: none.
            os_process: see ``HeartbeatRequest.os_process``.
        """
        # These never change, except for the assignors (``set_assignors``).
        self.settings = settings
        self.assignors = tuple(assignors)
        self.process_id, self.os_process = process_id, os_process
        # The state above. Responses, ``check_lease``, ``give_up``, ``mark_lost``, ``close`` and the leave change it.
        self.phase = Phase.JOINING
        # The member epoch of the last response; 0 before the first one and after ``mark_lost``.
        self.epoch = JOIN_EPOCH
        # Every unit that this worker may be running, with its owner epoch: grows when an assignment is accepted, before
        # any unit starts, and shrinks when a stop is complete (``mark_revoked``, ``mark_lapsed``, ``mark_lost``).
        self.owned: dict[Unit, int] = {}
        # The units of ``owned`` whose stop was requested and is not complete. Meanwhile, no unit is accepted.
        self.revoking: Units = NO_UNITS
        # The units of ``revoking`` that the group has not revoked: their lease has expired (``check_lease``).
        self.lapsing: Units = NO_UNITS
        # The units of ``owned`` that were not reported as fenced (``report``).
        self.unfenced: set[Unit] = set()
        # Whether the lease has expired and no response has arrived since: only fenced units run. Set by
        # ``check_lease``, cleared by the next response and by ``mark_lost``. Only in MEMBER.
        self.lapsed = False
        # When the last heartbeat was sent that got a response: the lease counts from it. ``None``: never, or not since
        # ``mark_lost``.
        self._confirmed_ms: int | None = None
        # As the last response has them; 0 before the first one.
        self.session_timeout_ms = self.heartbeat_interval_ms = 0
        # The highest epoch of a coordinator that has responded: responses of earlier ones are stale (PD-10).
        self.coordinator_epoch = -1
        # The number of the last request.
        self._sequence = first_sequence
        # The request whose response is awaited; ``None`` once it has arrived, or will be dropped.
        self._outstanding: _Outstanding | None = None
        # The next request is a full one: after a join, any error, and any request that was abandoned.
        self._full = True
        # The next request reports the owned units, and goes at once: a stop is complete. Any request clears it.
        self._acknowledge = False
        # The next request goes at once: it has statuses that were delayed long enough, or a restart error.
        self._flush_requested = False
        # Units were granted during a revocation, and not accepted: a full heartbeat follows when it is complete.
        self._missed_assignment = False
        # The group has units assigned to this worker that it does not run since its lease expired, and may withhold
        # them while others are revoked: every heartbeat reports the owned units until they are granted again.
        self._lacks_units = False
        # Statuses that no response has confirmed; those of units that stop are dropped.
        self._statuses: dict[Unit, TaskStatus] = {}
        # The member epoch of the last target assignment that was delivered to an assignor.
        self._delivered_epoch = JOIN_EPOCH
        # Whether this worker is about to leave: it accepts no units and does not rejoin. Set by ``retire`` and by a
        # final error; never cleared.
        self.retiring = False
        # Whether this worker asks that its units be moved to other members. Set by ``drain``; never cleared.
        self.draining = False
        # Why a requested restart has not happened. Set by ``refuse_restart``, cleared once the coordinator has it.
        self.restart_error = ""
        # How to leave; set by ``close``. A temporary leave excludes an announced return.
        self._leave_cause = ""
        self._leaves_temporarily = self._returns = False

    # ----------------------------------------------------------------------------------------------
    # Requests

    @property
    def has_unsent_changes(self) -> bool:
        """Whether to send at once: there is something to send that the outstanding request does not contain."""
        return self._may_speak and (
            self._acknowledge or self._full or self._flush_requested or self.phase is Phase.LEAVING
        )

    @property
    def _may_speak(self) -> bool:
        if self.phase in (Phase.LOSING, Phase.GONE):
            return False
        return not (self.retiring and self.phase is Phase.JOINING)

    @property
    def has_statuses(self) -> bool:
        """Whether there are statuses to report; these may be delayed to be batched."""
        return bool(self._statuses) and self.phase is Phase.MEMBER

    def flush_statuses(self) -> None:
        """The batching delay for task statuses has elapsed: send them at once."""
        self._flush_requested = self.has_statuses

    def refuse_restart(self, reason: str) -> None:
        """A requested restart does not happen: tell the group at once."""
        if self.phase is Phase.MEMBER:
            self.restart_error, self._flush_requested = reason, True

    def drain(self) -> None:
        """Request no new units, and that the units here be moved to other members, round by round."""
        if not self.draining:
            self.draining = self._full = True

    def retire(self) -> list[Action]:
        """Accept no new units and do not rejoin, since this worker is about to leave. Revoke all units."""
        self.retiring = True
        units = frozenset(self.owned) - self.revoking
        if not units or self.phase is Phase.LOSING:
            return []
        self.revoking |= units
        return [Revoke(units=units, epoch=self.epoch)]

    def next_request(self, now_ms: int) -> HeartbeatRequest | None:
        """The heartbeat to send now; an outstanding request is abandoned.

        Args:
            now_ms: a monotonic clock.

        Returns:
            ``None`` while all units are being stopped, and after the leave: no heartbeat may be sent then.
        """
        if not self._may_speak:
            return None
        if self._outstanding is not None:
            self._full = True
        self._sequence += 1
        settings = self.settings
        if self.phase is Phase.LEAVING:
            self._outstanding = None
            self.phase = Phase.GONE
            leave = HeartbeatRequest(
                group_id=settings.group_id,
                member_id=settings.member_id,
                sequence=self._sequence,
                process_id=self.process_id,
            )
            if self._leaves_temporarily:
                return replace(leave, member_epoch=STATIC_LEAVE_EPOCH, instance_id=settings.instance_id)
            return replace(leave, member_epoch=LEAVE_EPOCH, cause=self._leave_cause, returns=self._returns)
        introduces = self._full or self.epoch == JOIN_EPOCH or fault_point("every heartbeat is a full one")
        statuses = self._next_statuses()
        more_statuses = len(statuses) < len(self._statuses)
        restart_error = self.restart_error if self.epoch != JOIN_EPOCH else ""
        # A parked heartbeat with a restart error would be decided again when another restart is requested.
        returns_at_once = more_statuses or bool(restart_error)
        heartbeat = HeartbeatRequest(
            group_id=settings.group_id,
            member_id=settings.member_id,
            member_epoch=self.epoch,
            max_wait_ms=0 if self._full or returns_at_once else self._max_wait_ms(),
            sequence=self._sequence,
            process_id=self.process_id,
            os_process=self.os_process,
            statuses=statuses,
            restart_error=restart_error,
        )
        if introduces:
            request = self.full(heartbeat)
        elif self._acknowledge or self._lacks_units:
            request = replace(heartbeat, owned=grouped(self.owned))
        else:
            request = heartbeat
        self._full = self._acknowledge = False
        self._flush_requested = more_statuses
        self._outstanding = _Outstanding(request, now_ms)
        return request

    def full(self, request: HeartbeatRequest) -> HeartbeatRequest:
        """The same heartbeat as a full one: with this worker's settings, its assignors, and the units it owns now."""
        settings = self.settings
        return replace(
            request,
            instance_id=settings.instance_id,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            server_assignor=settings.server_assignor,
            client_assignors=self.assignors or None,
            owned=grouped(self.owned),
            draining=self.draining,
            labels=tuple(ConfigEntry(name=name, value=value) for name, value in settings.traits.labels),
            rack=settings.traits.rack,
            capacity=settings.traits.capacity,
            host=settings.traits.host,
        )

    def _next_statuses(self) -> tuple[TaskStatus, ...]:
        """The statuses for the next request: the oldest ones, ordered by unit."""
        units = islice(self._statuses, MAX_STATUSES)
        return tuple([self._statuses[unit] for unit in sorted(units)])

    def on_no_answer(self, request: HeartbeatRequest) -> None:
        """The call failed or timed out, or the coordinator could not serve it: the next heartbeat is a full one."""
        if self._outstanding is not None and self._outstanding.request is request:
            self._outstanding = None
            self._full = True

    def report(self, status: TaskStatus) -> None:
        """Report a unit's status with the next heartbeat, unless it belongs to an earlier owner epoch."""
        unit = Unit(status.connector, status.task)
        if self.owned.get(unit) == status.owner_epoch:
            self._statuses[unit] = status
            if status.fenced and self.phase is not Phase.LOSING:  # its units stop because one was not fenced in time
                self.unfenced.discard(unit)

    def set_assignors(self, assignors: Sequence[AssignorInfo]) -> bool:
        """List other assignors, or the same with other metadata or reason.

        Returns:
            Whether anything changed: then the next heartbeat should be sent at once.
        """
        if tuple(assignors) == self.assignors:
            return False
        self.assignors = tuple(assignors)
        self._full = True
        return True

    # ----------------------------------------------------------------------------------------------
    # Responses

    def on_response(
        self,
        request: HeartbeatRequest,
        response: HeartbeatResponse,
        converted: ConvertedAssignment | None = None,
    ) -> list[Action]:
        """Process a response and return the actions to perform. A response to an abandoned request is dropped.

        Args:
            converted: ``convert(response.assignment)``, if the caller has run it, off its event loop.
        """
        outstanding = self._outstanding
        if outstanding is None or outstanding.request is not request:
            return []
        denied = response.error_code == GroupAuthorizationFailed.code  # by the coordinator's port, without an epoch
        if response.coordinator_epoch < self.coordinator_epoch and not denied:
            # The coordinator has been replaced and has not noticed yet (PD-10).
            self.on_no_answer(request)
            return []
        self._outstanding = None
        self.coordinator_epoch = self.coordinator_epoch if denied else response.coordinator_epoch
        if response.error_code:
            return self._on_error(response, outstanding)

        self.phase = Phase.MEMBER
        self._confirm(response, outstanding)
        self.epoch = response.member_epoch
        actions: list[Action] = []
        if response.assignment is not None:
            converted = converted or convert(response.assignment)
            actions = [
                *self._deliver_target(response.assignment, converted.units),
                *self._take(converted, response.assignment.incarnation),
            ]
        if self.restart_error and request.restart_error:
            self.restart_error = ""
        # A response to an earlier heartbeat repeats the request that has failed.
        if response.restart and not (self.retiring or self.draining or self.restart_error):
            actions.append(Restart())
        if response.drain and not (self.retiring or self.draining):
            actions.append(Drain())
        return actions

    def _confirm(self, response: HeartbeatResponse, outstanding: _Outstanding) -> None:
        """Renew the lease. It starts when the request was sent, not when the response arrived."""
        self._confirmed_ms, self.lapsed = outstanding.sent_ms, False
        self.session_timeout_ms = response.session_timeout_ms or self.session_timeout_ms
        self.heartbeat_interval_ms = response.heartbeat_interval_ms or self.heartbeat_interval_ms
        for status in outstanding.request.statuses:
            unit = Unit(status.connector, status.task)
            if self._statuses.get(unit) == status:
                del self._statuses[unit]

    def _on_error(self, response: HeartbeatResponse, outstanding: _Outstanding) -> list[Action]:
        self._full = True
        error = from_code(response.error_code, response.error_message)
        match error:
            case ComputeAssignment():
                self._confirm(response, outstanding)
                if self.phase is Phase.JOINING:
                    self.phase = Phase.MEMBER
                return [ComputeTarget(member_epoch=self.epoch)]
            case UnknownMemberId() | FencedMemberEpoch() | GroupIdNotFound():
                # "The worker abandons all its resources and rejoins with the same member id and the epoch 0."
                return [self._lose(str(error))]
            case StaleMemberEpoch():
                return []
            case _ if error.retriable:
                if response.session_timeout_ms and self.phase is Phase.MEMBER and not self.lapsed:
                    # The coordinator cannot store what this worker reports, and has begun its session again.
                    self._confirmed_ms = outstanding.sent_ms
                return []
            case _:
                # No heartbeat is sent until all units have stopped, and then only the leave.
                self.retiring = True
                self.phase = Phase.LOSING
                return [Fail(error=error)]

    def _deliver_target(self, assignment: HeartbeatAssignment, units: Units) -> list[Action]:
        """Deliver a new target assignment to the assignor the group used, if this worker offers it (PD-12)."""
        if not assignment.assignor or self.epoch <= self._delivered_epoch or self.retiring:
            return []
        self._delivered_epoch = self.epoch
        if assignment.assignor not in {info.name for info in self.assignors}:
            return []
        return [
            TellAssignor(
                assignor=assignment.assignor,
                units=units,
                epoch=self.epoch,
                error=assignment.error,
                version=assignment.version,
                metadata=assignment.metadata,
            )
        ]

    def _take(self, assignment: ConvertedAssignment, incarnation: int) -> list[Action]:
        """Turn the complete assignment into either a revocation or an assignment; never both."""
        revoke = self.owned.keys() - assignment.units - self.revoking
        if revoke:
            self.revoking |= revoke
            return [Revoke(units=frozenset(revoke), epoch=self.epoch)]
        self._lacks_units = self._lacks_units and bool(self.revoking)
        new = assignment.units.difference(self.owned)
        if not new or self.retiring:
            return []
        if self.revoking - self.lapsing:
            # The coordinator assigns no units during a revocation; send a full heartbeat when it is complete.
            self._missed_assignment = self._lacks_units = True
            return []
        if new == assignment.grants.keys():
            # The usual case, and the only one with many units: all grants at once, without work for each unit.
            self.owned.update(assignment.owner_epochs)
            self.unfenced |= new
            return [Assign(grants=tuple(assignment.grants.values()), epoch=self.epoch)]
        # A coordinator that sends no grants assigns units at the member epoch, as in the original protocol.
        grants = tuple(
            assignment.grants.get(unit) or Grant(unit=unit, owner_epoch=self.epoch, incarnation=incarnation)
            for unit in assignment.ordered
            if unit in new
        )
        self.owned.update((grant.unit, grant.owner_epoch) for grant in grants)
        self.unfenced |= new
        return [Assign(grants=grants, epoch=self.epoch)]

    # ----------------------------------------------------------------------------------------------
    # Revocation and loss

    def mark_revoked(self, units: Iterable[Unit]) -> None:
        """These units have stopped and the listeners were notified: acknowledge with a heartbeat at once."""
        for unit in units:
            self.owned.pop(unit, None)
            self._statuses.pop(unit, None)
        self.revoking -= frozenset(units)
        self.lapsing &= self.revoking
        self.unfenced.difference_update(units)
        self._acknowledge = True
        if self._missed_assignment:
            self._full, self._missed_assignment = True, False

    def mark_lapsed(self, units: Iterable[Unit]) -> None:
        """These units have stopped because the lease expired: the next heartbeat is a full one, without them.

        The group still has them assigned to this worker, and grants them again. A response under way would name them
        as units that this worker runs, without their grants: it is dropped.
        """
        self.mark_revoked(units)
        self._outstanding, self._full, self._lacks_units = None, True, True

    def lease_ends_ms(self) -> int | None:
        """When the lease expires unless a response arrives before; ``None`` if there is none, or it has expired."""
        if self._confirmed_ms is None or not self.session_timeout_ms or self.phase is not Phase.MEMBER or self.lapsed:
            return None
        return self._confirmed_ms + self._lease_ms()

    def silent_ms(self, now_ms: int) -> int:
        """How long the coordinator has not responded: since the sending of the last heartbeat that got a response."""
        return 0 if self._confirmed_ms is None else max(0, now_ms - self._confirmed_ms)

    def _lease_ms(self) -> int:
        return lease_ms(self.session_timeout_ms, self.settings.lease_margin, unfenced=bool(self.unfenced))

    def _max_wait_ms(self) -> int:
        max_wait_ms = self.settings.max_wait_ms
        return parked_ms(max_wait_ms, self._lease_ms()) if self.session_timeout_ms else max_wait_ms

    def check_lease(self, now_ms: int, why_late: str = "") -> list[Action]:
        """Stop what no sink fences before the group may reassign it (KAFKA-9184). Call it before all other processing.

        Args:
            why_late: why this worker itself has not sent heartbeats in time; empty: the coordinator has not responded.

        Returns:
            ``Lapse``: units that are not fenced stop, the others run on. ``Lose``: no task is fenced, so there is
            nothing to go on with, and the units start again under later owner epochs. Nothing while the lease has time
            left, and if all units are fenced.
        """
        ends_ms = self.lease_ends_ms()
        if ends_ms is None or not self.owned:
            return []
        if now_ms < ends_ms and not fault_point("a lease ends early"):
            return []
        why = why_late or f"no response from the coordinator for {self.silent_ms(now_ms)} ms"
        stops = frozenset(self.unfenced)
        runs_on = frozenset(self.owned) - stops
        if stops and all(unit.is_connector for unit in runs_on):
            return [self._lose(why)]
        self.lapsed = True
        # The request under way may be answered with an assignment for the time before.
        self._outstanding, self._full = None, True
        if not stops:
            return []
        units = stops - self.revoking
        self.revoking |= units
        self.lapsing |= units
        return [Lapse(units=units, stops=stops, runs_on=runs_on, epoch=self.epoch, why=why)]

    def give_up(self, why: str) -> list[Lose]:
        """A unit that had to stop with the lease has not: leave it to the group, with all others, and rejoin."""
        return [self._lose(why)] if self.phase is Phase.MEMBER else []

    def _lose(self, why: str) -> Lose:
        if self.phase is not Phase.LEAVING:
            self.phase = Phase.LOSING
        self._outstanding = None
        return Lose(units=frozenset(self.owned), epoch=self.epoch, why=why)

    def mark_lost(self) -> None:
        """No unit runs any more: rejoin."""
        self.owned.clear()
        self.unfenced.clear()
        self.revoking = self.lapsing = NO_UNITS
        self._statuses.clear()
        self.epoch = self._delivered_epoch = JOIN_EPOCH
        self._confirmed_ms, self.lapsed = None, False
        self._full, self._acknowledge, self._missed_assignment, self._lacks_units = True, False, False, False
        if self.phase is Phase.LOSING:
            self.phase = Phase.JOINING

    def close(self, cause: str = "", *, temporarily: bool = False, returns: bool = False) -> None:
        """All units have stopped: the next request is the leave (always attempted: KAFKA-16639).

        Args:
            cause: for the explanation of the rebalance.
            temporarily: leave temporarily, if this is a static member that has reported that it stopped all units: they
                may be assigned to its successor under the same tokens, so no zombie may be left that still writes.
            returns: the worker restarts under the same member id. A static member that may leave with epoch -2 does;
                any other member leaves with epoch -1 and announces that it returns.
        """
        # A worker that lost its units is at epoch 0: it is unknown which of its tasks may still write.
        stopped = not self.owned and self.epoch > JOIN_EPOCH
        self._leaves_temporarily = temporarily and stopped and self.settings.instance_id is not None
        self.owned.clear()
        self.revoking = NO_UNITS
        self._outstanding = None  # its response would make a member of it again, and the leave would not be sent
        self._leave_cause, self._returns = cause, returns
        if self.phase is not Phase.GONE:
            self.phase = Phase.LEAVING


@dataclass(frozen=True, slots=True)
class ConvertedAssignment:
    """One member's complete assignment.

    Attributes:
        units: all units that the member is to run.
        ordered: the same in the order of the response: connectors ascending, tasks ascending.
        grants: the grants in the response, in the same order. Units that the member runs already have none.
        owner_epochs: the owner epoch of each grant.
    """

    units: Units
    ordered: list[Unit]
    grants: dict[Unit, Grant]
    owner_epochs: dict[Unit, int]


def convert(assignment: HeartbeatAssignment) -> ConvertedAssignment:
    """Convert the assignment of a response.

    It may contain 100,000 grants. The result depends on the response alone, so a worker may convert it in a thread.
    """
    ordered = unit_list(assignment.units)
    configs = {config.connector: config_of(config.config) for config in assignment.configs}
    # Plain tuples, which compare equal to units.
    granted = {(grant.connector, grant.task): grant for grant in assignment.grants}
    grants = {
        unit: Grant(
            unit=unit,
            owner_epoch=grant.owner_epoch,
            incarnation=assignment.incarnation,
            config=config_of(grant.config),
            connector_config=configs.get(unit.connector, {}),
        )
        for unit in ordered
        if (grant := granted.get(unit)) is not None
    }
    owner_epochs = {unit: grant.owner_epoch for unit, grant in grants.items()}
    return ConvertedAssignment(frozenset(ordered), ordered, grants, owner_epochs)
