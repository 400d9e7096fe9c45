"""One reconciliation step of one member: the rows CA-01 to CA-18 of Kafka's CurrentAssignmentBuilderTest.

CA-19 is this project's: it defines what a member in UNREVOKED must stop besides its pending revocation. CA-20 is
about topic subscriptions by regular expression and CA-21 to CA-23 are about Streams' standby tasks: type ``connect``
has neither. Here the counterpart of a subscription is the set of units that may run now: CA-17 and CA-18 remove T1
from it, as a paused or reconfigured connector does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from connectgroup.errors import FencedMemberEpoch
from connectgroup.group.kernel import reconcile as reconcile_module
from connectgroup.group.kernel.outcome import rebalance
from connectgroup.group.kernel.reconcile import Current, ReconcileTarget, reconcile
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange
from connectgroup.protocol.records.connect import MemberState, TargetState
from connectgroup.protocol.units import Unit, Units

from .builders import FixedAssignor, Scene, foo, names, response_units, settings, table_of, units_at

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED
OTHER = "other"


def units(t1: Iterable[int] = (), t2: Iterable[int] = ()) -> Units:
    return frozenset([*(Unit("T1", number) for number in t1), *(Unit("T2", number) for number in t2)])


def at(epoch: int, t1: Iterable[int] = (), t2: Iterable[int] = ()) -> dict[Unit, int]:
    return dict.fromkeys(units(t1, t2), epoch)


def member_at(
    state: MemberState,
    epoch: int,
    assigned: Mapping[Unit, int],
    pending: Mapping[Unit, int] | None = None,
    *,
    previous: int | None = None,
) -> Current[Unit]:
    return Current(
        epoch=epoch,
        previous_epoch=epoch if previous is None else previous,
        state=state,
        assigned=assigned,
        pending=pending or {},
    )


def step(
    current: Current[Unit],
    target: Units,
    epoch: int,
    owned: Units | None = None,
    elsewhere: Units = frozenset(),
    since: Mapping[Unit, int] | None = None,
    stopped: Units = frozenset(),
) -> Current[Unit]:
    """One step. ``elsewhere`` are units that another member owns; all others are free.

    ``stopped`` are the units that must not run. All others may run, with a configuration of epoch 0 unless ``since``
    has another.
    """

    runnable = {**dict.fromkeys(current.held, 0), **dict.fromkeys(target, 0), **(since or {})}
    return reconcile(
        current,
        ReconcileTarget(
            units=target - stopped,
            epoch=epoch,
            runnable={unit: since_epoch for unit, since_epoch in runnable.items() if unit not in stopped},
        ),
        owned=owned,
        is_free=lambda unit: unit not in elsewhere,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: the member before the step, its target, what it reports as owned, and the member after the step."""

    id: str
    before: Current[Unit]
    target: Units
    epoch: int
    owned: Units | None = None
    elsewhere: Units = frozenset()
    after: Current[Unit]
    since: Mapping[Unit, int] = field(default_factory=dict)
    stopped: Units = frozenset()


AFTER_CA03 = member_at(UNREVOKED, 10, at(10, [2, 3], [5, 6]), at(10, [1], [4]))
WAITING = member_at(UNRELEASED, 11, at(11, [2, 3], [5, 6]))
ALL_SIX = at(10, [1, 2, 3], [4, 5, 6])

