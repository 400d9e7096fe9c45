"""The pytest plug-in, installed with the library: fixtures ``worker_group`` and ``spans``, decorator ``seeds``.

Requires pytest and nothing else; ``spans`` also ``opentelemetry-sdk``. A test function is synchronous;
``worker_group.py`` has an example.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..group.connect.settings import GroupSettings
    from .plugins import Assignors, ConnectorSpec, Listeners
    from .spans import Spans
    from .worker_group import WorkerGroup

MARK = "connectgroup_seeds"
SEED = "connectgroup_seed"
_GROUPS = pytest.StashKey["list[WorkerGroup]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("connectgroup")
    options.addoption("--seeds", type=int, metavar="N", help="number of seeds of each test with @seeds")
    options.addoption("--seed", type=int, metavar="SEED", help="run each test with @seeds under this seed only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(n): run the test under n seeds; use connectgroup.testing.seeds")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    one, many = metafunc.config.getoption("--seed", None), metafunc.config.getoption("--seeds", None)
    seeds = [one] if one is not None else range(many if many is not None else mark.args[0])
    metafunc.fixturenames.append(SEED)
    metafunc.parametrize(SEED, list(seeds), ids=[f"seed={seed}" for seed in seeds])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the story of each group, and the command that repeats the run, to the report of a failure."""
    report = yield
    if report.failed and (groups := item.stash.get(_GROUPS, [])):
        for group in groups:
            report.sections.append(("worker group", _story_of(group)))
        seed = _seed_of(item)
        if seed is not None:
            name = item.nodeid.partition("[")[0]
            said = [f"seed {seed}", *(f"faults: {group.faults}" for group in groups if hasattr(group, "faults"))]
            said.append(f"run it again: pytest {shlex.quote(name)} --seed {seed}")
            report.sections.append(("seed", "\n".join(said)))
    return report


def _seed_of(item: pytest.Item) -> int | None:
    callspec = getattr(item, "callspec", None)
    seed: int | None = None if callspec is None else callspec.params.get(SEED)
    return seed


def _story_of(group: WorkerGroup) -> str:
    try:
        return group.story()
    except Exception as error:  # the group may be what failed
        return f"{group.history.story()}\n(the group cannot be described: {type(error).__name__}: {error})"


class StartGroup:
    """The value of the fixture ``worker_group``: call it to start a group."""

    def __init__(self, groups: list[WorkerGroup], seed: int | None) -> None:
        self._groups, self._seed = groups, seed

    def __call__(
        self,
        workers: int | Sequence[str] = 3,
        *,
        connectors: Mapping[str, ConnectorSpec] | None = None,
        assignors: Assignors = ("balanced",),
        listeners: Listeners = (),
        settings: GroupSettings | None = None,
        real: bool = False,
    ) -> WorkerGroup:
        """Start a coordinator and workers.

        Args:
            workers: their number (``worker-1``, ``worker-2``, ...), or their names.
            connectors: by name: a number of idle tasks, or a configuration. ``connector.class`` may be a class.
            assignors: of each worker, in order of preference: entry-point names, classes or instances. Empty: the
                coordinator assigns.
            listeners: of each worker, likewise.
            settings: of the group; the default session timeout is 10 s, the heartbeat interval 3 s.
            real: processes, SQLite, TCP and real time. Plug-ins must be names, or classes at the top level of a file.

        Returns:
            The group. The workers have been started; ``wait_until_stable`` waits for their first assignment.
        """
        # Imported here: pytest imports this module in every run, also of other projects.
        from ..group.connect.settings import GroupSettings
        from .worker_group import GroupPlan

        plan = GroupPlan(
            workers=workers,
            connectors=connectors or {},
            assignors=assignors,
            listeners=listeners,
            settings=settings or GroupSettings(),
        )
        group: WorkerGroup
        if real:
            from .real_group import RealGroup

            group = RealGroup(plan, seed=self._seed or 0)
        else:
            from .virtual_group import VirtualGroup

            group = VirtualGroup(plan, seed=self._seed)
        self._groups.append(group)
        return group


@pytest.fixture
def worker_group(request: pytest.FixtureRequest) -> Iterator[StartGroup]:
    """Start worker groups: ``group = worker_group(workers=3, connectors={"numbers": 6})``; see ``StartGroup``.

    At the end of the test all groups are stopped. The test fails if any unit ever ran on two workers at the same time.
    """
    groups: list[WorkerGroup] = []
    request.node.stash[_GROUPS] = groups
    try:
        yield StartGroup(groups, _seed_of(request.node))
        for group in groups:
            group.assert_one_owner()
    finally:
        for group in groups:
            group.close()


@pytest.fixture
def spans() -> Iterator[Spans]:
    """The spans of the coordinator and the workers of this process, as trees. Requires ``opentelemetry-sdk``."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="the fixture spans needs: pip install opentelemetry-sdk")
    from ..telemetry.capture import collect
    from .spans import Spans

    with collect() as collector:
        yield Spans(collector.finished)


def seeds(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test under this many seeds: each draws its network faults, slow stops and appends, and rare branches.

    A failure names the seed and the command that repeats the run; ``--seeds N`` runs more, ``--seed S`` runs one. The
    test draws its own decisions from ``group.random``. With ``real=True`` a seed decides only about ``group.random``.
    """
    mark: Callable[[Callable[..., Any]], Callable[..., Any]] = pytest.mark.connectgroup_seeds(count)
    return mark
