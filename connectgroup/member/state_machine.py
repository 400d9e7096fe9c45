"""What a response means: the worker's half of the protocol, without a clock, a socket or a thread.

One heartbeat counts at a time. When the worker has something to say while one is still unanswered (a parked one,
usually), it gives that one up: its answer, should it still come, is dropped, and the next request is a full one.
So what a request reports as owned is always all that the worker may be running, and nothing granted in an
answer on its way can be mistaken for something let go of.

    JOINING --answer--> MEMBER --fenced, unknown, lease over--> LOSING --all stopped--> JOINING
       any  --close--> LEAVING --leave sent--> GONE

Source: "Response Handling (Only for Connect)"; design 3.2, 3.4, 3.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from ..assign.placement import NO_TRAITS, WorkerTraits
from ..errors import (
    ComputeAssignment,
    FencedMemberEpoch,
    GroupIdNotFound,
    StaleMemberEpoch,
    UnknownMemberId,
    from_code,
)
from ..fault_points import buggify
from ..protocol.messages.common import AssignorInfo, ConfigEntry, config_of, grouped, unit_list, units_of
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse, MemberAssignment, TaskStatus
from ..protocol.units import JOIN_EPOCH, LEAVE_EPOCH, NO_UNITS, STATIC_LEAVE_EPOCH, Unit, Units
from .actions import Action, Assign, Compute, Fail, Grant, Lose, Restart, Revoke, TellAssignor

MAX_STATUSES: Final = 1_000
"""Statuses in one heartbeat: the coordinator stores those of one request in one batch of the log, which has a limit."""


class Phase(StrEnum):
    """Where the worker stands with its group."""

    JOINING = "joining"
    MEMBER = "member"
    LOSING = "losing"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What a worker says of itself when it joins.

    Attributes:
        rebalance_timeout_ms: how long it may take to stop units (Connect: 60 s).
        max_wait_ms: how long the coordinator may hold an answer back; 0 asks for an answer at once. The shorter, the
            more of the lease is left when the coordinator cannot be reached; changes are heard at once either way.
        server_assignor: the coordinator's assignor this worker asks for. The coordinator refuses a worker that also
            offers assignors of its own ("ServerAssignor and ClientAssignors cannot be used together").
        lease_margin: the part of the session timeout kept back for stopping: a worker unheard for
            ``session timeout * (1 - lease_margin)`` stops everything.
        traits: labels, rack, capacity and host of the worker, for assignors.
    """

    group_id: str
    member_id: str
    instance_id: str | None = None
    rebalance_timeout_ms: int = 60_000
    max_wait_ms: int = 2_000
    server_assignor: str | None = None
    lease_margin: float = 0.2
    traits: WorkerTraits = NO_TRAITS


@dataclass(frozen=True, slots=True)
class _Outstanding:
    """The one request whose answer counts."""

    request: HeartbeatRequest
    sent_ms: int


