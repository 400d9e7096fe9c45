"""The membership of one consumer in a group of KIP-848: ConsumerGroupHeartbeat, and client-side assignors.

The coordinator computes the assignment with a server-side assignor. On connectgroup's coordinator it can ask a member
instead: the member fetches the state of the group (Prepare), runs its assignor, and sends the result (Install).

A heartbeat contains what has changed since the last one that was answered; after an error it contains everything.

Source: KIP-848; Kafka's ``ConsumerMembershipManager`` and ``ConsumerHeartbeatRequestManager``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ..assign.api import PartitionAssignment, PartitionAssignor
from ..assign.convert import assignor_info, consumers_for_install, partition_group_from_prepare
from ..assign.sandbox import run_assignor
from ..errors import ConnectGroupError, PluginError
from ..protocol.messages.common import AssignorInfo
from ..protocol.messages.consumer import (
    ConsumerHeartbeatRequest,
    ConsumerHeartbeatResponse,
    ConsumerInstallRequest,
    ConsumerInstallResponse,
    ConsumerPrepareRequest,
    ConsumerPrepareResponse,
    InstalledConsumer,
    by_topic,
    each_partition,
)
from ..protocol.units import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, Partitions, printable
from ..threads import off_loop
from ..topics import matching_topics
from .client import BROKERS, GroupClient
from .errors import BrokerError, Code, error_name
from .membership import LEAVE_TIMEOUT_S, Membership
from .rounds import assignor_named
from .settings import GroupConsumerSettings

logger = logging.getLogger(__name__)

RETRY_S = 0.5
STALE_PATIENCE_S = 5.0
"""How long a rejected commit waits for the heartbeat that brings the new member epoch."""

JOIN_AGAIN = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH})
"""A join rejected with one of these is retried: the coordinator does not have the member's former epoch any more."""

ASSIGNOR_FAILED = 1
UNNAMED_S = 5.0
"""How long a member waits for an assignment by one of its assignors before it reports that there is none: during a
rebalance, an assignment has no assignor yet."""
MAX_REASON = 127
"""A reason is an int8; 0 is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment from the coordinator.

    Attributes:
        partitions: all that the member may own, by topic id.
        epoch: the member epoch.
        assignor: the client-side assignor that computed it, None if it is not known.
        metadata: what its result has for this member: error, version, bytes.
    """

    partitions: Partitions
    epoch: int
    assignor: PartitionAssignor | None
    metadata: tuple[int, int, bytes]


