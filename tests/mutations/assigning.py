"""Who computes a target and when it is taken; connectors as records: ``assignment``, ``connectors``, the guard."""

from __future__ import annotations

from .mutant import Mutant

ASSIGNMENT = "connectgroup/group/assignment.py"
CONNECTORS = "connectgroup/group/connectors.py"
GUARD = "connectgroup/assignor_guard.py"
ASSIGNOR_COLUMNS = "connectgroup/assignor_columns.py"
MESSAGES = "connectgroup/messages.py"

COMPUTING = "tests/group/test_computing.py"
CHOOSING = "tests/group/test_choosing.py"
REBALANCE = "tests/group/test_rebalance.py"
TOKENS = "tests/group/test_tokens.py"
CHANGES = "tests/group/test_connectors.py"
INTERVAL = "tests/group/test_interval.py"
OWN = "tests/group/test_own_assignor.py"
SMALL_PRINT = "tests/group/test_small_print.py"
COLUMNS = "tests/assignors/test_assignor_columns.py"

ASSIGNING: tuple[Mutant, ...] = (
    Mutant(
        name="the versions of a connector that was made anew begin at one again",
        file=CONNECTORS,
        old="        after = replace(after, version=epoch)\n",
        new="        after = replace(after, version=version + 1)\n",
        tests=f"{CHANGES}::test_a_late_copy_of_a_change_does_not_fit_a_connector_made_anew",
    ),
    Mutant(
        name="an assignor that could not be asked for want of a thread is never asked again",
        file="connectgroup/coordinator/server.py",
        old="        answer: Future[ConnectAssignment] = Future()\n",
        new="        answer: Future[ConnectAssignment] = Future()\n        under_way = answer\n",
        tests="tests/assignors/test_connect_server_side.py",
    ),
    # ---------------------------------------------------------------------------------------------- who computes
    Mutant(
        name="ranges of versions that only touch do not overlap",
        file=ASSIGNMENT,
        old="if max(info.minimum_version for info in infos) <= min(info.maximum_version for info in infos):",
        new="if max(info.minimum_version for info in infos) < min(info.maximum_version for info in infos):",
        tests=CHOOSING,
    ),
    Mutant(
        name="an assignor whose versions do not overlap is chosen",
        file=ASSIGNMENT,
        old="if max(info.minimum_version for info in infos) <= min(info.maximum_version for info in infos):",
        new="if infos:",
        tests=CHOOSING,
    ),
    Mutant(
        name="the assignor is chosen by name and not by preference",
        file=ASSIGNMENT,
        old="return min(usable, key=lambda assignor: (-firsts[assignor], assignor))",
        new="return min(usable, key=lambda assignor: (0 * firsts[assignor], assignor))",
        tests=CHOOSING,
    ),
    Mutant(
        name="a member that cannot read the others' versions is asked to compute",
        file=ASSIGNMENT,
        old="if info.minimum_version <= low and info.maximum_version >= high]",
        new="if info.minimum_version <= low or info.maximum_version >= high]",
        tests=CHOOSING,
    ),
    Mutant(
        name="a member that has failed is asked again though others can be",
        file=ASSIGNMENT,
        old="if member_id not in computation.failed_members] or list(able)",
        new="] or list(able)",
        tests=COMPUTING,
    ),
    Mutant(
        name="whoever computed last is not asked again",
        file=ASSIGNMENT,
        old="chosen = draft.group.computed_by if draft.group.computed_by in willing else willing[0]",
        new="chosen = willing[0]",
        tests=CHOOSING,
    ),
    Mutant(
        name="the coordinator helps itself one failure too late (L5)",
        file=ASSIGNMENT,
        old="if computation.failures >= settings.failures_before_fallback or not able:",
        new="if computation.failures > settings.failures_before_fallback or not able:",
        tests=COMPUTING,
    ),
    Mutant(
        name="failures are not counted",
        file=ASSIGNMENT,
        old="failures=computation.failures + 1,",
        new="failures=computation.failures,",
        tests=COMPUTING,
    ),
    Mutant(
        name="a member that never installs is waited for for ever (L5)",
        file=ASSIGNMENT,
        old="    return (compute(draft.group.group_id, member.rebalance_timeout_ms),)\n",
        new="    return ()\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="after a failure of the coordinator's assignor nobody tries again (HB-18)",
        file=ASSIGNMENT,
        old="        return (compute(draft.group.group_id, settings.session_timeout_ms),)\n",
        new="        return ()\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="what the coordinator's own assignor says is not checked",
        file=ASSIGNMENT,
        old="_too_long(answer, settings) or offence_of(draft, name, answer.members, left_out=left_out)",
        new="None",
        tests=COMPUTING,
    ),
    Mutant(
        name="the coordinator's own assignor may ask for a delay of any length",
        file=ASSIGNMENT,
        old="offence = _too_long(answer, settings) or offence_of(",
        new="offence = offence_of(",
        tests=OWN,
    ),
    Mutant(
        name="what the coordinator's own assignor holds back is nobody's for ever",
        file=ASSIGNMENT,
        old="    timers = delay.after_install(draft, answer.held_back, answer.delay_ms)\n",
        new="    timers: tuple[Timer, ...] = ()\n",
        tests=OWN,
    ),
    Mutant(
        name="a compute timer that fires late fails a computation that has ended",
        file=ASSIGNMENT,
        old="    if draft.epoch <= draft.target_epoch or not group.members:\n",
        new="    if not group.members:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="an install does not end the compute timer",
        file=ASSIGNMENT,
        old="    return (*timers, CancelTimer(TimerKey(TimerKind.COMPUTE, group.group_id)))\n",
        new="    return tuple(timers)\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a group that has become empty waits for somebody to compute (KAFKA-20442)",
        file=ASSIGNMENT,
        old='        return _install(draft, ServerAnswer(), "", COORDINATOR, settings)\n',
        new="        return ()\n",
        tests="tests/group/test_fencing.py",
    ),
    Mutant(
        name="each change of a burst is answered by a computation of its own (TO-06)",
        file=ASSIGNMENT,
        old="    if fresh and not waited and (left_ms",
        new="    if fresh and not fresh and (left_ms",
        tests=INTERVAL,
    ),
    Mutant(
        name="when the interval between computations is over nobody computes",
        file=ASSIGNMENT,
        old="        timers = settle(draft, settings, waited=True)\n",
        new="        timers = ()\n",
        tests=INTERVAL,
    ),
    Mutant(
        name="a clock that goes back makes the interval between computations as long",
        file=ASSIGNMENT,
        old="    if not draft.group.target_ms or passed_ms < 0:\n",
        new="    if not draft.group.target_ms:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="the first member of a group waits for an interval (HB-13)",
        file=ASSIGNMENT,
        old="            at_ms=draft.now_ms if shares else 0,\n",
        new="            at_ms=draft.now_ms,\n",
        tests=INTERVAL,
    ),
    # ---------------------------------------------------------------------------------------------- Prepare, Install
    Mutant(
        name="a heartbeat on the way spoils an install: its previous epoch is refused",
        file=ASSIGNMENT,
        old="    if member_epoch not in (current.epoch, current.previous_epoch):\n",
        new="    if member_epoch != current.epoch:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="Prepare and Install are let in at any epoch",
        file=ASSIGNMENT,
        old="    if member_epoch not in (current.epoch, current.previous_epoch):\n",
        new="    if member_epoch < 0:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="any member may compute and install (S13)",
        file=ASSIGNMENT,
        old="        or computation.member_id != member_id\n",
        new="",
        tests=COMPUTING,
    ),
    Mutant(
        name="the chosen member may install again when the target is current",
        file=ASSIGNMENT,
        old="        or group.epoch <= group.target_epoch\n        or computation.epoch != group.epoch\n",
        new="        or computation.epoch != group.epoch\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="that the chosen member has prepared is not written down",
        file=ASSIGNMENT,
        old="        draft.write(replace(computation, prepared=True))\n",
        new="        pass\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a target computed for an epoch gone by is taken (CN-05)",
        file=ASSIGNMENT,
        old="    if request.group_epoch != group.epoch:\n",
        new="    if request.group_epoch > group.epoch:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="the same install a second time is an error (CN-08)",
        file=ASSIGNMENT,
        old="    if _is_repeat(group, request):\n",
        new="    if not request.members and _is_repeat(group, request):\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="another install for the same epoch is taken for the same (S13)",
        file=ASSIGNMENT,
        old="        and _checksum(request) == group.target_checksum\n",
        new="",
        tests=COMPUTING,
    ),
    Mutant(
        name="what a member's assignor says is not checked",
        file=ASSIGNMENT,
        old="    elif offence := _too_long(request, settings) or offence_of(\n",
        new="    elif offence := _too_long(request, settings) and offence_of(\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a version a member cannot read is installed",
        file=ASSIGNMENT,
        old="        if info and not info.minimum_version <= installed.version <= info.maximum_version:\n",
        new="        if info and not info.minimum_version <= installed.version:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="an assignor that reports an error has its assignment installed",
        file=ASSIGNMENT,
        old="    if request.error != 0:\n        message",
        new="    if request.error < 0:\n        message",
        tests=COMPUTING,
    ),
    Mutant(
        name="a share forgotten in this very step is not written again",
        file=ASSIGNMENT,
        old="        if share != draft.target(member.member_id):\n",
        new="        if share != group.target(member.member_id):\n",
        tests=TOKENS,
    ),
    Mutant(
        name="shares that have not changed are written with each target (TA-01)",
        file=ASSIGNMENT,
        old="        if share != draft.target(member.member_id):\n",
        new="        if share:\n",
        tests=REBALANCE,
    ),
    Mutant(
        name="a target's epoch is written before its shares: half a target is current (TA-02)",
        file=ASSIGNMENT,
        old="    shares = {member.member_id: _share(member) for member in answer.members}\n",
        new=(
            "    shares = {member.member_id: _share(member) for member in answer.members}\n"
            "    draft.write(\n"
            "        TargetRecord(group_id=group.group_id, epoch=draft.epoch, assignor=assignor, "
            "computed_by=computed_by)\n"
            "    )\n"
        ),
        tests=REBALANCE,
    ),
    Mutant(
        name="a share has what is gone, and the question cannot be put",
        file=ASSIGNMENT,
        old=" for name, task in has if (name, task) in group.runnable]",
        new=" for name, task in has]",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="places are counted from one",
        file=ASSIGNMENT,
        old="start[name] + task - CONNECTOR",
        new="start[name] + task + 2",
        tests=COMPUTING,
    ),
    Mutant(
        name="places come in the order of a set",
        file=ASSIGNMENT,
        old="sorted([start[name] + task",
        new="list([start[name] + task",
        tests=COMPUTING,
    ),
    Mutant(
        name="a place before the first is the last one's",
        file=MESSAGES,
        old="if 0 <= place < total]",
        new="if place < total]",
        tests=COLUMNS,
    ),
    Mutant(
        name="a place that there is not is read into the columns",
        file=ASSIGNOR_COLUMNS,
        old="there = (places >= 0) & (places < self.total)",
        new="there = places < self.total",
        tests=COLUMNS,
    ),
    Mutant(
        name="places count through connectors that they did not come with",
        file=ASSIGNOR_COLUMNS,
        old="isinstance(members, Lazy) and isinstance(connectors, Lazy) and members.origin is connectors.origin:",
        new="isinstance(members, Lazy):",
        tests=COLUMNS,
    ),
    Mutant(
        name="places are taken for columns though the connectors came in another order",
        file=ASSIGNOR_COLUMNS,
        old="        if self.shifts.any():",
        new="        if not self.shifts.any():",
        tests=COLUMNS,
    ),
    Mutant(
        name="a place that a member names twice is two claims",
        file=ASSIGNOR_COLUMNS,
        old="        if (np.diff(claims) <= 0).any():",
        new="        if not len(claims):",
        tests=COLUMNS,
    ),
    Mutant(
        name="a question may have any number of units",
        file=ASSIGNOR_COLUMNS,
        old="    if min(sizes, default=0) < 0 or len(sizes) + sum(sizes) > MOST_UNITS:",
        new="    if min(sizes, default=0) < 0:",
        tests=COLUMNS,
    ),
    Mutant(
        name="a connector may have less than no tasks",
        file=ASSIGNOR_COLUMNS,
        old="    if min(sizes, default=0) < 0 or len(sizes) + sum(sizes) > MOST_UNITS:",
        new="    if len(sizes) + sum(sizes) > MOST_UNITS:",
        tests=COLUMNS,
    ),
    Mutant(
        name="an assignor is asked to place the tasks of a paused connector",
        file=ASSIGNMENT,
        old="num_tasks = len(connector.tasks) if connector.wanted_state == WantedState.RUNNING else 0\n",
        new="num_tasks = len(connector.tasks)\n",
        tests=SMALL_PRINT,
    ),
    # ---------------------------------------------------------------------------------------------- what is legal (S9)
    Mutant(
        name="a unit given twice is legal",
        file=GUARD,
        old="        elif len(names) > 1:\n",
        new="        elif len(names) > 2:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a unit given to nobody is legal",
        file=GUARD,
        old="for unit in sorted(to_give - holders.keys()))",
        new="for unit in sorted(to_give - units))",
        tests=COMPUTING,
    ),
    Mutant(
        name="a unit that does not exist is legal",
        file=GUARD,
        old="        if unit not in units:\n",
        new="        if unit not in units and not names:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a share for somebody who is no member is legal",
        file=GUARD,
        old="        if member_id not in members:\n",
        new="        if not member_id:\n",
        tests=COMPUTING,
    ),
    Mutant(
        name="a target with as many units as there are is taken without a look at which they are",
        file=GUARD,
        old="and len(everything) == len(to_give) and to_give == set(everything):",
        new="and len(everything) == len(to_give):",
        tests=SMALL_PRINT,
    ),
    # ---------------------------------------------------------------------------------------------- connectors
    Mutant(
        name="a change made against an older version overwrites a newer one",
        file=CONNECTORS,
        old="    if wanted.expected_version not in (-1, version):\n",
        new="    if wanted.expected_version > version:\n",
        tests=CHANGES,
    ),
    Mutant(
        name="a former owner may write a task list",
        file=CONNECTORS,
        old="    if granted is None or granted != wanted.owner_epoch:\n",
        new="    if granted is None:\n",
        tests=CHANGES,
    ),
    Mutant(
        name="an owner of the old configuration may write a task list",
        file=CONNECTORS,
        old="    if granted < since_epoch:\n",
        new="    if granted < 0:\n",
        tests=CHANGES,
    ),
    Mutant(
        name="tasks of an old configuration go on under the new one (KAFKA-9228)",
        file=CONNECTORS,
        old="tasks = after.tasks if _without_limit(wanted.config) == _without_limit(after.config) else ()",
        new="tasks = after.tasks",
        tests=CHANGES,
    ),
    Mutant(
        name="another limit of tasks stops all of them",
        file=CONNECTORS,
        old="tasks = after.tasks if _without_limit(wanted.config) == _without_limit(after.config) else ()",
        new="tasks = ()",
        tests=CHANGES,
    ),
    Mutant(
        name="a task whose configuration changed keeps its grant",
        file=CONNECTORS,
        old="        else TaskEntry(config=task.config, since_epoch=epoch)\n",
        new=(
            "        else TaskEntry(config=task.config, since_epoch=old[number].since_epoch if number "
            "< len(old) else epoch)\n"
        ),
        tests=CHANGES,
    ),
    Mutant(
        name="a task whose configuration did not change is interrupted",
        file=CONNECTORS,
        old="        if number < len(old) and old[number].config == task.config\n",
        new="        if number > len(old) and old[number].config == task.config\n",
        tests=CHANGES,
    ),
    Mutant(
        name="what was paused and runs again is given back under the token it had (S6)",
        file=CONNECTORS,
        old="replace(task, since_epoch=epoch) if Unit(connector.connector, number) in on else task",
        new="task",
        tests=TOKENS,
    ),
    Mutant(
        name="a group takes one unit more than it may have",
        file=CONNECTORS,
        old="    if units > settings.most_units:\n",
        new="    if units > settings.most_units + 1:\n",
        tests="tests/group/test_validation.py",
    ),
    Mutant(
        name="tasks are interrupted because they shall run elsewhere, wherever they run",
        file=CONNECTORS,
        old=" and not entry.name.startswith(PREFIX)}",
        new="}",
        tests=OWN,
    ),
    Mutant(
        name="a placement that nobody can read is stored",
        file="connectgroup/group/validate.py",
        old="                placement_of(config_of(change.config))\n",
        new="                config_of(change.config)\n",
        tests=OWN,
    ),
    Mutant(
        name="a change that changes nothing costs an epoch",
        file=CONNECTORS,
        old="        if change.after == change.before:\n            continue\n",
        new="",
        tests=CHANGES,
    ),
    Mutant(
        name="the statuses of a connector's units outlive them",
        file=CONNECTORS,
        old="            if unit in group.statuses:\n",
        new="            if unit in group.holders and unit in group.statuses and change.after is None:\n",
        tests=CHANGES,
    ),
)
