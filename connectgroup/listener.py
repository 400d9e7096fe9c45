"""What a worker tells about the work it is given and loses.

Running the tasks is not a listener's business (the worker's runner does that); a listener keeps something in
step with them: a cache, a metric, an offset commit, a log line.

What is promised, for one worker:

- Callbacks never overlap and none begins after the worker's ``run()`` has returned.
- Given: ``on_assigned`` returns, then the units start.
- Taken: the units stop, then ``on_revoked`` runs, then the group is told. So what a unit did last is visible to
  ``on_revoked``, and no other worker is given the unit before it has returned.
- Lost: the units stop, then ``on_lost`` runs. Another worker may have been given them already.
- Every unit that was named to ``on_assigned`` is named later to exactly one of the other two, unless the
  process dies.

Each callback may be a plain method or ``async``; a plain one is called off the event loop and may block, but
while it does so this worker is given nothing and takes part in the group by heartbeats only. It has the
rebalance timeout to end in; a worker that overstays it is removed from the group.

Listeners are found by the entry point ``connectgroup.listeners`` and made without arguments.

Source: "Connect on the new protocol", WorkerRebalanceListener; KIP-848, member-side handling.
"""

from __future__ import annotations

from collections.abc import Awaitable

from .protocol.units import Units


class WorkerRebalanceListener:
    """Does nothing; override what you need."""

    def on_assigned(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker was given ``units``; they start when this returns.

        Args:
            units: what is new, never the whole; not empty.
            epoch: the group epoch of the assignment they came with.

        Raises:
            Exception: shown as one line; the units start all the same.
        """
        return None

    def on_revoked(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker has stopped ``units`` and is about to let go of them.

        Args:
            units: what was taken; not empty.
            epoch: the worker's epoch, at which it still holds them.

        Raises:
            Exception: the revocation stays unacknowledged: nobody else is given the units until the rebalance
                timeout removes this worker. Raise only where that is better than going on.
        """
        return None

    def on_lost(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker has stopped ``units`` because it may not hold them any more: fenced, or its lease ended.

        Do not write on their behalf here: a successor may be at work.

        Args:
            units: all it held; not empty.
            epoch: the last epoch at which it knew to hold them.

        Raises:
            Exception: shown as one line; the units are lost all the same.
        """
        return None
