"""One command of a turn: whether it is decided now and for which group, and what its group's type decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..errors import (
    CoordinatorNotAvailable,
    GroupError,
    InconsistentGroupProtocol,
    InvalidRequest,
    PolicyViolation,
    UnknownMemberId,
)
from ..fault_points import fault_point
from ..group.kernel.effects import Effect, Warn
from ..group.kernel.outcome import Outcome
from ..group.kernel.timers import SetTimer, Timer, TimerKey, TimerKind
from ..group.registry import Converting, GroupType, Registry, Replaceable, Retired
from ..protocol.messages.api import Response
from ..protocol.records.connect import Record
from ..protocol.units import printable
from .intake import TAKES_LONG, Command, Describe, Snapshot, loading_error
from .loading import Groups, Loaded, Remove, Retention, removal
from .parking import Dedup, Parking
from .timers import Timers

logger = logging.getLogger(__name__)

REPORT_FULL_EVERY_S: Final = 600.0
"""Seconds between two warnings that the limit of groups rejects groups."""


class Decisions:
    """Admits commands and has them decided."""

    def __init__(
        self, groups: Groups, registry: Registry, timers: Timers, parking: Parking, dedup: Dedup, max_groups: int
    ) -> None:
        """``max_groups``: maximum number of groups; the other arguments are the parts of the shard."""
        self._groups, self._registry, self._timers = groups, registry, timers
        self._parking, self._dedup, self._max_groups = parking, dedup, max_groups
        self.retention = Retention(groups)
        self._reports_full_from_s = 0.0

    def admit(self, command: Command, turn: Turn) -> Loaded | None:
        """Return the group of the command, or ``None`` if the command was completed or is obsolete."""
        if command.done:
            return None
        if isinstance(command.what, TimerKey) and not self._timers.take_expired(command):
            return None
        group = self._group_of(command, turn)
        if isinstance(group, GroupError):
            command.refuse(group)
            return None
        if command.traits.follows and (yielded := self._parking.yielded_to(command)) is not None:
            turn.responses.append(yielded)
        if group is None or not command.traits.sender:
            return group
        if not command.arrived:
            command.arrived = True
            stale = self._dedup.error(command.traits)
            if stale is not None and command.error_response is not None:
                command.late = True
                turn.responses.append((command, command.error_response(stale)))
                return None
        # A request of another process than the member's is about to be rejected: it must not end a parked heartbeat.
        if self._parking.has_earlier(command) and group.is_from_its_process(command.traits):
            turn.responses.append(self._parking.replaced_by(command))
        return group

    def _group_of(self, command: Command, turn: Turn) -> Loaded | GroupError | None:
        """The group of a command, new if the log has no such group; the error of the request; or ``None``: obsolete."""
        group_id = command.group_id
        error = self._groups.error(group_id)
        if error is not None:
            return error
        if command.response is not None and fault_point("the coordinator is loading"):
            return loading_error(group_id)
        group = self._groups.loaded.get(group_id)
        if command.response is None or (group is not None and isinstance(command.what, Describe)):
            return group
        if group is None or not group.state.exists:
            if command.traits.creates_group and self._is_full() and not self._make_room(turn):
                self._report_full(group_id)
                return PolicyViolation(f"this coordinator has all of its {self._max_groups} groups")
            # A deleted group keeps its state for its own type only.
            is_of_type = group is not None and self._registry.claimed_by(command.what) in (None, group.group_type)
            return (
                group
                if group is not None and is_of_type and _handles(group.group_type, command)
                else self._new(command)
            )
        claimed_by = self._registry.claimed_by(command.what)
        if claimed_by in (None, group.group_type) and _handles_now(group, command):
            return group
        if command.traits.creates_group:
            try:
                replacement = self._replacement(group, command)
            except GroupError as refusal:
                if not refusal.retriable:
                    # Once for each epoch: clients repeat their joins.
                    epoch = group.group_type.measure(group.state).epoch
                    turn.effects.append(Warn(group_id=group_id, epoch=epoch, message=f"not converted: {refusal}"))
                return refusal
            if replacement is not None:
                return replacement
        elif command.traits.sender and _retired(group) is not None:
            # The last member has left since the sender's first request: the next join replaces the group (GT-01).
            return UnknownMemberId(f"group {printable(group_id)} has no members")
        return InconsistentGroupProtocol(
            f"group {printable(group_id)} is of type {group.group_type.name!r}, which does not handle this request"
        )

    def _new(self, command: Command) -> Loaded:
        group_type = self._registry.owner(command.what) or self._registry.default
        return Loaded(group_type, group_type.new(command.group_id))

    def _replacement(self, group: Loaded, command: Command) -> Loaded | None:
        """The group that replaces one of another type: an empty one (GT-01), or one that is converted (MG-01).

        Raises:
            GroupError: a group with members cannot be converted.
        """
        retired = _retired(group)
        new = self._new(command)
        if retired is None:
            return _converted(group, new.group_type)
        for record in retired.kept:
            new.group_type.apply(new.state, record)
        return replace(new, removes=retired.removed)

    def _is_full(self) -> bool:
        loaded = self._groups.loaded
        limit = self._max_groups
        return len(loaded) >= limit and sum(group.state.exists for group in loaded.values()) >= limit

    def _report_full(self, group_id: str) -> None:
        """Say once in a while that groups are rejected: their clients may not show the error."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._reports_full_from_s:
            self._reports_full_from_s = now_s + REPORT_FULL_EVERY_S
            logger.warning(
                "group %s is rejected: all %d groups are in use; delete groups in state Empty "
                "(connectgroup groups delete GROUP), or raise max_groups",
                printable(group_id),
                self._max_groups,
            )

    def _make_room(self, turn: Turn) -> bool:
        """Remove a vacant group; return whether there was one."""
        group_id = self.retention.to_replace()
        if group_id is not None:
            self._remove(self._groups.loaded[group_id], turn)
        return group_id is not None

    # ---- the decision

    def _remove(self, group: Loaded, turn: Turn) -> None:
        """Remove a group that is vacant or deleted."""
        how = removal(group)
        if isinstance(how, Command):
            self.decide(how, group, turn)
        elif how is not None:
            turn.records.append(how)
            turn.written.add(how.group_id)
            turn.deleted.append(how.group_id)
            del self._groups.loaded[how.group_id]

    def decide(self, command: Command, group: Loaded, turn: Turn) -> None:
        """Have the group's type decide one input; add the outcome to the turn."""
        if isinstance(command.what, Remove):
            self._remove(group, turn)
            return
        request, repeated = command.traits, command.parked
        if isinstance(command.what, Describe):
            turn.responses.append((command, _described(command, command.what, group, self._groups.clock_ms())))
            return
        outcome = group.group_type.step(group.state, command.what, self._groups.clock_ms(), command.client)
        replaces = bool(group.removes)
        if group.state.exists and (outcome.records or not replaces):
            self._groups.loaded[request.group_id] = self._kept(group, outcome)
        if outcome.records:
            turn.records += (*group.removes, *outcome.records)
            turn.written.add(request.group_id)
            self._dedup.record_removals(outcome.records)
            if not group.state.exists:
                turn.deleted.append(request.group_id)
            turn.timers += group.timers
            self._respond(request.group_id, group.parked_responses, turn)
        if outcome.effects:
            turn.effects += outcome.effects
        if outcome.timers:
            self._add_timers(outcome, repeated, turn)
        if outcome.parked_responses:
            self._respond(request.group_id, outcome.parked_responses, turn)
        if command.response is None:
            return
        if outcome.sender:
            command.traits = request = request._replace(sender=outcome.sender)
        response = outcome.response
        error_code = getattr(response, "error_code", 0)
        is_numbered = request.sequence >= 0
        if is_numbered and not repeated and error_code != InvalidRequest.code and group.is_from_its_process(request):
            self._dedup.record(request)
        # A request that is parked without a response has none that could be sent at once.
        at_once = outcome.parks and fault_point("a parked heartbeat is answered at once") and response is not None
        if outcome.parks and request.sender and not at_once and (response is None or request.max_wait_ms > 0):
            self._parking.park(command, response)
            turn.parked.append(command)
        else:
            turn.responses.append((command, response))

    def _kept(self, group: Loaded, outcome: Outcome[Any]) -> Loaded:
        """The group after a step, which may have converted it into a group of another type."""
        if outcome.converted is None:
            return Loaded(group.group_type, group.state) if group.removes else group
        group_type = self._registry.get(outcome.converted.group_type)
        assert group_type is not None
        return Loaded(group_type, outcome.converted.state)

    def _respond(self, group_id: str, replies: Mapping[str, Response], turn: Turn) -> None:
        """Respond to parked requests."""
        for sender, reply in replies.items():
            turn.responses += [(parked, reply) for parked in self._parking.take(group_id, (sender,))]

    def _add_timers(self, outcome: Outcome[Any], repeated: bool, turn: Turn) -> None:
        # A parked request re-arms the session timer on arrival, not each time it is decided again.
        timers = [
            timer
            for timer in outcome.timers
            if not (repeated and isinstance(timer, SetTimer) and timer.key.kind is TimerKind.SESSION)
        ]
        turn.timers += timers
        # A timer that expired while this input was queued is already a command of this turn. It must not fire after
        # the input that cancelled or re-armed it, so it is removed now; it is re-armed only after the append. If the
        # append fails, the group is reloaded, and ``on_load`` arms its timers.
        for timer in timers:
            self._timers.expired.pop(timer.key.identity, None)


