"""Heartbeats, actions, callbacks and runs: ``worker/loop``, ``perform``, ``callbacks``, ``runner``, ``offload``."""

from __future__ import annotations

from .mutant import Mutant

LOOP = "connectgroup/worker/loop.py"
PERFORM = "connectgroup/worker/perform.py"
CALLBACKS = "connectgroup/worker/callbacks.py"
RUNNER = "connectgroup/worker/runner.py"
WAITING = "connectgroup/worker/waiting.py"
OFFLOAD = "connectgroup/worker/offload.py"

LIFE = "tests/worker/test_life.py"
MISBEHAVIOUR = "tests/worker/test_misbehaviour.py"
PERFORMING = "tests/worker/test_perform.py"
WAITING_TESTS = "tests/worker/test_waiting.py"
REVIEWED = "tests/worker/test_reviewed.py"
SMALL_PRINT = "tests/worker/test_small_print.py"
EXHAUSTION = "tests/worker/test_exhaustion.py"

WORKER: tuple[Mutant, ...] = (
    Mutant(
        name="a stop for which there is no thread counts as one that failed",
        file=RUNNER,
        old='await insist(f"stop {unit}", end, task)',
        new='await off_loop(f"stop {unit}", end, task)',
        tests=EXHAUSTION,
    ),
    Mutant(
        name="a listener for which there was no thread does not hear of a revocation",
        file=CALLBACKS,
        old='tell = off_loop if event == "on_assigned" else insist',
        new="tell = off_loop",
        tests=EXHAUSTION,
    ),
    # ---------------------------------------------------------------------------------------------- loop
    Mutant(
        name="a wait between two heartbeats goes on past the end of the lease",
        file=LOOP,
        old="        if seconds is None or (lease_s is not None and lease_s < seconds):\n",
        new="        if seconds is None:\n",
        tests=f"{LIFE}::test_the_lease_ends_on_time_whatever_the_worker_is_waiting_for",
    ),
    Mutant(
        name="a worker that waits for an answer does not see its lease end",
        file=LOOP,
        old="async with asyncio.timeout(self._lease_s()) as given_up:",
        new="async with asyncio.timeout(None) as given_up:",
        tests=LIFE,
    ),
    Mutant(
        name="an answer is waited for until nothing of the lease is left for asking again",
        file=LOOP,
        old="            slack_s = min(slack_s, max(LEAST_PATIENCE_S, (lease_s - parked_s) / 2))\n",
        new="            slack_s = max(slack_s, lease_s)\n",
        tests=f"{LIFE}::test_a_worker_whose_coordinator_is_away_for_a_moment_loses_nothing",
    ),
    Mutant(
        name="what there is to say waits for the parked heartbeat to be answered",
        file=LOOP,
        old="if self._unanswered is not None and self.member.has_something_to_say:",
        new="if self._unanswered is not None and self.member.phase is Phase.GONE:",
        tests=LIFE,
    ),
    Mutant(
        name="a refused heartbeat is sent again at full speed (KAFKA-20253)",
        file=LOOP,
        old="            raise _TryAgain(str(refused)) from refused\n\n    def _patience_s",
        new="            return\n\n    def _patience_s",
        tests=f"{LIFE}::test_no_answer_makes_a_worker_spin",
    ),
    Mutant(
        name="a heartbeat that was not answered is sent again at full speed",
        file=LOOP,
        old="            self.member.on_no_answer(request)\n            raise _TryAgain(str(error)) from error\n",
        new="            self.member.on_no_answer(request)\n            return\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="the answers of a replaced coordinator make a worker spin",
        file=LOOP,
        old="        if response.coordinator_epoch < self.member.coordinator_epoch:\n            raise",
        new="        if response.coordinator_epoch < -1:\n            raise",
        tests=f"{LIFE}::test_the_answers_of_a_replaced_coordinator_are_ignored_and_do_not_make_a_worker_spin",
    ),
    Mutant(
        name="a worker told to compute asks over and over whether it is to compute",
        file=LOOP,
        old="            await self._rest(self.member.heartbeat_interval_ms / 1000)\n        elif",
        new="            await self._rest(0.05)\n        elif",
        tests=f"{MISBEHAVIOUR}::test_a_member_told_to_compute_does_not_spin_while_its_prepare_gets_no_answer",
    ),
    Mutant(
        name="a worker that does not park asks over and over",
        file=LOOP,
        old="                await self._rest(left_ms / 1000)\n",
        new="                await self._rest(0.05)\n",
        tests=f"{LIFE}::test_a_worker_that_does_not_park_beats_once_an_interval",
    ),
    Mutant(
        name="a worker goes without a word (KAFKA-16639)",
        file=LOOP,
        old="            await self._control.call(request, timeout_s=self._times.call_timeout_s)\n\n    # ---",
        new="            pass\n\n    # ---",
        tests=LIFE,
    ),
    Mutant(
        name="a worker that is asked to stop does not wait for its tasks",
        file=LOOP,
        old="                await asyncio.wait_for(self._emptied.wait(), self._times.lose_timeout_s)\n",
        new="                await asyncio.wait_for(self._emptied.wait(), 0.001)\n",
        tests=LIFE,
    ),
    Mutant(
        name="a worker that is cancelled leaves its tasks running",
        file=LOOP,
        old="            await asyncio.wait_for(self._performer.stop(left), self._times.lose_timeout_s)\n",
        new="            await asyncio.sleep(0)\n",
        tests=LIFE,
    ),
    Mutant(
        name="a blocked task holds up the end of its worker for ever (L7)",
        file=LOOP,
        old="                await asyncio.wait_for(self._emptied.wait(), self._times.lose_timeout_s)\n",
        new="                await self._emptied.wait()\n",
        tests=f"{LIFE}::test_stop_returns_with_a_blocked_task",
    ),
    Mutant(
        name="a member that computes says nothing until its assignment is installed",
        file=LOOP,
        old="            assert isinstance(prepared, PrepareResponse)\n            self._speak_up()\n",
        new="            assert isinstance(prepared, PrepareResponse)\n",
        tests=f"{MISBEHAVIOUR}::test_heartbeats_go_on_as_soon_as_the_prepare_has_been_answered",
    ),
    Mutant(
        name="an assignor that hangs is waited for for ever",
        file=LOOP,
        old="asyncio.wait({call}, timeout=timeout_s)",
        new="asyncio.wait({call}, timeout=None)",
        tests=f"{MISBEHAVIOUR}::test_an_assignor_that_hangs_is_given_up_and_heartbeats_go_on",
    ),
    Mutant(
        name="an assignor is asked again while it has not answered",
        file=LOOP,
        old="            if earlier is not None and not earlier.done():\n",
        new="            if earlier is not None and earlier.cancelled():\n",
        tests=f"{MISBEHAVIOUR}::test_an_assignor_that_hangs_is_not_asked_a_second_time",
    ),
    Mutant(
        name="an assignor's error is not told to the group",
        file=LOOP,
        old="        if assignment.error:\n            said =",
        new="        if assignment.error < 0:\n            said =",
        tests=f"{MISBEHAVIOUR}::test_a_failing_assignor_is_shown_in_one_line_and_another_member_is_asked",
    ),
    Mutant(
        name="a control call that finds nobody is not repeated",
        file=LOOP,
        old=(
            "            except TransportError as error:\n"
            "                raise _TryAgain(str(error)) from error\n"
            "            code"
        ),
        new="            except TransportError:\n                raise\n            code",
        tests=f"{MISBEHAVIOUR}::test_asking_gives_up_by_the_loops_clock",
    ),
    Mutant(
        name="workers that lost their coordinator together come back together (KAFKA-19813)",
        file=WAITING,
        old="return random.uniform(0, min(",
        new="return max(0, min(",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="the waits between two tries do not grow",
        file=WAITING,
        old="first_s * 2 ** min(failures - 1, 60)",
        new="first_s",
        tests=f"{LIFE}::test_no_answer_makes_a_worker_spin",
    ),
    Mutant(
        name="a bell that was rung before anybody listened is not heard",
        file=WAITING,
        old="        if self._rung:\n            return\n",
        new="",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="a bell that was rung once rings for ever",
        file=WAITING,
        old='        """Who waits from now on waits for the next ring."""\n        self._rung = False\n',
        new='        """Who waits from now on waits for the next ring."""\n',
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="a bell is waited for longer than it may be",
        file=WAITING,
        old="        timer = None if seconds is None else loop.call_later(seconds, _release, listener)\n",
        new="        timer = None if seconds is None else loop.call_later(10 * seconds, _release, listener)\n",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="a bell can be listened to once",
        file=WAITING,
        old="            self._listener = None\n            if timer",
        new="            if timer",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="a bell that is rung twice in one turn breaks",
        file=WAITING,
        old="    if not listener.done():\n",
        new="    if listener is not None:\n",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="the waits between two tries have no limit",
        file=WAITING,
        old="random.uniform(0, min(most_s, first_s * 2 ** min(failures - 1, 60)))",
        new="random.uniform(0, first_s * 2 ** min(failures - 1, 60))",
        tests=WAITING_TESTS,
    ),
    Mutant(
        name="a worker that has failed a thousand times in a row falls over",
        file=WAITING,
        old="2 ** min(failures - 1, 60)",
        new="2.0 ** (failures - 1)",
        tests=WAITING_TESTS,
    ),
    # ---------------------------------------------------------------------------------------------- perform
    Mutant(
        name="a worker says that it has let go of a unit, and then stops it (S11)",
        file=PERFORM,
        old="        try:\n            await self.stop(action.units)\n",
        new=(
            "        try:\n"
            "            self._member.mark_revoked(action.units)\n"
            "            self._on_change()\n"
            "            await self.stop(action.units)\n"
        ),
        tests=f"{LIFE} {MISBEHAVIOUR}",
    ),
    Mutant(
        name="a revoked unit is not stopped (KAFKA-10763)",
        file=PERFORM,
        old="        try:\n            await self.stop(action.units)\n",
        new="        try:\n            await asyncio.sleep(0)\n",
        tests=LIFE,
    ),
    Mutant(
        name="a stop that failed is acknowledged (X6)",
        file=PERFORM,
        old=('so it is not acknowledged: %s", show(action.units), describe(error))\n            return\n'),
        new='so it is not acknowledged: %s", show(action.units), describe(error))\n',
        tests=f"{MISBEHAVIOUR}::test_a_stop_that_raises_is_not_acknowledged",
    ),
    Mutant(
        name="a revocation that a listener refuses is acknowledged (F18)",
        file=PERFORM,
        old="        if failure is None:\n",
        new="        if failure is None or failure:\n",
        tests=MISBEHAVIOUR,
    ),
    Mutant(
        name="a look at an assignor's metadata is followed by a heartbeat, whatever it says",
        file=LOOP,
        old="            if self.member.set_assignors(list(infos.values())):\n",
        new="            if self.member.set_assignors(list(infos.values())) or True:\n",
        tests="tests/worker/test_metadata.py",
    ),
    Mutant(
        name="listeners are not told of a revocation",
        file=PERFORM,
        old='failure = await self._listeners.tell("on_revoked", action.units, action.epoch)',
        new='failure = await self._listeners.tell("on_revoked", frozenset(), action.epoch)',
        tests=LIFE,
    ),
    Mutant(
        name="listeners hear of a revocation before its tasks have stopped",
        file=PERFORM,
        old="        try:\n            await self.stop(action.units)\n",
        new=(
            '        failure = await self._listeners.tell("on_revoked", action.units, action.epoch)\n'
            "        try:\n            await self.stop(action.units)\n"
        ),
        tests=LIFE,
    ),
    Mutant(
        name="units start before the listeners have heard of them (S12)",
        file=PERFORM,
        old='        await self._listeners.tell("on_assigned", units, action.epoch)\n',
        new=(
            "        if self.runner is not None:\n"
            "            await self.runner.start(grants)\n"
            '        await self._listeners.tell("on_assigned", units, action.epoch)\n'
        ),
        tests=f"{LIFE} {MISBEHAVIOUR}",
    ),
    Mutant(
        name="what was queued before a loss is still done (KAFKA-16375)",
        file=PERFORM,
        old="            self._queue.clear()\n",
        new="",
        tests=PERFORMING,
    ),
    Mutant(
        name="a loss waits for its turn (KAFKA-9184)",
        file=PERFORM,
        old="self._stopping = asyncio.create_task(self.stop(frozenset(self._member.owned)), name=",
        new="self._stopping = asyncio.create_task(self.stop(frozenset()), name=",
        tests=f"{PERFORMING} {MISBEHAVIOUR}",
    ),
    Mutant(
        name="units whose loss is decided while a listener is told of them start all the same",
        file=PERFORM,
        old="        if self._losing.is_set() or self.runner is None:\n",
        new="        if self.runner is None:\n",
        tests=f"{PERFORMING} {MISBEHAVIOUR}",
    ),
    Mutant(
        name="what starts while everything is being lost is not stopped",
        file=PERFORM,
        old="        for stopping in (self._stopping, asyncio.create_task(self.stop(units))):\n",
        new="        for stopping in (self._stopping,):\n",
        tests=REVIEWED,
    ),
    Mutant(
        name="a worker joins again before its listeners know what was lost",
        file=PERFORM,
        old=(
            "        with contextlib.suppress(TimeoutError):\n"
            "            async with asyncio.timeout(self._lose_timeout_s):\n"
            "                await"
        ),
        new=(
            "        self._member.mark_lost()\n"
            "        self._on_change()\n"
            "        with contextlib.suppress(TimeoutError):\n"
            "            async with asyncio.timeout(self._lose_timeout_s):\n                await"
        ),
        tests=f"{PERFORMING}::test_what_was_queued_before_a_loss_is_void",
    ),
    Mutant(
        name="a worker joins again before what it lost has stopped",
        file=PERFORM,
        old="        _, late = await asyncio.wait({self._stopping}, timeout=self._lose_timeout_s)\n",
        new="        _, late = await asyncio.wait({self._stopping}, timeout=0)\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a unit is told as revoked and then as lost (S11)",
        file=PERFORM,
        old="        if failure is None:\n",
        new="        if failure is None and not self._losing.is_set():\n",
        tests=f"{MISBEHAVIOUR}::test_each_unit_is_lost_or_revoked_and_never_both",
    ),
    Mutant(
        name="a revocation goes on to its listeners after everything has been lost",
        file=PERFORM,
        old="        if self._losing.is_set():\n            return\n        failure",
        new="        failure",
        tests=MISBEHAVIOUR,
    ),
    Mutant(
        name="a hung listener keeps its worker out of the group for ever",
        file=PERFORM,
        old="                await asyncio.wait({doing}, timeout=self._lose_timeout_s)\n",
        new="                await asyncio.wait({doing})\n",
        tests=f"{MISBEHAVIOUR}::test_a_listener_that_hangs_in_on_revoked_costs_its_worker_the_units_and_no_more",
    ),
    # ---------------------------------------------------------------------------------------------- callbacks
    Mutant(
        name="callbacks of one listener overlap (S12)",
        file=CALLBACKS,
        old="        if before is not None and not before.done():\n",
        new="        if before is not None and before.cancelled():\n",
        tests=MISBEHAVIOUR,
    ),
    Mutant(
        name="a listener that raises keeps the news from those after it",
        file=CALLBACKS,
        old="                first = first or error\n",
        new="                return error\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="who gives up waiting for a listener cancels its call half-way",
        file=CALLBACKS,
        old="            await asyncio.shield(call)\n",
        new="            await call\n",
        tests=f"{MISBEHAVIOUR}::test_tasks_are_stopped_when_the_lease_ends_although_a_listener_hangs",
    ),
    # ---------------------------------------------------------------------------------------------- runner
    Mutant(
        name="a stop returns before the task has stopped",
        file=RUNNER,
        old="            await asyncio.wait(supervisors)\n",
        new="            await asyncio.sleep(0)\n",
        tests=LIFE,
    ),
    Mutant(
        name="a stop that raised counts as a stop",
        file=RUNNER,
        old="                raise run.stop_error\n",
        new="                pass\n",
        tests=f"{MISBEHAVIOUR}::test_a_stop_that_raises_is_not_acknowledged",
    ),
    Mutant(
        name="a task that was fenced is started again",
        file=RUNNER,
        old="            self._say(run, UnitState.FAILED, error)\n            await run.stopped()\n",
        new="            raise _Failed from error\n",
        tests=f"{MISBEHAVIOUR}::test_a_fenced_task_stays_down",
    ),
    Mutant(
        name="the hung stop of an earlier grant holds up the stop of a later one",
        file=RUNNER,
        old="            self._ending.pop(grant.unit, None)\n            self._runs",
        new="            self._runs",
        tests=REVIEWED,
    ),
    Mutant(
        name="what a start that failed left behind goes on writing",
        file=RUNNER,
        old="                with contextlib.suppress(Exception):\n                    end(task)\n",
        new="",
        tests=f"{MISBEHAVIOUR}::test_a_fenced_task_stays_down",
    ),
    Mutant(
        name="a task that fails is not stopped before it is started again",
        file=RUNNER,
        old='                await insist(f"stop {unit}", end, task)\n',
        new="                await asyncio.sleep(0)\n",
        tests=f"{MISBEHAVIOUR} tests/worker/test_idle.py",
    ),
    Mutant(
        name="a failing task is started again without a wait",
        file=RUNNER,
        old="                await run.pause(wait_s)\n",
        new="                await asyncio.sleep(0.01)\n",
        tests=f"{MISBEHAVIOUR}::test_a_connector_that_raises_is_failed_with_one_line_and_tried_again",
    ),
    Mutant(
        name="an owner publishes its task list again with each look",
        file=RUNNER,
        old="            if configs != known or buggify(",
        new="            if configs or buggify(",
        tests=f"{LIFE}::test_a_slow_stop_does_not_stop_heartbeats",
    ),
    Mutant(
        name="what a stopped task kept on disk stays there",
        file=RUNNER,
        old="                shutil.rmtree(scratch, ignore_errors=True)\n",
        new="                pass\n",
        tests="tests/worker/test_idle.py",
    ),
    # ---------------------------------------------------------------------------------------------- off the loop
    Mutant(
        name="what a plug-in raises to end the process ends the worker",
        file=OFFLOAD,
        old="            if isinstance(raised, StopIteration) or not isinstance(raised, Exception):\n",
        new="            if isinstance(raised, StopIteration):\n",
        tests=MISBEHAVIOUR,
    ),
    Mutant(
        name="a plug-in that hangs keeps the process from ending",
        file=OFFLOAD,
        old="name=name, daemon=True).start()",
        new="name=name).start()",
        tests="tests/worker/test_offload.py",
    ),
)
