"""A worker group under test: the methods that a test calls, whether the workers are simulated or processes.

    def test_dead_worker_is_replaced(worker_group):
        group = worker_group(workers=3, connectors={"numbers": 6})
        group.wait_until_stable()
        group.kill("worker-1")
        group.wait_until_stable()
        assert "worker-1" not in group.owners().values()

The methods are synchronous: a test needs no ``async`` and no plug-in for it. ``worker_group(real=True)`` runs the
test with a coordinator process on SQLite and worker processes; ``kill`` is then SIGKILL and seconds are real.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from ..assign.api import ConnectAssignor
from ..assign.placement import WorkerTraits
from ..checks import check_call, check_name, check_number, check_object, kind_of
from ..client.admin import Admin
from ..embedding import WORKERS, worker_names
from ..errors import ConfigError, GroupError, GroupIdNotFound, TransportError
from ..group.connect.settings import GroupSettings
from ..own_plugins import (
    Assignors,
    ConfigOrTasks,
    OneWorkersAssignors,
    OneWorkersListeners,
    check_by_worker,
    check_connector,
    of_worker,
)
from ..protocol.messages.common import units_of
from ..protocol.messages.describe import DescribedGroup, Rebalance
from ..protocol.units import MAX_NAMES, Unit, show, shown
from .faults import Fault
from .history import History
from .plugins import PLUGINS, Listeners, configuration

T = TypeVar("T")

COORDINATOR: Final = "coordinator"
"""The name of the coordinator, where a method takes the name of a worker or of the coordinator."""

STEP_S = 0.05
"""Interval at which a condition is checked."""


Workers = int | Sequence[str] | Mapping[str, WorkerTraits]
"""The first workers: their number, their names, or their traits (labels, rack, capacity, host) by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What a group consists of; see ``worker_group`` in the plug-in."""

    workers: Workers = 3
    connectors: Mapping[str, ConfigOrTasks] = field(default_factory=dict)
    assignors: Assignors = ("balanced",)
    listeners: Listeners = ()
    settings: GroupSettings = field(default_factory=GroupSettings)
    group_id: str = "test"

    def __post_init__(self) -> None:
        """Check the arguments of ``worker_group``.

        Raises:
            ConfigError: an argument cannot be used: its name, its value, and what is allowed.
        """
        worker_names(self.workers, f'{WORKERS}, or traits by name: {{"a": WorkerTraits(...)}}')
        for name, traits in self.workers.items() if isinstance(self.workers, Mapping) else ():
            if not isinstance(traits, WorkerTraits):
                raise ConfigError(f"workers: {name}", traits, "WorkerTraits(...)")
        if not isinstance(self.connectors, Mapping):
            raise ConfigError("connectors", self.connectors, 'by name: {"numbers": 6}')
        for name, spec in self.connectors.items():
            check_connector(f"connectors: {name}", spec)
        check_object("settings", self.settings, GroupSettings, "GroupSettings(...), of the group")
        check_by_worker("assignors", self.assignors, PLUGINS)
        check_by_worker("listeners", self.listeners, PLUGINS)
        for plugins in (self.assignors, self.listeners):
            if isinstance(plugins, Mapping):  # an error precedes the start
                for worker in self.names:
                    of_worker("assignors" if plugins is self.assignors else "listeners", plugins, worker, PLUGINS)

    @property
    def names(self) -> list[str]:
        """The names of the first workers."""
        return worker_names(self.workers)


def _last_computed(group: DescribedGroup) -> Rebalance | None:
    return next((each for each in reversed(group.rebalances) if each.computed_by), None)


class WorkerGroup(ABC):
    """A coordinator and its workers.

    A method that takes the name of a worker raises ``ConfigError`` if no such worker runs; the error lists the names.

    Attributes:
        plan: what the group consists of.
        history: all starts and stops with their times, and the check that no unit ran twice.
        random: for decisions of the test; seeded by ``seeds``, else by 0.
        real: whether coordinator and workers are processes of their own.
    """

    real: ClassVar[bool] = False

    def __init__(self, plan: GroupPlan, *, seed: int = 0) -> None:
        self.plan = plan
        self.random = Random(f"test {seed}")
        self.history = History(lambda: self.now)
        self._traits = dict(plan.workers) if isinstance(plan.workers, Mapping) else {}
        self._own_assignors: dict[str, OneWorkersAssignors] = {}  # by name: given to ``add_worker``
        self._alive: dict[str, bool] = {}  # name to whether it can reach the coordinator
        self._configs: dict[str, dict[str, str]] = {}
        self._absence = ""  # why ``describe`` returned nothing
        self._known: dict[str, None] = {}  # all workers that were ever started
        self._failed: dict[str, str] = {}  # the error of each worker that has ended with one, and was not started again
        self._expected: set[str] = set()  # those of them that ``wait_until_rejected`` has awaited

    def __repr__(self) -> str:
        # Not the description: a failed test prints this, also of a group that is closed.
        return f"<group {self.plan.group_id} of {', '.join(self._alive) or 'no workers'}; story() tells what happened>"

    @property
    def faults_occurred(self) -> Sequence[Fault] | None:
        """The faults of the test's seed so far; ``None`` if a seed has no faults for this kind of group."""
        return None

    # ----------------------------------------------------------------------------------------------
    # Time

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds on the group's clock since it was started."""

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        check_number("seconds", seconds, 0, 1_000_000)
        self._advance(seconds)

    @abstractmethod
    def _advance(self, seconds: float) -> None:
        """See ``advance``."""

    def until(self, condition: Callable[[], object], *, within: float = 120.0, what: str = "") -> float:
        """Let time pass until a condition holds.

        Returns:
            The seconds that it took, in steps of ``STEP_S``.

        Raises:
            AssertionError: it does not hold within this many seconds; the message tells the group's story.
            ConfigError: the condition is no function.
        """
        check_call("condition", condition, (), "a function without arguments: lambda: not group.running('a')")
        return self._until(condition, within, lambda: f"{what or getattr(condition, '__name__', 'the condition')}: ")

    def _until(self, condition: Callable[[], object], within: float, describe: Callable[[], str]) -> float:
        """See ``until``. ``describe`` returns the beginning of the message."""
        started = self.now
        while not condition():
            if self.now - started > within:
                raise AssertionError(f"{describe()}not within {within:g} s\n{self.story()}")
            self.advance(STEP_S)
        return self.now - started

    def wait_until_stable(self, *, within: float = 120.0) -> float:
        """Let time pass until exactly the reachable workers are members and run all units, each unit once.

        A worker that was killed, stopped, paused or partitioned is not reachable: this waits until the group has
        noticed. Returns and raises as ``until``.

        Raises:
            AssertionError: also at once, with the error, if a worker has ended with one: the coordinator has rejected
                it. A test that expects this calls ``wait_until_rejected`` before.
        """

        def is_stable() -> bool:
            stable = self.is_stable()
            if failures := self._failures_of_workers():
                hint = "a test that expects this waits for it: wait_until_rejected(name)"
                raise AssertionError(f"a stable group: {failures}; {hint}\n{self.story()}")
            return stable

        return self._until(is_stable, within, lambda: f"a stable group ({self._instability()}): ")

    def wait_until_rejected(self, name: str, *, within: float = 120.0) -> str:
        """Let time pass until a worker has ended with an error; ``wait_until_stable`` does not wait for it afterwards.

        Returns:
            The error, in one line: why the coordinator has rejected the worker.

        Raises:
            AssertionError: the worker has not ended so within this many seconds.
            ConfigError: no worker of this name was ever started.
        """
        self._check_worker(name, self._known)
        self._until(lambda: name in self._failed, within, lambda: f"the rejection of {name}: ")
        self._expected.add(name)
        return self._failed[name]

    def _failures_of_workers(self) -> str:
        """Which workers have ended with an error that no test has awaited; empty if none has."""
        failed = [f"{name} has ended: {error}" for name, error in self._failed.items() if name not in self._expected]
        return "; ".join(failed)

    def is_stable(self) -> bool:
        """Whether the group is stable, as ``wait_until_stable`` defines it."""
        return not self._instability()

    def _instability(self) -> str:
        """Why the group is not stable; empty if it is."""
        if failures := self._failures_of_workers():
            return failures
        reachable = {name for name, reached in self._alive.items() if reached}
        group = self.describe()
        if group is None:
            return self._absence
        members = {member.member_id for member in group.members}
        if members != reachable:
            return f"members: {shown(list(members))}; workers that can be reached: {shown(list(reachable))}"
        if not reachable:
            return ""
        if group.state != "Stable":
            return f"the group is {group.state}"
        units = [(Unit(c.connector, unit.task), unit) for c in group.connectors for unit in c.units if unit.should_run]
        idle = [f"{name} is {unit.state}" for name, unit in units if unit.state != "RUNNING"]
        if group.delayed or idle:
            return ", ".join([*idle[:MAX_NAMES], *(["units are delayed"] if group.delayed else [])])
        described = {str(name): unit.member_id for name, unit in units}
        return "" if described == self.owners() else "workers still start or stop units"

    # ----------------------------------------------------------------------------------------------
    # What runs

    def describe(self) -> DescribedGroup | None:
        """The coordinator's description of the group.

        Returns:
            ``None`` while no coordinator responds, and before the first worker or connector has created the group.
        """
        self._absence = "no coordinator responds"
        admin = self._admin(retry_for_s=0)
        if admin is None:
            return None
        try:
            return self._call(admin.describe(self.plan.group_id))
        except GroupIdNotFound:
            self._absence = "there is no group yet: neither a worker nor a connector has created it"
        except (GroupError, TransportError):
            pass
        return None

    def owners(self) -> dict[str, str]:
        """Each running unit (``numbers`` or ``numbers-0``) and its worker, for workers that can be reached."""
        return self.history.owners(name for name, reached in self._alive.items() if reached)

    def running(self, name: str) -> list[str]:
        """The units that a worker runs, sorted; none if it was stopped or killed.

        Raises:
            ConfigError: no worker of this name was ever started.
        """
        self._check_worker(name, self._known)
        return self.history.running(name)

    @property
    def workers(self) -> list[str]:
        """The names of the workers that have been started and were not stopped or killed since."""
        return list(self._alive)

    def assert_one_owner(self) -> None:
        """Assert that no unit ever ran on two workers at the same time. The fixture does it at the end of each test."""
        self.history.assert_one_owner()

    def assert_computed_by(
        self, assignor: str | type[ConnectAssignor] | ConnectAssignor, *, worker: str | None = None
    ) -> None:
        """Assert that this assignor computed the target assignment of the last rebalance that has ended, on a worker.

        Without it, a test passes although the group uses another assignor: not all workers list this one, or it fails
        and the coordinator assigns.

        Args:
            assignor: its name, class or instance.
            worker: the worker that computed; by default any. ``"coordinator"``: the coordinator, with its own.

        Raises:
            AssertionError: another has computed it, or none; the message tells the group's story.
            ConfigError: the assignor has no name, or no worker of this name was ever started.
        """
        name = assignor if isinstance(assignor, str) else getattr(assignor, "name", None)
        if not isinstance(name, str) or not name:
            raise ConfigError("assignor", kind_of(assignor), "the name, class or instance of an assignor")
        if worker is not None:
            self._check_worker(worker, (*self._known, COORDINATOR))
        group = self.describe()
        last = None if group is None else _last_computed(group)
        found = "no target assignment has been computed"
        if last is not None:
            is_right_worker = last.computed_by != COORDINATOR if worker is None else last.computed_by == worker
            if last.assignor == name and is_right_worker:
                return
            done = f"the target assignment of epoch {last.epoch} was computed by {last.computed_by}"
            found = f"{done}, assignor {last.assignor}"
        raise AssertionError(f"expected: by {worker or 'a worker'}, assignor {name}; {found}\n{self.story()}")

    def story(self) -> str:
        """The state of the group and the last events, for a failure report."""
        group = self.describe()
        lines = [self._absence]
        if group is not None:
            lines = [f"group {group.state} at epoch {group.group_epoch}", *self._computations(group)]
            lines += [f"member {each.member_id}: {each.state} at epoch {each.member_epoch}" for each in group.members]
            lines += [
                " ".join([f"{Unit(each.connector, unit.task)}:", unit.state, unit.member_id, unit.message]).rstrip()
                for each in group.connectors
                for unit in each.units
            ]
        lines += [f"{name} runs {', '.join(self.running(name)) or 'nothing'}" for name in self._alive]
        return "\n".join([f"at {self.now:.3f} s:", *lines, "events:", self.history.story()])

    def _computations(self, group: DescribedGroup) -> Iterator[str]:
        """Who computed the target assignment (the coordinator does after failures of the members' assignors), what
        the assignor says, and which units are delayed."""
        last = _last_computed(group)
        if last is not None:
            yield f"target assignment of epoch {last.epoch}: computed by {last.computed_by}, assignor {last.assignor}"
        if group.assignor_error:
            yield f"the assignor says: {group.assignor_error}"
        for delayed in group.delayed:
            why = f"for {delayed.member_id}" if delayed.member_id else "by the assignor"
            yield f"delayed {why}, {delayed.left_ms / 1000:g} s left: {show(units_of(delayed.units))}"

    # ----------------------------------------------------------------------------------------------
    # Changes

    def add_worker(
        self,
        name: str | None = None,
        *,
        traits: WorkerTraits | None = None,
        assignors: OneWorkersAssignors | None = None,
    ) -> str:
        """Start one more worker.

        Args:
            name: by default the next of ``worker-1``, ``worker-2``, ...
            traits: its labels, rack, capacity and host, for assignors; by default those of the last worker of this
                name.
            assignors: in order of preference; by default those of the last worker of this name, or what
                ``worker_group`` was given. To introduce an assignor or another version of it worker by worker:
                ``stop`` a worker, then add it again under its name with the new list.

        Returns:
            The worker's name.

        Raises:
            ConfigError: a worker of this name runs, or an argument cannot be used.
        """
        name = name or self._next_name()
        if traits is not None:
            self._traits[name] = traits
        check_name("worker", name)
        if name in self._alive:
            raise ConfigError("worker", name, f"a name that no running worker has: {', '.join(self._alive)}")
        if assignors is not None:
            self._own_assignors[name] = of_worker("assignors", assignors, name, PLUGINS)
        self._failed.pop(name, None)
        self._expected.discard(name)
        self._start_worker(name, self._traits.get(name, WorkerTraits()))
        self._known[name] = None
        return name

    def add_connector(self, name: str, spec: ConfigOrTasks) -> None:
        """Create a connector, or change its configuration.

        Args:
            spec: a number of idle tasks, or a configuration, in which ``connector.class`` may be a class of the test.
        """
        check_connector(f"connector {name}", spec)
        config, classes = configuration(spec)
        self._add_classes(classes)
        self._configs[name] = config
        self._call(self._operator().put_connector(self.plan.group_id, name, config))
        self.history.note(f"connector {name} is configured")

    def remove_connector(self, name: str) -> None:
        """Delete a connector."""
        self._call(self._operator().delete_connector(self.plan.group_id, name))
        self.history.note(f"connector {name} is deleted")

    @abstractmethod
    def stop(self, name: str) -> None:
        """Stop a worker in order; it has left the group when this returns."""

    @abstractmethod
    def kill(self, name: str) -> None:
        """SIGKILL a worker, or ``"coordinator"``."""

    @abstractmethod
    def pause(self, name: str) -> None:
        """SIGSTOP a worker: nothing of it runs, and its clock continues."""

    @abstractmethod
    def resume(self, name: str) -> None:
        """SIGCONT a paused worker."""

    @abstractmethod
    def partition(self, *names: str) -> None:
        """Cut workers off from the coordinator: all messages are lost until ``heal``."""

    @abstractmethod
    def heal(self, *names: str) -> None:
        """Reconnect partitioned workers; without names, all of them."""

    def restart(self, name: str) -> None:
        """Start a worker again under its name, or ``"coordinator"`` on its log; what still runs is killed first."""
        if name == COORDINATOR:
            self._kill_coordinator()
            self._start_coordinator()
            return
        self._check_worker(name, self._known)
        if name in self._alive:
            self.kill(name)
        self.add_worker(name)

    @abstractmethod
    def close(self) -> None:
        """Stop everything; called by the fixture."""

    # ----------------------------------------------------------------------------------------------
    # What a kind of group provides

    @abstractmethod
    def _admin(self, *, retry_for_s: float) -> Admin | None:
        """A client of the coordinator; ``None`` if it was killed."""

    @abstractmethod
    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the client to its end."""

    @abstractmethod
    def _add_classes(self, classes: Mapping[str, Any]) -> None:
        """Make connector classes known to the workers, by name."""

    @abstractmethod
    def _start_worker(self, name: str, traits: WorkerTraits) -> None:
        """Start a worker of a name that no worker has."""

    @abstractmethod
    def _start_coordinator(self) -> None: ...

    @abstractmethod
    def _kill_coordinator(self) -> None: ...

    def _assignors_of(self, name: str) -> OneWorkersAssignors:
        own = self._own_assignors.get(name)
        return of_worker("assignors", self.plan.assignors, name, PLUGINS) if own is None else own

    def _listeners_of(self, name: str) -> OneWorkersListeners:
        return of_worker("listeners", self.plan.listeners, name, PLUGINS)

    def _check_worker(self, name: str, allowed: Iterable[str]) -> None:
        names = list(allowed)
        if name not in names:
            raise ConfigError("worker", name, ", ".join(names) or "no worker runs")

    def _operator(self) -> Admin:
        admin = self._admin(retry_for_s=10)
        assert admin is not None, "the coordinator was killed; restart it first"
        return admin

    def _next_name(self) -> str:
        known = {run.worker for run in self.history.runs} | set(self._alive)
        number = 1 + len(self.plan.names)
        while f"worker-{number}" in known:
            number += 1
        return f"worker-{number}"
