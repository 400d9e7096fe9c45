"""Kafka's ListGroups, DescribeGroups and DeleteGroups, from the description that all group types have."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from ..assign.api import PartitionAssignor
from ..assign.convert import consumers_for_install, partition_group_from_prepare
from ..assign.sandbox import run_assignor
from ..errors import ConfigError, GroupIdNotFound, PluginError
from ..group.classic.group_type import ClassicGroupType
from ..group.classic.state import ClassicSettings
from ..group.consumer.group_type import ConsumerGroupType
from ..group.consumer.settings import ConsumerServerAssignment, ConsumerServerAssignor, ConsumerSettings
from ..group.kernel.outcome import ExpireOffsets, TopicsChanged
from ..plugins import available, load_partition_assignor
from ..protocol.messages.consumer import ConsumerPrepareResponse
from ..protocol.messages.describe import (
    ClassicMember,
    DeletedResult,
    DeleteGroupsResponse,
    DeleteResponse,
    DescribedClassicGroup,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ..protocol.messages.offsets import OffsetCommitRequest
from ..protocol.units import NO_TOPIC_ID, printable
from ..topics import Topics, TopicSource, matching_topics, regex_violation
from ..wire import embedded
from .shard import Shard

SUMMARY: Final = DescribeRequest(connectors=(), connectors_only=True)
"""Describes a group without members and connectors."""

CLASSIC: Final = DescribeRequest(connectors=(), include_classic=True)
"""Describes a group and its members, without connectors."""

DEAD: Final = "Dead"
"""The state of a group that does not exist."""


def listed(groups: Iterable[DescribedGroup], request: ListGroupsRequest) -> ListGroupsResponse:
    """The groups that pass the filters; groups that cannot be described are left out."""
    states = {state.lower() for state in request.states_filter}
    types = {name.lower() for name in request.types_filter}
    return ListGroupsResponse(
        groups=tuple(
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups
            if not group.error_code
            and (not states or group.state.lower() in states)
            and (not types or group.group_type.lower() in types)
        )
    )


def in_classic_form(group: DescribedGroup, request: DescribeGroupsRequest) -> DescribedClassicGroup:
    """A group in the form of a classic group; as one that does not exist if it has no such form."""
    code, message = group.error_code, group.error_message
    if not code and not group.classic_state:
        code = GroupIdNotFound.code
        message = f"group {printable(group.group_id)} is of type {group.group_type!r}, not a classic group"
    if code == GroupIdNotFound.code and not request.expects_not_found:
        return DescribedClassicGroup(group_id=group.group_id, group_state=DEAD)
    if code:
        return DescribedClassicGroup(group_id=group.group_id, group_state=DEAD, error_code=code, error_message=message)
    return DescribedClassicGroup(
        group_id=group.group_id,
        group_state=group.classic_state,
        protocol_type=group.protocol_type,
        protocol_data=group.assignor_name,
        members=tuple(
            ClassicMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.classic_metadata,
                member_assignment=member.classic_assignment,
            )
            for member in group.members
        ),
    )


def deleted(response: DeleteResponse) -> DeleteGroupsResponse:
    """The results of a deletion."""
    results = (DeletedResult(group_id=each.group_id, error_code=each.error_code) for each in response.results)
    return DeleteGroupsResponse(results=tuple(results))


# --------------------------------------------------------------------------------------------------
# The consumer groups of a coordinator: their rules, server-side assignors and the topics of the cluster.


logger = logging.getLogger(__name__)

MAX_ABSENT = 1_000
"""Results of reads that are kept for groups that have not asked for them again."""

READ_WAIT_S = 2.0
"""Seconds that a request about offsets waits for a read of the topics; without the broker, the last read counts."""

EXPECTED_FOR_S = 30.0
"""How long the topics are watched closely after a member has subscribed to one that does not exist."""

SERVER_ASSIGNORS = {"uniform": "uniform", "range": "server-range"}
"""Kafka's server-side assignors, and the names of their entry points."""

