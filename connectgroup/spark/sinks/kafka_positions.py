"""The positions that the sink ``kafka`` stores, for operators; and the transactional producers of a connector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ...dataplane.ownership import Owner
from .kafka_offsets import OffsetsTopic, told_as_sink_error

if TYPE_CHECKING:
    from confluent_kafka import Producer

TIMEOUT_S: Final = 30.0
"""Seconds for the first request of a transactional producer, and for a commit."""


class KafkaPositions:
    """Implements ``dataplane.sink.PositionStore`` on the topic of offsets."""

    def __init__(self, topic: OffsetsTopic, client: Mapping[str, str], transaction_timeout_ms: int) -> None:
        """Store the arguments; ``client`` are the settings of the Kafka client."""
        self._topic, self._client = topic, dict(client)
        self._transaction_timeout_ms = transaction_timeout_ms

    def positions(self, connector: str) -> dict[str, int]:
        with told_as_sink_error(self._topic.where):
            return {name: at for name, (at, _) in sorted(self._topic.read(connector).slices.items())}

    def alter(self, connector: str, fencing_token: int, positions: Mapping[str, int | None] | None) -> None:
        """Fence the producers of all known tasks, then write the change in one transaction.

        Like ``fences.alter_positions``, it claims a layout without tasks: a task with a lower token that claims later
        finds this claim and is rejected.
        """
        topic, fenced = self._topic, dict[int, int]()
        claims: tuple[dict[int, int], dict[int, int]] | None = None
        with told_as_sink_error(topic.where):
            producer = self._producer(transactional_id(connector, 0, 0))
            while True:
                state = topic.read(connector)
                owner = Owner(
                    connector=connector, task=-1, tasks=0, fencing_token=fencing_token, source=state.source or ""
                )
                state.check(owner, topic.where, lambda _: True)
                if state.claims == claims:
                    return
                # The first time, or a task has claimed before the change and after its producer was fenced.
                for tasks in state.unfenced_layouts(owner, fenced) if claims is None else list(state.claims[0]):
                    for task in range(tasks):
                        self._producer(transactional_id(connector, tasks, task))
                    fenced[tasks] = state.layouts[tasks]
                # Every known producer is fenced, so what is committed now is final.
                state = topic.read(connector)
                state.check(owner, topic.where, lambda _: True)
                claims = state.claims
                producer.begin_transaction()
                for key, value in state.alter_records(owner, fenced, positions):
                    producer.produce(topic.name, value, key, partition=0)
                producer.commit_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._topic.close()

    def _producer(self, producer_id: str) -> Producer:
        return transactional_producer(self._client, producer_id, self._transaction_timeout_ms)


def transactional_producer(client: Mapping[str, str], producer_id: str, timeout_ms: int) -> Producer:
    """Return a producer that has fenced every earlier one with its id.

    Args:
        client: the settings of the Kafka client.
        producer_id: the transactional id.
        timeout_ms: when the cluster aborts a transaction of a silent producer, in milliseconds.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            # A commit sends what is there at once: a long linger makes full batches, and delays nothing.
            "linger.ms": 50,
            "queue.buffering.max.messages": 1_000_000,
            # As Kafka's Java clients and Kafka Connect: other programs find a key in the partition that they expect,
            # and a key that Kafka Connect has written stays in its partition.
            "partitioner": "murmur2_random",
            **client,
            "transactional.id": producer_id,
            "transaction.timeout.ms": timeout_ms,
            # The commit reports errors; a report of each success would cost a third more processor time.
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def transactional_id(connector: str, tasks: int, task: int) -> str:
    """Return the transactional id of a task; ``tasks`` is the number of tasks of its layout."""
    return f"connectgroup-{connector}-{tasks}-{task}"