def _converted(group: Loaded, new_type: GroupType) -> Loaded | None:
    """The group of another type that a group with members becomes, or ``None``: the type converts no groups."""
    if not isinstance(new_type, Converting):
        return None
    converted = new_type.convert(group.group_type.name, group.state)
    return Loaded(
        new_type,
        converted.state,
        removes=converted.records,
        timers=converted.timers,
        parked_responses=converted.parked_responses,
    )


def _retired(group: Loaded) -> Retired | None:
    """What a join of another type makes of the group; ``None``: it does not replace the group."""
    return group.group_type.retire(group.state) if isinstance(group.group_type, Replaceable) else None


def _handles_now(group: Loaded, command: Command) -> bool:
    """Whether the group's type handles the command; some requests only while another type cannot replace the group."""
    group_type = group.group_type
    # Not ``isinstance(group_type, Converting)``, which takes as long as a tenth of a heartbeat: this runs for each one.
    if type(command.what) in getattr(group_type, "member_request_types", ()):
        return bool(group.state.members) or not isinstance(group_type, Replaceable)
    return _handles(group_type, command)


def _handles(group_type: GroupType, command: Command) -> bool:
    return type(command.what) in group_type.request_types


def _described(command: Command, what: Describe, group: Loaded, now_ms: int) -> Any:
    """The response to ``Describe``."""
    request = what.request
    if group.group_type.takes_long_to_describe(group.state, request):
        return Snapshot.of(group.group_type, group.state, request, now_ms) if what.copies else TAKES_LONG
    try:
        return Snapshot(group.group_type, group.state, request, now_ms).described()
    except GroupError as error:
        assert command.error_response is not None
        return command.error_response(error)