KAFKA_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""How ``group.consumer.assignors`` of a broker may name them, too."""


def as_server_assignor(assignor: PartitionAssignor) -> Callable[[ConsumerPrepareResponse], ConsumerServerAssignment]:
    """Wrap an assignor for ``ConsumerSettings.server_assignors``: a call returns its result or raises."""

    def assign(prepared: ConsumerPrepareResponse) -> ConsumerServerAssignment:
        try:
            assignment = run_assignor(assignor, partition_group_from_prepare(prepared))
        except PluginError as error:
            logger.error("server-side %s", error.with_location())
            raise
        if assignment.error:
            return ConsumerServerAssignment(error=assignment.error, message=assignment.message)
        return ConsumerServerAssignment(members=consumers_for_install(prepared, assignment), message=assignment.message)

    return assign


def built_in_assignors() -> dict[str, ConsumerServerAssignor]:
    """The server-side assignors, by the names that consumers know.

    Raises:
        ConfigError, PluginError: one of them is not installed.
    """
    return {name: as_server_assignor(load_partition_assignor(entry)) for name, entry in SERVER_ASSIGNORS.items()}


def with_group_assignors(settings: ConsumerSettings, named: Sequence[str]) -> ConsumerSettings:
    """The settings with those of the named assignors that are for consumer groups; the first one is their default.

    Args:
        settings: of all consumer groups.
        named: ``group.consumer.assignors``. A name of connect groups alone is passed over.

    Returns:
        The unchanged settings if none is for consumer groups.

    Raises:
        ConfigError: no assignor of any kind has one of the names.
        PluginError: an assignor cannot be imported, created or used.
    """
    of_consumers, of_workers = {*SERVER_ASSIGNORS, *available("partition_assignors")}, {*available("assignors")}
    loaded: dict[str, ConsumerServerAssignor] = {}
    for name in (KAFKA_CLASSES.get(name, name) for name in named):
        if name in of_consumers:
            loaded[name] = as_server_assignor(load_partition_assignor(SERVER_ASSIGNORS.get(name, name)))
        elif name not in of_workers:
            raise ConfigError("group_assignors", name, ", ".join(sorted(of_consumers | of_workers)))
    return replace(settings, server_assignor=next(iter(loaded)), server_assignors=loaded) if loaded else settings


class ConsumerGroups:
    """The consumer groups of a coordinator, and the topics that groups of all types commit offsets of.

    Attributes:
        group_type: their rules.
        classic_type: the rules of classic groups.
    """

    def __init__(
        self,
        topics: TopicSource | None = None,
        settings: ConsumerSettings | None = None,
        *,
        classic: ClassicSettings | None = None,
    ) -> None:
        """Create them.

        Args:
            topics: the topics of the cluster; if ``None``, consumers cannot join.
            settings: for all consumer groups. Without server-side assignors: those of Kafka.
            classic: the settings of classic groups, for members of the classic protocol; the defaults if ``None``.
        """
        settings = settings or ConsumerSettings()
        if topics is not None and not settings.server_assignors:
            settings = replace(settings, server_assignors=built_in_assignors())
        self._topics = topics
        # Topics that ``confirm_absent`` was asked for; ``_look`` reads the topics until it is empty.
        self._to_look_for: set[frozenset[str]] = set()
        self._absent: set[frozenset[str]] = set()  # those that were looked for since; an answer removes them
        self._reading: asyncio.Task[None] | None = None  # ``_look``
        self._next_read: asyncio.Task[None] | None = None  # a read that has not begun: later requests share it
        self._expiring: asyncio.Task[None] | None = None  # the search for offsets that no member uses
        self._reads: set[asyncio.Task[None]] = set()  # reads that requests wait for
        self._read_lock = asyncio.Lock()
        self.classic_type = ClassicGroupType(
            classic or ClassicSettings(), new_id=lambda: str(uuid.uuid4()), embedded=embedded
        )
        self.group_type = ConsumerGroupType(
            replace(settings, regex_violation=regex_violation),
            new_id=lambda: str(uuid.uuid4()),
            match_topics=matching_topics,
            embedded=embedded,
            classic=classic,
            confirm_absent=self.confirm_absent,
            expect_topics=self._expect_topics,
        )

    async def start(self, shard: Shard) -> None:
        """Read the topics, and watch them.

        Raises:
            ConfigError: they cannot be read.
        """

        def on_change(topics: Topics) -> None:
            self.group_type.topics = self.classic_type.topics = topics
            for group_id, group in shard.groups.loaded.items():
                is_consumer = group.group_type is self.group_type
                if is_consumer or (group.group_type is self.classic_type and group.state.offsets.changes(topics)):
                    shard.intake.submit_input(group_id, TopicsChanged(group_id=group_id))

        self._expiring = asyncio.get_running_loop().create_task(self._expire(shard))
        if self._topics is not None:
            await self._topics.start(on_change)

    async def close(self) -> None:
        """Stop watching the topics."""
        for task in (self._reading, self._expiring, *self._reads):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._topics is not None:
            await self._topics.close()

    async def _expire(self, shard: Shard) -> None:
        """Remove offsets that have not been used for the retention time."""
        while True:
            await asyncio.sleep(self.group_type.settings.offsets.check_interval_ms / 1000)
            for group_id, group in shard.groups.loaded.items():
                if group.group_type in (self.group_type, self.classic_type) and group.state.offsets:
                    shard.intake.submit_input(group_id, ExpireOffsets(group_id=group_id))

    async def look_again(self, request: OffsetCommitRequest | None = None) -> None:
        """Read the topics before a request about committed offsets is decided; requests share a read.

        An offset must not be fetched from a topic that was deleted and created again, nor rejected because its topic
        is new.

        Args:
            request: a commit; the topics are read only if it names a topic or partition that is not known.
        """
        if self._topics is None or (request is not None and self._knows(request)):
            return
        if self._next_read is None:
            self._next_read = asyncio.get_running_loop().create_task(self._read())
            self._reads.add(self._next_read)
            self._next_read.add_done_callback(self._reads.discard)
        # The read may serve other requests, and is not cancelled with this one.
        await asyncio.wait([self._next_read], timeout=READ_WAIT_S)

    def _knows(self, request: OffsetCommitRequest) -> bool:
        topics = self.classic_type.topics or {}
        by_id = any(topic.topic_id != NO_TOPIC_ID for topic in request.topics)
        ids = {topic.topic_id for topic in topics.values()} if by_id else set()
        for topic in request.topics:
            known = topics.get(topic.name)
            if topic.topic_id != NO_TOPIC_ID:
                if topic.topic_id not in ids:
                    return False
            elif known is None or any(each.partition_index >= known.num_partitions for each in topic.partitions):
                return False
        return True

    async def _read(self) -> None:
        assert self._topics is not None
        async with self._read_lock:
            # From here on, a request needs another read: this one may pass what the request is about.
            self._next_read = None
            try:
                await self._topics.refresh()
            except Exception as error:
                logger.debug("the topics cannot be read: %s", error)

    def _expect_topics(self) -> None:
        if self._topics is not None:
            self._topics.expect_change(EXPECTED_FOR_S)

    def confirm_absent(self, names: frozenset[str]) -> bool:
        """Whether a read looked for these topics since they were asked for; otherwise one begins. It counts once."""
        if self._topics is None:
            return True
        if names in self._absent:
            self._absent.remove(names)
            return True
        self._to_look_for.add(names)
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._look())
        return False

    async def _look(self) -> None:
        assert self._topics is not None
        try:
            # A read in progress may have passed a topic that was created since: what is asked for now needs another.
            while self._to_look_for:
                asked, self._to_look_for = self._to_look_for, set()
                await self._topics.refresh()
                self._absent = asked | (self._absent if len(self._absent) < MAX_ABSENT else set())
        except Exception as error:
            logger.warning("the topics of consumer groups to be converted cannot be looked for: %s", error)
        finally:
            self._reading = None
