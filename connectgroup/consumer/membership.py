"""The membership of one consumer in its group, as far as it is the same in both protocols.

``beat`` sends heartbeats in the background and only records the outcome: work for the consumer (``rejoin``), the end of
the membership (``in_group`` false), a fatal error (``fatal``). The consumer acts on it between two records; ``changed``
wakes it up.

The lease is checked before any record is returned: a process that was suspended for longer than the session timeout
cannot know this from a response yet, only from its clock.

    classic   JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    epochs    ConsumerGroupHeartbeat (KIP-848)
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..errors import ConnectGroupError, FencedInstanceId
from ..protocol.messages.classic import NO_GENERATION
from ..protocol.units import printable
from .client import GroupClient
from .errors import MEMBERSHIP_LOST, BrokerError, Code, error_name
from .metrics import ConsumerMetrics
from .settings import GroupConsumerSettings

logger = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 5.0


class Membership(ABC):
    """This member's state at the coordinator.

    Attributes:
        member_id: empty until there is one.
        generation: the generation, or the member epoch, that the coordinator has sent last; -1 outside the group.
        in_group: false from the detection of the membership's end until the member has joined again.
        lost_because: the reason for the end, for users.
        losses: how often partitions may have passed to other members: at each end of the membership.
        rejoin: the reason why the member must join, empty if it need not.
        fatal: the error that ends this consumer.
        changed: set when any of these has changed.
        polled_at: end of the consumer's last ``poll``; ``None`` while a ``poll`` is in progress.
        metrics: measures heartbeats and rebalances; the consumer adds its callbacks.
    """

    def __init__(self, client: GroupClient, settings: GroupConsumerSettings) -> None:
        self._client, self.settings = client, settings
        self.member_id = ""
        self.generation = NO_GENERATION
        self.in_group = False
        self.lost_because = ""
        self.losses = 0
        self.rejoin = "a new member"
        self.fatal: ConnectGroupError | None = None
        self.changed = asyncio.Event()
        self.polled_at: float | None = None
        self._heard_at = time.monotonic()
        self._joining = False
        self._used_assignor: str | None = None  # the last that ``_note_assignor`` was called with
        self.metrics = ConsumerMetrics(settings.group, lambda: self.member_id)

    @property
    @abstractmethod
    def is_rebalancing(self) -> bool:
        """Whether a rebalance of this member is in progress, so that an automatic commit has to wait."""

    @abstractmethod
    async def next_generation(self, code: int, generation: int) -> bool:
        """After a commit of this generation was rejected: wait for another, if one is on its way.

        Returns:
            Whether the commit may be repeated with the present generation.
        """

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Have the group compute its assignment anew, although nothing that the coordinator knows of has changed."""

    def _note_assignor(self, used: str, offered: Sequence[str]) -> None:
        """Log one line if the group uses another assignor than this member's first; again when that changes."""
        if used == self._used_assignor:
            return
        self._used_assignor = used
        if used == offered[0]:
            return
        name = printable(used) if used else "an assignor of the coordinator"
        why = (
            "most of its members prefer it, or not every member offers the other"
            if used in offered
            else "not every member offers one of them with overlapping versions, or they failed"
        )
        listed = ", ".join(map(printable, offered))
        logger.warning("group %s: the group uses %s, not %s: %s", printable(self.settings.group), name, listed, why)

    @abstractmethod
    async def leave(self, reason: str) -> None:
        """Leave the group; the membership ends even if there is no response."""

    @abstractmethod
    async def end(self, reason: str, *, leave: bool) -> None:
        """The consumer is closed.

        Args:
            leave: false for a static member whose partitions are to be kept for it.
        """

    @abstractmethod
    async def watch_topics(self) -> None:
        """Query the subscribed topics until cancelled, once in ``metadata_max_age_ms``."""

    async def beat(self) -> None:
        """Send heartbeats until cancelled, one per interval."""
        self.metrics.begin()
        try:
            await self._beat_forever()
        finally:
            self.metrics.end()

    @abstractmethod
    async def _beat_forever(self) -> None: ...

    def has_stopped_polling(self) -> bool:
        """Whether the consumer was last polled more than ``max_poll_interval_ms`` ago."""
        limit_s = self.settings.max_poll_interval_ms / 1000
        return self.polled_at is not None and time.monotonic() - self.polled_at > limit_s

    def lease_end(self) -> float:
        """When the coordinator may remove this member, by ``time.monotonic``: no response for a session timeout."""
        # While a request to join is pending, the coordinator keeps its sender.
        if not self.in_group or self._joining:
            return math.inf
        return self._heard_at + self.settings.session_timeout_ms / 1000

    def lease_is_over(self) -> bool:
        """Whether the coordinator may have removed this member already."""
        return time.monotonic() > self.lease_end()

    def request_rejoin(self, reason: str) -> None:
        """Request a rejoin, performed in the consumer's next ``poll``."""
        self.rejoin = self.rejoin or reason
        self.changed.set()

    def refused(self, code: int, what: str, message: str | None = None, *, joins: bool = False) -> None:
        """Process an error that ends this membership, or this consumer.

        Args:
            joins: the rejected request was a join. GROUP_ID_NOT_FOUND then is permanent: the group has another type.
        """
        if code == Code.FENCED_INSTANCE_ID:
            name = printable(self.settings.instance)
            self.fatal = FencedInstanceId(f"{what}: another process has joined as instance {name!r}; this one must end")
        elif code not in MEMBERSHIP_LOST or (joins and code == Code.GROUP_ID_NOT_FOUND):
            said = f"; the broker says: {printable(message, limit=300)}" if message else ""
            self.fatal = BrokerError(f"{what} of group {self.settings.group!r}", code, said)
        self.lose(f"{what}: {error_name(code)}", forget_id=code == Code.UNKNOWN_MEMBER_ID)

    def lose(self, why: str, *, forget_id: bool) -> None:
        """The membership has ended; this member's partitions may belong to another member."""
        self.in_group, self.generation, self.losses = False, NO_GENERATION, self.losses + 1
        self.lost_because = self.lost_because or why
        if forget_id:
            self.member_id = ""
        self.request_rejoin(why)
