"""How a target comes to be: who computes it, what it is given, and when its answer is taken.

The coordinator chooses an assignor that all members list and a member that can speak to all versions of it,
tells that member COMPUTE_ASSIGNMENT, answers its Prepare with the whole group, and takes its Install whole or
not at all. A member that stays silent is replaced, one that fails is not asked again while others can be, and
after a few failures the coordinator's own assignor runs, so that a bad plug-in cannot stop a group.

Source: "Connect on the new protocol", sections "Assignment" and "Worker Selection"; design 3.6.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence, Set as AbstractSet
from dataclasses import replace
from zlib import crc32

from ..assignor_guard import first_offence
from ..errors import (
    ConfigError,
    ConnectGroupError,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidAssignment,
    StaleGroupEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
)
from ..messages import (
    AssignorInfo,
    AssignorMetadata,
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PreparedConnector,
    PreparedMember,
    PrepareRequest,
    PrepareResponse,
    config_of,
    each_unit,
    units_of,
)
from ..names import CONNECTOR, NO_UNITS, Unit, Units, printable
from ..placement import NO_PLACEMENT, PREFIX, placement_of
from ..records import (
    ComputationRecord,
    ConnectorRecord,
    Kind,
    MemberRecord,
    TargetRecord,
    WantedState,
)
from . import delay, static, validate
from .draft import Draft
from .outcome import Outcome
from .settings import GroupSettings, ServerAnswer
from .state import NO_TARGET, Group, Target
from .timing import CancelTimer, Timer, TimerKey, TimerKind, compute

COORDINATOR = "coordinator"
"""Stands for the coordinator where a member could have computed the target."""


# --------------------------------------------------------------------------------------------------
# Who computes


def _info(member: MemberRecord, assignor: str) -> AssignorInfo | None:
    for info in member.assignors:
        if info.name == assignor:
            return info
    return None


def select_assignor(members: Sequence[MemberRecord]) -> str | None:
    """The client-side assignor to use: one all members list with overlapping versions; among several the one
    most members put first, then by name.

    Returns:
        ``None`` where some member lists none: then the coordinator's own assignor serves the group.

    Raises:
        UnsupportedAssignor: all list some, but nothing is common to all ("ClientAssignors' version range must
            overlap with the other members in the group").
    """
    if not members or any(not member.assignors for member in members):
        return None
    common = set.intersection(*({info.name for info in member.assignors} for member in members))
    usable = []
    for assignor in sorted(common):
        infos = [info for member in members if (info := _info(member, assignor))]
        # Ranges that overlap pairwise have a version in common to all (Helly's theorem on a line).
        if max(info.minimum_version for info in infos) <= min(info.maximum_version for info in infos):
            usable.append(assignor)
    if not usable:
        listed = sorted({info.name for member in members for info in member.assignors})
        if not common:
            raise UnsupportedAssignor(
                f"ClientAssignors: no assignor is listed by all members; listed: {', '.join(listed)}"
            )
        ranges = "; ".join(
            f"{name} {info.minimum_version}-{info.maximum_version} at {member.member_id}"
            for name in sorted(common)
            for member in members
            if (info := _info(member, name))
        )
        raise UnsupportedAssignor(f"ClientAssignors: version ranges do not overlap: {printable(ranges, most=300)}")
    firsts = Counter(member.assignors[0].name for member in members)
    return min(usable, key=lambda assignor: (-firsts[assignor], assignor))


def taking(draft: Draft) -> list[MemberRecord]:
    """Members that are to be given work: not those that are draining, unless nobody else is there to take theirs."""
    members = list(draft.members())
    others = [member for member in members if not member.draining]
    return others if any(not draft.current(member.member_id).away for member in others) else members


def able_to_compute(members: Sequence[MemberRecord], assignor: str, present: Container[str]) -> list[str]:
    """Members that can run the assignor for all: A [1-5] for A [1-5], B [3-4], C [2-4].

    Where no range of those present covers every other, those that can read every member's current metadata version.
    """
    infos = {member.member_id: info for member in members if (info := _info(member, assignor))}
    low = min(info.minimum_version for info in infos.values())
    high = max(info.maximum_version for info in infos.values())
    there = [(member_id, infos[member_id]) for member_id in sorted(infos) if member_id in present]
    covering = [m for m, info in there if info.minimum_version <= low and info.maximum_version >= high]
    if covering:
        return covering
    versions = [info.version for info in infos.values()]
    return [m for m, info in there if info.minimum_version <= min(versions) and max(versions) <= info.maximum_version]


def check_assignors(members: Sequence[MemberRecord], settings: GroupSettings) -> None:
    """Refuse what would leave the group without an assignor.

    Raises:
        UnsupportedAssignor: "ServerAssignor must be supported by the server"; version ranges do not overlap.
    """
    for member in members:
        if member.server_assignor is not None and member.server_assignor not in settings.server_assignors:
            allowed = ", ".join(sorted(settings.server_assignors)) or "none on this coordinator"
            raise UnsupportedAssignor(f"ServerAssignor: got {printable(member.server_assignor)!r}; allowed: {allowed}")
    # Those that list none are left out: when they go, the rest must be able to work together, for nobody can be told
    # UNSUPPORTED_ASSIGNOR then.
    select_assignor([member for member in members if member.assignors])


def settle(draft: Draft, settings: GroupSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """See to it that a stale target is being computed by somebody who can; called at the end of every step.

    Does nothing while the target is current or a computation is under way. A computation goes on when the group epoch
    advances: its assignment may still be valid (``install``), and the next computation answers all later causes at
    once. Within ``assignment_interval_ms`` of the target before, it waits for more causes to come (TO-06).

    Args:
        waited: the interval is over.
    """
    if draft.epoch <= draft.target_epoch:
        return ()
    members = list(draft.members())
    if not members:
        # A group without members has nothing to assign: its target is current by definition (KAFKA-20442, HB-13).
        return _install(draft, ServerAnswer(), "", COORDINATOR, settings)
    running = under_way(draft)
    if running is None and not waited and (left_ms := _too_early_ms(draft, settings)):
        return (compute(draft.group.group_id, draft, left_ms),)
    assignor = select_assignor(members)
    able = _able(draft, members, assignor) if assignor else []
    if running is not None:
        tries_here = running.member_id == "" and (not able or running.failures >= settings.failures_before_fallback)
        if tries_here or running.member_id in able:
            return ()
    return _ask(draft, settings, able, running or ComputationRecord(group_id=draft.group.group_id, epoch=draft.epoch))


def under_way(group: Draft | Group) -> ComputationRecord | None:
    """The computation of the next target assignment, if there is one.

    A member computes on when the group epoch advances. An attempt of the coordinator's own assignor that failed counts
    for its group epoch only: the next change may be what it needed.
    """
    computation = group.computation
    if computation is None or not group.target_epoch < computation.epoch <= group.epoch:
        return None
    return computation if computation.member_id or computation.epoch == group.epoch else None


def _too_early_ms(draft: Draft, settings: GroupSettings) -> int:
    """How much of the interval since the target before is left; nothing where there was none (TO-08)."""
    passed_ms = draft.now_ms - draft.group.target_ms
    # A clock that was set back says nothing of how long it is ago.
    if not draft.group.target_ms or passed_ms < 0:
        return 0
    return max(0, settings.assignment_interval_ms - passed_ms)


def _able(draft: Draft, members: Sequence[MemberRecord], assignor: str) -> list[str]:
    """Those able to compute that are there to do it, and will be for a while."""
    present = {member.member_id for member in taking(draft) if not draft.current(member.member_id).away}
    return able_to_compute(members, assignor, present)


def _ask(
    draft: Draft, settings: GroupSettings, able: Sequence[str], computation: ComputationRecord
) -> tuple[Timer, ...]:
    """Choose a member that has not failed yet, or the coordinator after too many failures."""
    if computation.failures >= settings.failures_before_fallback or not able:
        return _compute_here(draft, settings, computation)
    willing = [member_id for member_id in able if member_id not in computation.failed_members] or list(able)
    # Whoever computed last knows its assignor works; else the first by name: the same choice on every replay.
    chosen = draft.group.computed_by if draft.group.computed_by in willing else willing[0]
    draft.write(replace(computation, epoch=draft.epoch, member_id=chosen, prepared=False, assignor=""))
    member = draft.member(chosen)
    assert member is not None
    return (compute(draft.group.group_id, draft, member.rebalance_timeout_ms),)


def _compute_here(draft: Draft, settings: GroupSettings, computation: ComputationRecord) -> tuple[Timer, ...]:
    """Run the server-side assignor: the one all members ask for, or ``group.remote.assignor``."""
    computation = replace(computation, epoch=draft.epoch, member_id="", prepared=False, assignor="")
    members = list(draft.members())
    asked = {member.server_assignor for member in members if member.server_assignor}
    name = asked.pop() if len(asked) == 1 else settings.server_assignor
    answer = ServerAnswer()
    if name not in settings.server_assignors:
        failure: str | None = f"group.remote.assignor: got {name!r}; allowed: {sorted(settings.server_assignors)}"
    else:
        question = group_state(draft, name, settings)
        try:
            said = settings.server_assignors[name](question)
            answer = said if isinstance(said, ServerAnswer) else ServerAnswer(members=said)
            left_out = units_of(answer.held_back)
            offence = _too_long(answer, settings) or offence_of(draft, name, answer.members, left_out=left_out)
            failure = f"server-side assignor {name}: {offence}" if offence else None
        except (Exception, SystemExit) as error:
            # Somebody else's code: whatever it raises, or answers that cannot even be judged, the group goes on.
            reason = str(error) if isinstance(error, ConnectGroupError) else repr(error)
            failure = f"server-side assignor {name}: {reason}"
    if failure:
        # The old target stays, and the next change or the timer tries again: the epoch must not get stuck (HB-18).
        draft.write(replace(computation, error=printable(failure, most=500)))
        return (compute(draft.group.group_id, draft, settings.session_timeout_ms),)
    # What was said of an answer before no longer holds of this one.
    remark = printable(answer.message, most=500) or computation.error
    if remark or (draft.computation is not None and draft.computation.error):
        draft.write(replace(computation, error=remark))
    return _install(draft, answer, name, COORDINATOR, settings)


def fail_computation(draft: Draft, settings: GroupSettings, error: str) -> tuple[Timer, ...]:
    """The member asked has failed or stayed silent: note it and ask the next (it is not fenced: CN-06)."""
    computation = draft.computation
    assert computation is not None
    failed = replace(
        computation,
        failures=computation.failures + 1,
        failed_members=tuple(sorted({*computation.failed_members, computation.member_id} - {""})),
        error=printable(error, most=500),
    )
    members = list(draft.members())
    assignor = select_assignor(members)
    return _ask(draft, settings, _able(draft, members, assignor) if assignor else (), failed)


def compute_timed_out(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """The timer of a computation fired: whoever was asked is late, or the interval before it is over."""
    draft = Draft(group, now_ms)
    computation = under_way(draft)
    if draft.epoch <= draft.target_epoch or not group.members:
        return Outcome(response=None)
    if computation is None:
        timers = settle(draft, settings, waited=True)
    elif computation.member_id:
        timers = fail_computation(draft, settings, f"{computation.member_id} did not install an assignment in time")
    else:
        # Somebody who can may be there by now.
        members = list(draft.members())
        assignor = select_assignor(members)
        timers = _ask(draft, settings, _able(draft, members, assignor) if assignor else (), computation)
    return Outcome(response=None, records=tuple(draft.records), timers=timers)


# --------------------------------------------------------------------------------------------------
# Prepare and Install


def _check_member(group: Group, member_id: str) -> None:
    """The first two checks of both requests, in the source's order."""
    if not group.exists:
        raise GroupIdNotFound(f"GroupId: got {printable(group.group_id)!r}; there is no such group")
    if member_id not in group.members:
        raise UnknownMemberId(f"MemberId: got {printable(member_id)!r}; the group has no such member")


def _chosen(group: Group, member_id: str) -> ComputationRecord:
    computation = under_way(group)
    if computation is None or computation.member_id != member_id:
        raise UnknownMemberId(f"{member_id} is not the member chosen to compute the assignment")
    return computation


def prepare(group: Group, request: PrepareRequest, now_ms: int, settings: GroupSettings) -> Outcome[PrepareResponse]:
    """Answer the chosen member with all that its assignor may look at.

    The record remembers the group epoch and the assignor of the answer: they decide whether the Install is accepted,
    also after the group epoch has advanced and after a change of coordinator.

    Raises:
        GroupIdNotFound, UnknownMemberId, FencedMemberEpoch: as the source's request handling lists them. An earlier
            member epoch is accepted: heartbeats travel on another connection and may advance it several times while
            the request is on its way.
    """
    validate.prepare(request)
    _check_member(group, request.member_id)
    current = group.current(request.member_id)
    if request.member_epoch > current.epoch:
        raise FencedMemberEpoch(
            f"{request.member_id} sent epoch {request.member_epoch}, the group has it at {current.epoch}"
        )
    computation = _chosen(group, request.member_id)
    draft = Draft(group, now_ms)
    assignor = select_assignor(list(draft.members()))
    assert assignor is not None, "a member is asked only where all list an assignor"
    prepared = replace(computation, epoch=draft.epoch, prepared=True, assignor=assignor)
    if prepared != computation:
        draft.write(prepared)
    return Outcome(response=group_state(draft, assignor, settings), records=tuple(draft.records))


def group_state(draft: Draft, assignor: str, settings: GroupSettings) -> PrepareResponse:
    """What an assignor is shown: members with their metadata and share of the target, connectors and task counts."""
    group = draft.group
    shown = PrepareResponse(
        group_epoch=draft.epoch,
        assignor_name=assignor,
        connectors=tuple(
            _prepared(connector)
            for _, connector in sorted(group.connectors.items())
            if connector.wanted_state != WantedState.STOPPED
        ),
        held_back=delay.shown(draft),
        # An assignor that takes it for a delay of its own must not be refused for it.
        scheduled_rebalance_max_delay_ms=min(settings.scheduled_delay_ms, settings.longest_delay_ms),
    )
    start = {entry.connector: place for entry, place in zip(shown.connectors, shown.starts()[:-1], strict=True)}
    members = []
    for member in taking(draft):
        info = _info(member, assignor)
        waiting = [draft.waiting(kept) for kept in draft.delays.values() if draft.waits_for(kept) == member.member_id]
        # The draft's first: a static member's successor has its share by a record of this very step.
        target = draft.target(member.member_id)
        share = group.target(member.member_id) if target == NO_TARGET else target
        has = share.units.union(*waiting)
        members.append(
            PreparedMember(
                member_id=member.member_id,
                member_epoch=draft.current(member.member_id).epoch,
                instance_id=member.instance_id,
                assignor=AssignorMetadata(version=info.version, reason=info.reason, metadata=info.metadata)
                if info
                else AssignorMetadata(),
                places=tuple(
                    sorted([start[name] + task - CONNECTOR for name, task in has if (name, task) in group.runnable])
                ),
                told=share.metadata if group.target_assignor == assignor else b"",
                labels=member.labels,
                rack=member.rack,
                capacity=member.capacity,
                host=member.host,
            )
        )
    return replace(shown, members=tuple(members))


def _prepared(connector: ConnectorRecord) -> PreparedConnector:
    num_tasks = len(connector.tasks) if connector.wanted_state == WantedState.RUNNING else 0
    asked = tuple(entry for entry in connector.config if entry.name.startswith(PREFIX))
    placement = NO_PLACEMENT
    if asked:
        try:
            placement = placement_of(config_of(asked))
        except ConfigError:  # of a log older than the check: what nobody can read asks for nothing
            asked = ()
    return PreparedConnector(
        connector=connector.connector,
        num_tasks=num_tasks,
        weight=placement.weight,
        task_weights=placement.weights_of(num_tasks),
        placement=asked,
    )


def offence_of(
    draft: Draft,
    assignor: str,
    members: Sequence[InstalledMember],
    *,
    left_out: Units = NO_UNITS,
    epoch: int | None = None,
) -> str | None:
    """Why an assignment is not legal, or ``None``: each configured unit with exactly one member, nothing else (S9).

    Args:
        left_out: units the assignor itself leaves unassigned. Delayed units of lost members may be placed or left out:
            they are assigned to nobody.
        epoch: the group epoch the assignment was prepared for. For one the group has left behind, units that are newer
            than it need not be placed, and members that have begun to drain since may still be named.
    """
    runnable = draft.group.runnable
    units: AbstractSet[Unit] = runnable.keys()
    allowed = {member.member_id for member in taking(draft)}
    if epoch is not None and epoch < draft.epoch:
        named = left_out.union(*(each_unit(installed.units) for installed in members))
        units = frozenset(unit for unit, since_epoch in runnable.items() if since_epoch <= epoch or unit in named)
        allowed = {member.member_id for member in draft.members()}
    offence = first_offence(
        ((installed.member_id, each_unit(installed.units)) for installed in members),
        members=allowed,
        units=units,
        held_back=left_out,
        waiting=draft.lost_work(_served(draft, members, epoch)),
    )
    if offence:
        return offence
    for installed in members:
        member = draft.member(installed.member_id)
        info = _info(member, assignor) if member else None
        if info and not info.minimum_version <= installed.version <= info.maximum_version:
            return (
                f"version {installed.version} for {installed.member_id}, "
                f"which reads {info.minimum_version} to {info.maximum_version}"
            )
    return None


def _served(draft: Draft, members: Sequence[InstalledMember], epoch: int | None) -> Container[str] | None:
    """The members whose return an assignment takes into account; ``None``: all.

    A member that came back after the assignment was prepared is not in it. Its delayed units stay reserved for it
    until the next computation (S15).
    """
    return None if epoch is None or epoch == draft.epoch else {installed.member_id for installed in members}


def _contradicts_itself(members: Sequence[InstalledMember], left_out: Units) -> bool:
    """Whether an assignment is illegal whatever the group is: no change of the group explains it."""
    named = left_out.union(*(each_unit(installed.units) for installed in members))
    shares = ((installed.member_id, each_unit(installed.units)) for installed in members)
    ids = {installed.member_id for installed in members}
    return first_offence(shares, members=ids, units=named, held_back=left_out) is not None


def install(group: Group, request: InstallRequest, now_ms: int, settings: GroupSettings) -> Outcome[InstallResponse]:
    """Take a computed target, whole or not at all.

    The request is judged by the chosen member and the group epoch it prepared, never by the member epoch, which may
    advance several times while an assignor runs (design 3.6). An assignment that is still valid for the current
    members and units becomes the target assignment of the epoch it was prepared for, even where the group epoch has
    advanced; then the next computation is requested at once (``request_computation``). So a group that changes all the
    time still progresses.

    Raises:
        StaleGroupEpoch: prepared for another group epoch.
        GroupIdNotFound, UnknownMemberId: as for Prepare.

    An illegal assignment is answered with INVALID_ASSIGNMENT naming the first offence, or with STALE_GROUP_EPOCH where
    the group has changed since (CN-05). These are not exceptions, because what follows is recorded: the failure, or
    that the group's state must be prepared again.
    """
    validate.install(request)
    _check_member(group, request.member_id)
    if _is_repeat(group, request):
        return Outcome(response=InstallResponse())
    if request.group_epoch != _prepared_epoch(group, request.member_id):
        raise StaleGroupEpoch(f"GroupEpoch: got {request.group_epoch}; the group is at {group.epoch}")
    computation = _chosen(group, request.member_id)

    draft = Draft(group, now_ms)
    left_out, is_current = units_of(request.held_back), request.group_epoch == group.epoch
    assignor = computation.assignor or select_assignor(list(draft.members()))
    assert assignor is not None
    response = InstallResponse()
    if request.error != 0:
        message = request.message or f"assignor {assignor} reported error {request.error}"
        timers = fail_computation(draft, settings, f"{request.member_id}: {message}")
    elif offence := _too_long(request, settings) or offence_of(
        draft, assignor, request.members, left_out=left_out, epoch=request.group_epoch
    ):
        refused = f"assignment for epoch {request.group_epoch}: {offence}"
        if is_current or _too_long(request, settings) or _contradicts_itself(request.members, left_out):
            timers = fail_computation(draft, settings, f"{request.member_id}: assignor {assignor}: {offence}")
            response = InstallResponse(error_code=InvalidAssignment.code, error_message=refused)
        else:
            # The group has changed, the member is not at fault: it is asked again, and this is no failure.
            members = list(draft.members())
            wanted = select_assignor(members)
            timers = _ask(draft, settings, _able(draft, members, wanted) if wanted else (), computation)
            response = InstallResponse(
                error_code=StaleGroupEpoch.code, error_message=f"{refused}; the group is at {group.epoch}"
            )
    else:
        if request.message:
            draft.write(replace(computation, error=printable(request.message, most=500)))
        timers = _install(draft, request, assignor, request.member_id, settings, epoch=request.group_epoch)
    return Outcome(response=response, records=tuple(draft.records), timers=timers)


def _prepared_epoch(group: Group, member_id: str) -> int | None:
    """The only group epoch for which an Install of this member can be accepted; ``None``: it must prepare (again)."""
    computation = under_way(group)
    if computation is None or computation.member_id != member_id:
        return group.epoch
    return computation.epoch if computation.assignor or computation.epoch == group.epoch else None


def _too_long(request: InstallRequest | ServerAnswer, settings: GroupSettings) -> str | None:
    """A fault of the assignor, not of the message: it must be recorded as one, or the same member is waited for."""
    if request.delay_ms <= settings.longest_delay_ms:
        return None
    return f"a delay of {request.delay_ms} ms; allowed: 0 to {settings.longest_delay_ms}"


def _is_repeat(group: Group, request: InstallRequest) -> bool:
    """The same install once more, after a lost response (CN-08)."""
    return (
        not request.error
        and request.group_epoch == group.target_epoch
        and request.member_id == group.computed_by
        and _checksum(request) == group.target_checksum
    )


def _checksum(request: InstallRequest) -> int:
    """Of all that an install says of the target; what became of it may differ (held back, left for the next round)."""
    return crc32(repr((request.members, request.held_back, request.delay_ms)).encode())


def _share(member: InstalledMember) -> Target:
    return Target(units=units_of(member.units), error=member.error, version=member.version, metadata=member.metadata)


def _install(
    draft: Draft,
    answer: InstallRequest | ServerAnswer,
    assignor: str,
    computed_by: str,
    settings: GroupSettings,
    *,
    epoch: int | None = None,
) -> tuple[Timer, ...]:
    """Write a target: a record for each member whose share changed, then the epoch (TA-01, TA-02).

    Args:
        epoch: the group epoch it was prepared for, above the target epoch; the newest by default. Members that have
            joined since get nothing yet. Units that were added or reconfigured since are granted by the next target
            assignment: none is granted at an owner epoch below that of its configuration (``Draft.eligible``). As
            target epochs only grow and each unit is in one member's share, owner epochs stay strictly monotonic.
    """
    epoch = draft.epoch if epoch is None else epoch
    group = draft.group
    shares = {member.member_id: _share(member) for member in answer.members}
    served = _served(draft, answer.members, epoch)
    waiting = draft.lost_work(served)
    if waiting:
        shares = {member_id: replace(share, units=share.units - waiting) for member_id, share in shares.items()}
    # What is held back until its holder has let go of it (KIP-415's first round) need not wait for the whole delay.
    let_go = sum(draft.holder(unit) is not None for unit in units_of(answer.held_back) - waiting)
    deferred = let_go + stay_for_now(draft, shares, settings.most_moves)
    for member in draft.members():
        share = shares.get(member.member_id, NO_TARGET)
        # The draft's: a share forgotten in this very step must be written again, even where it is the same.
        if share != draft.target(member.member_id):
            draft.set_share(member.member_id, share)
        static.release_for_others(draft, member.member_id)
    for member_id in sorted(group.targets):
        if draft.member(member_id) is None:
            draft.forget(Kind.TARGET_MEMBER, member_id)
    timers = delay.after_install(draft, answer.held_back, answer.delay_ms, epoch=epoch, served=served)
    draft.write(
        TargetRecord(
            group_id=group.group_id,
            epoch=epoch,
            assignor=assignor,
            computed_by=computed_by,
            checksum=_checksum(answer) if isinstance(answer, InstallRequest) else 0,
            deferred=deferred,
            # A group without members has been given nothing yet: whoever joins first does not wait (HB-13).
            at_ms=draft.now_ms if shares else 0,
        )
    )
    return (*timers, CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)))


