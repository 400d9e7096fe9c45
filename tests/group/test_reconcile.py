"""One member, one step: the rows CA-01 to CA-18 of the conformance scenarios (Kafka's CurrentAssignmentBuilderTest).

CA-19 is this project's: it says what a member in UNREVOKED must stop besides
its pending revocation. CA-20 is about topic subscriptions by regular expression and CA-21 to CA-23 are about Streams'
standby tasks: type ``connect`` has neither. A subscription is, here, what of the target may be handed out now: CA-17
and CA-18 take T1 out of it, as a paused or reconfigured connector does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from connectgroup.errors import FencedMemberEpoch
from connectgroup.group.kernel.current import Current
from connectgroup.group.kernel.reconcile import Target, reconcile
from connectgroup.protocol.records.connect import MemberState
from connectgroup.protocol.units import Unit, Units

STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED
ME, OTHER = "me", "somebody else"


def units(t1: Iterable[int] = (), t2: Iterable[int] = ()) -> Units:
    return frozenset([*(Unit("T1", number) for number in t1), *(Unit("T2", number) for number in t2)])


def at(epoch: int, t1: Iterable[int] = (), t2: Iterable[int] = ()) -> dict[Unit, int]:
    return dict.fromkeys(units(t1, t2), epoch)


def standing(
    state: MemberState,
    epoch: int,
    assigned: Mapping[Unit, int],
    pending: Mapping[Unit, int] | None = None,
    *,
    previous: int | None = None,
) -> Current:
    return Current(
        epoch=epoch,
        previous_epoch=epoch if previous is None else previous,
        state=state,
        assigned=assigned,
        pending=pending or {},
    )


def step(
    current: Current,
    target: Units,
    epoch: int,
    owned: Units | None = None,
    elsewhere: Units = frozenset(),
    since: Mapping[Unit, int] | None = None,
    stopped: Units = frozenset(),
) -> Current:
    """One step with the world around it: ``elsewhere`` is held by somebody else, what is not held is free.

    ``stopped`` are the units that must not run. All others may, with a configuration of epoch 0 unless ``since`` says
    another.
    """

    runnable = {**dict.fromkeys(current.held, 0), **dict.fromkeys(target, 0), **(since or {})}
    return reconcile(
        current,
        Target(
            units=target - stopped,
            epoch=epoch,
            runnable={unit: since_epoch for unit, since_epoch in runnable.items() if unit not in stopped},
        ),
        owned=owned,
        is_free=lambda unit: unit not in elsewhere,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: where the member stands, what it is to have, what it says, and where it stands then."""

    id: str
    given: Current
    target: Units
    epoch: int
    owned: Units | None = None
    elsewhere: Units = frozenset()
    then: Current
    since: Mapping[Unit, int] = field(default_factory=dict)
    stopped: Units = frozenset()


AFTER_CA03 = standing(UNREVOKED, 10, at(10, [2, 3], [5, 6]), at(10, [1], [4]))
WAITING = standing(UNRELEASED, 11, at(11, [2, 3], [5, 6]))
ALL_SIX = at(10, [1, 2, 3], [4, 5, 6])

