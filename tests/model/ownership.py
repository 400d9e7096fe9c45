"""An explicit-state model of a log that coordinators share: every order of events in fence, lease and hand-over.

Written from ``log.base.SharedLog``, points 7 to 9, and ``log.leased``, without their code. ``tests.simulation`` runs
that code under random faults; here every state that the rules alone allow is visited.

Two coordinators, ``a`` and ``b``, or three; a database with the row of the owner and a log. A process may do nothing
for any time (it is paused), and die and be started again. A call to the database is sent, applied and answered in three
steps with anything between them. The caller may give up before the answer: the request is lost, or applied later, even
after the caller has died. A read is one step: a slow one has the same effect as one that is sent later.

Time passes in ticks, and a coordinator knows only those of its own clock. The clock of ``a`` is slow: it misses up to
one of three ticks. A coordinator that stands by waits for ``LEASE`` ticks, an owner counts on ``OWN`` of them.

Epochs, renewals and holders are only compared for equality. A state says whether such a value is still that of the row
instead of the value, so that the number of states is finite without a limit on takes and renewals. Coordinators with
the same clock, ``b`` and ``c``, are equal: of states that differ only in which is which, one is visited, so that they
may change places between two steps of a trace.

``explore`` searches breadth first: the trace of a violation is one of the shortest. ``BUGS`` are rules to leave out.
``python -m tests.model --type ownership`` prints both.

Source: the model checkers TLC (TLA+) and stateright.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

LEASE: Final = 3
OWN: Final = 2
"""What is left of ``LEASE`` for a slow clock."""

NAMES: Final = ("a", "b", "c")
DEAD: Final = len(NAMES)
NO_HOLDER: Final = DEAD + 1

BUGS: Final = {
    "append does not check the epoch": "D4",
    "take does not check renewals": "D4",
    "take does not wait for the lease": "D4",
    "lease is counted from the answer to the renewal": "D4",
    "lease has no allowance for drift": "D4",
    "lease is released before the owner stops": "D4",
    "clock is not read before a response": "D5",
    "unknown outcome is taken for a failure": "D6",
    "unknown outcome is settled without a new epoch": "D6",
    "log is read before it is taken": "D2",
    "only a released log is taken": "L6",
}
"""Rules that can be left out, and the invariant that does not hold then."""

STANDBY: Final = "stands by"
READING: Final = "reads"
SERVING: Final = "serves"
DOUBT: Final = "is in doubt"

UNUSED, SENT, ACKNOWLEDGED, ABSENT = range(4)
"""What clients know of a batch. ``ABSENT``: it was refused, or an owner has read the log without it."""


class Call(NamedTuple):
    """A call to the database.

    Attributes:
        by: the process.
        age: ticks of its clock since it was sent, up to ``OWN``.
        answer: ``None`` until it is applied.
        seen: of a take: 2 while the row is as seen, 1 if only renewals have changed, 0 otherwise.
        holds, current: whether the row has its holder and its epoch; once it is applied, those that it has set.
        batch, last: of an append: the batch, and the offset that it follows.
    """

    kind: str
    by: int
    age: int = 0
    answer: bool | None = None
    seen: int = 0
    holds: bool = False
    current: bool = False
    batch: int = 0
    last: int = 0


class Node(NamedTuple):
    """A coordinator.

    Attributes:
        seen, waited: of the row, as in ``Call``, and for how many ticks it was like that.
        left: ticks until its lease ends.
        holds, current: as in ``Call``.
        memory: the batches that it has, as a bit mask.
        past: a later owner has responded.
        lease, write: the calls whose answers it awaits.
    """

    phase: str = STANDBY
    seen: int = 0
    waited: int = 0
    left: int = 0
    holds: bool = False
    current: bool = False
    memory: int = 0
    past: bool = False
    lease: Call | None = None
    write: Call | None = None

    def awaiting(self, kind: str, call: Call | None) -> Node:
        return self._replace(write=call) if kind == "append" else self._replace(lease=call)

    @property
    def may_respond(self) -> bool:
        return self.phase == SERVING and self.left > 0

    @property
    def is_timed(self) -> bool:
        """Whether it has a lease, or awaits an answer that gives it one."""
        call = self.lease
        return self.left > 0 or (
            call is not None and call.kind in ("take", "renewal") and call.answer is not False and call.age < OWN
        )


class State(NamedTuple):
    """The coordinators, the database, the requests under way, and what clients know.

    Attributes:
        holder: of the row: a process, ``DEAD`` or ``NO_HOLDER``.
        batches: what clients know of each batch.
        late: requests whose callers have given up.
        log: the batches in the log, as a bit mask.
        missed: ticks until the clock of ``a`` may miss one.
    """

    holder: int
    nodes: tuple[Node, ...]
    batches: tuple[int, ...]
    late: tuple[Call, ...] = ()
    log: int = 0
    missed: int = 0

    def put(self, number: int, node: Node) -> State:
        return self._replace(nodes=(*self.nodes[:number], node, *self.nodes[number + 1 :]))

    def mark(self, batch: int, known: int) -> State:
        return self._replace(batches=(*self.batches[:batch], known, *self.batches[batch + 1 :]))

    @property
    def canonical(self) -> State:
        """This state, or the one in which ``b`` and ``c`` have changed places."""
        if len(self.nodes) < 3:
            return self
        return min(self, self._swapped(), key=_order)

    def _swapped(self) -> State:
        a, b, c = self.nodes
        late = tuple(sorted(map(_swapped_call, self.late)))
        nodes = a, _swapped_node(c), _swapped_node(b)
        return self._replace(holder=_OTHER.get(self.holder, self.holder), nodes=nodes, late=late)


_OTHER: Final = {1: 2, 2: 1}

# There are far fewer nodes and calls than states: what is made of one is kept.


@cache
def _swapped_call(call: Call) -> Call:
    return call._replace(by=_OTHER.get(call.by, call.by))


@cache
def _swapped_node(node: Node) -> Node:
    lease, write = node.lease, node.write
    return node._replace(
        lease=None if lease is None else _swapped_call(lease), write=None if write is None else _swapped_call(write)
    )


_text: Final = cache(repr)


def _order(state: State) -> tuple[object, ...]:
    """An order of two states that differ only in ``b`` and ``c``."""
    return state.holder, _text(state.nodes[1]), _text(state.nodes[2]), _text(state.late)


Step = tuple[str, State, str]
"""What happens, the state after it, and the violation or an empty text."""


@dataclass(frozen=True, kw_only=True)
class Explored:
    """``violation``: empty if every invariant holds. ``trace``: the steps that lead to it."""

    states: int
    steps: int
    violation: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = f"{self.states} states, {self.steps} steps: {self.violation or 'every invariant holds'}"
        return "\n".join([found, *(f"{number:4}. {step}" for number, step in enumerate(self.trace, 1))])


def explore(bug: str = "", *, batches: int = 1, late: int = 1, coordinators: int = 2) -> Explored:
    """Visit every state, up to the first violation.

    Args:
        bug: one of ``BUGS``, or empty for the rules as they are.
        coordinators: two or three.
        batches: how many batches clients write.
        late: how many requests without a caller are under way at most; further ones are lost.
    """
    rules = Rules(bug, late)
    first = State(NO_HOLDER, (Node(),) * coordinators, (UNUSED,) * batches)
    numbers, states = {first: 0}, [first]
    shared: dict[Node, Node] = {}  # equal nodes are stored once
    origins: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]
    steps = number = 0

    def trace(at: int) -> tuple[str, ...]:
        labels = []
        while at:
            at, label = origins[at]
            labels.append(label)
        return tuple(reversed(labels))

    while number < len(states):
        for label, state, violation in rules.steps(states[number]):
            steps += 1
            state = state.canonical
            found = numbers.get(state)
            if found is None:
                state = state._replace(nodes=tuple(shared.setdefault(node, node) for node in state.nodes))
                found = numbers[state] = len(states)
                states.append(state)
                origins.append((number, label))
                before.append([])
                violation = violation or broken(state)
            if violation:
                return Explored(states=len(states), steps=steps, violation=violation, trace=(*trace(number), label))
            before[found].append(number)
        number += 1
    queue = deque(number for number, state in enumerate(states) if any(node.may_respond for node in state.nodes))
    served = set(queue)
    while queue:
        for number in before[queue.popleft()]:
            if number not in served:
                served.add(number)
                queue.append(number)
    stuck = next((number for number in range(len(states)) if number not in served), None)
    if stuck is None:
        return Explored(states=len(states), steps=steps)
    violation = "L6: no coordinator can ever serve again"
    return Explored(states=len(states), steps=steps, violation=violation, trace=trace(stuck))


def broken(state: State) -> str:
    """The invariant that does not hold in a state, or an empty text."""
    serving = [node for node in state.nodes if node.may_respond]
    if len(serving) > 1:
        return "D4: two coordinators serve"
    known, absent = (
        sum(1 << batch for batch, status in enumerate(state.batches) if status == each)
        for each in (ACKNOWLEDGED, ABSENT)
    )
    if known & ~state.log:
        return "D3: an acknowledged batch is not in the log"
    if absent & state.log:
        return "D6: the log has a batch that was refused or read as absent"
    for node in serving:
        if known & ~node.memory:
            return "D3: the coordinator that serves lacks an acknowledged batch"
        awaited = 0 if node.write is None else 1 << node.write.batch
        if node.current and state.log & ~node.memory & ~awaited:
            return "D2: the coordinator that serves lacks a batch of the log"
    return ""


class Rules:
    """What may happen in a state.

    Attributes:
        bug: the rule of ``BUGS`` that is left out.
        late: see ``explore``.
        own: the lease of an owner, in ticks.
        same: of ``Call.seen``: how much of the row must be as seen for a take.
    """

    def __init__(self, bug: str, late: int) -> None:
        if bug and bug not in BUGS:
            raise ValueError(f"bug: got {bug!r}; allowed: {', '.join(BUGS)}")
        self.bug, self.late = bug, late
        self.own = LEASE if bug == "lease has no allowance for drift" else OWN
        self.same = 1 if bug == "take does not check renewals" else 2

    def steps(self, state: State) -> Iterator[Step]:
        yield "time passes", self._tick(state, max(0, state.missed - 1), slow=False), ""
        if not state.missed and state.nodes[0].is_timed:
            yield "time passes, the clock of a stands still", self._tick(state, LEASE - 1, slow=True), ""
        for number, node in enumerate(state.nodes):
            yield from self._calls(state, number, node)
            yield from self._acts(state, number, node)
        for at, call in enumerate(state.late):
            left = state._replace(late=state.late[:at] + state.late[at + 1 :])
            yield f"the late {call.kind} is lost", left, ""
            after, applied, violation = self._applied(left, call)
            yield f"the late {call.kind} is applied: {applied.answer}", after, violation

    # ---- processes

    def _tick(self, state: State, missed: int, *, slow: bool) -> State:
        nodes, over = [], []
        for number, node in enumerate(state.nodes):
            if not (slow and number == 0) and (node.seen or node.is_timed):
                lease = node.lease
                if lease is not None and lease.kind != "retake" and lease.answer is not False:  # others extend no lease
                    lease = lease._replace(age=min(lease.age + 1, self.own))
                waits = node.seen and self.bug != "only a released log is taken"
                waited = min(node.waited + 1, LEASE) if waits else node.waited
                node = node._replace(waited=waited, left=max(0, node.left - 1), lease=lease)
            # A paused process ends its term later, which has the same effect as a late release.
            if node.phase != STANDBY and not node.is_timed and self.bug != "clock is not read before a response":
                over.append(number)
            nodes.append(node)
        state = state._replace(nodes=tuple(nodes))
        for number in over:
            state = self._ended(state, number)
        return state._replace(missed=missed if state.nodes[0].is_timed else 0)

    def _acts(self, state: State, number: int, node: Node) -> Iterator[Step]:
        name = NAMES[number]
        if node != Node():
            dead = self._abandoned(state, number, node.lease, node.write).put(number, Node())
            late = tuple(sorted(call._replace(by=DEAD) if call.by == number else call for call in dead.late))
            holder = DEAD if state.holder == number else state.holder
            yield f"{name} dies and is started again", dead._replace(holder=holder, late=late), ""
        if node.phase == STANDBY:
            yield from self._stands_by(state, number, node)
            return
        yield f"{name} ends its term and releases the lease", self._ended(state, number), ""
        if node.phase == SERVING and (node.left or self.bug == "clock is not read before a response"):
            others = (*state.nodes[:number], *state.nodes[number + 1 :])
            if node.past or (node.current and any(each.phase != STANDBY and not each.past for each in others)):
                yield f"{name} responds", *self._responded(state, number)
        if not node.left:
            return
        if node.lease is None and node.left < self.own:
            yield f"{name} sends a renewal", self._sent(state, number, "renewal"), ""
        if node.phase == READING:
            yield f"{name} reads the log and serves", self._read(state, number), ""
        elif node.phase == DOUBT and self.bug == "unknown outcome is settled without a new epoch":
            yield f"{name} reads the log again", self._read(state, number), ""
        elif node.phase == DOUBT and node.lease is None:
            yield f"{name} takes the log at the next epoch", self._sent(state, number, "retake"), ""
        elif node.phase == SERVING and node.write is None and UNUSED in state.batches:
            batch = state.batches.index(UNUSED)
            call = Call("append", number, current=node.current, batch=batch, last=node.memory.bit_count())
            yield f"{name} sends batch {batch}", state.mark(batch, SENT).put(number, node._replace(write=call)), ""
        if node.phase == SERVING and self.bug == "lease is released before the owner stops":
            release = Call("release", number, holds=node.holds)
            yield f"{name} sends a release and serves on", self._abandoned(state, number, release), ""

    def _stands_by(self, state: State, number: int, node: Node) -> Iterator[Step]:
        if node.lease is not None:
            return
        if node.seen < 2:
            waited = LEASE if state.holder in (NO_HOLDER, number) else 0
            yield f"{NAMES[number]} looks at the owner", state.put(number, node._replace(seen=2, waited=waited)), ""
        # A take of a row that has changed since would be refused. It is left out.
        if node.seen < self.same:
            return
        if node.waited >= LEASE or self.bug == "take does not wait for the lease":
            memory = state.log if self.bug == "log is read before it is taken" else 0
            take = Call("take", number, seen=node.seen)
            yield f"{NAMES[number]} sends a take", state.put(number, Node(lease=take, memory=memory)), ""

    def _sent(self, state: State, number: int, kind: str) -> State:
        node = state.nodes[number]
        return state.put(number, node._replace(lease=Call(kind, number, holds=node.holds)))

    def _read(self, state: State, number: int) -> State:
        node = state.nodes[number]
        if node.current:
            for batch, known in enumerate(state.batches):
                if known == SENT and not state.log >> batch & 1:
                    state = state.mark(batch, ABSENT)
        return state.put(number, node._replace(phase=SERVING, memory=state.log))

    def _responded(self, state: State, number: int) -> tuple[State, str]:
        node = state.nodes[number]
        if node.past:
            return state, "D5: a coordinator responds after its successor has"
        for other, each in enumerate(state.nodes):
            if node.current and other != number and each.phase != STANDBY:
                state = state.put(other, each._replace(past=True))
        return state, ""

    def _ended(self, state: State, number: int) -> State:
        node = state.nodes[number]
        release = Call("release", number, holds=node.holds)
        return self._abandoned(state, number, node.write, release, node.lease).put(number, Node())

    def _abandoned(self, state: State, number: int, *calls: Call | None) -> State:
        """Add requests whose caller has given up; those that can have no effect are left out."""
        late = [
            call._replace(age=0, by=number if call.kind == "take" else DEAD)
            for call in calls
            if call is not None and call.answer is None
        ]
        return state._replace(late=self._with_effect([*state.late, *late][: self.late]))

    # ---- the database

    def _calls(self, state: State, number: int, node: Node) -> Iterator[Step]:
        """What happens to the calls that a coordinator waits for."""
        for call in (node.lease, node.write):
            if call is None:
                continue
            free = state.put(number, node.awaiting(call.kind, None))
            what = f"the {call.kind} of {NAMES[number]}"
            if call.answer is None:
                after, applied, violation = self._applied(free, call)
                waiting = after.nodes[number].awaiting(call.kind, applied)
                yield f"{what} is applied: {applied.answer}", after.put(number, waiting), violation
            else:
                yield f"the answer to {what} arrives: {call.answer}", *self._answered(state, number, call)
            if call.kind == "append" and self.bug == "unknown outcome is taken for a failure":
                free = free.mark(call.batch, ABSENT)
            elif call.kind == "append":
                free = free.put(number, free.nodes[number]._replace(phase=DOUBT, memory=0))
            yield f"{NAMES[number]} gives up {what}", self._abandoned(free, number, call), ""

    def _answered(self, state: State, number: int, call: Call) -> tuple[State, str]:
        node = state.nodes[number]
        left = self.own - (0 if self.bug == "lease is counted from the answer to the renewal" else call.age)
        if call.kind == "append":
            if not call.answer:
                return self._ended(state, number), ""
            node = node._replace(write=None, memory=node.memory | 1 << call.batch)
            state = state.put(number, node)
            return self._responded(state.mark(call.batch, ACKNOWLEDGED), number) if node.left else (state, "")
        node = node._replace(lease=None)
        if call.kind == "take":
            if not call.answer or left <= 0:
                return state.put(number, Node()), ""
            phase = SERVING if self.bug == "log is read before it is taken" else READING
            node = node._replace(phase=phase, left=left, holds=call.holds, current=call.current)
        elif not call.answer:
            return self._ended(state, number), ""
        elif call.kind == "renewal":
            node = node._replace(left=max(left, node.left))
        else:
            node = node._replace(phase=READING, current=call.current)
        return state.put(number, node), ""

    def _applied(self, state: State, call: Call) -> tuple[State, Call, str]:
        """Perform a call at the database: the state, the call with its answer, and the violation."""
        violation = ""
        if call.kind == "append":
            answer = call.last == state.log.bit_count()
            answer = answer and (call.current or self.bug == "append does not check the epoch")
            if answer and not call.current:
                violation = "D4: a batch of an earlier epoch is written"
            if answer:
                state = state._replace(log=state.log | 1 << call.batch)
        elif call.kind == "take":
            answer = call.seen >= self.same
            if answer:
                state = self._changed(state, holder=True, epoch=True)._replace(holder=call.by)
                call = call._replace(holds=True, current=True)
        else:
            answer = call.holds
            if answer and call.kind == "renewal":
                state = self._changed(state)
            elif answer and call.kind == "retake":
                state = self._changed(state, epoch=True)
                call = call._replace(current=True)
            elif answer:
                state = self._changed(state, holder=True)._replace(holder=NO_HOLDER)
        if not answer:
            call = Call(call.kind, call.by, batch=call.batch)
        return state, call._replace(answer=answer, seen=0, last=0), violation

    def _changed(self, state: State, *, holder: bool = False, epoch: bool = False) -> State:
        """The row has another holder, another epoch, or only other renewals."""
        seen = 1 if self.same == 1 and not holder and not epoch else 0

        def outdated(call: Call) -> Call:
            call = call._replace(
                seen=min(call.seen, seen), holds=call.holds and not holder, current=call.current and not epoch
            )
            if call.answer is None and not self._has_effect(call):
                return Call(call.kind, call.by, batch=call.batch, answer=False)
            return call

        nodes: list[Node] = []
        for node in state.nodes:
            lease, write = node.lease and outdated(node.lease), node.write and outdated(node.write)
            if lease is not None and lease.kind == "take" and lease.answer is False:
                nodes.append(Node())  # refused: as if the answer had arrived
                continue
            node = node._replace(seen=min(node.seen, seen), lease=lease, write=write)
            node = node._replace(holds=node.holds and not holder, current=node.current and not epoch)
            nodes.append(node if node.seen else node._replace(waited=0))
        return state._replace(nodes=tuple(nodes), late=self._with_effect(map(outdated, state.late)))

    def _with_effect(self, calls: Iterable[Call]) -> tuple[Call, ...]:
        return tuple(sorted(call for call in calls if call.answer is None and self._has_effect(call)))

    def _has_effect(self, call: Call) -> bool:
        if call.kind == "append":
            return call.current or self.bug == "append does not check the epoch"
        return call.seen >= self.same if call.kind == "take" else call.holds


def main() -> int:
    """Print how many states there are, and how each rule that is left out is found; returns 0 if that is so."""
    found = explore()
    three = explore(coordinators=3, late=0)
    print(f"{found}\nthree coordinators, no request after its caller has given up: {three}")
    wrong = bool(found.violation or three.violation)
    for bug, invariant in BUGS.items():
        found = explore(bug)
        print(f"\n{bug}: {found}")
        wrong = wrong or not found.violation.startswith(invariant)
    return 1 if wrong else 0
