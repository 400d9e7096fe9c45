"""The pytest plug-in, installed with the library: fixtures ``worker_group`` and ``spans``, decorator ``seeds``.

Requires pytest and nothing else; ``spans`` also ``opentelemetry-sdk``. A test function is synchronous;
``worker_group.py`` has an example.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import pytest

if TYPE_CHECKING:
    from ..group.connect.settings import GroupSettings
    from ..own_plugins import Assignors, ConfigOrTasks
    from .plugins import Listeners
    from .spans import Spans
    from .worker_group import WorkerGroup, Workers

P = ParamSpec("P")

MARK = "connectgroup_seeds"
SEED = "connectgroup_seed"
MAX_SHRUNK = 3
"""Failures of one test process that are shrunk."""

REQUIRES = "contract_requires"
"""The attribute of a contract that names what a class of its tests must define."""

MAX_SEEDS = 1_000_000
"""Each seed is a test that pytest collects."""

OWN_LOOP = (
    "runs an event loop of its own; allowed: a plain function (def); in async code,"
    " `async with connectgroup.worker_group(...)`"
)

_GROUPS = pytest.StashKey["list[WorkerGroup]"]()
_SHRUNK = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    # With a prefix: two plug-ins, or a plug-in and a conftest.py, with an option of one name end pytest.
    options = parser.getgroup("connectgroup")
    options.addoption("--connectgroup-seeds", type=int, metavar="N", help="number of seeds of each test with @seeds")
    options.addoption(
        "--connectgroup-seed", type=int, metavar="SEED", help="run each test with @seeds under this seed only"
    )
    options.addoption(
        "--connectgroup-faults",
        metavar="IDS",
        help="with --connectgroup-seed: only these of its faults; a failure prints them",
    )
    options.addoption(
        "--connectgroup-shrink-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="how long to look for fewer faults after a failure of a test with @seeds; 0: not at all (default: 10)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(n): run the test under n seeds; use connectgroup.testing.seeds")
    faults = config.getoption("--connectgroup-faults", None)
    if faults is None:
        return
    if config.getoption("--connectgroup-seed", None) is None:
        needs = "needs --connectgroup-seed; the command at the end of a failure has both"
        raise pytest.UsageError(f"--connectgroup-faults: {needs}")
    from ..errors import ConfigError
    from .faults import parse_ids

    try:
        parse_ids(faults)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Reject a class of tests that inherits a contract and does not define what the contract is about."""
    # Not ``istestclass``: pytest skips a class with abstract methods in silence.
    if not isinstance(obj, type) or not collector.classnamefilter(name):
        return
    contract = next((base for base in obj.__mro__ if REQUIRES in vars(base)), None)
    if contract is None or contract is obj:
        return
    required: tuple[str, ...] = vars(contract)[REQUIRES]
    missing = [each for each in required if getattr(obj, each, None) is getattr(contract, each, None)]
    if missing:
        raise pytest.Collector.CollectError(
            f"{name}: {', '.join(missing)}: missing; a class of {contract.__name__} defines {', '.join(required)}"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    config = metafunc.config
    one, many = config.getoption("--connectgroup-seed", None), config.getoption("--connectgroup-seeds", None)
    seeds = [one] if one is not None else range(many if many is not None else mark.args[0])
    metafunc.fixturenames.append(SEED)
    metafunc.parametrize(SEED, list(seeds), ids=[f"seed={seed}" for seed in seeds])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with a seed, and again with fewer faults if it fails."""
    seed = _seed_of(item)
    if seed is None:
        return None
    from .faults import parse_ids
    from .seeded_runs import ONLY, SeededRun

    faults, shrunk = item.config.getoption("--connectgroup-faults", None), item.config.stash.get(_SHRUNK, 0)
    item.stash[ONLY] = None if faults is None else parse_ids(faults)
    seconds = item.config.getoption("--connectgroup-shrink-seconds", 10.0)
    wanted = faults is None and seconds > 0 and not item.config.getoption("usepdb", False)
    run = SeededRun(item, nextitem, seed, _progress_writer(item.config))
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in run.run(shrink_for_s=seconds if wanted and shrunk < MAX_SHRUNK else 0.0):
        if report.failed and wanted and shrunk >= MAX_SHRUNK:
            hint = f"not run with fewer faults: only the first {MAX_SHRUNK} failures of a test process are"
            report.sections.append(("seed", f"{hint}; for this one: --connectgroup-seed {seed}"))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    item.config.stash[_SHRUNK] = shrunk + run.failed
    return True


def _progress_writer(config: pytest.Config) -> Callable[[str], None]:
    """Writes a line to the terminal at once, between the marks of the tests; nothing where pytest has no terminal."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.get_verbosity() < -1:
        return lambda line: None
    capture, terminal = config.pluginmanager.get_plugin("capturemanager"), config.get_terminal_writer()

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            reporter.ensure_newline()
            if terminal.width_of_current_line:  # with -q, the reporter does not know of the marks in this line
                terminal.line()
            reporter.write_line(line)

    return write


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the story of each group to the report of a failure."""
    report = yield
    if report.failed and (groups := item.stash.get(_GROUPS, [])):
        for group in groups:
            report.sections.append(("worker group", _story_of(group)))
    if report.failed and _seed_of(item) is not None:
        from .seeded_runs import FAILURE, Failure, place_of

        groups = item.stash.get(_GROUPS, [])
        faults = tuple(fault for group in groups for fault in group.faults_occurred or ())
        chosen = all(group.faults_occurred is not None for group in groups)
        if FAILURE not in item.stash:  # a failure of the test, not the one of its teardown
            item.stash[FAILURE] = Failure(place_of(item, call), faults if chosen else None)
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


def _workers_alone(start: Callable[P, WorkerGroup]) -> Callable[P, WorkerGroup]:
    """The method with an error of its own for the name of a group, which ``connectgroup.worker_group`` has."""

    @wraps(start)
    def checked(*args: P.args, **kwargs: P.kwargs) -> WorkerGroup:
        given = args[1:]  # without ``self``
        if len(given) > 1 or (given and "workers" in kwargs):
            from ..errors import ConfigError

            allowed = "workers alone, as in worker_group(workers=2): the group of a test has no name"
            raise ConfigError("worker_group", ", ".join(map(str, given)), allowed)
        return start(*args, **kwargs)

    return checked


class StartGroup:
    """The value of the fixture ``worker_group``: ``worker_group(3, connectors={"numbers": 6})`` starts a group."""

    def __init__(self, groups: list[WorkerGroup], seed: int | None, only: frozenset[str] | None) -> None:
        self._groups, self._seed, self._only = groups, seed, only

    @_workers_alone
    def __call__(
        self,
        workers: Workers = 3,
        *,
        connectors: Mapping[str, ConfigOrTasks] | None = None,
        assignors: Assignors = ("balanced",),
        listeners: Listeners = (),
        settings: GroupSettings | None = None,
        real: bool = False,
    ) -> WorkerGroup:
        """Start a coordinator and workers.

        Args:
            workers: their number (``worker-1``, ``worker-2``, ...), their names, or their traits by name
                (``{"a": WorkerTraits(labels=(("gpu", "true"),))}``), for assignors that read labels, rack or capacity.
            connectors: by name: a number of idle tasks, or a configuration. ``connector.class`` may be a class.
            assignors: of each worker, in order of preference: entry-point names, classes or instances. Empty: the
                coordinator assigns. One list for all workers, lists by the worker's name
                (``{"worker-1": [Mine], "worker-2": ["balanced"]}``), or a function of the name that returns one.
            listeners: of each worker, likewise: ``lambda worker: [Recorder(worker)]``.
            settings: of the group; the default session timeout is 10 s, the heartbeat interval 3 s.
            real: processes, SQLite, TCP and real time. Plug-ins must be names, or classes at the top level of a file.

        Returns:
            The group. The workers have been started; ``wait_until_stable`` waits for their first assignment.
        """
        # Imported here: pytest imports this module in every run, also of other projects.
        import asyncio

        from ..group.connect.settings import GroupSettings
        from .worker_group import GroupPlan

        with suppress(RuntimeError):
            asyncio.get_running_loop()
            pytest.fail(f"a coroutine cannot use the fixture worker_group: it {OWN_LOOP}", pytrace=False)

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

            number = len(self._groups) + 1
            prefix = f"{number}/" if number > 1 else ""
            group = VirtualGroup(plan, seed=self._seed, only=self._only, prefix=prefix)
        self._groups.append(group)
        return group


@pytest.fixture
def worker_group(request: pytest.FixtureRequest) -> Iterator[StartGroup]:
    """Start worker groups: ``group = worker_group(workers=3, connectors={"numbers": 6})``; see ``StartGroup``.

    At the end of the test all groups are stopped. The test fails if any unit ever ran on two workers at the same time.
    """
    from .seeded_runs import ONLY

    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        pytest.fail(f"an async test cannot use the fixture worker_group: it {OWN_LOOP}", pytrace=False)
    groups: list[WorkerGroup] = []
    request.node.stash[_GROUPS] = groups
    try:
        only = request.node.stash.get(ONLY, None)
        yield StartGroup(groups, _seed_of(request.node), only)
        if request.config.getoption("--connectgroup-faults", None) is not None:
            _warn_of_absent(only or frozenset(), groups)
        for group in groups:
            group.assert_one_owner()
    finally:
        for group in groups:
            group.close()


def _warn_of_absent(ids: frozenset[str], groups: list[WorkerGroup]) -> None:
    """Warn of the faults of the option that have not occurred: this run is then not the one that they are from."""
    occurred = {fault.id for group in groups for fault in group.faults_occurred or ()}
    if absent := sorted(ids - occurred):
        text = f"--connectgroup-faults: {', '.join(absent)} did not occur in this run"
        warnings.warn(text, pytest.PytestWarning, stacklevel=1)


@pytest.fixture
def spans(request: pytest.FixtureRequest) -> Iterator[Spans]:
    """The spans of the coordinator and the workers of this process, as trees. Requires ``opentelemetry-sdk``."""
    pytest.importorskip("opentelemetry.sdk.trace", reason="the fixture spans needs: pip install opentelemetry-sdk")
    from .spans import Spans, collect

    def all_groups_are_real() -> bool:
        groups = request.node.stash.get(_GROUPS, [])
        return bool(groups) and all(group.real for group in groups)

    with collect() as collector:
        yield Spans(collector.started, all_groups_are_real=all_groups_are_real)


def seeds(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test under this many seeds; each draws its network faults, slow stops and appends, and rare branches.

    After a failure the test runs again with fewer faults, for up to ``--connectgroup-shrink-seconds`` (10). The report
    is that of the smallest run that fails in the same way: its faults, and the command that repeats it.
    ``--connectgroup-seeds N`` runs more seeds, ``--connectgroup-seed S`` runs one. The test draws its own decisions
    from ``group.random``. With ``real=True`` a seed decides only about ``group.random``.

    Raises:
        ConfigError: ``count`` is no whole number of at least 1.
    """
    from ..checks import check_whole

    check_whole("seeds", count, 1, MAX_SEEDS)
    mark: Callable[[Callable[..., Any]], Callable[..., Any]] = pytest.mark.connectgroup_seeds(count)
    return mark
