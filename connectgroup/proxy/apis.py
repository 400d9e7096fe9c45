"""Which APIs the proxy handles itself, forwards, or hides, and the response to ApiVersions that results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ..protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from ..wire.apis import APIS, FIND_COORDINATOR, SASL_AUTHENTICATE, SASL_HANDSHAKE, TXN_OFFSET_COMMIT
from ..wire.forwarded import MAX_VERSIONS

GROUP_APIS: Final = frozenset(
    (
        *(8, 9, FIND_COORDINATOR),  # OffsetCommit, OffsetFetch
        *range(11, 17),  # JoinGroup, Heartbeat, LeaveGroup, SyncGroup, DescribeGroups, ListGroups
        *(TXN_OFFSET_COMMIT, 42, 47),  # and DeleteGroups, OffsetDelete
        *(68, 69),  # ConsumerGroupHeartbeat, ConsumerGroupDescribe
        *range(76, 80),  # ShareGroupHeartbeat, ShareGroupDescribe, ShareFetch, ShareAcknowledge
        *range(83, 93),  # share group state and offsets, StreamsGroupHeartbeat, StreamsGroupDescribe
    )
)
"""Kafka's APIs about groups. The broker would apply them to groups of its own: those not served here are hidden."""


OF_BROKER: Final = frozenset((SASL_HANDSHAKE, SASL_AUTHENTICATE))
"""APIs of a coordinator that the proxy forwards: its clients authenticate to the broker, which has the data."""


def is_forwarded(api_key: int) -> bool:
    """Whether the broker handles the API. FindCoordinator is forwarded for transactions, TxnOffsetCommit is handled by
    both (``relay``)."""
    return (api_key not in APIS and api_key not in GROUP_APIS) or api_key in OF_BROKER


def merged(broker: ApiVersionsResponse) -> ApiVersionsResponse:
    """The APIs of a broker, with those of the coordinator in their place."""
    return replace(broker, error_code=0, throttle_time_ms=0, api_keys=tuple(_merged(broker.api_keys)))


def _merged(of_broker: Iterable[ApiVersion]) -> Iterable[ApiVersion]:
    ranges = {api.api_key: (api.min_version, api.max_version) for api in of_broker}
    shown = {
        key: (api.versions[0], api.versions[-1])
        for key, api in APIS.items()
        if key not in (FIND_COORDINATOR, TXN_OFFSET_COMMIT, *OF_BROKER)
    }
    for key, (low, high) in ranges.items():
        if key in (FIND_COORDINATOR, TXN_OFFSET_COMMIT):
            # The broker responds to requests for the coordinators of transactions, and takes part in their commits.
            known = APIS[key].versions
            low, high = max(low, known[0]), min(high, known[-1])
        elif not is_forwarded(key):
            continue
        high = min(high, MAX_VERSIONS.get(key, high))
        if low <= high:
            shown[key] = (low, high)
    for key in sorted(shown):
        yield ApiVersion(api_key=key, min_version=shown[key][0], max_version=shown[key][1])
