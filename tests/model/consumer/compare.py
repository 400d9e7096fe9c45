"""Differences between the product and the model of a consumer group: responses, records, effects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.kernel.outcome import Effect, Match, Outcome
from connectgroup.protocol.messages.consumer import (
    ConsumerDescribeResponse,
    ConsumerHeartbeatResponse,
    ConsumerPrepareResponse,
    DescribedAssignment,
)
from connectgroup.protocol.messages.describe import DeleteResponse
from connectgroup.protocol.messages.offsets import OffsetCommitResponse, OffsetFetchResponse
from connectgroup.protocol.records.base import Kind
from connectgroup.protocol.records.connect import GroupRecord, Record
from connectgroup.protocol.units import Unit

from .. import compare
from ..product import Difference, State, unequal
from ..words import Expected, MemberTarget
from .model import ConsumerModel
from .product import input_of
from .words import Reply, partitions, subscription

MEMBER_KINDS: Final = (Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET_MEMBER, Kind.CONSUMER_MEMBER)


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
    """As of a group of workers; the group epoch advances once at most."""
    yield from unequal("group epochs", sum(isinstance(record, GroupRecord) for record in records) < 2, True)
    yield from compare.records_differ(what, before, after, records, MEMBER_KINDS)


def effects_differ(model: ConsumerModel, before: State, effects: Iterable[Effect]) -> Iterator[Difference]:
    """A step requests the server-side computation that begins, and the regular expressions that are new."""
    yield from compare.computations_differ(model, effects, input_of)
    searched = {effect.pattern for effect in effects if isinstance(effect, Match)}
    used = {subscription(member).regex for member in model.members.values()} - {""}
    joined = used - {member["traits"].regex for member in before["members"].values()}
    missing = (joined - model.regexes.keys()) - searched
    yield from unequal("regular expressions not searched for", missing, set())
    yield from unequal("regular expressions without a member", searched - used, set())
