"""Rare states that a suite must have reached ("sometimes assertions"): a green run without them proves nothing.

``reach`` is called where the state is detected. A run of the whole suite in which one of ``STATES`` was never reached
fails; so does a call of ``reach`` with a state that is not in ``STATES``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

STATES: Final = (
    "a heartbeat was accepted at the previous epoch",
    "the response to an abandoned heartbeat assigned units",
    "an Install for a passed epoch was rejected",
    "an invalid Install was rejected",
    "an assignor's failure was installed",
    "the fallback assignor was used",
    "the server-side assignor served members that list none",
    "a computing member was replaced",
    "a lease ended before the member was removed",
    "fenced units ran on after the lease, others stopped",
    "units that had run on without a lease were still their worker's",
    "a worker heard after its lease that it had been removed",
    "a member was removed at its session timeout",
    "a member was removed at its rebalance timeout",
    "a member joined again under a later epoch",
    "a parked heartbeat was woken",
    "an append stalled",
    "a message ended an expired timer of its own turn",
    "an acknowledgement crossed a new target",
    "a late copy of a heartbeat was rejected",
    "a unit was not assigned before another member's revocation",
    "a zombie's write was rejected",
    "a zombie's claim was rejected",
    "a write repeated a committed batch",
    "a slice changed tasks with the task count",
    "a worker wrote nothing after it abandoned a slow stop",
    "a coordinator was fenced",
    "two coordinators were alive",
    "a group was loaded again after a failed append",
    "an append failed and was durable",
    "an append failed and was not durable",
    "an append in doubt was durable",
    "an append in doubt was not durable",
    "a batch was rejected as a whole",
    "a coordinator crashed before an append",
    "a coordinator crashed after an append",
    "a torn tail was cut",
    "a load failed",
    "a group was loaded with pending revocations",
    "a group was loaded while a target was computed",
    "a task list of a former owner was rejected",
    "a listener raised",
    "a listener never returned",
    "a failing listener kept a revocation unacknowledged",
    "a task failed and was started again",
    "a group lost all its members, then members joined",
    "a member rejoined with its old id",
    "two processes had one member id",
    "a join failed with an instance id in use",
    "a static member returned to its units",
    "a member returned to its delayed units",
    "a delay survived a coordinator failover",
    "a scheduled rebalance delay expired",
    "moves were deferred to another round",
    "moves were deferred until units had started",
    "a unit did not start in time",
    "a worker left when it was drained",
    "all workers were gone at once",
    "a change made against another version was rejected",
    "a join was rejected for its assignor's versions",
    "no assignor's versions covered all others",
    "a group with members became a consumer group",
    "a group with members became a classic group",
    "a group had members of both protocols",
    "a member of the classic protocol revoked in a consumer group",
    "a commit at a stale member epoch was rejected",
    "a group had workers of both protocols",
    "a worker of the classic protocol was asked to compute",
)


class Sometimes:
    """The states that one run has reached."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()

    def reach(self, state: str) -> None:
        """Count that the state was reached."""
        assert state in _KNOWN, state
        self.reached[state] += 1


_KNOWN: Final = frozenset(STATES)


def never(reached: Counter[str]) -> list[str]:
    """The states that a suite has not reached."""
    return [state for state in STATES if not reached[state]]
