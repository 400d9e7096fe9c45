"""The computation of a consumer group's target assignment: when it starts, and its effects.

The rules that do not depend on the group type are in ``kernel.computation``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.records.connect import ComputationRecord, Record
from ...protocol.records.consumer import CONSUMER, ConsumerMemberRecord
from ..kernel import computation as rules
from ..kernel.computation import COORDINATOR, under_way
from ..kernel.effects import Compute, Effect, Warn
from ..kernel.outcome import Outcome
from ..kernel.timers import Timer
from .draft import Draft
from .settings import ConsumerSettings
from .subscription import matches, unresolved
from .target import group_state, install_target


def ensure_computation(draft: Draft, settings: ConsumerSettings, *, waited: bool = False) -> tuple[Timer, ...]:
    """As ``kernel.computation.ensure_computation``.

    A group without members gets its empty target at once. A computation waits for regular expressions that are not
    resolved yet: their topics are known in milliseconds, and a target without them would be wrong. It does not wait for
    the interval while no partition is assigned: the members wait for their topic.
    """
    if draft.epoch <= draft.target_epoch:
        return ()
    if not draft.any_member():
        return install_target(draft, (), "", COORDINATOR)
    waited = waited or not draft.any_partition_assigned()
    return () if unresolved(draft) else rules.ensure_computation(draft, settings, waited=waited)


def effects_of(draft: Draft, records: Sequence[Record] | None = None) -> tuple[Effect, ...]:
    """The effects that a group requests: regular expressions to resolve, a server-side computation, a warning.

    Args:
        draft: the group after a step, or after it was loaded.
        records: those of the step; others than these request nothing. The input of an assignor is built only when one
            is to run: it takes time in proportion to the group.
    """
    group = draft.group
    classes = None if records is None else {type(record) for record in records}
    effects: tuple[Effect, ...] = ()
    if classes is None or ConsumerMemberRecord in classes:
        effects = matches(draft, unresolved(draft))
    computation = under_way(group) if classes is None or ComputationRecord in classes else None
    if computation is None or computation.member_id or not group.members:
        return effects
    if not computation.prepared:
        message = rules.no_target(group, computation)
        return (*effects, Warn(group_id=group.group_id, epoch=group.epoch, message=message))
    compute = Compute(
        group_id=group.group_id,
        group_type=CONSUMER,
        epoch=group.epoch,
        assignor=computation.assignor,
        input=group_state(draft, computation.assignor),
    )
    return (*effects, compute)


def compute_timed_out(draft: Draft, settings: ConsumerSettings) -> Outcome[None]:
    """As ``kernel.computation.compute_timed_out``; no computation starts while a regular expression is unresolved."""
    return rules.compute_timed_out(draft, settings, is_ready=not unresolved(draft))
