"""The product's consumer group as a model, and what is compared of both."""

from __future__ import annotations

from collections.abc import Mapping

from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.consumer.settings import ConsumerSettings
from connectgroup.group.consumer.state import ConsumerGroupState
from connectgroup.group.offsets import Offsets
from connectgroup.protocol.messages.consumer import ConsumerPrepareResponse
from connectgroup.protocol.records.consumer import ConsumerMemberRecord, TopicMetadata
from connectgroup.protocol.units import TopicPartition, Unit

from ..product import State, common_state_of, fill
from ..words import Limits
from .classic import MixedModel
from .words import ConsumerInput, ConsumerMember, Subscription, Topic, partitions

CLASSIC = ClassicSettings(initial_rebalance_delay_ms=0)


def state_of(model: MixedModel) -> State:
    """Everything of a group that is compared."""
    return {
        **common_state_of(model),
        "created at": model.created_ms if model.epoch else 0,
        "topics": dict(model.topics),
        "regexes": dict(model.regexes),
        "offsets": dict(model.offsets),
    }


def model_of(group: ConsumerGroupState, limits: Limits, cluster: Mapping[str, Topic]) -> MixedModel:
    """A model with the state of a product's group."""
    model = MixedModel(limits)
    fill(model, group)
    model.cluster = cluster
    for who, stored in group.members.items():
        current = group.current(who)
        model.members[who] = ConsumerMember(
            instance=stored.instance_id,
            timeout_ms=stored.rebalance_timeout_ms,
            server_assignor=stored.server_assignor,
            assignors=stored.assignors,
            classic=stored.uses_classic_protocol,
            offers=stored.classic_protocols,
            session_ms=stored.classic_session_timeout_ms,
            traits=_subscription(stored),
            epoch=current.epoch,
            previous=current.previous_epoch,
            state=current.state.name,
            assigned=_units(current.assigned),
            pending=_units(current.pending),
        )
    model.topics = topics_of(group.topics)
    model.regexes = dict(group.regexes)
    model.offsets = offsets_with_ids(group.offsets)
    return model


def offsets_of(offsets: Offsets) -> dict[tuple[str, int], int]:
    """The committed offset of each topic name and partition."""
    found = {}
    for topic, numbers in offsets.topics().items():
        for number in numbers:
            record = offsets.get(topic, number)
            found[topic, number] = record.offset if record else -1
    return found


def offsets_with_ids(offsets: Offsets) -> dict[tuple[str, int], tuple[int, str]]:
    """As ``offsets_of``, with the id of the topic that each belongs to."""
    return {(record.topic, record.partition): (record.offset, record.topic_id) for record in offsets.records()}


def _subscription(stored: ConsumerMemberRecord) -> Subscription:
    return Subscription(frozenset(stored.subscribed_topic_names), stored.subscribed_topic_regex, stored.rack_id)


def _units(epochs: Mapping[TopicPartition, int]) -> dict[Unit, int]:
    return {Unit(*partition): epoch for partition, epoch in epochs.items()}


def topics_of(topics: Mapping[str, TopicMetadata]) -> dict[str, Topic]:
    """Topics by name."""
    return {name: (topic.topic_id, topic.num_partitions) for name, topic in topics.items()}


def limits_of(settings: ConsumerSettings) -> Limits:
    """The settings of the model; those that consumer groups do not have are never reached."""
    policy = settings.migration_policy
    return Limits(
        server_assignor=settings.server_assignor,
        server_assignors=frozenset(settings.server_assignors),
        session_timeout_ms=settings.session_timeout_ms,
        max_rebalance_timeout_ms=settings.max_rebalance_timeout_ms,
        failures_before_fallback=settings.failures_before_fallback,
        max_members=settings.max_members,
        max_units=settings.max_partitions,
        max_moves=0,
        assignment_interval_ms=settings.assignment_interval_ms,
        scheduled_delay_ms=0,
        max_delay_ms=0,
        converts=policy.converts,
        upgrades=policy.upgrades,
        downgrades=policy.downgrades,
        max_classic_members=settings.max_classic_members,
        min_classic_session_ms=CLASSIC.min_session_timeout_ms,
        max_classic_session_ms=CLASSIC.max_session_timeout_ms,
    )


def input_of(response: ConsumerPrepareResponse) -> ConsumerInput:
    """The assignor input in a Prepare response."""
    return ConsumerInput(
        members={
            each.member_id: (
                each.member_epoch,
                each.instance_id,
                frozenset(partitions(each.topic_partitions)),
                (each.assignor.version, each.assignor.reason, each.assignor.metadata),
                b"",
            )
            for each in response.members
        },
        connectors={each.topic_id: (each.num_partitions, {}) for each in response.topics},
        delayed={},
        subscriptions={
            each.member_id: (frozenset(each.subscribed_topic_ids), each.rack_id) for each in response.members
        },
    )
