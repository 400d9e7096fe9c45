"""One heartbeat from its admission to its answer, joining and going: ``heartbeat``, ``leave`` and beside."""

from __future__ import annotations

from .mutant import Mutant

HEARTBEAT = "connectgroup/group/heartbeat.py"
LEAVE = "connectgroup/group/leave.py"
DRAFT = "connectgroup/group/draft.py"
VALIDATE = "connectgroup/group/validate.py"
TIMING = "connectgroup/group/timing.py"
HANDLE = "connectgroup/group/handle.py"

FENCING = "tests/group/test_fencing.py"
REBALANCE = "tests/group/test_rebalance.py"
COMPUTING = "tests/group/test_computing.py"
CHOOSING = "tests/group/test_choosing.py"
CONNECTORS = "tests/group/test_connectors.py"
TOKENS = "tests/group/test_tokens.py"
RULES_OF_REQUESTS = "tests/group/test_validation.py"
SMALL_PRINT = "tests/group/test_small_print.py"

HEARTBEATS: tuple[Mutant, ...] = (
    # ---------------------------------------------------------------------------------------------- admission
    Mutant(
        name="an epoch from the future is let in",
        file=HEARTBEAT,
        old="    if request.member_epoch == current.epoch:\n        return None",
        new="    if request.member_epoch >= current.epoch:\n        return None",
        tests=FENCING,
    ),
    Mutant(
        name="any earlier epoch is let in",
        file=HEARTBEAT,
        old="    if request.member_epoch == current.epoch:\n        return None",
        new="    if request.member_epoch <= current.epoch:\n        return None",
        tests=FENCING,
    ),
    Mutant(
        name="the previous epoch is forgotten: a lost answer fences an honest member (S16)",
        file=HEARTBEAT,
        old="if request.member_epoch == current.previous_epoch and request.owned is not None:",
        new="if request.member_epoch == current.epoch and request.owned is not None:",
        tests=FENCING,
    ),
    Mutant(
        name="the previous epoch is let in without a word of what the member owns",
        file=HEARTBEAT,
        old=(
            "if request.member_epoch == current.previous_epoch and request.owned is not None:\n"
            "        surplus = units_of(request.owned) - current.held.keys()"
        ),
        new=(
            "if request.member_epoch == current.previous_epoch:\n"
            "        surplus = units_of(request.owned or ()) - current.held.keys()"
        ),
        tests=FENCING,
    ),
    Mutant(
        name="the previous epoch is let in with units the group has not given",
        file=HEARTBEAT,
        old="        if not surplus:\n",
        new="        if True:\n",
        tests=FENCING,
    ),
    Mutant(
        name="a member that has not heard the order to stop is fenced for running the unit",
        file=HEARTBEAT,
        old="surplus = units_of(request.owned) - current.held.keys()",
        new="surplus = units_of(request.owned) - current.assigned.keys()",
        tests=FENCING,
    ),
    Mutant(
        name="the previous epoch is the last but one, not the one the member has shown",
        file=HEARTBEAT,
        old="after = replace(after, previous_epoch=request.member_epoch)",
        new="after = replace(after, previous_epoch=before.epoch)",
        tests=FENCING,
    ),
    Mutant(
        name="a report from before the last answer acknowledges what that answer gave (S3)",
        file=HEARTBEAT,
        old="if repeats and owned is not None and _can_be_told_again(group, before, owned):",
        new="if repeats and owned is None and _can_be_told_again(group, before, owned):",
        tests=FENCING,
    ),
    Mutant(
        name="what was given in a lost answer and is gone since is waited for",
        file=HEARTBEAT,
        old="if repeats and owned is not None and _can_be_told_again(group, before, owned):",
        new="if repeats and owned is not None:",
        tests=FENCING,
    ),
    Mutant(
        name="a fenced member stays a member",
        file=HEARTBEAT,
        old="return Outcome(response=response, records=tuple(draft.records), timers=timers)\n        _update(",
        new="return Outcome(response=response)\n        _update(",
        tests=FENCING,
    ),
    # ---------------------------------------------------------------------------------------------- answers
    Mutant(
        name="every member is asked to compute",
        file=HEARTBEAT,
        old="        and computation.member_id == request.member_id\n        and not computation.prepared\n",
        new="        and not computation.prepared\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="the chosen member is told to compute also after it has prepared",
        file=HEARTBEAT,
        old="        and not computation.prepared\n        and not _acknowledges",
        new="        and not _acknowledges",
        tests=COMPUTING,
    ),
    Mutant(
        name="the acknowledgement of the member asked to compute is not taken in (S14)",
        file=HEARTBEAT,
        old="        and not _acknowledges(draft.current(request.member_id), request)\n",
        new="",
        tests=COMPUTING,
    ),
    Mutant(
        name="a member that is told to compute has not been heard",
        file=HEARTBEAT,
        old="        timers += (timing.session(group.group_id, request.member_id, settings),)\n",
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a full heartbeat is answered without the assignment (KAFKA-16367)",
        file=HEARTBEAT,
        old="    if full or changed or repeats or unheard:\n",
        new="    if changed or repeats or unheard:\n",
        tests=FENCING,
    ),
    Mutant(
        name="a changed assignment is not in the answer",
        file=HEARTBEAT,
        old="    if full or changed or repeats or unheard:\n",
        new="    if full or repeats or unheard:\n",
        tests="tests/group/test_computing.py tests/group/test_rebalance.py",
    ),
    Mutant(
        name="a member that repeats its previous epoch is not told its assignment",
        file=HEARTBEAT,
        old="    if full or changed or repeats or unheard:\n",
        new="    if full or changed or unheard:\n",
        tests=FENCING,
    ),
    Mutant(
        name="a grant held back while there was something to stop is never told",
        file=HEARTBEAT,
        old="    if full or changed or repeats or unheard:\n",
        new="    if full or changed or repeats:\n",
        tests=FENCING,
    ),
    Mutant(
        name="an answer revokes and gives at once (CN-13)",
        file=HEARTBEAT,
        old="shown = current.assigned.keys() & known if current.pending else current.assigned.keys()",
        new="shown = current.assigned.keys()",
        tests=FENCING,
    ),
    Mutant(
        name="a heartbeat whose answer has a new epoch is parked",
        file=HEARTBEAT,
        old="parks=after.epoch == request.member_epoch and (response.assignment is None or waits)",
        new="parks=response.assignment is None or waits",
        tests="tests/coordinator/test_serving.py::test_a_change_answers_all_parked_heartbeats_it_concerns_at_once",
    ),
    Mutant(
        name="a heartbeat whose answer has an assignment is parked",
        file=HEARTBEAT,
        old="parks=after.epoch == request.member_epoch and (response.assignment is None or waits)",
        new="parks=after.epoch == request.member_epoch",
        tests="tests/coordinator/test_small_print.py",
    ),
    Mutant(
        name="a join for which there is no target yet is not parked",
        file=HEARTBEAT,
        old="parks=after.epoch == request.member_epoch and (response.assignment is None or waits)",
        new="parks=after.epoch == request.member_epoch and response.assignment is None",
        tests="tests/coordinator/test_parking_order.py",
    ),
    Mutant(
        name="every heartbeat gives a slow revocation its whole time again (S14)",
        file=HEARTBEAT,
        old="        if after.pending == before.pending:\n            return ()\n",
        new="",
        tests=FENCING,
    ),
    Mutant(
        name="a second revocation has no deadline of its own",
        file=HEARTBEAT,
        old="        if after.pending == before.pending:\n            return ()\n",
        new="        if before.pending:\n            return ()\n",
        tests=FENCING,
    ),
    Mutant(
        name="an acknowledgement in time does not end the rebalance timer",
        file=HEARTBEAT,
        old="    if before.state == MemberState.UNREVOKED:\n        return (timing.cancel_rebalance",
        new="    if before.state == MemberState.UNRELEASED:\n        return (timing.cancel_rebalance",
        tests=FENCING,
    ),
    Mutant(
        name="a member that waits for others has a deadline",
        file=HEARTBEAT,
        old="    if after.state == MemberState.UNREVOKED:\n        if after.pending",
        new="    if after.state != MemberState.STABLE:\n        if after is before",
        tests=FENCING,
    ),
    # ---------------------------------------------------------------------------------------------- join and leave
    Mutant(
        name="a member that joins again keeps what its former self held",
        file=HEARTBEAT,
        old="    if held or current.epoch:\n",
        new="    if current.epoch and not held:\n",
        tests=f"{FENCING} {TOKENS}",
    ),
    Mutant(
        name="a member that joins again gets its units back under the tokens they had (S6)",
        file=HEARTBEAT,
        old="    if not any(held[unit] >= group.target_epoch for unit in held):\n",
        new="    if held or not held:\n",
        tests=TOKENS,
    ),
    Mutant(
        name="a unit granted at the target's epoch is given back at that epoch to one that joins again",
        file=HEARTBEAT,
        old="    if not any(held[unit] >= group.target_epoch for unit in held):\n",
        new="    if not any(held[unit] > group.target_epoch for unit in held):\n",
        tests=TOKENS,
    ),
    Mutant(
        name="a member that joins again while the target is out of date gets its old share",
        file=HEARTBEAT,
        old="        draft.forget(Kind.TARGET_MEMBER, member_id)\n\n\ndef _take_member",
        new="        pass\n\n\ndef _take_member",
        tests=TOKENS,
    ),
    Mutant(
        name="the chosen member that joins again is not told to compute again",
        file=HEARTBEAT,
        old="            draft.write(replace(computation, prepared=False))\n",
        new="            pass\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a group takes one member more than it may have",
        file=HEARTBEAT,
        old="if known is None and len(group.members) >= settings.most_members:",
        new="if known is None and len(group.members) > settings.most_members:",
        tests=FENCING,
    ),
    Mutant(
        name="a changed reason or changed metadata of an assignor asks for no rebalance",
        file=HEARTBEAT,
        old="        member.assignors,\n        member.server_assignor,\n        member.draining,\n    ):",
        new="        before.assignors,\n        member.server_assignor,\n        member.draining,\n    ):",
        tests=CHOOSING,
    ),
    Mutant(
        name="a member with whose assignors nobody can work is let in",
        file=HEARTBEAT,
        old="    check_assignors([*others, member], settings)\n",
        new="    check_assignors([member], settings)\n",
        tests=CHOOSING,
    ),
    Mutant(
        name="the status of an earlier grant counts (KAFKA-12525)",
        file=HEARTBEAT,
        old="and draft.current(member_id).assigned.get(unit) == status.owner_epoch\n",
        new="and unit in draft.current(member_id).assigned\n",
        tests=CONNECTORS,
    ),
    Mutant(
        name="a member that leaves does not raise the epoch",
        file=LEAVE,
        old="    draft.bump(cause)\n    kept =",
        new="    kept =",
        tests=FENCING,
    ),
    Mutant(
        name="the explanation of a rebalance stands behind the tombstones of the member that left",
        file=LEAVE,
        old="    draft.bump(cause)\n    kept = delay.hold_back(draft, member_id, settings) if lost else ()\n"
        "    draft.forget_member(member_id)\n",
        new="    kept = delay.hold_back(draft, member_id, settings) if lost else ()\n"
        "    draft.forget_member(member_id)\n    draft.bump(cause)\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a member's own tombstone stands before that of what it runs (HB-19)",
        file=DRAFT,
        old="for kind in (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER):",
        new="for kind in (Kind.MEMBER, Kind.TARGET_MEMBER, Kind.CURRENT):",
        tests=FENCING,
    ),
    Mutant(
        name="a timer of a member that is gone changes the group (KAFKA-8896)",
        file=LEAVE,
        old="    if member_id not in group.members:\n        return Outcome(response=None)\n    draft = Draft",
        new="    draft = Draft",
        tests=FENCING,
    ),
    Mutant(
        name="a rebalance timer that fires late expels a member that has stopped everything",
        file=LEAVE,
        old="if member_id not in group.members or current.state != MemberState.UNREVOKED:",
        new="if member_id not in group.members:",
        tests=FENCING,
    ),
    Mutant(
        name="a revocation that takes too long is never fenced (S14)",
        file=LEAVE,
        old="if member_id not in group.members or current.state != MemberState.UNREVOKED:",
        new="if member_id not in group.members or current.state == MemberState.UNREVOKED:",
        tests=FENCING,
    ),
    # ---------------------------------------------------------------------------------------------- requests, timers
    Mutant(
        name="a join may say that it runs something",
        file=VALIDATE,
        old="    if joins and request.owned != ():\n",
        new="    if joins and request.owned is None:\n",
        tests=RULES_OF_REQUESTS,
    ),
    Mutant(
        name="a unit may be reported twice",
        file=VALIDATE,
        old="        if unit in seen:\n",
        new="        if False:\n",
        tests=RULES_OF_REQUESTS,
    ),
    Mutant(
        name="a rebalance timeout may be as long as anybody likes",
        file=VALIDATE,
        old="and not 0 < request.rebalance_timeout_ms <= settings.longest_rebalance_timeout_ms",
        new="and not 0 < request.rebalance_timeout_ms",
        tests=RULES_OF_REQUESTS,
    ),
    Mutant(
        name="after a load nobody's session is timed",
        file=TIMING,
        old="        timers.append(session(group.group_id, member_id, settings))\n",
        new="",
        tests=FENCING,
    ),
    Mutant(
        name="after a load a revocation under way is not timed",
        file=TIMING,
        old="        if group.current(member_id).state == MemberState.UNREVOKED:\n",
        new="        if group.current(member_id).state == MemberState.UNRELEASED:\n",
        tests=FENCING,
    ),
    Mutant(
        name="after a load a computation under way is not timed",
        file=TIMING,
        old="    if group.epoch > group.target_epoch and group.members:\n",
        new="    if group.epoch < group.target_epoch and group.members:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a member that is gone leaves its session timer behind",
        file=TIMING,
        old="        CancelTimer(TimerKey(TimerKind.SESSION, group_id, member_id)),\n",
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a rebalance counts as ended while a member is behind",
        file=HANDLE,
        old="last.finished_ms >= 0 or group.behind or group.epoch > group.target_epoch",
        new="last.finished_ms >= 0 or group.epoch > group.target_epoch",
        tests=REBALANCE,
    ),
    Mutant(
        name="nobody is asked for a target when connectors change",
        file=HANDLE,
        old="    if isinstance(what, UpdateConnectorsRequest) and outcome.records:\n",
        new="    if isinstance(what, UpdateConnectorsRequest) and not outcome.records:\n",
        tests=CONNECTORS,
    ),
)
