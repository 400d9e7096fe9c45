"""One step of one member towards its target: the heart of the protocol, and one pure function.

        keep    = assigned & target          stays as it is, with the epoch at which it was given
        revoke  = assigned - target          told to stop first; the member's epoch waits for it
        gain    = target - keep              given when nobody else holds it; what a member is still stopping is held

A response therefore revokes or assigns and never both. Units are opaque here.

While a revocation is pending, a newer target waits for its acknowledgement, but a unit that must not run any more does
not: it joins the pending revocation at once (CA-19).

Source: KIP-848 "Reconciliation" and Kafka's ``CurrentAssignmentBuilder``, whose tests are rows CA-01..CA-18 of the
conformance scenarios; "Connect on the new protocol", the three steps under "Reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...errors import FencedMemberEpoch
from ...protocol.records.connect import MemberState
from ...protocol.units import Unit, Units
from .current import Current


def reconcile(
    current: Current,
    *,
    target: Units,
    target_epoch: int,
    owned: Units | None,
    holder: Callable[[Unit], str | None],
    since_epoch: Mapping[Unit, int],
    member_id: str,
) -> Current:
    """Where the member stands after one step.

    Args:
        current: where it stands.
        target: its share of the target, without what may not be handed out now.
        target_epoch: the target's epoch.
        owned: every unit the member says it may be running; ``None`` is "as before" and acknowledges nothing.
        holder: who holds a unit, units being stopped included.
        since_epoch: the units that may run, each with the epoch that brought its configuration. A grant older than that
            must be given back, even where the unit stays with the member: it runs a configuration that is no more.
        member_id: whose step this is.

    Returns:
        The same object where nothing changes.

    Raises:
        FencedMemberEpoch: the stored state is of a version this code does not know, and the member still runs
            something.
    """
    match current.state:
        case MemberState.STABLE | MemberState.UNRELEASED:
            return _next(current, target, target_epoch, owned, holder, since_epoch, member_id)
        case MemberState.UNREVOKED:
            # "The group coordinator revokes ... until the worker acknowledges the revocation": silence is no
            # acknowledgement, nor is a report in which one of the units is still there.
            if owned is None or owned & current.pending.keys():
                return _stop_too(current, since_epoch)
            return _next(replace(current, pending={}), target, target_epoch, owned, holder, since_epoch, member_id)
        case _:
            if owned is None or owned:
                raise FencedMemberEpoch(f"{member_id} is in a state written by a newer version; it must join again")
            return _next(
                replace(current, assigned={}, pending={}), target, target_epoch, owned, holder, since_epoch, member_id
            )


def _stop_too(current: Current, since_epoch: Mapping[Unit, int]) -> Current:
    """Add to the pending revocation the units that must not run any more: stopped, paused, deleted, reconfigured
    (CA-19). The rest of the assignment stays as it is until the member acknowledges (CA-07).
    """
    stop = {
        unit: epoch for unit, epoch in current.assigned.items() if unit not in since_epoch or epoch < since_epoch[unit]
    }
    if not stop:
        return current
    keep = {unit: epoch for unit, epoch in current.assigned.items() if unit not in stop}
    return replace(current, assigned=keep, pending={**current.pending, **stop})


def _next(
    current: Current,
    target: Units,
    target_epoch: int,
    owned: Units | None,
    holder: Callable[[Unit], str | None],
    since_epoch: Mapping[Unit, int],
    member_id: str,
) -> Current:
    keep = {
        unit: epoch for unit, epoch in current.assigned.items() if unit in target and epoch >= since_epoch.get(unit, 0)
    }
    revoke = {unit: epoch for unit, epoch in current.assigned.items() if unit not in keep}

    # A member that reports a set without them has let go of them already: no need to ask (CA-05).
    if revoke and (owned is None or owned & revoke.keys()):
        return replace(current, state=MemberState.UNREVOKED, assigned=keep, pending=revoke)

    gain = target - keep.keys()
    free = {unit: target_epoch for unit in gain if holder(unit) in (None, member_id)}
    state = MemberState.STABLE if len(free) == len(gain) else MemberState.UNRELEASED
    if not free and not revoke and not current.pending and (state, target_epoch) == (current.state, current.epoch):
        return current
    # Sorted only where it leaves the core (records.held); here insertion order does not matter.
    return replace(current, epoch=target_epoch, state=state, assigned={**keep, **free}, pending={})