class EpochMembership(Membership):
    """This member's state at the coordinator of a consumer group.

    Attributes:
        assigned: the assignment that the coordinator has sent last, until the consumer takes it.
        computed_epoch: the group epoch for which this member computed an assignment last, -1 if it has not.
    """

    def __init__(
        self, client: GroupClient, settings: GroupConsumerSettings, assignors: Sequence[PartitionAssignor]
    ) -> None:
        super().__init__(client, settings)
        self._assignors = tuple(assignors)
        self.member_id = uuid.uuid4().hex
        self.assigned: Assigned | None = None
        self.computed_epoch = -1
        self._owned: Partitions = frozenset()  # what the next heartbeat says that this member owns
        self._reported: Partitions | None = None  # ``None``: the next heartbeat has all fields
        # the client-side assignors in the last heartbeat with them
        self._offers: tuple[AssignorInfo, ...] | None = None
        self._matched: frozenset[str] | None = None  # topics that match the pattern; ``None``: not known yet
        self._unnamed_at: float | None = None  # when an assignment that none of our assignors computed was received
        self._requested = 0  # the reason of the last ``enforce_rebalance``
        self._is_applying = False  # an assignment was taken, and not reported yet
        self._acknowledges = False  # the next heartbeat has the owned partitions, even if they are unchanged
        self._interval_s = 0.0  # until the next heartbeat; set by each response and each error
        self._wake = asyncio.Event()  # ends that wait
        self._answered = asyncio.Event()  # a heartbeat has had a response
        self._computing: asyncio.Task[None] | None = None  # the last computation

    @property
    def is_rebalancing(self) -> bool:
        return False

    async def next_generation(self, code: int, generation: int) -> bool:
        if code != Code.STALE_MEMBER_EPOCH:
            return False
        if self.generation == generation:
            # The coordinator has advanced the member; the response that says so is on its way.
            self._answered.clear()
            self._wake.set()
            try:
                await asyncio.wait_for(self._answered.wait(), STALE_PATIENCE_S)
            except TimeoutError:
                return False
        return self.in_group and self.generation != generation

    # ------------------------------------------------------------------------------------------ the consumer's part

    @property
    def may_join(self) -> bool:
        """Whether the member is outside the group, and does not join yet."""
        return not self.in_group and not self._joining and self.fatal is None

    def begin_to_join(self) -> None:
        """Join with the next heartbeat, which is sent now. The member owns nothing."""
        self.rejoin = ""
        self._joining, self._reported, self._owned = True, None, frozenset()
        self._wake.set()

    def take_assigned(self) -> Assigned | None:
        """The assignment that has not been applied yet, if any."""
        assigned, self.assigned = self.assigned, None
        self._is_applying = self._is_applying or assigned is not None
        return assigned

    def report(self, owned: Partitions) -> None:
        """The member owns these partitions, by topic id: a heartbeat reports them now.

        Each assignment that was taken is reported. Its partitions may be the ones reported before: the coordinator may
        have assigned a partition and revoked it since, and null would not acknowledge that revocation.
        """
        if owned != self._owned or self._is_applying:
            self._owned, self._is_applying, self._acknowledges = owned, False, True
            self._wake.set()

    # ------------------------------------------------------------------------------------------ heartbeats

    async def _beat_forever(self) -> None:
        try:
            while True:
                await self._wait_for_turn()
                if not (self.in_group or self._joining):
                    continue
                if self.in_group and self.has_stopped_polling():
                    await self.leave(
                        f"no poll for more than max_poll_interval_ms ({self.settings.max_poll_interval_ms})"
                    )
                    continue
                try:
                    await self._beat()
                except (PluginError, BrokerError) as error:
                    self.fatal, self._joining = error, False
                    self.lose(str(error), forget_id=False)
                except ConnectGroupError as error:
                    self._reported, self._interval_s = None, RETRY_S
                    logger.debug("group %s: heartbeat: %s", self.settings.group, error)
        finally:
            if self._computing is not None:
                self._computing.cancel()

    async def _wait_for_turn(self) -> None:
        idle = not (self.in_group or self._joining)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), None if idle else max(self._interval_s, 0.01))
        self._wake.clear()

    async def _beat(self) -> None:
        settings, sent_at, owned = self.settings, time.monotonic(), self._owned
        joins = not self.in_group
        # Cleared before the request is sent: a report during the request is for the next heartbeat. After an error the
        # next heartbeat has all fields.
        acknowledges, self._acknowledges = self._acknowledges, False
        request = await self._request(joins, owned, acknowledges)
        session_s = settings.session_timeout_ms / 1000
        self.metrics.on_heartbeat_sent()
        response: ConsumerHeartbeatResponse = await self._client.send_to_coordinator(
            # The coordinator may have advanced the member: at its previous epoch, only a full heartbeat is accepted.
            request,
            timeout_s=session_s,
            each_s=session_s / 3,
            once=not joins,
        )
        self.metrics.on_heartbeat(sent_at)
        if joins == self.in_group or not (self.in_group or self._joining):
            return  # the member has left meanwhile: the response is stale
        self._interval_s = response.heartbeat_interval_ms / 1000 or RETRY_S
        match response.error_code:
            case Code.NONE if response.member_epoch == JOIN_EPOCH:
                # The first members of a group have no epoch before an assignment is computed, and join until then. A
                # request at epoch 0 is never answered with COMPUTE_ASSIGNMENT: Prepare says whether it is this member.
                self._interval_s = min(self._interval_s, RETRY_S)
                if request.client_assignors:
                    self._begin_to_compute()
            case Code.NONE:
                self._client.problems.solved("group.instance.id")
                self._accept(response, joins, owned, sent_at)
            case Code.COMPUTE_ASSIGNMENT:
                self._heard_at, self._reported = max(self._heard_at, sent_at), None
                self._interval_s = min(self._interval_s, RETRY_S)
                self._begin_to_compute()
            case Code.UNRELEASED_INSTANCE_ID:
                self._reported, self._interval_s = None, RETRY_S  # until the session of the other member expires
                instance = printable(self.settings.instance or "")
                self._client.problems.met(
                    "group.instance.id",
                    f"group.instance.id {instance!r} belongs to another member; this one joins when that has left or "
                    "its session has expired; of two live consumers, give each its own",
                )
            case code if code in JOIN_AGAIN and joins:
                self._reported, self._interval_s = None, RETRY_S
            case code:
                self._joining = False
                self.refused(code, "ConsumerGroupHeartbeat", response.error_message, joins=joins)
        self._answered.set()

    async def _request(self, joins: bool, owned: Partitions, acknowledges: bool) -> ConsumerHeartbeatRequest:
        settings = self.settings
        epoch = JOIN_EPOCH if joins else self.generation
        if self._reported is not None:
            return ConsumerHeartbeatRequest(
                group_id=settings.group,
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=settings.instance,
                owned=by_topic(owned) if acknowledges or owned != self._reported else None,
                client_assignors=await self._changed_offers(),
            )
        offered = self._offers = await self._offered()
        return ConsumerHeartbeatRequest(
            group_id=settings.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=settings.instance,
            rack_id=settings.rack,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            subscribed_topic_names=settings.topics if settings.pattern is None else (),
            subscribed_topic_regex=settings.pattern,
            server_assignor=None if offered else settings.server_assignor,
            owned=by_topic(owned),
            client_assignors=offered,
        )

    async def _offered(self) -> tuple[AssignorInfo, ...] | None:
        """The client-side assignors, if the coordinator supports them."""
        if not self._assignors:
            return None
        if not await self._client.coordinator_serves(ConsumerPrepareRequest):
            names = ", ".join(assignor.name for assignor in self._assignors)
            chosen = self.settings.server_assignor or "the broker's default"
            self._client.problems.met(
                "client-side assignors",
                f"the broker has server-side assignors only: {chosen} assigns, not {printable(names)}",
            )
            return None
        subscribed = await self._subscribed()
        offered = [assignor_info(assignor, subscribed) for assignor in self._assignors]
        return tuple([info if info.reason else replace(info, reason=self._requested) for info in offered])

    async def _changed_offers(self) -> tuple[AssignorInfo, ...] | None:
        """The client-side assignors if their metadata or reasons have changed since they were sent; ``None`` if not.

        The coordinator then has the assignment computed anew.

        Source: KIP-848, "Group Epoch": a member updates its assignors' reason or metadata.
        """
        if self._offers is None:
            return None
        try:
            offered = await self._offered()
        except PluginError as error:
            self._client.problems.met("metadata", f"{error}; the coordinator keeps the metadata sent before")
            return None
        if offered == self._offers:
            return None
        self._offers = offered
        return offered

    async def _subscribed(self) -> frozenset[str]:
        """The topics that the member subscribes to. Raises TransportError: the pattern cannot be resolved now."""
        if self.settings.pattern is None:
            return frozenset(self.settings.topics)
        if self._matched is None:
            self._matched = matching_topics(self.settings.pattern, tuple(await self._client.all_topics()))
        return self._matched

    def enforce_rebalance(self, reason: str) -> None:
        if self._offers is None:
            logger.warning(
                "group %s: enforce_rebalance: nothing is done: the coordinator assigns, and not a member's assignor",
                self.settings.group,
            )
            return
        logger.info("group %s: rebalance requested: %s", self.settings.group, printable(reason, limit=200))
        self._requested = self._requested % MAX_REASON + 1
        self._wake.set()

    def _accept(self, response: ConsumerHeartbeatResponse, joins: bool, owned: Partitions, sent_at: float) -> None:
        """Process the response to a heartbeat that the coordinator has accepted."""
        self._heard_at = max(self._heard_at, sent_at)
        self._reported = owned
        if joins:
            self.in_group, self._joining, self.lost_because = True, False, ""
            self.metrics.on_joined(sent_at)
        if self._offers and (response.assignor_name or sent_at - (self._unnamed_at or sent_at) > UNNAMED_S):
            self._note_assignor(response.assignor_name, [each.name for each in self._offers])
            self._unnamed_at = None
        if response.member_epoch != self.generation:
            self.generation = response.member_epoch
            self.changed.set()
        if response.assignment is None:
            return
        assignor = next((each for each in self._assignors if each.name == response.assignor_name), None)
        self._unnamed_at = None if response.assignor_name else self._unnamed_at or sent_at
        self.assigned = Assigned(
            partitions=frozenset(each_partition(response.assignment.topic_partitions)),
            epoch=response.member_epoch,
            assignor=assignor,
            metadata=(response.assignor_error, response.assignor_version, response.assignor_metadata),
        )
        self.changed.set()

    def lose(self, why: str, *, forget_id: bool) -> None:
        # The member chooses its id, and keeps it for as long as the process runs.
        super().lose(why, forget_id=False)
        self.assigned = None

    # ------------------------------------------------------------------------------------------ assignor

    def _begin_to_compute(self) -> None:
        if self._computing is None or self._computing.done():
            self._computing = asyncio.create_task(self._compute(), name="assignor")

    async def _compute(self) -> None:
        """Compute the assignment of the group, as the coordinator has requested."""
        try:
            if await self._compute_and_install():
                self._wake.set()
        except ConnectGroupError as error:
            # The coordinator requests the computation again, from this member or another one.
            logger.warning("group %s: assignment: %s", self.settings.group, error)

    async def _compute_and_install(self) -> bool:
        """Return whether this member was the one to compute: the next heartbeat may bring a new assignment.

        If it was not, the next heartbeat is sent after its interval. At epoch 0 its response leads here again.
        """
        settings, member_id, epoch = self.settings, self.member_id, max(JOIN_EPOCH, self.generation)
        prepare = ConsumerPrepareRequest(group_id=settings.group, member_id=member_id, member_epoch=epoch)
        prepared: ConsumerPrepareResponse = await self._client.send_to_coordinator(prepare, line="assignor")
        if prepared.error_code:
            logger.debug("group %s: Prepare: %s", settings.group, prepared.error_message)
            return False  # another member computes, or the group has changed
        members: tuple[InstalledConsumer, ...] = ()
        failure, kept = "", 0
        try:
            assignor = assignor_named(self._assignors, prepared.assignor_name)
            result = await self._run(assignor, prepared)
            if (kept := result.error) == 0:
                members = consumers_for_install(prepared, result)
            else:
                failure = f"assignor {assignor.name!r}: {result.message or f'error {kept}'}"
                logger.warning("group %s: the target assignment is kept: %s", settings.group, printable(failure))
        except ConnectGroupError as error:
            failure = str(error)
            logger.error("group %s: %s", settings.group, failure)
        install = ConsumerInstallRequest(
            group_id=settings.group,
            member_id=member_id,
            member_epoch=epoch,
            group_epoch=prepared.group_epoch,
            error=kept or (ASSIGNOR_FAILED if failure else 0),
            keeps_target=bool(kept),
            members=members,
            message=printable(failure, limit=300),
        )
        installed: ConsumerInstallResponse = await self._client.send_to_coordinator(install, line="assignor")
        if installed.error_code:
            logger.warning(
                "group %s: Install: %s", settings.group, installed.error_message or error_name(installed.error_code)
            )
        elif not failure:
            self.computed_epoch = prepared.group_epoch
        return True

    async def _run(self, assignor: PartitionAssignor, prepared: ConsumerPrepareResponse) -> PartitionAssignment:
        def assign() -> PartitionAssignment:
            return run_assignor(assignor, partition_group_from_prepare(prepared))

        limit_s = self.settings.max_poll_interval_ms / 2000
        try:
            async with asyncio.timeout(limit_s):
                return await off_loop(f"assignor {assignor.name}", assign)
        except TimeoutError:
            raise PluginError(f"assignor {assignor.name!r}: no response within {limit_s:g} s") from None

    # ------------------------------------------------------------------------------------------ topics

    async def names_of(self, topic_ids: Collection[str]) -> dict[str, str]:
        """The names of topics that exist, by topic id. Raises TransportError: no broker responded."""
        return await self._client.topic_names(topic_ids)

    async def watch_topics(self) -> None:
        while True:
            try:
                if self.settings.topics:
                    await self._client.topics(self.settings.topics)  # reports the ones that do not exist
                elif self._assignors:
                    self._matched = None
                    await self._subscribed()
            except ConnectGroupError as error:
                logger.debug("group %s: topics: %s", self.settings.group, error)
            await asyncio.sleep(self.settings.metadata_max_age_ms / 1000)

    # ------------------------------------------------------------------------------------------ leave

    async def leave(self, reason: str) -> None:
        await self.end(reason, leave=self.settings.instance is None)

    async def end(self, reason: str, *, leave: bool) -> None:
        was_in, self._joining = self.in_group or self._joining, False
        self.lose(reason, forget_id=False)
        if not was_in or (not leave and self.settings.instance is None):
            return
        request = ConsumerHeartbeatRequest(
            group_id=self.settings.group,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if leave else STATIC_LEAVE_EPOCH,
            instance_id=self.settings.instance,
        )
        try:
            await self._client.send_to_coordinator(request, timeout_s=LEAVE_TIMEOUT_S)
        except ConnectGroupError as error:
            self._client.problems.met(BROKERS, f"could not notify the coordinator: {error}")