class Member:
    """The state of one worker in its group. Methods return actions; the caller performs them in order.

    Attributes:
        epoch: the epoch of the last answer.
        owned: everything this worker may be running, with owner epochs: grows when a grant is accepted, before
            anything starts, and shrinks when a stop is complete.
        revoking: units whose stop has been asked for and is not complete.
    """

    def __init__(
        self, settings: MemberSettings, assignors: Sequence[AssignorInfo] = (), *, first_sequence: int = 0
    ) -> None:
        """A worker that has not joined yet.

        Args:
            assignors: in order of preference; empty leaves assigning to the coordinator.
            first_sequence: higher than any sequence this member id has used in an earlier life.
        """
        self.settings = settings
        self.assignors = tuple(assignors)
        self.phase = Phase.JOINING
        self.epoch = JOIN_EPOCH
        self.owned: dict[Unit, int] = {}
        self.revoking: Units = NO_UNITS
        self.session_timeout_ms = 0
        self.heartbeat_interval_ms = 0
        self.coordinator_epoch = -1
        self._sequence = first_sequence
        self._outstanding: _Outstanding | None = None
        self._full = True
        self._acknowledge = False
        self._impatient = False
        self._missed = False
        self._retiring = False
        self._statuses: dict[Unit, TaskStatus] = {}
        self._told_epoch = JOIN_EPOCH  # of the last target assignment that was delivered to an assignor
        self._confirmed_ms: int | None = None
        self._leave_cause = ""
        self._comes_back = False
        self._returns = False
        self.draining = False

    # ----------------------------------------------------------------------------------------------
    # Speaking

    @property
    def has_something_to_say(self) -> bool:
        """Whether there is something to say that the request on its way does not say: then it should not wait."""
        return self._may_speak and (self._acknowledge or self._full or self._impatient or self.phase is Phase.LEAVING)

    @property
    def _may_speak(self) -> bool:
        if self.phase in (Phase.LOSING, Phase.GONE):
            return False
        return not (self._retiring and self.phase is Phase.JOINING)

    @property
    def has_statuses(self) -> bool:
        """Whether there are statuses to report; they can wait for company."""
        return bool(self._statuses) and self.phase is Phase.MEMBER

    def say_statuses(self) -> None:
        """They have waited long enough."""
        self._impatient = self.has_statuses

    def drain(self) -> None:
        """Ask for nothing new and for what runs here to be taken over, one round of moves after the other."""
        if not self.draining:
            self.draining = self._full = True

    def retire(self) -> list[Action]:
        """Take nothing new and do not join again: this worker is about to leave. Let go of what it has."""
        self._retiring = True
        units = frozenset(self.owned) - self.revoking
        if not units or self.phase is Phase.LOSING:
            return []
        self.revoking |= units
        return [Revoke(units=units, epoch=self.epoch)]

    def next_request(self, now_ms: int) -> HeartbeatRequest | None:
        """The heartbeat to send now; the one before, if unanswered, is given up.

        Args:
            now_ms: a clock that never goes back.

        Returns:
            ``None`` while everything is being stopped, and after the leave: nothing may be said then.
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
            leave = HeartbeatRequest(group_id=settings.group_id, member_id=settings.member_id, sequence=self._sequence)
            if self._comes_back:
                return replace(leave, member_epoch=STATIC_LEAVE_EPOCH, instance_id=settings.instance_id)
            return replace(leave, member_epoch=LEAVE_EPOCH, cause=self._leave_cause, returns=self._returns)
        introduces = self._full or self.epoch == JOIN_EPOCH or buggify("a heartbeat says everything")
        statuses = self._next_statuses()
        more_statuses = len(statuses) < len(self._statuses)
        if introduces:
            request = HeartbeatRequest(
                group_id=settings.group_id,
                member_id=settings.member_id,
                member_epoch=self.epoch,
                instance_id=settings.instance_id,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                server_assignor=settings.server_assignor,
                client_assignors=self.assignors or None,
                owned=grouped(self.owned),
                max_wait_ms=0 if self._full or more_statuses else settings.max_wait_ms,
                sequence=self._sequence,
                statuses=statuses,
                draining=self.draining,
                labels=tuple(ConfigEntry(name=name, value=value) for name, value in settings.traits.labels),
                rack=settings.traits.rack,
                capacity=settings.traits.capacity,
                host=settings.traits.host,
            )
        else:
            request = HeartbeatRequest(
                group_id=settings.group_id,
                member_id=settings.member_id,
                member_epoch=self.epoch,
                owned=grouped(self.owned) if self._acknowledge else None,
                max_wait_ms=0 if more_statuses else settings.max_wait_ms,
                sequence=self._sequence,
                statuses=statuses,
            )
        self._full = self._acknowledge = False
        self._impatient = more_statuses
        self._outstanding = _Outstanding(request, now_ms)
        return request

    def _next_statuses(self) -> tuple[TaskStatus, ...]:
        """The statuses of the next request: the oldest, in the order of their units."""
        units = islice(self._statuses, MAX_STATUSES)
        return tuple([self._statuses[unit] for unit in sorted(units)])

    def on_no_answer(self, request: HeartbeatRequest) -> None:
        """The call failed or timed out, or the coordinator could not serve it: say everything next time."""
        if self._outstanding is not None and self._outstanding.request is request:
            self._outstanding = None
            self._full = True

    def report(self, status: TaskStatus) -> None:
        """Have a unit's status go out with the next heartbeat, unless it speaks of an earlier grant."""
        unit = Unit(status.connector, status.task)
        if self.owned.get(unit) == status.owner_epoch:
            self._statuses[unit] = status

    def set_assignors(self, assignors: Sequence[AssignorInfo]) -> bool:
        """Offer other assignors, or the same with other metadata or reason.

        Returns:
            Whether anything is different now: then the group should hear of it at once.
        """
        if tuple(assignors) == self.assignors:
            return False
        self.assignors = tuple(assignors)
        self._full = True
        return True

    # ----------------------------------------------------------------------------------------------
    # Listening

    def on_response(self, request: HeartbeatRequest, response: HeartbeatResponse) -> list[Action]:
        """What to do now. An answer to a request that was given up means nothing."""
        outstanding = self._outstanding
        if outstanding is None or outstanding.request is not request:
            return []
        if response.coordinator_epoch < self.coordinator_epoch:
            # A coordinator that has been replaced and does not know it yet (design 3.10).
            self.on_no_answer(request)
            return []
        self._outstanding = None
        self.coordinator_epoch = response.coordinator_epoch
        if response.error_code:
            return self._on_error(response, outstanding)

        self.phase = Phase.MEMBER
        self._confirm(response, outstanding)
        self.epoch = response.member_epoch
        actions: list[Action] = []
        if response.assignment is not None:
            actions = [*self._tell_assignor(response.assignment), *self._take(response.assignment)]
        if response.restart and not (self._retiring or self.draining):
            actions.append(Restart())
        return actions

    def _confirm(self, response: HeartbeatResponse, outstanding: _Outstanding) -> None:
        """The group knows us: the lease runs from when we spoke, not from when we were answered."""
        self._confirmed_ms = outstanding.sent_ms
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
                return [Compute(member_epoch=self.epoch)]
            case UnknownMemberId() | FencedMemberEpoch() | GroupIdNotFound():
                # "The worker abandons all its resources and rejoins with the same member id and the epoch 0."
                return [self._lose(str(error))]
            case StaleMemberEpoch():
                return []
            case _ if error.retriable:
                return []
            case _:
                # Nothing more is said until everything has been stopped, and then only the leave.
                self._retiring = True
                self.phase = Phase.LOSING
                return [Fail(error=error)]

    def _tell_assignor(self, assignment: MemberAssignment) -> list[Action]:
        """Deliver a new target assignment to the assignor the group used, if this worker offers it (design 3.12)."""
        if not assignment.assignor or self.epoch <= self._told_epoch or self._retiring:
            return []
        self._told_epoch = self.epoch
        if assignment.assignor not in {info.name for info in self.assignors}:
            return []
        return [
            TellAssignor(
                assignor=assignment.assignor,
                units=units_of(assignment.units),
                epoch=self.epoch,
                error=assignment.error,
                version=assignment.version,
                metadata=assignment.metadata,
            )
        ]

    def _take(self, assignment: MemberAssignment) -> list[Action]:
        """Turn the whole set that was given into a revocation or an assignment; never both."""
        wanted = dict.fromkeys(unit_list(assignment.units))
        revoke = self.owned.keys() - wanted.keys() - self.revoking
        if revoke:
            self.revoking |= revoke
            return [Revoke(units=frozenset(revoke), epoch=self.epoch)]
        new = wanted.keys() - self.owned.keys()
        if not new or self._retiring:
            return []
        if self.revoking:
            # While something is still being stopped the group gives nothing new; ask again when it has stopped.
            self._missed = True
            return []
        # Plain tuples, which equal units: a worker may be given 100,000 at once.
        given = {(grant.connector, grant.task): grant for grant in assignment.grants}
        configs = {config.connector: config_of(config.config) for config in assignment.configs}
        grants = []
        # In the response's order: connectors ascending, tasks ascending.
        for unit in [unit for unit in wanted if unit in new]:
            # A coordinator that does not send grants gives units at the member's epoch, as the protocol has it.
            owner_epoch = given[unit].owner_epoch if unit in given else self.epoch
            config = config_of(given[unit].config) if unit in given else {}
            grants.append(
                Grant(
                    unit=unit,
                    owner_epoch=owner_epoch,
                    incarnation=assignment.incarnation,
                    config=config,
                    connector_config=configs.get(unit.connector, {}),
                )
            )
            self.owned[unit] = owner_epoch
        return [Assign(grants=tuple(grants), epoch=self.epoch)]

    # ----------------------------------------------------------------------------------------------
    # Letting go

    def mark_revoked(self, units: Iterable[Unit]) -> None:
        """These have stopped and the listeners know: the next heartbeat, at once, tells the group."""
        for unit in units:
            self.owned.pop(unit, None)
            self._statuses.pop(unit, None)
        self.revoking -= frozenset(units)
        self._acknowledge = True
        if self._missed:
            self._full, self._missed = True, False

    def lease_ends_ms(self) -> int | None:
        """When this worker must stop everything unless it is answered before; ``None`` if nothing is at stake."""
        if self._confirmed_ms is None or not self.session_timeout_ms or self.phase is not Phase.MEMBER:
            return None
        return self._confirmed_ms + int(self.session_timeout_ms * (1 - self.settings.lease_margin))

    def check_lease(self, now_ms: int) -> list[Action]:
        """Stop everything before the group may give it away (KAFKA-9184). To be asked before anything else is done."""
        ends_ms = self.lease_ends_ms()
        if ends_ms is None or not self.owned:
            return []
        if now_ms < ends_ms and not buggify("a lease ends early"):
            return []
        assert self._confirmed_ms is not None
        return [self._lose(f"no answer from the coordinator for {now_ms - self._confirmed_ms} ms")]

    def _lose(self, why: str) -> Lose:
        if self.phase is not Phase.LEAVING:
            self.phase = Phase.LOSING
        self._outstanding = None
        return Lose(units=frozenset(self.owned), epoch=self.epoch, why=why)

    def mark_lost(self) -> None:
        """Nothing runs any more: join again."""
        self.owned.clear()
        self.revoking = NO_UNITS
        self._statuses.clear()
        self.epoch = self._told_epoch = JOIN_EPOCH
        self._confirmed_ms = None
        self._full, self._acknowledge, self._missed = True, False, False
        if self.phase is Phase.LOSING:
            self.phase = Phase.JOINING

    def close(self, cause: str = "", *, comes_back: bool = False, returns: bool = False) -> None:
        """Everything has been stopped: the next request is the leave (always attempted: KAFKA-16639).

        Args:
            cause: for the rebalance's explanation.
            comes_back: leave for a while, if this is a static member that has said that it stopped everything: its work
                may be given to its successor under the tokens it had, so nothing may be left that still writes.
            returns: the worker restarts under the same member id. A static member that may leave with epoch -2 does;
                any other member leaves with epoch -1 and announces that it returns.
        """
        # One that has lost what it had stands at epoch 0: nobody knows what of it may still write.
        stopped = not self.owned and self.epoch > JOIN_EPOCH
        self._comes_back = comes_back and stopped and self.settings.instance_id is not None
        self.owned.clear()
        self.revoking = NO_UNITS
        self._leave_cause, self._returns = cause, returns
        if self.phase is not Phase.GONE:
            self.phase = Phase.LEAVING
