"""Where an answer, the timers or the records of the product are not what the model has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from connectgroup.errors import ComputeAssignment
from connectgroup.group.kernel.effects import Compute, Effect
from connectgroup.group.kernel.timers import SetTimer, Timer, TimerKey
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import PrepareResponse
from connectgroup.protocol.messages.common import config_of, units_of
from connectgroup.protocol.messages.connectors import UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DeleteResponse, DescribeResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record, TargetMemberRecord, TargetRecord
from connectgroup.protocol.units import JOIN_EPOCH, Unit

from .model import Model
from .pictures import Difference, Picture, question_of, unequal
from .words import AWAY, Answer, Timer as TimerName

MIN_AFTER_LOAD_MS = 1_000
"""A worker that is back may be about to say so."""


def answers_differ(
    model: Model, what: object, response: Response | None, expected: Answer | None
) -> Iterator[Difference]:
    """What was answered against what should have been."""
    match response:
        case DescribeResponse(groups=(group,)):
            yield from unequal("state", group.state, model.state() if model.epoch else "")
            yield from unequal("group epoch", group.group_epoch, model.epoch)
            yield from unequal("assignment epoch", group.assignment_epoch, model.target_epoch)
            shown = {each.member_id: (each.member_epoch, units_of(each.assigned)) for each in group.members}
            have = {who: (member.epoch, frozenset(member.assigned)) for who, member in model.members.items()}
            yield from unequal("members", shown, have)
            waiting = {each.member_id: units_of(each.units) for each in group.delayed}
            yield from unequal("held back", waiting, model.waiting())
        case DeleteResponse(results=(result,)) if expected is not None:
            yield from unequal("code", result.error_code, expected.code)
    if response is None or expected is None or expected.code is None:
        return
    code = getattr(response, "error_code", expected.code)
    if code != expected.code:
        yield "code", f"{code} {getattr(response, 'error_message', '')}", expected.code
    elif code == 0:
        yield from _contents_differ(model, what, response, expected)


def _contents_differ(model: Model, what: object, response: Response, expected: Answer) -> Iterator[Difference]:
    match response:
        case PrepareResponse():
            yield from unequal("group epoch", response.group_epoch, expected.epoch)
            yield from unequal("question", question_of(response), expected.question)
        case UpdateConnectorsResponse():
            yield from unequal("group epoch", response.group_epoch, expected.epoch)
            yield from unequal("versions", tuple(each.version for each in response.results), expected.versions)
        case HeartbeatResponse():
            assert isinstance(what, HeartbeatRequest)
            yield from unequal("member epoch", response.member_epoch, expected.epoch)
            given, tokens, share = response.assignment, expected.units, expected.share
            told = None if given is None else units_of(given.units)
            yield from unequal("assignment", told, None if tokens is None else frozenset(tokens))
            if given is not None and tokens is not None:
                word = given.error, given.version, given.metadata
                yield from unequal("the assignor's word", word, (share.error, share.version, share.metadata))
                if given.grants:
                    yield from unequal("incarnation", given.incarnation, model.made_ms)
                yield from unequal("new", *_grants(model, what, response, tokens))


def _grants(
    model: Model, what: HeartbeatRequest, response: HeartbeatResponse, tokens: Mapping[Unit, int]
) -> tuple[dict[Unit, object], dict[Unit, object]]:
    """Token and configuration of each unit that its member had not reported: the product's and the model's."""
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
    """What an answer tells its receiver that it does not know; then it may not be parked."""
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
    model: Model,
    armed: dict[TimerName, TimerKey],
    what: object,
    timers: Iterable[Timer],
    before: Picture,
    expected: Answer | None,
) -> Iterator[Difference]:
    """The timers that run, which were set just now, and for how long; ``armed`` is kept up to date.

    Args:
        what: the input; ``None``: a group has just been read from the log.
        before: the group before the input.
        expected: the answer.
    """
    should, anew = model.timers(), set()
    if isinstance(what, TimerKey):
        key = (str(what.kind), what.member_id)
        if armed.get(key) == what:
            del armed[key]
    for timer in timers:
        key = (str(timer.key.kind), timer.key.member_id)
        if not isinstance(timer, SetTimer):
            armed.pop(key, None)
            continue
        armed[key] = timer.key
        anew.add(key)
        whole_ms = should.get(key, timer.after_ms)
        if key[0] == "delay" and key in should:
            # A new coordinator neither forgets it nor begins anew (CN-11); nobody may find it over before being heard.
            whole_ms = max(model.left_ms(key[1]), 0 if what is not None else MIN_AFTER_LOAD_MS)
        # How long a computation may take from a load on is not said.
        if timer.after_ms != whole_ms and (what is not None or key[0] != "compute"):
            yield f"time of {key}", timer.after_ms, whole_ms
    yield from unequal("timers", sorted(armed), sorted(should))
    begins = should.keys() if what is None else set(_begin(model, what, before, expected))
    for kind in ("session", "rebalance"):
        yield from unequal(
            f"{kind} timers set", *(sorted(who for each, who in some if each == kind) for some in (anew, begins))
        )


def _begin(model: Model, what: object, before: Picture, expected: Answer | None) -> Iterator[TimerName]:
    """Timers that begin with an input: the session of whoever was heard, and each revocation's, once (S14)."""
    members: Mapping[str, Mapping[str, object]] = before["members"]
    if isinstance(what, HeartbeatRequest) and expected is not None and expected.code in (0, ComputeAssignment.code):
        member, had = model.members.get(what.member_id), members.get(what.member_id, {})
        if member is not None and not (member.temporarily_left and had["epoch"] == AWAY):
            yield "session", what.member_id
    for who, member in model.members.items():
        if member.pending and member.pending != members.get(who, {}).get("pending"):
            yield "rebalance", who


