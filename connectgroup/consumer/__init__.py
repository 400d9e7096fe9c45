"""A member of a Kafka consumer group: of the classic protocol (JoinGroup, SyncGroup), or of KIP-848's.

    rounds           the rebalance protocol and the assignors that a member offers (KIP-429); one rebalance, in the view
                     of a member and of its leader. Pure: no I/O, no clock, only the standard library and shared types
    group_consumer   GroupConsumer: poll, commit, seek, close
    membership       what both protocols have in common; ``classic``, also the leader's work, and ``epochs`` are the two
    work             the group work between two records of a classic group, and that of KIP-848
    ownership        owned partitions, when positions are committed, and the calls to the listener and the assignors
    reading          positions, and fetched records
    offsets          committed offsets of the group: fetch and commit
    fetching         records, through confluent-kafka (the extra ``kafka``)
    records          Record
    client           broker selection and retries; one connection, one request at a time
    security         TLS and SASL, by librdkafka's settings
    errors           codes and their meaning; problems that last are logged once

The public names are loaded on first use, so that ``rounds`` can be imported without the rest.

Decisions:

- A claim carries the generation whose assignment the consumer took over, not that of its last JoinGroup response: a
  member that missed a SyncGroup still owns what an earlier generation assigned to it (KAFKA-13419). A stale claim is
  ignored only where a later claim disputes it. The leader looks at what members claim, not at their protocol.
- The assignment changes only inside ``poll``, so no record is revoked while it is being processed. The change runs in
  its own asyncio task: a cancelled ``poll`` must not leave a rebalance half done.
- Two connections to the coordinator: a broker handles one request at a time per connection, and a JoinGroup may wait
  for minutes; commits use the other.
- A commit rejected during a round is sent again after it: brokers accept none between JoinGroup and SyncGroup, and
  kept partitions are still the member's. Commits go one at a time, or an older offset could overtake a newer one.
- A leader whose assignor fails leaves the assignment as it is: otherwise followers hang until the leader's timeout, or
  lose everything to a faulty plug-in. The assignor may take half of ``max_poll_interval_ms``, for all of which the
  coordinator would remove a silent leader.
- The leader checks every result of an assignor, generations included, those of cooperative-sticky and of an EAGER
  leader too; Kafka skips both. An assignor that lists COOPERATIVE and breaks its rule is rejected; for one that does
  not list it, the leader withholds the partitions that other members still own.
- librdkafka only fetches: it is assigned and never subscribed, and called in one thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import BrokerError as BrokerError, CommitRefused as CommitRefused
    from .fetching import FetchError as FetchError
    from .group_consumer import GroupConsumer as GroupConsumer
    from .ownership import ConsumerRebalanceListener as ConsumerRebalanceListener
    from .records import Record as Record

_MODULE_OF = {
    "BrokerError": "errors",
    "CommitRefused": "errors",
    "ConsumerRebalanceListener": "ownership",
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
