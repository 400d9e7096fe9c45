"""Request validation that precedes all other processing: one line of code per sentence of the source.

Source: KIP-848, "Request Validation"; Kafka's ``throwIfConsumerGroupHeartbeatRequestIsInvalid`` (RV-01 to RV-13).
"""

from __future__ import annotations

from ...errors import InvalidRegularExpression
from ...protocol.messages.consumer import (
    ConsumerHeartbeatRequest,
    ConsumerInstallRequest,
    ConsumerPrepareRequest,
    each_partition,
)
from ...protocol.units import JOIN_EPOCH, printable
from ..kernel import validate as kernel
from ..kernel.validate import check_group_id, name, refuse
from .settings import ConsumerSettings


def prepare(request: ConsumerPrepareRequest | ConsumerInstallRequest) -> None:
    """ConsumerGroupPrepareAssignment and ConsumerGroupInstallAssignment."""
    check_group_id(request.group_id)
    kernel.computation(request)


def heartbeat(request: ConsumerHeartbeatRequest, settings: ConsumerSettings) -> None:
    """ConsumerGroupHeartbeat: all rules that depend on the request alone."""
    kernel.heartbeat(request, settings.max_rebalance_timeout_ms)
    if request.rack_id is not None:
        name("RackId", request.rack_id)
    if request.member_epoch == JOIN_EPOCH:
        if request.owned != ():
            got = "null" if request.owned is None else "partitions"
            raise refuse("TopicPartitions", got, "empty if MemberEpoch is 0")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            allowed = "topic names or a regular expression in the first heartbeat"
            raise refuse("SubscribedTopicNames", None, allowed)
    for topic in request.subscribed_topic_names or ():
        name("SubscribedTopicNames", topic)
    if request.subscribed_topic_regex and (allowed := settings.regex_violation(request.subscribed_topic_regex)):
        got = printable(request.subscribed_topic_regex)
        raise InvalidRegularExpression(f"SubscribedTopicRegex: got {got!r}; allowed: {allowed}")
    if request.owned is not None:
        owned = each_partition(request.owned)
        if len(set(owned)) != len(owned):
            raise refuse("TopicPartitions", "a partition twice", "each partition once")
