"""Differences between the product and the model of a consumer group: responses, records, effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.kernel.effects import Compute, Effect, Match
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeResponse,
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerPrepareResponse,
    DescribedAssignment,
)
from connectgroup.protocol.messages.describe import DeleteResponse
from connectgroup.protocol.messages.offsets import OffsetCommitResponse, OffsetFetchResponse
from connectgroup.protocol.records.base import Key, Kind, Tombstone
from connectgroup.protocol.records.connect import GroupRecord, Record, TargetRecord
from connectgroup.protocol.records.consumer import ConsumerTargetMemberRecord
from connectgroup.protocol.units import Unit

from ..product import Difference, State, unequal
from ..words import Expected, MemberTarget
from .model import ConsumerModel
from .product import input_of
from .words import Reply, partitions, subscription


def responses_differ(
    model: ConsumerModel, outcome: Outcome[Any], expected: Expected, settings: ConsumerSettings
) -> Iterator[Difference]:
    """Compares the response with the expected one, error codes included."""
    response = outcome.response
    match response:
        case OffsetCommitResponse() if isinstance(expected, Reply):
            codes = {
                (topic.name, each.partition_index): each.error_code
                for topic in response.topics
                for each in topic.partitions
            }
            yield from unequal("codes", codes, expected.codes)
            return
        case OffsetFetchResponse(groups=(group,)) if isinstance(expected, Reply):
            yield from unequal("code", group.error_code, expected.code)
            fetched = {
                (topic.name, each.partition_index): each.committed_offset
                for topic in group.topics
                for each in topic.partitions
            }
            yield from unequal("offsets", fetched, {} if expected.code else expected.codes)
            return
        case DeleteResponse(results=(result,)):
            code = result.error_code
        case ConsumerDescribeResponse(groups=(described,)):
            code = described.error_code
        case _:
            code = getattr(response, "error_code", 0)
    if expected.code is None:
        return
    if code != expected.code:
        yield "code", f"{code} {getattr(response, 'error_message', '')}", expected.code
        return
    match response:
        case ConsumerPrepareResponse() if not code:
            yield from unequal("group epoch", response.group_epoch, expected.epoch)
            yield from unequal("input of the assignor", input_of(response), expected.assignor_input)
        case ConsumerDescribeResponse() if not code:
            yield from _descriptions_differ(model, response)
        case ConsumerHeartbeatResponse() if isinstance(expected, Reply):
            yield from _heartbeats_differ(response, expected, settings)
            yield from unequal("parks", outcome.parks, expected.parks and not code)


def _heartbeats_differ(
    response: ConsumerHeartbeatResponse, expected: Reply, settings: ConsumerSettings
) -> Iterator[Difference]:
    if expected.epoch is None:
        return
    yield from unequal("member epoch", response.member_epoch, expected.epoch)
    if response.error_code:
        return
    yield from unequal("member id", response.member_id, expected.member_id)
    given = None if response.assignment is None else partitions(response.assignment.topic_partitions)
    units = None if expected.units is None else sorted(expected.units)
    yield from unequal("assignment", given, units)
    word = MemberTarget(
        units=expected.share.units,
        error=response.assignor_error,
        version=response.assignor_version,
        metadata=response.assignor_metadata,
    )
    yield from unequal("assignor", (response.assignor_name, word), (expected.assignor, expected.share))
    yield from unequal("heartbeat interval", response.heartbeat_interval_ms, settings.heartbeat_interval_ms)


def _descriptions_differ(model: ConsumerModel, response: ConsumerDescribeResponse) -> Iterator[Difference]:
    (group,) = response.groups
    yield from unequal("group state", group.group_state, model.state())
    yield from unequal("epochs", (group.group_epoch, group.assignment_epoch), (model.epoch, model.target_epoch))
    shown = {
        each.member_id: (each.member_epoch, _described(each.assignment), _described(each.target_assignment))
        for each in group.members
    }
    have = {
        who: (member.epoch, set(member.assigned), set(model.share(who).units)) for who, member in model.members.items()
    }
    yield from unequal("members", shown, have)


def _described(assignment: DescribedAssignment) -> set[Unit]:
    return {Unit(topic.topic_id, number) for topic in assignment.topic_partitions for number in topic.partitions}


def records_differ(what: object, before: State, after: State, records: tuple[Record, ...]) -> Iterator[Difference]:
    """A heartbeat that changes nothing writes no record (HB-06, RE-06); a target only if it is new (TA-01, TA-02).

    The tombstones of a member have the order of HB-19.
    """
    if before == after and isinstance(what, ConsumerHeartbeatRequest) and what.member_epoch != 0:
        yield from unequal("records", records, ())
    yield from unequal("group epochs", sum(isinstance(record, GroupRecord) for record in records) < 2, True)
    going: dict[str, list[Kind]] = {}
    whole = False
    for record in records:
        match record:
            case ConsumerTargetMemberRecord():
                old, new = (state["target"].get(record.member_id) for state in (before, after))
                if record.topic_partitions and old == new:
                    yield "needless record", record, None
                yield from unequal("a target assignment after its target epoch", whole, False)
            case TargetRecord():
                whole = True
            case Tombstone(key=Key(kind=Kind.CONSUMER_CURRENT | Kind.CONSUMER_TARGET_MEMBER | Kind.CONSUMER_MEMBER)):
                going.setdefault(record.key.name, []).append(record.key.kind)
    for who, kinds in going.items():
        if Kind.CONSUMER_MEMBER in kinds:
            order = [Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET_MEMBER, Kind.CONSUMER_MEMBER]
            yield from unequal(f"tombstones of {who}", kinds, order)


def effects_differ(model: ConsumerModel, before: State, effects: Iterable[Effect]) -> Iterator[Difference]:
    """A step requests the server-side computation that begins, and the regular expressions that are new."""
    computations = [effect for effect in effects if isinstance(effect, Compute)]
    computation = model.computation
    yield from unequal("computations requested", len(computations), int(model.requested and computation is not None))
    for effect in computations if computation is not None else ():
        assert computation is not None
        yield from unequal("assignor", effect.assignor, computation.assignor)
        yield from unequal("epoch of the input", effect.epoch, model.epoch)
        yield from unequal("input of the assignor", input_of(effect.input), model.question(effect.assignor))
    searched = {effect.pattern for effect in effects if isinstance(effect, Match)}
    used = {subscription(member).regex for member in model.members.values()} - {""}
    joined = used - {member["traits"].regex for member in before["members"].values()}
    missing = (joined - model.regexes.keys()) - searched
    yield from unequal("regular expressions not searched for", missing, set())
    yield from unequal("regular expressions without a member", searched - used, set())
