"""The fixture ``worker_group``: what a test of a plug-in or an embedder can do with a group."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from connectgroup import ConnectAssignment, ConnectAssignor, ConnectAssignorInput, ConnectMemberAssignment, Metadata
from connectgroup.assign.placement import WorkerTraits
from connectgroup.connector import Config, Connector, Task, TaskContext
from connectgroup.errors import ConfigError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.listener import WorkerRebalanceListener
from connectgroup.own_plugins import OneWorkersAssignors
from connectgroup.protocol.units import Units
from connectgroup.testing import StartGroup, WorkerGroup, seeds
from tests.volume import ci_only

both = pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.processes)])
LATER = ci_only("seconds of a core each; in a user's run, the same in virtual time, and real groups in other tests")
both_in_ci = pytest.mark.parametrize("real", [False, pytest.param(True, marks=[pytest.mark.processes, LATER])])
QUICK = GroupSettings(session_timeout_ms=3_000, heartbeat_interval_ms=1_000)


class First(ConnectAssignor):
    """Assigns everything to the first member by name, and takes its time to do so."""

    name = "first"

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        time.sleep(0.5)
        first, *others = sorted(member.member_id for member in group.members)
        shares = {first: frozenset(group.units), **dict.fromkeys(others, frozenset[object]())}
        return ConnectAssignment(
            members=[ConnectMemberAssignment(member_id=name, units=units) for name, units in shares.items()]  # type: ignore[arg-type]
        )


class Abstract(ConnectAssignor):
    """Has no ``assign``."""

    name = "abstract"


class Needy(WorkerRebalanceListener):
    """Needs an argument; records what its worker is assigned."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.assigned: set[str] = set()

    def on_assigned(self, units: Units, epoch: int) -> None:
        self.assigned |= set(map(str, units))

    def on_revoked(self, units: Units, epoch: int) -> None:
        self.assigned -= set(map(str, units))


class Echo(Connector):
    """As many tasks as it may have, which do nothing."""

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{"number": str(number)} for number in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return EchoTask()


