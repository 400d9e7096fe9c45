"""Several coordinators on one log, simulated (``shared``): F12, F13, F29, F30; D4, D5 and D6 as invariants."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("confluent_kafka", reason="the extra 'kafka' is not installed")

from connectgroup.group.connect import settings as coordinator_settings
from connectgroup.log import leased
from connectgroup.log.leased import LeasedLog
from connectgroup.member import settings as worker_settings
from tests.volume import volume

from . import shared
from .loop import simulated
from .shared import SharedRun, run_shared

SEEDS = volume(5, 60)


def run_all(seeds: range) -> list[SharedRun]:
    with simulated():
        return [run_shared(seed) for seed in seeds]


def test_coordinators_of_one_log_never_serve_at_the_same_time_and_lose_nothing() -> None:
    """F12, F13, F29, F30. No fail-over stops a unit that no sink fences, and none runs on two workers (S2, PD-10)."""
    runs = run_all(range(SEEDS))
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    reached = sum((run.reached for run in runs), Counter[str]())
    rare = {
        "taken over",
        "handed over",
        "batch of a former owner or of a former epoch",
        "answer to append lost",
        "append without an answer",
        "renew without an answer",
    }
    assert rare <= reached.keys(), reached
    assert all(run.acknowledged and run.reached["a worker lost its units"] for run in runs)


def is_found(invariant: str = "D5") -> bool:
    """Whether a seed violates an invariant; by default one about the coordinator that serves."""
    return any(
        invariant in violation
        for seed in range(60)
        for run in run_all(range(seed, seed + 1))
        for violation in run.violations
    )


def test_owner_that_takes_its_lease_for_longer_than_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased, "DRIFT", -0.5)
    assert is_found()


def test_usual_session_for_units_that_are_not_fenced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease of half a session ends with some fail-overs."""
    for each in coordinator_settings, worker_settings:
        monkeypatch.setattr(each, "UNFENCED_SESSION", 1.0)
    assert is_found("PD-10")


def test_stop_that_takes_longer_than_the_session_leaves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "STOP_S", 9.0)
    assert is_found("S2")


def test_owner_that_responds_after_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is not read again after a response was decided; the epoch in each write does not protect reads."""
    monkeypatch.setattr(LeasedLog, "lease_ends_s", property(lambda log: float("inf")))
    assert is_found()
