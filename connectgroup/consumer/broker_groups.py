"""The groups of a Kafka cluster that are not behind a coordinator of this library, for ``connectgroup groups``.

confluent-kafka's admin client asks the brokers (ListGroups, DescribeGroups, ConsumerGroupDescribe, OffsetFetch); the
answers take the form that the coordinator's have. Kafka's answers have no epochs, and none of our connectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ..errors import ConfigError, GroupIdNotFound, TransportError
from ..properties import read_properties
from ..protocol.messages.common import grouped
from ..protocol.messages.describe import DescribedGroup, DescribedMember
from ..protocol.messages.offsets import FetchedPartition, FetchedTopic
from ..protocol.units import Unit, printable, shown
from ..threads import off_loop

TIMEOUT_S: Final = 10.0
_STATES: Final = {"PREPARING_REBALANCING": "PreparingRebalance", "COMPLETING_REBALANCING": "CompletingRebalance"}


ResultT = TypeVar("ResultT")


class BrokerGroups:
    """The part of ``client.admin.Admin`` that lists and describes groups, for the groups of a Kafka cluster."""

    def __init__(self, bootstrap_server: str, command_config: Path | None = None) -> None:
        """Create the client; nothing is sent.

        Args:
            bootstrap_server: ``HOST:PORT`` of brokers, separated by commas.
            command_config: a properties file of librdkafka's settings for clients: ``security.protocol``, ``sasl.*``.

        Raises:
            ConfigError: confluent-kafka is not installed, or a setting is not allowed.
        """
        try:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient
        except ImportError as error:
            allowed = "a broker, with the extra 'kafka' installed (pip install 'connectgroup[kafka]')"
            raise ConfigError("bootstrap_server", bootstrap_server, allowed) from error
        more = read_properties(command_config, "command_config") if command_config is not None else {}
        try:
            # librdkafka writes errors of connections to stderr itself; the command reports them once.
            self._admin: Any = AdminClient(
                {"client.id": "connectgroup", **more, "bootstrap.servers": bootstrap_server, "log_level": 0}
            )
        except KafkaException as error:
            raise ConfigError(
                "command_config", command_config or "", f"settings of librdkafka ({error.args[0]})"
            ) from error
        self._bootstrap = bootstrap_server

    async def list_groups(self) -> tuple[DescribedGroup, ...]:
        """Return all groups, sorted by id; one that may not be described has the broker's error.

        Raises:
            TransportError: no broker answers, or one rejects the request.
        """
        return await self._call(lambda: self._described(sorted(self._names()), refused=_refused))

    async def describe(self, group_id: str) -> DescribedGroup:
        """Return the description of a group.

        Raises:
            GroupIdNotFound: there is no such group; names those that exist.
            TransportError: no broker answers, or one rejects the request.
        """
        return await self._call(partial(self._described_one, group_id))

    async def committed_offsets(self, group_id: str) -> tuple[FetchedTopic, ...]:
        """Return the offsets that the members of a group have committed, sorted.

        Raises:
            TransportError: no broker answers, or one rejects the request.
        """
        return await self._call(partial(self._offsets, group_id))

    async def _call(self, function: Callable[[], ResultT]) -> ResultT:
        from confluent_kafka import KafkaException

        try:
            return await off_loop("broker", function)
        except KafkaException as error:
            if error.args[0].code() > 0:  # the broker's own; librdkafka's are negative
                raise TransportError(f"{self._bootstrap}: the broker rejects it: {error.args[0].str()}") from error
            raise TransportError(
                f"{self._bootstrap}: {error.args[0].str()};"
                " allowed: bootstrap_server with the address of a running Kafka broker"
            ) from error

    def _names(self) -> list[str]:
        from confluent_kafka import KafkaException

        listed = self._admin.list_consumer_groups(request_timeout=TIMEOUT_S).result()
        if listed.errors:
            raise KafkaException(listed.errors[0])
        return [group.group_id for group in listed.valid]

    def _described_one(self, group_id: str) -> DescribedGroup:
        names = self._names()
        if group_id not in names:
            raise GroupIdNotFound(f"no such group {printable(group_id)!r}; groups here: {shown(sorted(names))}")
        return self._described([group_id])[0]

    def _described(
        self, names: list[str], refused: Callable[[str, Any], DescribedGroup] | None = None
    ) -> tuple[DescribedGroup, ...]:
        """Describe groups.

        Args:
            refused: makes the description of a group that a broker does not describe; ``None``: the error is raised.
        """
        from confluent_kafka import KafkaException

        if not names:
            return ()
        described = []
        for name, future in self._admin.describe_consumer_groups(names, request_timeout=TIMEOUT_S).items():
            try:
                described.append(_group(future.result()))
            except KafkaException as error:
                if refused is None or error.args[0].code() <= 0:
                    raise
                described.append(refused(name, error.args[0]))
        return tuple(sorted(described, key=lambda group: group.group_id))

    def _offsets(self, group_id: str) -> tuple[FetchedTopic, ...]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        requests = [ConsumerGroupTopicPartitions(group_id)]
        [future] = self._admin.list_consumer_group_offsets(requests, request_timeout=TIMEOUT_S).values()
        topics: dict[str, list[FetchedPartition]] = {}
        for found in future.result().topic_partitions:
            topics.setdefault(found.topic, []).append(
                FetchedPartition(
                    partition_index=found.partition,
                    committed_offset=found.offset,
                    metadata=found.metadata,
                    error_code=0,
                )
            )
        return tuple(FetchedTopic(name=name, partitions=tuple(topics[name])) for name in sorted(topics))


def _refused(group_id: str, error: Any) -> DescribedGroup:
    """The description of a group for which a broker returned this ``KafkaError``."""
    return DescribedGroup(group_id=group_id, error_code=error.code(), error_message=error.str())


def _group(described: Any) -> DescribedGroup:
    """A ``ConsumerGroupDescription`` of confluent-kafka."""
    state = described.state.name
    group_type = described.type.name.lower()
    return DescribedGroup(
        group_id=described.group_id,
        state=_STATES.get(state, state.capitalize()),
        group_type="classic" if group_type == "unknown" else group_type,
        assignor_name=described.partition_assignor or "",
        members=tuple(_member(member) for member in sorted(described.members, key=lambda member: member.member_id)),
    )


def _member(member: Any) -> DescribedMember:
    assigned = member.assignment.topic_partitions if member.assignment else []
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_host=member.host.removeprefix("/"),
        client_id=member.client_id,
        assigned=grouped(Unit(each.topic, each.partition) for each in assigned),
    )
