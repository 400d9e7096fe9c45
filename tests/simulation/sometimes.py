"""Rare states that a suite must have reached: a green run that never saw them proves nothing about them.

``reach`` is called where the state is seen. A whole run of the suite in which one of ``STATES`` was never reached
fails; so does naming one here that nothing can reach.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

STATES: Final = (
    "an answer was accepted at the previous epoch",
    "a heartbeat was given up whose answer granted something",
    "an install for a passed epoch was refused",
    "an illegal install was refused",
    "an assignor's failure was installed",
    "the fallback assignor was used",
    "the server-side assignor served members that list none",
    "a computing member was replaced",
    "a lease ended before the member was removed",
    "a member was removed for silence",
    "a member was removed for a slow stop",
    "a member joined again under a later epoch",
    "a parked heartbeat was woken",
    "an append stalled",
    "a message ended an expired timer of its own turn",
    "an acknowledgement crossed a new target",
    "a late copy of a heartbeat was refused",
    "a unit waited for another member's release",
    "a zombie's write was refused",
    "a zombie's claim was refused",
    "a write was a repeat of what was in",
    "a slice changed tasks with the task count",
    "a stopped worker wrote nothing more after a slow stop was given up",
    "a coordinator was fenced",
    "two coordinators were alive",
    "a group was loaded again after a failed append",
    "an append failed and was in",
    "an append failed and was not in",
    "an append in doubt was in",
    "an append in doubt was not in",
    "a batch was refused whole",
    "a coordinator crashed before an append",
    "a coordinator crashed after an append",
    "a torn tail was cut",
    "a load failed",
    "a group was loaded while it revoked",
    "a group was loaded while a target was computed",
    "a task list of a former owner was refused",
    "a listener raised",
    "a listener never returned",
    "a revocation stayed unacknowledged for a listener",
    "a task failed and was started again",
    "a group lost all its members and filled again",
    "a member came back with its old id",
    "two processes had one member id",
    "a static member waited for its name",
    "a static member came back to its work",
    "a lost worker came back to its work",
    "a delay survived a coordinator",
    "a delay ran out",
    "moves were left for another round",
    "a worker left when all its work was taken over",
    "all workers were gone at once",
    "a change made against another version was refused",
    "a worker was turned away for its assignor's versions",
    "no assignor's versions covered all others",
)


class Sometimes:
    """What one run has reached."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()

    def reach(self, state: str) -> None:
        """The state has been seen once more."""
        assert state in _KNOWN, state
        self.reached[state] += 1


_KNOWN: Final = frozenset(STATES)


def never(reached: Counter[str]) -> list[str]:
    """The states that a suite has not reached."""
    return [state for state in STATES if not reached[state]]