class EchoTask(Task):
    """Does nothing."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Polls(Echo):
    """Its tasks say when they have polled their source, and never do."""

    def task(self, config: Config, context: TaskContext) -> Task:
        return PollsTask()


class PollsTask(EchoTask):
    """See ``Polls``."""

    reports_polls = True


@both
def test_dead_worker_is_replaced(worker_group: StartGroup, real: bool) -> None:
    """After its session; with real processes at once (PD-13), long before the session expires."""
    settings = replace(QUICK, session_timeout_ms=600_000) if real else QUICK
    group = worker_group(workers=3, connectors={"numbers": 6}, settings=settings, real=real)
    group.wait_until_stable()
    assert len(group.owners()) == 7
    assert set(group.owners().values()) == {"worker-1", "worker-2", "worker-3"}

    group.kill("worker-1")
    waited = group.wait_until_stable()
    assert len(group.owners()) == 7
    assert set(group.owners().values()) == {"worker-2", "worker-3"}
    assert real or 2 <= waited <= 4


@both
def test_own_plugins_run_in_a_group(worker_group: StartGroup, real: bool) -> None:
    """The assignor takes half a second in a thread: virtual time passes by exactly that."""
    echo = {"connector.class": Echo, "tasks.max": 3}
    group = worker_group(2, connectors={"echo": echo}, assignors=[First], settings=QUICK, real=real)
    group.wait_until_stable()
    assert group.running("worker-1") == ["echo", "echo-0", "echo-1", "echo-2"]
    assert group.running("worker-2") == []


@both_in_ci
def test_partitioned_worker_stops_its_tasks_before_others_start_them(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(2, connectors={"numbers": 4}, settings=QUICK, real=real)
    group.wait_until_stable()
    group.partition("worker-2")
    group.wait_until_stable()
    assert group.running("worker-2") == []
    assert set(group.owners().values()) == {"worker-1"}
    group.heal()
    group.wait_until_stable()
    assert set(group.owners().values()) == {"worker-1", "worker-2"}


@both_in_ci
def test_paused_worker_loses_its_tasks_and_returns(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(2, connectors={"numbers": 4}, settings=QUICK, real=real)
    group.wait_until_stable()
    group.pause("worker-2")
    group.wait_until_stable()
    group.resume("worker-2")
    group.wait_until_stable()
    assert set(group.owners().values()) == {"worker-1", "worker-2"}


@both_in_ci
def test_coordinator_restarts_on_its_log(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(2, connectors={"numbers": 4}, settings=QUICK, real=real)
    group.wait_until_stable()
    before = group.owners()
    group.kill("coordinator")
    group.advance(0.5)
    group.restart("coordinator")
    group.wait_until_stable()
    assert group.owners() == before


@both
def test_workers_and_connectors_come_and_go(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(["a", "b"], connectors={"numbers": 4}, settings=QUICK, real=real)
    group.wait_until_stable()
    group.stop("a")
    assert group.running("a") == []
    added = group.add_worker()
    group.add_connector("letters", {"connector.class": Echo, "tasks.max": 2})
    group.remove_connector("numbers")
    group.wait_until_stable()
    assert group.workers == ["b", added]
    assert sorted(group.owners()) == ["letters", "letters-0", "letters-1"]
    group.restart("b")
    group.wait_until_stable()
    assert set(group.owners().values()) == {"b", added}


def test_five_minutes_pass_in_virtual_time(worker_group: StartGroup) -> None:
    settings = GroupSettings(scheduled_delay_ms=300_000)
    group = worker_group(2, connectors={"numbers": 4}, settings=settings)
    group.wait_until_stable()
    kept = group.running("worker-2")
    group.kill("worker-1")
    group.advance(299)
    assert group.running("worker-2") == kept  # the delayed tasks wait for their worker
    group.wait_until_stable()
    assert 309 <= group.now <= 320
    assert len(group.running("worker-2")) == 5


def test_assignor_that_never_returns_is_replaced(worker_group: StartGroup) -> None:
    class Hangs(First):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            time.sleep(3600)
            return super().assign(group)

    group = worker_group(1, connectors={"numbers": 2}, assignors=[Hangs])
    waited = group.wait_until_stable(within=400)
    assert 30 <= waited < 31  # the assignor's timeout; after three failures the coordinator assigns


def test_story_says_who_computed_and_how_often_assignors_failed(worker_group: StartGroup) -> None:
    """The group is stable although its assignor always raises: the coordinator computes after three failures."""

    class Raises(First):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError("no idea")

    group = worker_group(2, connectors={"numbers": 2}, assignors=[Raises])
    group.wait_until_stable(within=400)
    story = group.story()
    assert re.search(r"^target assignment of epoch \d+: computed by coordinator, assignor \w+$", story, re.MULTILINE), (
        story
    )
    [failures] = re.findall(r"^failed computations: (\d+); the last: .*first.*$", story, re.MULTILINE)
    assert int(failures) >= 2
    assert story.count("failed: ") == int(failures)
    works = worker_group(2, connectors={"numbers": 2}, assignors=[First])
    works.wait_until_stable()
    assert re.search(r"computed by worker-\d, assignor first$", works.story(), re.MULTILINE)
    assert "failed computations" not in works.story()


def test_listener_of_a_killed_worker_is_not_called(worker_group: StartGroup) -> None:
    told: list[tuple[str, Units]] = []

    class Listener(WorkerRebalanceListener):
        def on_assigned(self, units: Units, epoch: int) -> None:
            told.append(("assigned", units))

        def on_lost(self, units: Units, epoch: int) -> None:
            told.append(("lost", units))

        def on_revoked(self, units: Units, epoch: int) -> None:
            told.append(("revoked", units))

    group = worker_group(["only"], connectors={"numbers": 2}, listeners=[Listener])
    group.wait_until_stable()
    group.kill("only")
    group.close()
    assert {event for event, _ in told} == {"assigned"}


def test_tasks_of_a_killed_worker_run_until_the_end_of_the_test(worker_group: StartGroup) -> None:
    """A killed process runs no stop; the threads of its tasks must not go on in the next test."""
    running: set[str] = set()

    class Threads(Echo):
        def task(self, config: Config, context: TaskContext) -> Task:
            return Thread(context.member_id)

    class Thread(EchoTask):
        def __init__(self, worker: str) -> None:
            self.worker = worker

        def start(self) -> None:
            running.add(self.worker)

        def stop(self) -> None:
            running.discard(self.worker)

    group = worker_group(["only", "other"], connectors={"c": {"connector.class": Threads, "tasks.max": 2}})
    group.wait_until_stable()
    group.stop("other")
    group.wait_until_stable()
    group.kill("only")
    group.advance(60)
    assert running == {"only"}
    group.close()
    assert running == set()


@both_in_ci
def test_workers_have_traits_also_after_a_restart(worker_group: StartGroup, real: bool) -> None:
    settings = replace(QUICK, max_members=3)
    workers = {"a": WorkerTraits(labels=(("gpu", "true"),), rack="r1", capacity=4, host="h1"), "b": WorkerTraits()}
    group = worker_group(workers, connectors={"c": 2}, settings=settings, real=real)
    group.wait_until_stable()
    group.restart("a")
    group.add_worker("c", traits=WorkerTraits(rack="r2"))
    group.wait_until_stable()
    described = group.describe()
    assert described is not None
    found = {member.member_id: member for member in described.members}
    assert [(entry.name, entry.value) for entry in found["a"].labels] == [("gpu", "true")]
    assert (found["a"].rack, found["a"].capacity, found["a"].host) == ("r1", 4, "h1")
    assert {name: member.rack for name, member in found.items()} == {"a": "r1", "b": "", "c": "r2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": -2}, "workers: got '-2'; allowed: a whole number from 0 to "),
        (
            {"workers": "3"},
            "workers: got '3'; allowed: a whole number from 0 to 1000, or a list of names, each once, or traits by ",
        ),
        ({"workers": {"a": 4}}, "workers: a: got '4'; allowed: WorkerTraits(...)"),
        (
            {"connectors": {"a": "idle"}},
            "connectors: a: got 'idle'; allowed: a number of idle tasks, at least 1, or a ",
        ),
        ({"connectors": ["a"]}, "connectors: got "),
        ({"connectors": {"a": -1}}, "connectors: a: got '-1'; allowed: a number of idle tasks"),
        ({"assignors": "balanced"}, "assignors: got 'balanced'; allowed: a list of names, classes or instances"),
        (
            {"listeners": First},
            "listeners: got 'the class First'; allowed: a list of names, classes or instances, or a ",
        ),
        (
            {"listeners": lambda: ["log"]},
            "listeners: got '<lambda>(): too many positional arguments'; allowed: a list ",
        ),
        ({"listeners": Needy}, "listeners: got 'the class Needy'; allowed: "),
        ({"assignors": First}, "assignors: got 'the class First'; allowed: a list of names, classes or instances, or "),
        (
            {"assignors": {"worker-1": [First]}},
            "assignors: got 'nothing for worker-2'; allowed: a list for every worker",
        ),
        ({"assignors": lambda worker: "balanced"}, "assignors of worker-1: got 'balanced'; allowed: a list of names"),
        ({"listeners": {}}, "listeners: got 'nothing for worker-1'; allowed: a list for every worker; listed: none"),
        ({"connectors": {"a": {"connector.class": First}}}, "connectors: a: connector.class: got 'the class First'"),
        (
            {"connectors": {"a": {"connector.class": Connector}}},
            "connectors: a: connector.class: got 'the abstract class",
        ),
    ],
)
@pytest.mark.parametrize("real", [False, True])
def test_argument_that_cannot_be_used_is_named(
    worker_group: StartGroup, arguments: dict[str, Any], message: str, real: bool
) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        worker_group(**arguments, real=real)


@pytest.mark.parametrize(
    ("positional", "keywords", "got"),
    [(("mine",), {"workers": 2}, "mine"), (("mine", 2), {}, "mine, 2"), ((2,), {"workers": 2}, "2")],
)
def test_name_of_a_group_is_refused_with_what_is_allowed(
    worker_group: Callable[..., object], positional: tuple[object, ...], keywords: dict[str, object], got: str
) -> None:
    """``connectgroup.worker_group("mine", workers=2)`` has a name."""
    allowed = "workers alone, as in worker_group(workers=2): the group of a test has no name"
    with pytest.raises(ConfigError) as refused:
        worker_group(*positional, **keywords)
    assert str(refused.value) == f"worker_group: got {got!r}; allowed: {allowed}"


def test_times_and_conditions_of_another_kind_are_named(worker_group: StartGroup) -> None:
    group = worker_group(1)
    with pytest.raises(ConfigError, match=r"^seconds: got '-1'; allowed: a number from 0"):
        group.advance(-1)
    with pytest.raises(ConfigError, match=r"^condition: got 'True'; allowed: a function without arguments"):
        group.until(True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^condition: got .*missing a required argument"):
        group.until(group.running)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"listeners": [Needy]},
            "listeners: got \"Needy(worker): missing a required argument: 'worker'\"; allowed: a class that is created "
            "without arguments, an object of it, or listeners=lambda worker: [...]",
        ),
        (
            {"listeners": lambda worker: Needy(worker)},
            "listeners of worker-1: got 'an object of Needy'; allowed: a list",
        ),
        (
            {"listeners": [First]},
            "listeners: got 'an object of First'; allowed: names, WorkerRebalanceListener classes",
        ),
        ({"assignors": [Abstract]}, "assignors: got 'the abstract class Abstract; missing: assign'; allowed: names, "),
        (
            {"assignors": [First.assign]},
            "assignors: got \"assign(self, group): missing a required argument: 'self'\"; ",
        ),
    ],
)
def test_plugin_that_cannot_be_made_is_named(worker_group: StartGroup, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(message)):
        worker_group(**arguments)


def test_listeners_may_be_a_function_of_the_worker_s_name(worker_group: StartGroup) -> None:
    made: dict[str, Needy] = {}

    def listeners(worker: str) -> list[Needy]:
        made[worker] = Needy(worker)
        return [made[worker]]

    group = worker_group(["a", "b"], connectors={"c": 3}, listeners=listeners)
    group.add_worker("late")
    group.wait_until_stable()
    assert {name: sorted(listener.assigned) for name, listener in made.items()} == {
        name: group.running(name) for name in ("a", "b", "late")
    }


@both_in_ci
def test_task_that_reports_polls_starts_until_its_first_poll(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(1, connectors={"c": {"connector.class": Polls}}, real=real)
    states: set[str] = set()

    def ran() -> bool:
        group_now = group.describe()
        states.update(unit.state for each in (group_now.connectors if group_now else ()) for unit in each.units[1:])
        return "STARTING" in states

    group.until(ran)
    group.advance(1)
    ran()
    assert "RUNNING" not in states


@pytest.mark.processes
def test_listeners_of_processes_may_be_a_function_that_returns_names_or_classes(worker_group: StartGroup) -> None:
    with pytest.raises(ConfigError, match=r"^plug-in of a group with real=True: got .*; allowed: an entry-point name"):
        worker_group(["a"], listeners=lambda worker: [Needy(worker)], real=True)
    asked: list[str] = []

    def listeners(worker: str) -> list[str]:
        asked.append(worker)
        return ["log"]

    group = worker_group(["a"], connectors={"c": 1}, listeners=listeners, settings=QUICK, real=True)
    group.add_worker("late")
    group.wait_until_stable()
    assert set(asked) == {"a", "late"}


@both
def test_group_without_workers_and_connectors_does_not_exist_yet(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(0, real=real)
    with pytest.raises(
        AssertionError, match=r"^a stable group \(there is no group yet: neither a worker nor"
    ) as caught:
        group.wait_until_stable(within=0)
    assert "no coordinator responds" not in str(caught.value)
    group.kill("coordinator")
    assert "no coordinator responds" in group.story()


def test_unit_that_no_worker_can_run_is_in_the_message_with_the_reason_of_the_assignor(
    worker_group: StartGroup,
) -> None:
    config = {"connector.class": "idle", "assignment.labels": "gpu=true"}
    group = worker_group(2, connectors={"c": config}, assignors=["weighted"])
    with pytest.raises(AssertionError, match=r"^a stable group \(c is UNASSIGNED, units are delayed\): not") as caught:
        group.wait_until_stable(within=10)
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith("the assignor says: ") and "gpu=true" in line], lines
    assert [line for line in lines if re.match(r"delayed by the assignor, .* s left: c$", line)], lines


@both_in_ci
def test_connector_runs_where_its_plugin_is_and_without_any_wherever_the_error_shows(
    worker_group: StartGroup, real: bool
) -> None:
    has = WorkerTraits(labels=(("plugin.idle", "true"),))
    config = {"connector.class": "idle", "tasks.max": "4"}
    workers = {"a": has, "b": WorkerTraits(), "c": WorkerTraits()}
    group = worker_group(workers, connectors={"c": config}, assignors=["weighted"], real=real)
    group.wait_until_stable()
    assert set(group.owners().values()) == {"a"}
    group.stop("a")
    group.wait_until_stable()
    assert set(group.owners().values()) == {"b", "c"}
    group.add_worker("d", traits=has)
    group.until(lambda: set(group.owners().values()) == {"d"})


@both
def test_unknown_name_of_a_worker_is_named_with_those_that_run(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(["a", "b"], real=real)
    methods: list[Callable[[str], object]] = [group.stop, group.pause, group.resume, group.partition, group.heal]
    for method in [*methods, group.restart, group.running]:
        with pytest.raises(ConfigError, match=r"^worker: got 'worker-9'; allowed: a, b$"):
            method("worker-9")
    with pytest.raises(ConfigError, match=r"^worker: got 'worker-9'; allowed: a, b, coordinator$"):
        group.kill("worker-9")
    with pytest.raises(ConfigError, match=r"^worker: got 'a'; allowed: a name that no running worker has: a, b$"):
        group.add_worker("a")
    assert group.workers == ["a", "b"]


@pytest.mark.parametrize("count", ["x", 0, True, len])
def test_number_of_seeds_is_checked(count: Any) -> None:
    with pytest.raises(ConfigError, match=r"^seeds: got .*; allowed: a whole number from 1 to "):
        seeds(count)


class Lingering(Connector):
    """Its tasks take half a minute to stop; ``fenced`` says whether their sink fences them."""

    @property
    def fenced(self) -> bool:
        return self.config["fenced"] == "true"

    def task_configs(self, limit: int) -> Sequence[Config]:
        return [{} for _ in range(limit)]

    def task(self, config: Config, context: TaskContext) -> Task:
        return LingeringTask()


class LingeringTask(Task):
    """See ``Lingering``."""

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        time.sleep(30)


@pytest.mark.parametrize("cause", ["partition", "pause"])
def test_unfenced_task_whose_stop_hangs_runs_on_two_workers(worker_group: StartGroup, cause: str) -> None:
    """S2: its worker has been removed, and nothing prevents it from writing until its stop has returned."""
    group = worker_group(
        2, connectors={"echo": {"connector.class": Lingering, "tasks.max": 2, "fenced": "false"}}, settings=QUICK
    )
    group.wait_until_stable()
    worker = group.owners()["echo-0"]
    if cause == "partition":
        group.partition(worker)
    else:
        group.pause(worker)
    group.advance(20)
    if cause == "pause":
        group.assert_one_owner()
        group.resume(worker)
        group.advance(10)
    with pytest.raises(AssertionError, match=rf"echo-0@\d+ on {worker} from .* not fenced\n"):
        group.assert_one_owner()
    group.history.runs.clear()  # what the fixture checks at the end


def test_fenced_task_runs_on_beside_its_successor_and_cannot_write(worker_group: StartGroup) -> None:
    """X1: its worker is cut off and removed; the claim of the successor fences it."""
    group = worker_group(
        2, connectors={"echo": {"connector.class": Lingering, "tasks.max": 2, "fenced": "true"}}, settings=QUICK
    )
    group.wait_until_stable()
    worker = group.owners()["echo-0"]
    group.partition(worker)
    group.advance(60)
    assert group.owners()["echo-0"] != worker
    assert "echo-0" in group.running(worker), "no lease ends it"
    group.heal()
    group.advance(1)
    group.wait_until_stable(within=200)


def test_run_counts_until_the_stop_of_its_own_task_has_returned(worker_group: StartGroup) -> None:
    """One stop that hangs keeps no other unit of its worker running."""

    class OneLingers(Lingering):
        def task_configs(self, limit: int) -> Sequence[Config]:
            return [{"task": str(number)} for number in range(limit)]

        def task(self, config: Config, context: TaskContext) -> Task:
            class Quick(Task):
                def start(self) -> None:
                    """Nothing to do."""

                def stop(self) -> None:
                    """Nothing to do."""

            return LingeringTask() if config["task"] == "0" else Quick()

    group = worker_group(
        1, connectors={"echo": {"connector.class": OneLingers, "tasks.max": 3, "fenced": "false"}}, settings=QUICK
    )
    group.wait_until_stable()
    group.partition("worker-1")
    group.advance(10)
    assert [unit for unit in group.running("worker-1") if "-" in unit] == ["echo-0"]


class Counts(ConnectAssignor):
    """Reads and writes version 0 of its metadata."""

    name = "counts"
    written: ClassVar[int] = 0

    def metadata(self) -> Metadata:
        return Metadata(version=self.written, metadata=b"%d" % self.written)

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        assert all(member.metadata == b"%d" % member.version for member in group.members)
        assert all(member.version <= self.maximum_version for member in group.members)
        first = min(member.member_id for member in group.members)
        return ConnectAssignment(members=[ConnectMemberAssignment(member_id=first, units=frozenset(group.units))])


class CountsReadsBoth(Counts):
    """Reads versions 0 and 1, and writes 0."""

    maximum_version = 1


class CountsWritesNew(CountsReadsBoth):
    """Reads versions 0 and 1, and writes 1."""

    written = 1


def replace_worker(group: WorkerGroup, name: str, assignors: OneWorkersAssignors) -> None:
    """Stop a worker, and start it again with other assignors."""
    group.stop(name)
    group.add_worker(name, assignors=assignors)
    group.wait_until_stable()


@both_in_ci
def test_assignor_is_introduced_worker_by_worker(worker_group: StartGroup, real: bool) -> None:
    """The group uses it once all workers list it; a worker keeps its list when it is started again."""
    new: OneWorkersAssignors = [Counts, "balanced"]
    by_name: dict[str, OneWorkersAssignors] = {"worker-1": new, "worker-2": ["balanced"]}
    group = worker_group(2, connectors={"numbers": 2}, assignors=by_name, settings=QUICK, real=real)
    group.wait_until_stable()
    group.assert_computed_by("balanced")
    replace_worker(group, "worker-2", new)
    group.assert_computed_by(Counts)
    group.restart("worker-2")
    group.wait_until_stable()
    group.assert_computed_by(Counts)


def test_assignors_may_be_a_function_of_the_workers_name(worker_group: StartGroup) -> None:
    asked = []

    def assignors(worker: str) -> OneWorkersAssignors:
        asked.append(worker)
        return [Counts()] if worker == "late" else [Counts, "balanced"]

    group = worker_group(["a", "b"], connectors={"numbers": 2}, assignors=assignors)
    group.wait_until_stable()
    group.add_worker("late")
    group.wait_until_stable()
    group.assert_computed_by("counts")
    assert asked == ["a", "b", "late"]


def test_metadata_of_an_assignor_change_version_worker_by_worker(worker_group: StartGroup) -> None:
    """A release that reads both versions first, then one that writes the new one; each step is computed by it."""
    group = worker_group(3, connectors={"numbers": 4}, assignors=[Counts])
    group.wait_until_stable()
    for release in (CountsReadsBoth, CountsWritesNew):
        for worker in sorted(group.workers):
            replace_worker(group, worker, [release])
            group.assert_computed_by(release)
    assert "failed computations" not in group.story()


def test_worker_with_a_version_that_others_do_not_read_is_rejected(worker_group: StartGroup) -> None:
    class OnlyNew(CountsWritesNew):
        minimum_version = 1

    group = worker_group(2, connectors={"numbers": 4}, assignors=[Counts])
    group.wait_until_stable()
    group.add_worker("late", assignors=[OnlyNew])
    with pytest.raises(
        AssertionError, match=r"^a stable group: late has ended: ClientAssignors: version ranges do not"
    ):
        group.wait_until_stable()
    assert not group.is_stable()
    assert "version ranges do not overlap" in group.wait_until_rejected("late")
    group.wait_until_stable()
    assert "late has ended: ClientAssignors: version ranges do not overlap" in group.story()
    group.assert_computed_by(Counts)
    group.add_worker("late", assignors=[Counts])
    group.wait_until_stable()
    assert sorted(group.workers) == ["late", "worker-1", "worker-2"]
    with pytest.raises(AssertionError, match=r"^the rejection of late: not within 5 s"):
        group.wait_until_rejected("late", within=5)


@both_in_ci
def test_rejected_worker_ends_the_wait_for_a_stable_group(worker_group: StartGroup, real: bool) -> None:
    group = worker_group(1, connectors={"numbers": 2}, settings=QUICK, real=real)
    group.wait_until_stable()
    group.add_worker("late", assignors=[Counts])
    with pytest.raises(
        AssertionError, match=r"^a stable group: late has ended: .*assignor(.|\n)*wait_until_rejected\(name\)"
    ):
        group.wait_until_stable()
    assert "assignor" in group.wait_until_rejected("late")
    group.wait_until_stable()


def test_assertion_of_who_computed_tells_who_did(worker_group: StartGroup) -> None:
    class Raises(First):
        def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
            raise ValueError("no idea")

    group = worker_group(2, connectors={"numbers": 2}, assignors=[Raises])
    group.wait_until_stable(within=400)
    with pytest.raises(
        AssertionError, match=r"^expected: by a worker, assignor first; the target assignment of epoch "
    ):
        group.assert_computed_by(Raises)
    with pytest.raises(AssertionError, match=r"computed by coordinator, assignor balanced\nat (.|\n)*no idea"):
        group.assert_computed_by(Raises(), worker="worker-1")
    group.assert_computed_by("balanced", worker="coordinator")
    with pytest.raises(AssertionError, match="expected: by a worker, assignor balanced"):
        group.assert_computed_by("balanced")
    with pytest.raises(ConfigError, match="worker: got 'worker-9'; allowed: worker-1, worker-2, coordinator"):
        group.assert_computed_by("first", worker="worker-9")
    with pytest.raises(ConfigError, match="assignor: got 'an object of list'; allowed: the name, class or instance"):
        group.assert_computed_by([Raises])  # type: ignore[arg-type]
    empty = worker_group(0)
    with pytest.raises(AssertionError, match="no target assignment has been computed"):
        empty.assert_computed_by("balanced")