def woken_differ(
    what: object, before: set[str], after: set[str], members_to_wake: Iterable[str]
) -> Iterator[Difference]:
    """Whose parked heartbeats are looked at once more: of all that would now hear what they would not have before.

    Args:
        before: who would have heard something, or was no member; ``after``: who would now, or is no member.
        members_to_wake: whom the product wakes. One too many costs nothing.
    """
    sender = {what.member_id} if isinstance(what, HeartbeatRequest) else set()
    missing = after - before - sender - set(members_to_wake)
    yield from unequal("woken", f"all but {sorted(missing)}" if missing else "all", "all")


def records_differ(what: object, before: Picture, after: Picture, records: tuple[Record, ...]) -> Iterator[Difference]:
    """A heartbeat that changes nothing writes nothing (HB-06, RE-06); a share is written where it is new (TA-01).

    Half of a batch must not be taken for the whole: a target's epoch stands after its shares (TA-02), and a member goes
    as HB-19 has it.
    """
    joins = isinstance(what, HeartbeatRequest) and what.member_epoch == JOIN_EPOCH
    if before == after and isinstance(what, HeartbeatRequest) and not joins:
        yield from unequal("records", records, ())
    going: dict[str, list[Kind]] = {}
    whole = False
    rounds = sum(isinstance(record, TargetRecord) for record in records)  # the second may take back what the first gave
    for record in records:
        match record:
            case GroupRecord():
                whole = False
            case TargetMemberRecord():
                old, new = (shown["target"].get(record.member_id) for shown in (before, after))
                if record.units and old == new and not joins and rounds < 2:
                    yield "needless record", record, None
                if whole:
                    yield "order", "a share after its target's epoch", "before it"
            case TargetRecord():
                whole = True
            case Tombstone(key=Key(kind=Kind.CURRENT | Kind.TARGET_MEMBER | Kind.MEMBER)):
                going.setdefault(record.key.name, []).append(record.key.kind)
    for who, kinds in going.items():
        if Kind.MEMBER in kinds:
            yield from unequal(f"tombstones of {who}", kinds, [Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER])


def effects_differ(model: Model, effects: Iterable[Effect]) -> Iterator[Difference]:
    """The computations that a step requests: at most one, whose input is the group after the step."""
    requested = [effect for effect in effects if isinstance(effect, Compute)]
    yield from unequal("computations requested", len(requested), int(model.requested and model.asked is not None))
    if model.asked is None:
        return
    for effect in requested:
        yield from unequal("assignor", effect.assignor, model.asked.assignor)
        yield from unequal("epoch of the input", effect.epoch, model.epoch)
        yield from unequal("question", question_of(effect.input), model.question(effect.assignor))