ROWS = [
    Row(
        id="CA-01 an equal target advances the epoch and keeps the owner epochs",
        before=member_at(STABLE, 10, at(5, [1, 2, 3], [4, 5, 6])),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        after=member_at(STABLE, 11, at(5, [1, 2, 3], [4, 5, 6]), previous=10),
    ),
    Row(
        id="CA-02 free units are granted at the target epoch, kept units keep their owner epochs",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3, 4], [4, 5, 6, 7]),
        epoch=11,
        after=member_at(STABLE, 11, {**ALL_SIX, **at(11, [4], [7])}, previous=10),
    ),
    Row(
        id="CA-03 units are revoked first; free units are not assigned in that step",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        after=AFTER_CA03,
    ),
    Row(
        id="CA-04 the member waits at the new epoch for units that another member owns",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3, 4], [4, 5, 6, 7]),
        epoch=11,
        elsewhere=units([4], [7]),
        after=member_at(UNRELEASED, 11, ALL_SIX, previous=10),
    ),
    Row(
        id="CA-05 a unit that the member does not own need not be revoked",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 7]),
        epoch=11,
        owned=units(),
        elsewhere=units([], [7]),
        after=member_at(UNRELEASED, 11, at(10, [1, 2, 3], [4, 5]), previous=10),
    ),
    Row(
        id="CA-06 an acknowledged revocation advances the member",
        before=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([2, 3], [5, 6]),
        after=member_at(STABLE, 11, at(10, [2, 3], [5, 6]), previous=10),
    ),
    Row(
        id="CA-08 from one revocation to that of the newest target",
        before=AFTER_CA03,
        target=units([3], [6]),
        epoch=12,
        owned=units([2, 3], [5, 6]),
        after=member_at(UNREVOKED, 10, at(10, [3], [6]), at(10, [2], [5])),
    ),
    Row(
        id="CA-09 the revocation is acknowledged, the new units are not free yet",
        before=member_at(UNREVOKED, 11, at(11, [2, 3], [5, 6])),
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        elsewhere=units([4], [7]),
        owned=units([2, 3], [5, 6]),
        after=member_at(UNRELEASED, 11, at(11, [2, 3], [5, 6])),
    ),
    Row(
        id="CA-11 a later target without the awaited units makes the member stable",
        before=WAITING,
        target=units([2, 3], [5, 6]),
        epoch=12,
        after=member_at(STABLE, 12, at(11, [2, 3], [5, 6]), previous=11),
    ),
    Row(
        id="CA-12 units that have become free are granted at the same epoch",
        before=WAITING,
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        after=member_at(STABLE, 11, at(11, [2, 3, 4], [5, 6, 7])),
    ),
    Row(
        id="CA-16 a member in an unknown state is recovered when it owns nothing",
        before=member_at(MemberState.UNKNOWN, 11, at(11, [3], [6]), at(11, [2], [5])),
        target=units([3], [6]),
        epoch=12,
        owned=units(),
        after=member_at(STABLE, 12, at(12, [3], [6]), previous=11),
    ),
    Row(
        id="CA-17 units that must not run are removed at once if the member does not own them",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([], [4, 5, 6]),
        epoch=10,
        owned=units([], [4, 5, 6]),
        after=member_at(STABLE, 10, at(10, [], [4, 5, 6])),
    ),
    Row(
        id="CA-18 units that must not run are revoked without a new target",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([], [4, 5, 6]),
        epoch=10,
        owned=units([1, 2, 3], [4, 5, 6]),
        after=member_at(UNREVOKED, 10, at(10, [], [4, 5, 6]), at(10, [1, 2, 3])),
    ),
    Row(
        id="CA-19 units of a stopped connector join the pending revocation without an acknowledgement",
        before=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([1, 2, 3], [4, 5, 6]),
        stopped=units([1, 2, 3]),
        after=member_at(UNREVOKED, 10, at(10, [], [5, 6]), at(10, [1, 2, 3], [4])),
    ),
    Row(
        id="CA-19 in an incremental heartbeat too",
        before=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        stopped=units([1, 2, 3]),
        after=member_at(UNREVOKED, 10, at(10, [], [5, 6]), at(10, [1, 2, 3], [4])),
    ),
    Row(
        id="CA-19 a unit whose configuration was replaced joins the pending revocation",
        before=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([1, 2, 3], [4, 5, 6]),
        since={Unit("T1", 2): 11},
        after=member_at(UNREVOKED, 10, at(10, [3], [5, 6]), at(10, [1, 2], [4])),
    ),
    Row(
        id="CA-19 and CA-07: of a newer target only units that must not run join the pending revocation",
        before=AFTER_CA03,
        target=units([3], []),
        epoch=12,
        stopped=units([], [5]),
        after=member_at(UNREVOKED, 10, at(10, [2, 3], [6]), at(10, [1], [4, 5])),
    ),
    # This project's rows: a unit whose configuration is newer than its grant stays with its member under a new grant.
    Row(
        id="a grant older than its configuration is revoked first",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        since={Unit("T1", 2): 11},
        after=member_at(UNREVOKED, 10, at(10, [1, 3], [4, 5, 6]), at(10, [2])),
    ),
    Row(
        id="and is granted again under the epoch of its configuration or later",
        before=member_at(UNREVOKED, 10, at(10, [1, 3], [4, 5, 6]), at(10, [2])),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        owned=units([1, 3], [4, 5, 6]),
        since={Unit("T1", 2): 11},
        after=member_at(STABLE, 11, {**at(10, [1, 3], [4, 5, 6]), **at(11, [2])}, previous=10),
    ),
    Row(
        id="a grant at the epoch of the configuration is new enough",
        before=member_at(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        since={Unit("T1", 2): 10},
        after=member_at(STABLE, 11, ALL_SIX, previous=10),
    ),
    Row(
        id="free units are granted, the member waits for the others",
        before=member_at(STABLE, 10, at(10, [1])),
        target=units([1, 2, 3]),
        epoch=11,
        elsewhere=units([3]),
        after=member_at(UNRELEASED, 11, {**at(10, [1]), **at(11, [2])}, previous=10),
    ),
    Row(
        id="a revoked unit that the next target contains again is a new grant",
        before=AFTER_CA03,
        target=units([1, 2, 3], [5, 6]),
        epoch=12,
        owned=units([2, 3], [5, 6]),
        after=member_at(STABLE, 12, {**at(10, [2, 3], [5, 6]), **at(12, [1])}, previous=10),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_reconcile_advances_one_step_towards_the_target(row: Row) -> None:
    """Each row's outcome is exact: state, epoch, units with their owner epochs, pending revocation."""
    assert step(row.before, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped) == row.after


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_repeated_step_has_no_effect(row: Row) -> None:
    """S16: a step is idempotent. After a revocation it is repeated without ``owned``, which acknowledges nothing."""
    after = step(row.before, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped)
    assert step(after, row.target, row.epoch, None, row.elsewhere, row.since, row.stopped) is after


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_step_both_revokes_and_assigns(row: Row) -> None:
    """ "There should be either revoked or newly assigned ... The protocol never does both together." """
    after = step(row.before, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped)
    if after.state is UNREVOKED:
        assert after.assigned.items() <= row.before.assigned.items()
        assert after.epoch == row.before.epoch


@pytest.mark.parametrize(
    "owned",
    [None, units([1, 2, 3], [5, 6]), units([2, 3], [4, 5, 6]), units([1, 2, 3], [4, 5, 6])],
    ids=["owned is null", "T1-1 still owned", "T2-4 still owned", "both still owned"],
)
def test_ca_07_without_an_acknowledgement_nothing_changes(owned: Units | None) -> None:
    """CA-07: the same object is returned, so no record is written; the newer target has to wait."""
    assert step(AFTER_CA03, units([3], [6]), 12, owned) is AFTER_CA03


def test_ca_13_continued_wait_changes_nothing() -> None:
    """CA-13: same target, units still owned by another member: the same object, so no record."""
    assert step(WAITING, units([2, 3, 4], [5, 6, 7]), 11, elsewhere=units([4], [7])) is WAITING


@pytest.mark.parametrize("owned", [None, units([3], [6])], ids=["owned is null", "units owned"])
def test_ca_15_unknown_state_fences_the_member(owned: Units | None) -> None:
    """CA-15: this version does not know what the state requires of the member."""
    current = member_at(MemberState.UNKNOWN, 11, at(11, [3], [6]), at(11, [2], [5]))
    with pytest.raises(FencedMemberEpoch):
        step(current, units([3], [6]), 12, owned)


def test_wait_ends_when_the_target_no_longer_has_the_units() -> None:
    """UNRELEASED returns to STABLE although no unit was granted."""
    assert step(WAITING, units([2, 3], [5, 6]), 11) == member_at(STABLE, 11, at(11, [2, 3], [5, 6]))


def test_waiting_member_is_asked_to_revoke() -> None:
    """UNRELEASED to UNREVOKED: the epoch does not change."""
    after = step(WAITING, units([2], [5, 6]), 12)
    assert after == member_at(UNREVOKED, 11, at(11, [2], [5, 6]), at(11, [3]))


# --------------------------------------------------------------------------------------------------
# The table of transitions at the beginning of ``reconcile``


def _subsets(units: Units) -> list[Units]:
    return [frozenset(each) for size in range(len(units) + 1) for each in itertools.combinations(sorted(units), size)]


def test_every_step_of_a_member_with_two_units_does_what_the_table_says() -> None:
    """Each state, current and target assignment, report and owner elsewhere; two units show each interaction."""
    two, rows, seen = units([0, 1]), table_of(reconcile_module), set()
    assignments = itertools.product(_subsets(two), repeat=4)
    reports: list[Units | None] = [None, *_subsets(two)]
    for state, (assigned, pending, target, elsewhere), owned, since in itertools.product(
        (STABLE, UNREVOKED, UNRELEASED), assignments, reports, (0, 7)
    ):
        if assigned & pending or bool(pending) != (state is UNREVOKED):
            continue
        runnable = dict.fromkeys(two, since)
        before = member_at(state, 3, dict.fromkeys(assigned, 3), dict.fromkeys(pending, 3))
        keep = assigned & target if since <= 3 else frozenset()
        revoked = assigned - keep
        matching = [
            row
            for row in rows
            if state.name in row[0].split(", ")
            and row[1] in ("-", "no" if owned is None or owned & pending else "yes")
            and row[2] in ("-", "yes" if revoked and (owned is None or owned & revoked) else "no")
            and row[3] in ("-", "some" if (target - keep) & elsewhere else "all")
        ]
        assert len(matching) == 1, f"{before}: {matching}"
        [row] = matching
        seen.add(row)
        after = reconcile(
            before,
            ReconcileTarget(units=target, epoch=8, runnable=runnable),
            owned=owned,
            is_free=(two - elsewhere).__contains__,
        )
        assert (after.state.name, after.epoch) == (row[4], {"same": 3, "target": 8}[row[5]]), f"{before}: {row}"
        assert not after.pending or not after.assigned.keys() - assigned, "either revoked or assigned, never both"
    assert seen == set(rows), "the table has a row that no step reaches"


# --------------------------------------------------------------------------------------------------
# CA-07, CA-19: connectors and targets that change while a member is UNREVOKED.


PAUSED, STOPPED = TargetState.PAUSED, TargetState.STOPPED


def want(state: TargetState, connector: str) -> ConnectorChange:
    return ConnectorChange(connector=connector, target_state=state)


@pytest.fixture
def revoking(fixed: FixedAssignor) -> Scene:
    """A owns foo with 4 tasks and bar with 2 tasks at epoch 20, and must stop foo-3, which moves to C."""
    everything = foo(-1, 0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    scene = Scene.stable(settings(fixed), epoch=20, connectors={"foo": 4, "bar": 2}, members={"A": everything})
    fixed.target = {"A": everything - foo(3), "C": foo(3)}
    scene.join("C")
    scene.heartbeat("A", 20)
    assert names(scene.current("A").pending) == ["foo-3"]
    return scene


@pytest.mark.parametrize(
    ("change", "stops"),
    [
        (want(PAUSED, "bar"), ["bar-0", "bar-1"]),
        (want(STOPPED, "bar"), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", delete=True), ["bar", "bar-0", "bar-1"]),
        (ConnectorChange(connector="bar", config=entries({"colour": "green"})), ["bar", "bar-0", "bar-1"]),
    ],
    ids=["paused", "stopped", "deleted", "reconfigured"],
)
def test_ca_19_units_that_must_not_run_join_the_pending_revocation(
    revoking: Scene, fixed: FixedAssignor, change: ConnectorChange, stops: list[str]
) -> None:
    """CA-19: the member is sent the change in its next response, not only after its acknowledgement."""
    held = revoking.current("A").held
    left = {unit for unit in held if str(unit) not in stops}
    fixed.target = {"A": frozenset(left) - foo(3), "C": foo(3)}
    if change.config:
        fixed.target["A"] |= {Unit("bar")}
    revoking.update(change)
    assert "A" in revoking.group.members_to_wake, "a parked heartbeat of the member is woken"
    response = revoking.heartbeat("A", 20)
    assert units_at(response) == (20, names(left - foo(3)))
    assert (revoking.state("A"), revoking.current("A").epoch) == (MemberState.UNREVOKED, 20)
    assert names(revoking.current("A").pending) == sorted(["foo-3", *stops])
    assert revoking.last is not None
    assert rebalance("workers", "A", revoking.current("A"), 10_000) in revoking.last.timers
    again = revoking.heartbeat("A", 20)
    assert (units_at(again), revoking.records) == ((20, None), ())
    acknowledged = revoking.heartbeat("A", 20, frozenset(left) - foo(3))
    assert acknowledged.member_epoch == revoking.group.epoch
    assert not revoking.current("A").pending


def test_ca_07_newer_target_alone_adds_nothing_to_the_pending_revocation(revoking: Scene, fixed: FixedAssignor) -> None:
    """CA-07: units that move to another member may run on until the first revocation is acknowledged."""
    fixed.target = {"A": foo(-1), "C": foo(0, 1, 2, 3) | {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}}
    revoking.join("D")
    assert units_at(revoking.heartbeat("A", 20)) == (20, None)
    assert revoking.records == ()


def test_ca_19_partial_acknowledgement_is_none(revoking: Scene, fixed: FixedAssignor) -> None:
    """The units that joined the pending revocation later must stop too before any of them is assigned (S3)."""
    fixed.target = {"A": foo(-1, 0, 1, 2), "C": foo(3)}
    revoking.update(want(STOPPED, "bar"))
    revoking.heartbeat("A", 20)
    bar = {Unit("bar"), Unit("bar", 0), Unit("bar", 1)}
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2) | bar)
    assert revoking.state("A") is MemberState.UNREVOKED
    assert response_units(revoking.heartbeat("C", 21)) == frozenset(), "foo-3 is still held by A"
    revoking.heartbeat("A", 20, foo(-1, 0, 1, 2))
    assert response_units(revoking.heartbeat("C", 22)) == foo(3)
