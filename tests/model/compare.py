"""Differences between the product and the model: responses, timers, records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from connectgroup.errors import ComputeAssignment
from connectgroup.group.kernel.outcome import Compute, Effect, SetTimer, Timer, TimerKey
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import PrepareResponse
from connectgroup.protocol.messages.classic import JoinGroupRequest
from connectgroup.protocol.messages.common import config_of, units_of
from connectgroup.protocol.messages.connectors import UpdateConnectorsResponse
from connectgroup.protocol.messages.consumer import ConsumerHeartbeatRequest
from connectgroup.protocol.messages.describe import DeleteResponse, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.base import Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record, TargetMemberRecord, TargetRecord
from connectgroup.protocol.records.consumer import ConsumerTargetMemberRecord
from connectgroup.protocol.units import JOIN_EPOCH, Unit

from .computing import Computing
from .model import Model
from .product import Difference, State, input_of, unequal
from .state import GroupState
from .words import AWAY, AssignorInput, Expected, Timer as TimerName

MEMBER_KINDS: Final = (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER)
"""The kinds of the records of a member, in the order of their tombstones."""

MIN_AFTER_LOAD_MS = 1_000
"""Minimum after a load: a returning worker may be about to join."""


def responses_differ(
    model: Model, what: object, response: Response | None, expected: Expected | None
) -> Iterator[Difference]:
    """Compares the response with the expected one."""
    match response:
        case DescribeResponse(groups=(group,)):
            yield from unequal("state", group.state, model.state() if model.epoch else "")
            yield from unequal("group epoch", group.group_epoch, model.epoch)
            yield from unequal("assignment epoch", group.assignment_epoch, model.target_epoch)
            shown = {each.member_id: (each.member_epoch, units_of(each.assigned)) for each in group.members}
            have = {who: (member.epoch, frozenset(member.assigned)) for who, member in model.members.items()}
            yield from unequal("members", shown, have)
            waiting = {each.member_id: units_of(each.units) for each in group.delayed}
            yield from unequal("delayed", waiting, model.waiting())
        case DeleteResponse(results=(result,)) if expected is not None:
            yield from unequal("code", result.error_code, expected.code)
    if response is None or expected is None or expected.code is None:
        return
    code = getattr(response, "error_code", expected.code)
    if code != expected.code:
        yield "code", f"{code} {getattr(response, 'error_message', '')}", expected.code
    elif code == 0:
        yield from _contents_differ(model, what, response, expected)


def _contents_differ(model: Model, what: object, response: Response, expected: Expected) -> Iterator[Difference]:
    match response:
        case PrepareResponse():
            yield from unequal("group epoch", response.group_epoch, expected.epoch)
            yield from unequal("question", input_of(response), expected.assignor_input)
        case UpdateConnectorsResponse():
            yield from unequal("group epoch", response.group_epoch, expected.epoch)
            yield from unequal("versions", tuple(each.version for each in response.results), expected.versions)
        case HeartbeatResponse():
            assert isinstance(what, HeartbeatRequest)
            yield from unequal("member epoch", response.member_epoch, expected.epoch)
            given, tokens, share = response.assignment, expected.units, expected.share
            response_units = None if given is None else units_of(given.units)
            yield from unequal("assignment", response_units, None if tokens is None else frozenset(tokens))
            if given is not None and tokens is not None:
                word = given.error, given.version, given.metadata
                yield from unequal("assignor metadata", word, (share.error, share.version, share.metadata))
                if given.grants:
                    yield from unequal("incarnation", given.incarnation, model.created_ms)
                yield from unequal("new", *_grants(model, what, response, tokens))


def _grants(
    model: Model, what: HeartbeatRequest, response: HeartbeatResponse, tokens: Mapping[Unit, int]
) -> tuple[dict[Unit, object], dict[Unit, object]]:
    """Owner epoch and configuration of each unit that its member had not reported: the product's and the model's."""
    assert response.assignment is not None
    configs = {each.connector: config_of(each.config) for each in response.assignment.configs}
    given: dict[Unit, object] = {}
    for grant in response.assignment.grants:
        unit = Unit(grant.connector, grant.task)
        given[unit] = grant.owner_epoch, configs[grant.connector], config_of(grant.config)
    owned = None if what.owned is None else units_of(what.owned)
    should: dict[Unit, object] = {}
    for unit, token in tokens.items():
        connector = model.connectors.get(unit.connector)
        if connector is not None and (unit in given if owned is None else unit not in owned):
            config = {} if unit.is_connector else connector.tasks[unit.task][0]
            should[unit] = token, connector.config, config
    return given, should


def members_to_wake(what: object, response: object) -> str:
    """What a response changes for its receiver; if anything, the heartbeat must not be parked."""
    assert isinstance(what, HeartbeatRequest)
    assert isinstance(response, HeartbeatResponse)
    if response.error_code:
        return f"error {response.error_code}"
    if response.member_epoch != what.member_epoch:
        return f"epoch {response.member_epoch}"
    if response.assignment is None:
        return ""
    return "" if what.owned is not None and units_of(what.owned) == units_of(response.assignment.units) else "units"


def timers_differ(
    model: GroupState,
    armed: dict[TimerName, TimerKey],
    what: object,
    timers: Iterable[Timer],
    before: State,
    expected: Expected | None,
) -> Iterator[Difference]:
    """Compares the armed timers, those armed by this step, and their deadlines; ``armed`` is updated.

    Args:
        what: the input; ``None``: a group has just been read from the log.
        before: the group before the input.
        expected: the response.
    """
    should, anew = model.timers(), set()
    if isinstance(what, TimerKey):
        key = (str(what.kind), what.member_id)
        if armed.get(key) == what:
            del armed[key]
    # The last one of a key counts: a step may choose again who computes.
    for key, timer in {(str(timer.key.kind), timer.key.member_id): timer for timer in timers}.items():
        if not isinstance(timer, SetTimer):
            armed.pop(key, None)
            continue
        armed[key] = timer.key
        anew.add(key)
        whole_ms = should.get(key, timer.after_ms)
        if key[0] == "delay" and key in should:
            # A new coordinator continues the delay (CN-11), which must not end before the worker could rejoin.
            whole_ms = max(model.left_ms(key[1]), 0 if what is not None else MIN_AFTER_LOAD_MS)
        # The timeout of a computation after a load is not specified.
        if timer.after_ms != whole_ms and (what is not None or key[0] != "compute"):
            yield f"time of {key}", timer.after_ms, whole_ms
    yield from unequal("timers", sorted(armed), sorted(should))
    begins = should.keys() if what is None else set(_begin(model, what, before, expected))
    for kind in ("session", "rebalance"):
        yield from unequal(
            f"{kind} timers set", *(sorted(who for each, who in some if each == kind) for some in (anew, begins))
        )


def _begin(model: GroupState, what: object, before: State, expected: Expected | None) -> Iterator[TimerName]:
    """Timers that an input starts: the session of the sender, and one for each new revocation (S14)."""
    members: Mapping[str, Mapping[str, object]] = before["members"]
    accepted = expected is not None and expected.code in (0, ComputeAssignment.code)
    if isinstance(what, HeartbeatRequest | ConsumerHeartbeatRequest) and accepted:
        member, had = model.members.get(what.member_id), members.get(what.member_id, {})
        if member is not None and not (member.temporarily_left and had["epoch"] == AWAY):
            yield "session", what.member_id
    yield from expected.timers if expected is not None else ()
    for who, member in model.members.items():
        if model.limits_revocation(who) and member.pending and member.pending != members.get(who, {}).get("pending"):
            yield "rebalance", who


def woken_differ(
    what: object, before: set[str], after: set[str], members_to_wake: Iterable[str]
) -> Iterator[Difference]:
    """Compares the woken members with all those for which a heartbeat would now have a changed response.

    Args:
        before: members with a changed response before the step, or not in the group; ``after``: after the step.
        members_to_wake: the members that the product wakes. Additional ones are allowed.
    """
    requests = HeartbeatRequest | ConsumerHeartbeatRequest | JoinGroupRequest
    sender = {what.member_id} if isinstance(what, requests) else set()
    missing = after - before - sender - set(members_to_wake)
    yield from unequal("woken", f"all but {sorted(missing)}" if missing else "all", "all")


def records_differ(
    what: object, before: State, after: State, records: tuple[Record, ...], kinds: Sequence[Kind] = MEMBER_KINDS
) -> Iterator[Difference]:
    """A heartbeat that changes nothing writes no record (HB-06, RE-06); a target assignment only if it is new (TA-01).

    A partial batch must not be taken for a complete one: a target epoch follows its target assignments (TA-02), and
    the tombstones of a removed member have the order of HB-19, which is that of ``kinds``.
    """
    heartbeats = HeartbeatRequest | ConsumerHeartbeatRequest
    if before == after and isinstance(what, heartbeats) and what.member_epoch != JOIN_EPOCH:
        yield from unequal("records", records, ())
    going: dict[str, list[Kind]] = {}
    whole = False
    rejoins = isinstance(what, HeartbeatRequest) and what.member_epoch == JOIN_EPOCH
    rounds = sum(isinstance(record, TargetRecord) for record in records)  # the second may revert the first
    for record in records:
        match record:
            case GroupRecord():
                whole = False
            case TargetMemberRecord() | ConsumerTargetMemberRecord():
                old, new = (shown["target"].get(record.member_id) for shown in (before, after))
                units = record.units if isinstance(record, TargetMemberRecord) else record.topic_partitions
                if units and old == new and not rejoins and rounds < 2:
                    yield "needless record", record, None
                yield from unequal("a target assignment after its target epoch", whole, False)
            case TargetRecord():
                whole = True
            case Tombstone() if record.key.kind in kinds:
                going.setdefault(record.key.name, []).append(record.key.kind)
    for who, order in going.items():
        if kinds[-1] in order:
            yield from unequal(f"tombstones of {who}", order, list(kinds))


def computations_differ(
    model: Computing, effects: Iterable[Effect], input_of: Callable[[Any], AssignorInput]
) -> Iterator[Difference]:
    """The computations that a step requests: at most one, whose input is the group after the step."""
    requested = [effect for effect in effects if isinstance(effect, Compute)]
    yield from unequal("computations requested", len(requested), int(model.requested and model.computation is not None))
    if model.computation is None:
        return
    for effect in requested:
        yield from unequal("assignor", effect.assignor, model.computation.assignor)
        yield from unequal("epoch of the input", effect.epoch, model.epoch)
        yield from unequal("question", input_of(effect.input), model.assignor_input(effect.assignor))