def request_computation(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """Have a target computed if it trails the group epoch; called once the records of a change of connectors, or of a
    target, are applied, because an assignor must be asked about the group as it is then.
    """
    draft = Draft(group, now_ms)
    timers = settle(draft, settings)
    return Outcome(response=None, records=tuple(draft.records), timers=timers)


# --------------------------------------------------------------------------------------------------
# Rounds


def stay_for_now(draft: Draft, shares: dict[str, Target], most_moves: int) -> int:
    """Leave what goes beyond a round's moves where it runs; the assignor says where, the coordinator how fast.

    Args:
        shares: changed in place. Which of the moves come first is by name, the same on every replay.

    Returns:
        How many moves were left for the next round.
    """
    if not most_moves:
        return 0
    moves = []
    for member_id, share in shares.items():
        for unit in share.units:
            holder = draft.holder(unit)
            if holder in (None, member_id) or draft.member(str(holder)) is None:
                continue
            # What its holder has been told to stop already is on its way.
            if unit in draft.target(str(holder)).units and not draft.current(str(holder)).away:
                moves.append((unit, member_id, str(holder)))
    for unit, member_id, holder in sorted(moves)[most_moves:]:
        shares[member_id] = replace(shares[member_id], units=shares[member_id].units - {unit})
        # A draining holder is in nobody's answer: what it was told before still holds for what it keeps.
        kept = shares.get(holder) or replace(draft.target(holder), units=NO_UNITS)
        shares[holder] = replace(kept, units=kept.units | {unit})
    return max(0, len(moves) - most_moves)


def next_round(group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
    """All members have reached the target: ask for the moves that it left out, and for those that could not be asked
    for while nobody was there to take a draining member's work.
    """
    draft = Draft(group, now_ms)
    timers: tuple[Timer, ...] = ()
    if group.members and not group.behind and group.epoch == group.target_epoch:
        if group.deferred:
            draft.bump(f"{group.deferred} left to move in this round")
        elif leaving := _can_leave(draft):
            draft.bump(f"somebody is there to take the work of {leaving}")
        timers = settle(draft, settings)
    return Outcome(response=None, records=tuple(draft.records), timers=timers)


def _can_leave(draft: Draft) -> str:
    """A draining member that still has a share although others are there to take it."""
    takers = {member.member_id for member in taking(draft)}
    for member in draft.members():
        if member.draining and member.member_id not in takers and draft.target(member.member_id).units:
            return member.member_id
    return ""