# --------------------------------------------------------------------------------------------------
# The results of the commands of one turn of a shard, before its append.


@dataclass(slots=True)
class Turn:
    """What the commands of a turn have led to.

    Attributes:
        commands: the queued commands of the turn, without the parked requests that it woke up.
        records: to append as one batch.
        timers, effects, responses: applied, performed and sent once the batch is durable.
        parked: requests that the turn parked.
        written: groups with records.
        deleted: groups that were deleted, or removed.
    """

    commands: list[Command] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    responses: list[tuple[Command, Any]] = field(default_factory=list)
    parked: list[Command] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    deleted: list[str] = field(default_factory=list)

    def discard_group(self, group_id: str) -> None:
        """Discard the results of a group and refuse its requests."""
        self.records = [record for record in self.records if record.group_id != group_id]
        self.discard_actions({group_id})
        self.written.discard(group_id)
        self.refuse_groups({group_id})

    def discard_actions(self, group_ids: set[str]) -> None:
        """Discard the timers and the effects of groups."""
        self.timers = [timer for timer in self.timers if timer.key.group_id not in group_ids]
        self.effects = [effect for effect in self.effects if effect.group_id not in group_ids]

    def refuse_groups(self, group_ids: set[str]) -> None:
        """Replace the responses of groups by a retriable error."""
        for command, _ in self.responses:
            if command.group_id in group_ids:
                command.refuse(CoordinatorNotAvailable("the group is being loaded again"))
        self.responses = [each for each in self.responses if each[0].group_id not in group_ids]
