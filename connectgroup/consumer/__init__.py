"""A member of a consumer group as Kafka has had it since before KIP-848: JoinGroup, SyncGroup, a leader that assigns.

    embedded         what members tell each other: Subscription and Assignment as bytes
    choice           which rebalance protocol and which assignors a member offers (KIP-429)
    rounds           one rebalance, as a member and as its leader see it
    validation       who owns what, and what may not be given yet (KIP-792)

These four are pure: no I/O, no clock, the standard library and the shared words only. What makes a member of a real
group out of them:

    group_consumer   GroupConsumer: poll, commit, close, and the listener's calls
    membership       in the group: join, heartbeats, leave
    leading          what a leader does between JoinGroup and SyncGroup
    reading          positions, and records that have come
    offsets          how far the group has got: asking it and telling it
    fetching         records, through confluent-kafka (the extra ``kafka``)
    callbacks        calling the listener and the assignors
    client           which broker to ask, and asking again
    connection       one connection, one request at a time

The public names are loaded when they are first used, so that the pure modules can be had without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BrokerError as BrokerError, CommitRefused as CommitRefused
    from .fetching import FetchError as FetchError, Record as Record
    from .group_consumer import GroupConsumer as GroupConsumer
    from .listener import ConsumerRebalanceListener as ConsumerRebalanceListener

_MODULE_OF = {
    "BrokerError": "errors",
    "CommitRefused": "errors",
    "ConsumerRebalanceListener": "listener",
    "FetchError": "fetching",
    "GroupConsumer": "group_consumer",
    "Record": "fetching",
}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value
