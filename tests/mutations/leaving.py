"""Going for a while, and being lost: ``static``, ``leave``, ``delay``."""

from __future__ import annotations

from .mutant import Mutant

STATIC = "connectgroup/group/static.py"
DELAY = "connectgroup/group/delay.py"
LEAVE = "connectgroup/group/leave.py"
HEARTBEAT = "connectgroup/group/heartbeat.py"
ASSIGNMENT = "connectgroup/group/assignment.py"
DRAFT = "connectgroup/group/draft.py"
TIMING = "connectgroup/group/timing.py"
STATE_FILE = "connectgroup/group/state.py"
VALIDATE = "connectgroup/group/validate.py"
RECORDS = "connectgroup/records.py"
RUNTIME = "connectgroup/coordinator/runtime.py"
MACHINE = "connectgroup/member/machine.py"
LOOP = "connectgroup/worker/loop.py"

STATIC_TESTS = "tests/group/test_static.py"
DELAY_TESTS = "tests/group/test_delay.py"
RETURNING = "tests/group/test_returning.py"
SMALL_PRINT = "tests/group/test_small_print.py"
SERVED = "tests/coordinator/test_delay_and_delete.py"
WHOLE = "tests/worker/test_static_and_drain.py"

LEAVING: tuple[Mutant, ...] = (
    # ---------------------------------------------------------------------------------------------- static members
    Mutant(
        name="a member that leaves for a while leaves for good (ST-01)",
        file=LEAVE,
        old="    if request.member_epoch == STATIC_LEAVE_EPOCH:\n",
        new="    if request.member_epoch < STATIC_LEAVE_EPOCH:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a member that has left for a while is never removed (ST-07)",
        file=LEAVE,
        old="            timing.session(group.group_id, request.member_id, settings),\n",
        new="",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a member that leaves in the middle of a revocation is timed for it",
        file=LEAVE,
        old=(
            "                timing.cancel_rebalance(group.group_id, request.member_id),\n"
            "                timing.session"
        ),
        new="                timing.session",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="what a member was told to stop is kept for it while it is away",
        file=STATIC,
        old="assigned={unit: 0 for unit in current.assigned if unit in share.units},",
        new="assigned={unit: 0 for unit in current.held},",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="leaving for a while twice is two records (S16)",
        file=LEAVE,
        old="        if not group.current(request.member_id).away:\n",
        new="        if True:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="what a new target takes from a member that is away is waited for",
        file=STATIC,
        old="    if current.away and kept != current.assigned:\n",
        new="    if current.away and not kept and kept:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="what a new target takes from a member that is there is free at once (S1)",
        file=STATIC,
        old="    if current.away and kept != current.assigned:\n",
        new="    if kept != current.assigned:\n",
        tests=f"{STATIC_TESTS} tests/group/test_rebalance.py",
    ),
    Mutant(
        name="a member whose name was taken over goes on (ST-05)",
        file=STATIC,
        old="    if bearer != request.member_id:\n        raise FencedInstanceId",
        new="    if not bearer:\n        raise FencedInstanceId",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a static name that is in use is given away (ST-04)",
        file=STATIC,
        old="    if not group.current(bearer).away:\n",
        new="    if not bearer:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a successor does not get its predecessor's share (ST-02)",
        file=STATIC,
        old="    if share != NO_TARGET:\n",
        new="    if share == NO_TARGET:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a predecessor stays a member beside its successor",
        file=STATIC,
        old="    draft.forget_member(former.member_id)\n    if share",
        new="    if share",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a late copy of a heartbeat costs a member that is away its place",
        file=HEARTBEAT,
        old="    if current.away:\n        # A late copy",
        new="    if current.away and request.member_epoch < 0:\n        # A late copy",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a member that is away is asked to compute",
        file=ASSIGNMENT,
        old="for member in taking(draft) if not draft.current(member.member_id).away}",
        new="for member in taking(draft)}",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a group waits for a member that is away before it is at rest",
        file=STATE_FILE,
        old="        there = current.away or (\n",
        new="        there = (\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a static name given up stays taken (KAFKA-20747)",
        file=STATE_FILE,
        old="        if name is not None and self.instances.get(name) == member_id:\n",
        new="        if name is None and self.instances.get(name) == member_id:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="leaving for a while needs no static name",
        file=VALIDATE,
        old="    elif request.member_epoch == STATIC_LEAVE_EPOCH:\n",
        new="    elif request.member_epoch < STATIC_LEAVE_EPOCH:\n",
        tests="tests/group/test_validation.py",
    ),
    Mutant(
        name="a worker whose stop failed says that it comes back (X6)",
        file=MACHINE,
        old="        stopped = not self.owned and self.epoch > JOIN_EPOCH\n",
        new="        stopped = self.epoch > JOIN_EPOCH\n",
        tests="tests/member/test_small_print.py",
    ),
    Mutant(
        name="a worker that has lost what it had says that it comes back",
        file=MACHINE,
        old="        stopped = not self.owned and self.epoch > JOIN_EPOCH\n",
        new="        stopped = not self.owned\n",
        tests="tests/member/test_small_print.py",
    ),
    Mutant(
        name="a worker that goes for good says that it comes back",
        file=LOOP,
        old="comes_back=not self._for_good and self._performer.fatal is None",
        new="comes_back=self._performer.fatal is None",
        tests=WHOLE,
    ),
    Mutant(
        name="a static name that nobody bears is said to have been taken over (ST-06)",
        file=STATIC,
        old="    if bearer is None:\n        raise UnknownMemberId",
        new="    if bearer == request.member_id:\n        raise UnknownMemberId",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="a static member that joins again under its own id finds its name in use",
        file=STATIC,
        old="    if bearer is None or bearer == request.member_id:\n",
        new="    if bearer is None:\n",
        tests=STATIC_TESTS,
    ),
    Mutant(
        name="what waits for a member that is away keeps the epoch of its old grant",
        file=STATIC,
        old="assigned={unit: 0 for unit in current.assigned if unit in share.units},",
        new="assigned={unit: epoch for unit, epoch in current.assigned.items() if unit in share.units},",
        tests=STATIC_TESTS,
    ),
    # ---------------------------------------------------------------------------------------------- scheduled delay
    Mutant(
        name="the work of a lost worker is given on at once (S15)",
        file=LEAVE,
        old="    kept = delay.hold_back(draft, member_id, settings) if lost else ()\n",
        new="    kept: tuple[Timer, ...] = ()\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a worker that says that it goes is waited for",
        file=LEAVE,
        old="    kept = delay.hold_back(draft, member_id, settings) if lost else ()\n",
        new="    kept = delay.hold_back(draft, member_id, settings)\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a fenced worker is not waited for",
        file=HEARTBEAT,
        old="            timers = remove_member(draft, request.member_id, cause, settings, lost=True)\n",
        new="            timers = remove_member(draft, request.member_id, cause, settings)\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="what a lost worker was to give up waits for it",
        file=DELAY,
        old="units = current.assigned.keys() & share.units & draft.group.runnable.keys()",
        new="units = current.held.keys() & draft.group.runnable.keys()",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="what a lost worker had not been given yet waits for it",
        file=DELAY,
        old="units = current.assigned.keys() & share.units & draft.group.runnable.keys()",
        new="units = share.units & draft.group.runnable.keys()",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="the last worker of a group is waited for",
        file=DELAY,
        old="or member is None or not others or not units:",
        new="or member is None or not units:",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a worker that was away and did not come back is waited for once more",
        file=DELAY,
        old="    if current.away or member.draining:\n",
        new="    if member.draining:\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="without a delay work waits for ever (KAFKA-15693)",
        file=DELAY,
        old="    if not settings.scheduled_delay_ms or member is None",
        new="    if member is None",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="what waits for a lost worker is given to whom an assignor says (S9)",
        file=ASSIGNMENT,
        old="        shares = {member_id: replace(share, units=share.units - waiting) for",
        new="        shares = {member_id: replace(share, units=share.units) for",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a new coordinator starts a delay anew (CN-11)",
        file=TIMING,
        old="TimerKey(TimerKind.DELAY, record.group_id, record.member_id), record.left_ms(now_ms))",
        new="TimerKey(TimerKind.DELAY, record.group_id, record.member_id), record.delay_ms)",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a new coordinator forgets a delay (CN-11)",
        file=TIMING,
        old="        timers.append(replace(timer, after_ms=after_ms))\n",
        new="        del after_ms\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a delay is restarted where its coordinator stood still when it was over (S15)",
        file=RUNTIME,
        old="again_ms = LATE_S * 1000 if key.kind is TimerKind.DELAY else timer.after_ms",
        new="again_ms = timer.after_ms",
        tests=f"{SERVED} tests/coordinator/test_small_print.py",
    ),
    Mutant(
        name="a clock that goes back prolongs a delay (F14)",
        file=RECORDS,
        old="        return min(max(self.deadline_ms - now_ms, 0), self.delay_ms)\n",
        new="        return max(self.deadline_ms - now_ms, 0)\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a clock that jumps ahead makes a delay negative (F14)",
        file=RECORDS,
        old="        return min(max(self.deadline_ms - now_ms, 0), self.delay_ms)\n",
        new="        return min(self.deadline_ms - now_ms, self.delay_ms)\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a delay that is over is not over: its work waits on",
        file=DELAY,
        old="    draft.forget(Kind.DELAY, member_id)\n    if not member_id:",
        new="    if not member_id:",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a delay that is over asks nobody for a new target",
        file=LEAVE,
        old="settle(draft, settings) if delay.end(draft, member_id) else ()",
        new="settle(draft, settings) if not delay.end(draft, member_id) else ()",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="a delay for work that is no more costs an epoch",
        file=DELAY,
        old="    elif units and not is_back:\n",
        new="    elif not is_back:\n",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="who comes back under its static name does not get its work (L8)",
        file=DELAY,
        old="(delay.instance_id is not None and delay.instance_id == member.instance_id)",
        new="(delay.instance_id is None and delay.instance_id == member.instance_id)",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="one that comes back for two lost workers is given the work of one",
        file=HEARTBEAT,
        old=(
            "    if len(waiting) == 1 and (known, former) == (None, None):\n"
            "        timers += delay.give_back(draft, waiting[0], member)\n"
        ),
        new=(
            "    if waiting and (known, former) == (None, None):\n"
            "        timers += delay.give_back(draft, waiting[-1], member)\n"
        ),
        tests=RETURNING,
    ),
    Mutant(
        name="a returning worker gets its old share although the group has changed since",
        file=DELAY,
        old="    if delay.epoch != group.epoch or group.epoch != group.target_epoch:\n        return ()\n",
        new="",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="an assignor that asks for a delay again moves its deadline",
        file=DELAY,
        old="min(record.deadline_ms, before.deadline_ms)",
        new="record.deadline_ms",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="an install that asks for no delay leaves the one before standing",
        file=DELAY,
        old="    elif before is not None:\n",
        new="    elif before is not None and asked:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="an assignor may hold work back for ever",
        file=VALIDATE,
        old="    if request.held_back and not request.delay_ms:\n",
        new="    if request.held_back and request.delay_ms < 0:\n",
        tests="tests/group/test_validation.py tests/group/test_delay.py",
    ),
    Mutant(
        name="a worker that returns with other assignors gets its share without a computation (KAFKA-20434)",
        file=DELAY,
        old="    if _said(member) != delay.said or member.draining:\n",
        new="    if member.draining:\n",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
    Mutant(
        name="an assignor that always asks to be asked again keeps the group busy with nothing else (L2)",
        file=DELAY,
        old="        delay_ms = max(delay_ms, LEAST_DELAY_MS)\n",
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a delay that is over at a load leaves its worker no time to say that it is back",
        file=TIMING,
        old="        after_ms = max(min(timer.after_ms, most_ms), LEAST_AFTER_LOAD_MS)\n",
        new="        after_ms = min(timer.after_ms, most_ms)\n",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
    Mutant(
        name="work that was reconfigured while it waited goes on waiting",
        file=DRAFT,
        old="return frozenset(unit for unit in units_of(delay.units) if runnable.get(unit, epoch + 1) <= epoch)",
        new="return frozenset(unit for unit in units_of(delay.units) if runnable.get(unit, 0) <= epoch * 1000)",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
    Mutant(
        name="a draining worker that is lost is waited for",
        file=DELAY,
        old="    if current.away or member.draining:\n",
        new="    if current.away:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a worker that comes back draining is given its work back",
        file=DELAY,
        old="    if _said(member) != delay.said or member.draining:\n",
        new="    if _said(member) != delay.said:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a delay goes on after its worker has a place in a new target",
        file=DELAY,
        old="        if delay.member_id and draft.waits_for(delay) is not None:\n            draft.forget",
        new="        if not delay.member_id and draft.waits_for(delay) is not None:\n            draft.forget",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
    Mutant(
        name="a new target ends the delays of workers that are not back",
        file=DELAY,
        old="        if delay.member_id and draft.waits_for(delay) is not None:\n            draft.forget",
        new="        if delay.member_id:\n            draft.forget",
        tests=DELAY_TESTS,
    ),
    Mutant(
        name="what waits for a lost worker waits a second time because an assignor says so",
        file=DELAY,
        old="    held = units_of(asked) - draft.lost_work()\n",
        new="    held = units_of(asked)\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="work that nobody has been given is left lying when its worker's delay is over",
        file=DELAY,
        old="    elif draft.epoch == draft.target_epoch and units - draft.placed():\n",
        new="    elif draft.epoch < draft.target_epoch and units - draft.placed():\n",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
    Mutant(
        name="what a worker that is back already runs is shown as waiting for it",
        file=DELAY,
        old="        if not delay.member_id or draft.waits_for(delay) is None\n",
        new="",
        tests=f"{DELAY_TESTS} {RETURNING}",
    ),
)