ROWS = [
    Row(
        id="CA-01 an equal target moves the epoch and leaves the owner epochs alone",
        given=standing(STABLE, 10, at(5, [1, 2, 3], [4, 5, 6])),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        then=standing(STABLE, 11, at(5, [1, 2, 3], [4, 5, 6]), previous=10),
    ),
    Row(
        id="CA-02 free units are given at the target's epoch, old ones keep theirs",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3, 4], [4, 5, 6, 7]),
        epoch=11,
        then=standing(STABLE, 11, {**ALL_SIX, **at(11, [4], [7])}, previous=10),
    ),
    Row(
        id="CA-03 what must go is revoked first, and what is free is not handed out in that step",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        then=AFTER_CA03,
    ),
    Row(
        id="CA-04 units held elsewhere leave it waiting at the new epoch",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3, 4], [4, 5, 6, 7]),
        epoch=11,
        elsewhere=units([4], [7]),
        then=standing(UNRELEASED, 11, ALL_SIX, previous=10),
    ),
    Row(
        id="CA-05 what it says it does not run need not be revoked",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 7]),
        epoch=11,
        owned=units(),
        elsewhere=units([], [7]),
        then=standing(UNRELEASED, 11, at(10, [1, 2, 3], [4, 5]), previous=10),
    ),
    Row(
        id="CA-06 an acknowledged revocation lets it through",
        given=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([2, 3], [5, 6]),
        then=standing(STABLE, 11, at(10, [2, 3], [5, 6]), previous=10),
    ),
    Row(
        id="CA-08 from one revocation straight to that of the newest target",
        given=AFTER_CA03,
        target=units([3], [6]),
        epoch=12,
        owned=units([2, 3], [5, 6]),
        then=standing(UNREVOKED, 10, at(10, [3], [6]), at(10, [2], [5])),
    ),
    Row(
        id="CA-09 nothing left to revoke, something left to wait for",
        given=standing(UNREVOKED, 11, at(11, [2, 3], [5, 6])),
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        elsewhere=units([4], [7]),
        owned=units([2, 3], [5, 6]),
        then=standing(UNRELEASED, 11, at(11, [2, 3], [5, 6])),
    ),
    Row(
        id="CA-11 an equal later target ends the wait",
        given=WAITING,
        target=units([2, 3], [5, 6]),
        epoch=12,
        then=standing(STABLE, 12, at(11, [2, 3], [5, 6]), previous=11),
    ),
    Row(
        id="CA-12 what has become free is given at the same epoch",
        given=WAITING,
        target=units([2, 3, 4], [5, 6, 7]),
        epoch=11,
        then=standing(STABLE, 11, at(11, [2, 3, 4], [5, 6, 7])),
    ),
    Row(
        id="CA-16 a state of a newer version is left by owning nothing",
        given=standing(MemberState.UNKNOWN, 11, at(11, [3], [6]), at(11, [2], [5])),
        target=units([3], [6]),
        epoch=12,
        owned=units(),
        then=standing(STABLE, 12, at(12, [3], [6]), previous=11),
    ),
    Row(
        id="CA-17 what may no longer be handed out goes at once where it is not run",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([], [4, 5, 6]),
        epoch=10,
        owned=units([], [4, 5, 6]),
        then=standing(STABLE, 10, at(10, [], [4, 5, 6])),
    ),
    Row(
        id="CA-18 what may no longer be handed out is revoked without waiting for a new target",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([], [4, 5, 6]),
        epoch=10,
        owned=units([1, 2, 3], [4, 5, 6]),
        then=standing(UNREVOKED, 10, at(10, [], [4, 5, 6]), at(10, [1, 2, 3])),
    ),
    Row(
        id="CA-19 a connector that is stopped joins the pending revocation without an acknowledgement",
        given=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([1, 2, 3], [4, 5, 6]),
        stopped=units([1, 2, 3]),
        then=standing(UNREVOKED, 10, at(10, [], [5, 6]), at(10, [1, 2, 3], [4])),
    ),
    Row(
        id="CA-19 in a short heartbeat too",
        given=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        stopped=units([1, 2, 3]),
        then=standing(UNREVOKED, 10, at(10, [], [5, 6]), at(10, [1, 2, 3], [4])),
    ),
    Row(
        id="CA-19 a unit whose configuration was replaced joins the pending revocation",
        given=AFTER_CA03,
        target=units([2, 3], [5, 6]),
        epoch=11,
        owned=units([1, 2, 3], [4, 5, 6]),
        since={Unit("T1", 2): 11},
        then=standing(UNREVOKED, 10, at(10, [3], [5, 6]), at(10, [1, 2], [4])),
    ),
    Row(
        id="CA-19 and CA-07: of a newer target only what must not run joins the pending revocation",
        given=AFTER_CA03,
        target=units([3], []),
        epoch=12,
        stopped=units([], [5]),
        then=standing(UNREVOKED, 10, at(10, [2, 3], [6]), at(10, [1], [4, 5])),
    ),
    # Ours: a unit whose configuration is newer than its grant stays with its member and is still given anew.
    Row(
        id="a grant older than its configuration is revoked first",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        since={Unit("T1", 2): 11},
        then=standing(UNREVOKED, 10, at(10, [1, 3], [4, 5, 6]), at(10, [2])),
    ),
    Row(
        id="and comes back under the epoch of its configuration or later",
        given=standing(UNREVOKED, 10, at(10, [1, 3], [4, 5, 6]), at(10, [2])),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        owned=units([1, 3], [4, 5, 6]),
        since={Unit("T1", 2): 11},
        then=standing(STABLE, 11, {**at(10, [1, 3], [4, 5, 6]), **at(11, [2])}, previous=10),
    ),
    Row(
        id="a grant of the configuration's own epoch is new enough",
        given=standing(STABLE, 10, ALL_SIX),
        target=units([1, 2, 3], [4, 5, 6]),
        epoch=11,
        since={Unit("T1", 2): 10},
        then=standing(STABLE, 11, ALL_SIX, previous=10),
    ),
    Row(
        id="some free, some not: what is free is given, the rest waited for",
        given=standing(STABLE, 10, at(10, [1])),
        target=units([1, 2, 3]),
        epoch=11,
        elsewhere=units([3]),
        then=standing(UNRELEASED, 11, {**at(10, [1]), **at(11, [2])}, previous=10),
    ),
    Row(
        id="a revoked unit that the next target wants back is a new grant",
        given=AFTER_CA03,
        target=units([1, 2, 3], [5, 6]),
        epoch=12,
        owned=units([2, 3], [5, 6]),
        then=standing(STABLE, 12, {**at(10, [2, 3], [5, 6]), **at(12, [1])}, previous=10),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_reconcile_advances_one_step_towards_the_target(row: Row) -> None:
    """Each row's outcome is exact: state, epoch, units with their owner epochs, units being stopped."""
    assert step(row.given, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped) == row.then


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_repeated_step_has_no_effect(row: Row) -> None:
    """S16: twice is once. After a revocation silence is what is repeated: it acknowledges nothing."""
    after = step(row.given, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped)
    assert step(after, row.target, row.epoch, None, row.elsewhere, row.since, row.stopped) is after


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_step_both_revokes_and_assigns(row: Row) -> None:
    """ "There should be either revoked or newly assigned ... The protocol never does both together." """
    after = step(row.given, row.target, row.epoch, row.owned, row.elsewhere, row.since, row.stopped)
    if after.state is UNREVOKED:
        assert after.assigned.items() <= row.given.assigned.items()
        assert after.epoch == row.given.epoch


@pytest.mark.parametrize(
    "owned",
    [None, units([1, 2, 3], [5, 6]), units([2, 3], [4, 5, 6]), units([1, 2, 3], [4, 5, 6])],
    ids=["nothing said", "T1-1 still there", "T2-4 still there", "both still there"],
)
def test_ca_07_without_an_acknowledgement_nothing_changes(owned: Units | None) -> None:
    """CA-07: the same object, so no record; the newer target waits."""
    assert step(AFTER_CA03, units([3], [6]), 12, owned) is AFTER_CA03


def test_ca_13_continued_wait_changes_nothing() -> None:
    """CA-13: same target, still held elsewhere: the same object, so no record."""
    assert step(WAITING, units([2, 3, 4], [5, 6, 7]), 11, elsewhere=units([4], [7])) is WAITING


@pytest.mark.parametrize("owned", [None, units([3], [6])], ids=["nothing said", "something run"])
def test_ca_15_unknown_state_fences_the_member(owned: Units | None) -> None:
    """CA-15: this code cannot know what the state asks of the member."""
    current = standing(MemberState.UNKNOWN, 11, at(11, [3], [6]), at(11, [2], [5]))
    with pytest.raises(FencedMemberEpoch):
        step(current, units([3], [6]), 12, owned)


def test_wait_ends_when_the_target_no_longer_has_the_units() -> None:
    """UNRELEASED goes back to STABLE although nothing was given."""
    assert step(WAITING, units([2, 3], [5, 6]), 11) == standing(STABLE, 11, at(11, [2, 3], [5, 6]))


def test_waiting_member_is_asked_to_revoke() -> None:
    """UNRELEASED to UNREVOKED: the epoch stays where it is."""
    after = step(WAITING, units([2], [5, 6]), 12)
    assert after == standing(UNREVOKED, 11, at(11, [2], [5, 6]), at(11, [3]))
