"""Queue, append, answer, park, timers: ``coordinator/runtime``."""

from __future__ import annotations

from .mutant import Mutant

RUNTIME = "connectgroup/coordinator/runtime.py"

DURABILITY = "tests/coordinator/test_durability.py"
SERVING = "tests/coordinator/test_serving.py"
ORDER = "tests/coordinator/test_parking_order.py"
SLOW = "tests/coordinator/test_slow_and_refused.py"
SMALL_PRINT = "tests/coordinator/test_small_print.py"

COORDINATOR: tuple[Mutant, ...] = (
    # ---------------------------------------------------------------------------------------------- durable first
    Mutant(
        name="answers leave before their records are durable (D1)",
        file=RUNTIME,
        old="        try:\n            if records:\n                await self._log.append(records)\n",
        new=(
            "        try:\n"
            "            for command, response in answers:\n"
            "                command.resolve(self._signed(response))\n"
            "            if records:\n"
            "                await self._log.append(records)\n"
        ),
        tests=DURABILITY,
    ),
    Mutant(
        name="an answer that needs no record of its own does not wait for the append of its turn (D1)",
        file=RUNTIME,
        old="        if outcome.response is None:\n            return outcome.records\n",
        new=(
            "        if outcome.response is None:\n"
            "            return outcome.records\n"
            "        if not outcome.records and not outcome.parks:\n"
            "            command.resolve(self._signed(outcome.response))\n"
        ),
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a parked heartbeat's time runs before its records are durable (D1)",
        file=RUNTIME,
        old="            self._park(command, request, outcome.response)\n",
        new="            self._park(command, request, outcome.response)\n            self._arm([command])\n",
        tests=DURABILITY,
    ),
    Mutant(
        name="records are not appended at all",
        file=RUNTIME,
        old="                await self._log.append(records)\n",
        new="                await asyncio.sleep(0)\n",
        tests=DURABILITY,
    ),
    Mutant(
        name="a group is served from memory after an append that failed (D6)",
        file=RUNTIME,
        old="            for group_id in sorted(touched):\n                self._drop(group_id)\n",
        new="",
        tests=DURABILITY,
    ),
    Mutant(
        name="those who asked in a turn whose append failed are answered as if it had not (D6)",
        file=RUNTIME,
        old=(
            "            for command, _ in answers:\n"
            '                self._refuse(command, CoordinatorNotAvailable(f"the log cannot be written: {error}"))\n'
        ),
        new="            for command, response in answers:\n                command.resolve(self._signed(response))\n",
        tests=DURABILITY,
    ),
    Mutant(
        name="one that is at fault for a batch takes its neighbours with it (KAFKA-19760)",
        file=RUNTIME,
        old=(
            "        for command in commands:\n"
            "            command.parked_response = None\n"
            "            await self._turn([command])\n"
        ),
        new=(
            "        for command in commands:\n"
            '            self._refuse(command, InvalidRequest(f"the change cannot be stored: {error}"))\n'
        ),
        tests=DURABILITY,
    ),
    Mutant(
        name="a heartbeat is blamed for a batch that is too large, and its worker ends",
        file=RUNTIME,
        old="blamed = CoordinatorNotAvailable if isinstance(commands[0].what, HeartbeatRequest) else InvalidRequest",
        new="blamed = InvalidRequest",
        tests=SLOW,
    ),
    Mutant(
        name="parked heartbeats that a refused turn has woken are never answered",
        file=RUNTIME,
        old=(
            "            if command not in commands:\n"
            '                self._refuse(command, CoordinatorLoadInProgress("the group was loaded again"))\n'
        ),
        new="            pass\n",
        tests=f"{DURABILITY} {SLOW}",
    ),
    Mutant(
        name="a late copy in a refused turn is never answered",
        file=RUNTIME,
        old="            if command.late:\n                command.resolve(self._signed(response))\n",
        new="            pass\n",
        tests=SLOW,
    ),
    Mutant(
        name="what a fault in the rules left half-done is served (D8)",
        file=RUNTIME,
        old="                self._drop(command.group_id)\n                touched.discard(command.group_id)\n",
        new="                touched.discard(command.group_id)\n",
        tests=DURABILITY,
    ),
    Mutant(
        name="records of a group in which the rules failed are stored (D8)",
        file=RUNTIME,
        old="                records = [record for record in records if record.group_id != command.group_id]\n",
        new="",
        tests=DURABILITY,
    ),
    Mutant(
        name="those answered before a fault in the rules keep an answer that did not happen (D8)",
        file=RUNTIME,
        old="                answers = self._turned_away(answers, {command.group_id})\n",
        new="",
        tests=DURABILITY,
    ),
    Mutant(
        name="timers of a group in which the rules failed are set",
        file=RUNTIME,
        old="                timers = [timer for timer in timers if timer.key.group_id != command.group_id]\n",
        new="",
        tests=DURABILITY,
    ),
    Mutant(
        name="a coordinator whose log was taken goes on serving (D4, D5)",
        file=RUNTIME,
        old=(
            "        except LogFenced as error:\n"
            "            self._step_down(error)\n"
            "            return\n"
            "        except Exception"
        ),
        new="        except LogFenced as error:\n            return\n        except Exception",
        tests=DURABILITY,
    ),
    Mutant(
        name="a coordinator that has stepped down serves those who ask later",
        file=RUNTIME,
        old=(
            "        if self._not_serving is not None:\n"
            "            self._refuse(command, self._not_serving)\n"
            "        else:"
        ),
        new="        if self._closed:\n            self._refuse(command, CoordinatorNotAvailable(''))\n        else:",
        tests=DURABILITY,
    ),
    Mutant(
        name="a group that is being loaded is served as one that does not exist",
        file=RUNTIME,
        old="        self._loading.add(group_id)\n",
        new="",
        tests=DURABILITY,
    ),
    Mutant(
        name="parked heartbeats of a group that is dropped are never answered",
        file=RUNTIME,
        old="            self._refuse(self._parked.pop(who), error)\n",
        new="            self._parked.pop(who)\n",
        tests=f"{DURABILITY} {SLOW}",
    ),
    Mutant(
        name="a group whose log is broken is served as one that does not exist (D7)",
        file=RUNTIME,
        old="            self._broken[group_id] = loaded\n            return\n",
        new="            return\n",
        tests=SERVING,
    ),
    Mutant(
        name="a group whose log cannot be read is given up for ever",
        file=RUNTIME,
        old="            await asyncio.sleep(RELOAD_WAIT_S)\n",
        new="            return\n",
        tests=DURABILITY,
    ),
    Mutant(
        name="after a load no timer runs",
        file=RUNTIME,
        old=(
            "            for timer in on_load(group, self._wall_clock_ms(), self._settings):\n"
            "                self._set(timer)\n"
        ),
        new="",
        tests=f"{DURABILITY} {SERVING}",
    ),
    Mutant(
        name="answers do not say which coordinator gave them",
        file=RUNTIME,
        old="replace(carrier, coordinator_epoch=self._log.epoch)",
        new="replace(carrier)",
        tests=DURABILITY,
    ),
    Mutant(
        name="each request costs an append of its own",
        file=RUNTIME,
        old="for _ in range(min(len(self._queue), MOST_A_TURN))])",
        new="for _ in range(1)])",
        tests=DURABILITY,
    ),
    # ---------------------------------------------------------------------------------------------- late copies
    Mutant(
        name="late copies of older heartbeats count",
        file=RUNTIME,
        old="                if request.sequence <= self._last_heard(who, group):\n",
        new="                if request.sequence < -1:\n",
        tests=SERVING,
    ),
    Mutant(
        name="a second copy of the newest heartbeat counts",
        file=RUNTIME,
        old="                if request.sequence <= self._last_heard(who, group):\n",
        new="                if request.sequence < self._last_heard(who, group):\n",
        tests=SERVING,
    ),
    Mutant(
        name="a join overtaken by its sender's leave makes a ghost (KAFKA-16639)",
        file=RUNTIME,
        old="return sequence if who[1] in group.members or now_s - at_s < kept_s else -1",
        new="return sequence if who[1] in group.members else -1",
        tests=SERVING,
    ),
    Mutant(
        name="a member id with a lower sequence is locked out for ever",
        file=RUNTIME,
        old="return sequence if who[1] in group.members or now_s - at_s < kept_s else -1",
        new="return sequence",
        tests=SERVING,
    ),
    Mutant(
        name="a late copy lengthens the session",
        file=RUNTIME,
        old="            if late_copy:\n                return\n",
        new="",
        tests=SERVING,
    ),
    # ---------------------------------------------------------------------------------------------- parking
    Mutant(
        name="a woken heartbeat is decided behind what is still in line, and fences a healthy member",
        file=RUNTIME,
        old="                waiting.extendleft(reversed(self._with_news(group)))\n",
        new="                waiting.extend(self._with_news(group))\n",
        tests=ORDER,
    ),
    Mutant(
        name="nobody parked is woken by a change",
        file=RUNTIME,
        old="                waiting.extendleft(reversed(self._with_news(group)))\n",
        new="                group.news.clear()\n",
        tests=SERVING,
    ),
    Mutant(
        name="a heartbeat is parked as long as it asks for",
        file=RUNTIME,
        old="            wait_ms = min(request.max_wait_ms, self._settings.longest_wait_ms)\n",
        new="            wait_ms = request.max_wait_ms\n",
        tests=SERVING,
    ),
    Mutant(
        name="a heartbeat that is parked again gets its whole time again",
        file=RUNTIME,
        old="        if command.parked_response is None:\n            wait_ms",
        new="        if True:\n            wait_ms",
        tests=SERVING,
    ),
    Mutant(
        name="a parked heartbeat that is looked at again counts as heard again",
        file=RUNTIME,
        old="            if not (repeated and isinstance(timer, SetTimer) and timer.key.kind is TimerKind.SESSION)\n",
        new="            if timer\n",
        tests=SERVING,
    ),
    Mutant(
        name="a parked heartbeat that a later one of its member replaces is never answered",
        file=RUNTIME,
        old="                answers.append((earlier, earlier.parked_response))\n",
        new="                pass\n",
        tests=SERVING,
    ),
    Mutant(
        name="a parked heartbeat whose time is up is not answered",
        file=RUNTIME,
        old="self._loop.call_at(command.answer_by_s, self._time_is_up, command)",
        new="self._loop.call_at(command.answer_by_s, print, '')",
        tests=SERVING,
    ),
    # ---------------------------------------------------------------------------------------------- timers
    Mutant(
        name="a heartbeat behind a slow append is heard only when its turn comes (F11)",
        file=RUNTIME,
        old="            self._enqueue(command)\n            self._hear(request)\n",
        new="            self._enqueue(command)\n",
        tests=SLOW,
    ),
    Mutant(
        name="a session timer that fired before its member spoke removes it all the same",
        file=RUNTIME,
        old=(
            "        # One that has fired and still waits for its turn is out of date now.\n"
            "        self._expired.discard(timer.key)\n"
        ),
        new="",
        tests=SLOW,
    ),
    Mutant(
        name="a coordinator that stood still expels members for it (F15)",
        file=RUNTIME,
        old="        if late_s > max(LATE_S, armed.timer.after_ms / 4000):\n",
        new="        if late_s < 0:\n",
        tests=SLOW,
    ),
    Mutant(
        name="setting a timer leaves the one before it running",
        file=RUNTIME,
        old="        if armed is not None:\n            armed.look.cancel()\n",
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a session that was put off ends when it would have ended first",
        file=RUNTIME,
        old="        if late_s < 0:\n            armed.look =",
        new="        if late_s < -1_000_000:\n            armed.look =",
        tests=f"{SERVING} {SLOW}",
    ),
    Mutant(
        name="a timer set to an earlier time fires at the later one",
        file=RUNTIME,
        old="            if armed is not None and armed.due_s <= due_s:\n",
        new="            if armed is not None:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a join that is refused keeps its sender's dead former self in the group",
        file=RUNTIME,
        old="if isinstance(request, HeartbeatRequest) and request.member_epoch > JOIN_EPOCH:",
        new="if isinstance(request, HeartbeatRequest) and request.member_epoch >= JOIN_EPOCH:",
        tests="tests/coordinator/test_delay_and_delete.py",
    ),
    # ---------------------------------------------------------------------------------------------- endings
    Mutant(
        name="a coordinator that closes leaves those who wait without an answer (L7)",
        file=RUNTIME,
        old="        for command in list(self._asked):\n            self._refuse(command, error)\n",
        new="",
        tests=SERVING,
    ),
    Mutant(
        name="a coordinator that closes leaves its timers running (KAFKA-19857)",
        file=RUNTIME,
        old="        for armed in self._timers.values():\n            armed.look.cancel()\n",
        new="",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="asking about a group makes it",
        file=RUNTIME,
        old="        if group.exists:\n            self._groups[group.group_id] = group\n",
        new="        self._groups[group.group_id] = group\n",
        tests=SMALL_PRINT,
    ),
)
