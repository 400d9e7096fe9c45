"""A member of a Kafka consumer group: of the classic protocol (JoinGroup, SyncGroup), or of KIP-848's.

    choice           which rebalance protocol and which assignors a member offers (KIP-429)
    rounds           one rebalance, from the view of a member and of its leader
    validation       ownership of partitions, and partitions that must not be assigned yet (KIP-792)

These three are pure: no I/O, no clock, only the standard library and the shared types. The modules that turn them into
a member of a real group:

    group_consumer   GroupConsumer: poll, commit, seek, close
    protocols        the parts that depend on the protocol
    membership       what both protocols have in common; ``classic`` and ``epochs`` are the two
    work             the group work between two records of a classic group; ``epoch_work`` that of KIP-848
    ownership        owned partitions, and the listener's callbacks
    leading          the leader's work between JoinGroup and SyncGroup
    reading          positions, and fetched records
    commits          when positions are committed
    offsets          committed offsets of the group: fetch and commit
    fetching         records, through confluent-kafka (the extra ``kafka``)
    records          Record
    callbacks        calls to the listener and the assignors
    client           broker selection and retries
    connection       one connection, one request at a time
    security         TLS and SASL, by librdkafka's settings
    problems         problems that last are logged once

The public names are loaded on first use, so that the pure modules can be imported without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BrokerError as BrokerError, CommitRefused as CommitRefused
    from .fetching import FetchError as FetchError
    from .group_consumer import GroupConsumer as GroupConsumer
    from .listener import ConsumerRebalanceListener as ConsumerRebalanceListener
    from .records import Record as Record

_MODULE_OF = {
    "BrokerError": "errors",
    "CommitRefused": "errors",
    "ConsumerRebalanceListener": "listener",
    "FetchError": "fetching",
    "GroupConsumer": "group_consumer",
    "Record": "records",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
