"""The product's group as a model, and the comparison of the two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from connectgroup.group.connect.settings import GroupSettings, ServerAssignment
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.protocol.messages.assignment import PrepareResponse
from connectgroup.protocol.messages.common import config_of, units_of
from connectgroup.protocol.units import Unit

from .model import Model
from .state import GroupState
from .words import AssignorInput, Computation, Connector, Delay, Limits, Member, MemberTarget, Proposal, traits_of

State = dict[str, Any]
Difference = tuple[str, object, object]
"""Name, the product's value, the model's value."""


def common_state_of(model: GroupState) -> State:
    """What is compared of a group of any type whose target assignment is reconciled."""
    computation = model.computation
    return {
        "epoch": model.epoch,
        "target epoch": model.target_epoch,
        "target at": model.target_ms,
        "computed by": model.computed_by,
        "assignor": model.assignor,
        "computation": computation and {**vars(computation), "failed": set(computation.failed)},
        "members": {who: dict(vars(member)) for who, member in model.members.items()},
        "target": {who: share for who, share in model.target.items() if share != MemberTarget()},
    }


def state_of(model: Model) -> State:
    """Everything of a group that is compared."""
    return {
        **common_state_of(model),
        "made at": model.created_ms,
        "deferred": model.deferred,
        "deferred starts": model.deferred_starts,
        "rebalancing": model.rebalancing,
        "delays": {who: dict(vars(delay)) for who, delay in model.delays.items()},
        "connectors": {name: dict(vars(connector)) for name, connector in model.connectors.items()},
        "statuses": dict(model.statuses),
    }


def product_state(group: ConnectGroupState) -> State:
    """The same of a product's group."""
    return state_of(model_of(group, NO_LIMITS))


def fill(model: GroupState, group: Any) -> None:
    """Set what a model of any type has in common with the product's group, but for its members."""
    model.created_ms, model.epoch, model.assignor = group.created_ms, group.epoch, group.target_assignor
    model.target_epoch, model.target_ms, model.computed_by = group.target_epoch, group.target_ms, group.computed_by
    model.target = {
        who: MemberTarget(
            units=frozenset(Unit(*unit) for unit in each.units),
            error=each.error,
            version=each.version,
            metadata=each.metadata,
        )
        for who, each in group.targets.items()
    }
    computation = group.computation
    # A computation continues when the group epoch advances; a failed server-side attempt belongs to its epoch.
    if (
        computation is not None
        and group.members
        and (computation.member_id or computation.prepared or computation.epoch == group.epoch)
        and group.target_epoch < computation.epoch <= group.epoch
    ):
        model.computation = Computation(
            who=computation.member_id,
            epoch=computation.epoch,
            assignor=computation.assignor,
            prepared=computation.prepared,
            failures=computation.failures,
            failed=set(computation.failed_members),
            replaced=set(computation.replaced_members),
            keeps_target=computation.keeps_target,
        )


def model_of(group: ConnectGroupState, limits: Limits) -> Model:
    """A model with the state of a product's group."""
    model = Model(limits)
    fill(model, group)
    model.deferred, model.deferred_starts = group.deferred, group.deferred_starts
    last = group.latest_rebalance
    model.rebalancing = last is not None and last.finished_ms < 0
    for who, stored in group.members.items():
        current = group.current(who)
        model.members[who] = Member(
            instance=stored.instance_id,
            process=stored.process_id,
            timeout_ms=stored.rebalance_timeout_ms,
            server_assignor=stored.server_assignor,
            assignors=stored.assignors,
            draining=stored.draining,
            classic=stored.classic,
            traits=traits_of(stored),
            epoch=current.epoch,
            previous=current.previous_epoch,
            state=current.state.name,
            assigned=dict(current.assigned),
            pending=dict(current.pending),
        )
    for name, record in group.connectors.items():
        model.connectors[name] = Connector(
            version=record.version,
            target_state=int(record.target_state),
            config=config_of(record.config),
            since=record.since_epoch,
            tasks=[(config_of(task.config), task.since_epoch) for task in record.tasks],
        )
    for who, delay in group.delays.items():
        model.delays[who] = Delay(
            share=MemberTarget(
                units=units_of(delay.units), error=delay.error, version=delay.version, metadata=delay.metadata
            ),
            checksum=delay.said,
            instance=delay.instance_id,
            delay_ms=delay.delay_ms,
            deadline_ms=delay.deadline_ms,
            epoch=delay.epoch,
        )
    for unit, status in group.statuses.items():
        model.statuses[unit] = status.member_id, status.owner_epoch, int(status.state), status.message
    return model


def limits_of(settings: GroupSettings) -> Limits:
    """The settings of the model."""
    return Limits(
        server_assignor=settings.server_assignor,
        server_assignors=frozenset(settings.server_assignors),
        session_timeout_ms=settings.session_timeout_ms,
        max_rebalance_timeout_ms=settings.max_rebalance_timeout_ms,
        failures_before_fallback=settings.failures_before_fallback,
        max_members=settings.max_members,
        max_units=settings.max_units,
        max_moves=settings.max_moves,
        assignment_interval_ms=settings.assignment_interval_ms,
        scheduled_delay_ms=settings.scheduled_delay_ms,
        max_delay_ms=settings.max_delay_ms,
        max_start_ms=settings.max_start_ms,
    )


NO_LIMITS = limits_of(GroupSettings())


def input_of(response: PrepareResponse) -> AssignorInput:
    """The assignor input in a Prepare response."""
    # Counted here, not by the product: an error of numbering must not be the same on both sides.
    units = [Unit(each.connector, task) for each in response.connectors for task in (-1, *range(each.num_tasks))]
    return AssignorInput(
        members={
            member.member_id: (
                member.member_epoch,
                member.instance_id,
                frozenset(units[place] for place in member.unit_indices),
                (member.assignor.version, member.assignor.reason, member.assignor.metadata),
                member.assignor_state,
            )
            for member in response.members
        },
        connectors={each.connector: (each.num_tasks, config_of(each.placement)) for each in response.connectors},
        delayed={each.member_id: units_of(each.units) for each in response.delayed},
    )


def proposal_of(answer: ServerAssignment) -> Proposal:
    """The result of a server-side assignor."""
    return Proposal(members=answer.members, left_out=units_of(answer.delayed), delay_ms=answer.delay_ms)


def unequal(name: str, product: object, model: object) -> Iterator[Difference]:
    """A difference, unless the two values are equal."""
    if product != model:
        yield name, product, model


def states_differ(product: State, model: State, where: str = "") -> Iterator[Difference]:
    """The differences of two states."""
    if product == model:
        return
    for key in sorted({*product, *model}, key=str):
        ours, theirs = product.get(key), model.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from states_differ(ours, theirs, f"{where}{key}: ")
        else:
            yield from unequal(f"{where}{key}", ours, theirs)
