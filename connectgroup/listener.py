"""Rebalance listeners: notified of the units that a worker is assigned, revokes and loses.

A listener does not run the tasks (the worker's runner does). It keeps other state consistent with them: a cache, a
metric, an offset commit, a log message.

The guarantees, for one worker:

- Callbacks never overlap, and none begins after the worker's ``run()`` has returned.
- Assigned: ``on_assigned`` returns, then the units start.
- Revoked: the units stop, then ``on_revoked`` runs, then the worker acknowledges the revocation. The last effects of
  a unit are therefore visible to ``on_revoked``, and no other worker is assigned the unit before it has returned.
- Lost: the units stop, then ``on_lost`` runs. The units may already be assigned to another worker.
- Every unit passed to ``on_assigned`` is later passed to exactly one of the other two callbacks, unless the process
  dies; after an ``on_revoked`` that raises, to ``on_lost`` as well. What is due while a callback hangs follows in order
  once it has returned, and no unit is passed to ``on_lost`` that was not passed to ``on_assigned``.

A callback may be a plain method or ``async``. A plain method is called off the event loop and may block; until it
returns, the worker starts no units and only sends heartbeats. It must return within the rebalance timeout; otherwise
the coordinator removes the worker from the group.

``Worker`` rejects a listener whose callback does not take ``(units, epoch)``, or that has a method with nearly the name
of a callback (``on_revoke``, ``on_assignd``, ``onLost``), which would never be called: a method of another purpose
needs another name.

Listeners are loaded from the entry point group ``connectgroup.listeners`` and created without arguments.

Source: "Connect on the new protocol", WorkerRebalanceListener; KIP-848, member-side handling.
"""

from __future__ import annotations

from collections.abc import Awaitable

from .protocol.units import Units


class WorkerRebalanceListener:
    """Base class of listeners. The default callbacks do nothing; override those you need."""

    def on_assigned(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker was assigned ``units``; they start when this returns.

        Args:
            units: the newly assigned units, not the whole assignment; not empty.
            epoch: the group epoch of the assignment.

        Raises:
            Exception: logged as one line; the units start nevertheless.
        """
        return None

    def on_revoked(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker has stopped ``units`` and is about to acknowledge their revocation.

        Args:
            units: the revoked units; not empty.
            epoch: the member epoch, at which the worker still owns them.

        Raises:
            Exception: the revocation is not acknowledged: the units are not assigned to another member until the
                rebalance timeout removes this worker. Raise only if that is better than to continue. A worker that ends
                leaves the group nevertheless, and other members are assigned its units at once.
        """
        return None

    def on_lost(self, units: Units, epoch: int) -> Awaitable[None] | None:
        """The worker has stopped ``units`` because it may not own them any more: it was fenced, or its lease expired.

        Do not write on behalf of the units here: a new owner may already run them.

        Args:
            units: all units that the worker owned and that were passed to ``on_assigned``; if the lease expired, those
                that are not fenced; not empty.
            epoch: the last epoch at which the worker owned them for certain.

        Raises:
            Exception: logged as one line; the units are lost nevertheless.
        """
        return None
