"""One of several coordinators of a shared log: serves its groups while it owns the log, and stands by otherwise.

Each ownership is one *term* with a ``Coordinator`` of its own, which begins with what the log has, and ends with the
lease. A coordinator that stands by answers every request with NOT_COORDINATOR: the request was not processed, so that
the client may send it to the owner at once. It names the owner in FindCoordinator.

Order: the log is opened, which fences the former owner → its groups are loaded → requests are served. When the lease
ends, requests are rejected first; then the parts of the term are closed, and the lease is released if it is still held.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..checks import parse_address
from ..errors import ConnectGroupError, CoordinatorNotAvailable, LogError, NotCoordinator
from ..log.base import LogAway, LogHeld, Ownership, SharedLog, owners_and_standbys
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import (
    DescribeCoordinatorsRequest,
    DescribeCoordinatorsResponse,
    DescribedCoordinator,
    FindCoordinatorRequest,
)
from ..protocol.units import printable
from ..transport.tcp_server import found_coordinators
from .runtime import Coordinator

RETRY_S = 0.5
"""Interval between two attempts to serve a log that this coordinator may own but cannot read."""

logger = logging.getLogger(__name__)


class ElectedCoordinator:
    """The ``Handler`` of a coordinator that shares its log, or one partition of it.

    Attributes:
        log: the log, or its partition.
        serving: the coordinator of the current term; ``None`` while this process stands by. ``_campaign`` changes it.
    """

    def __init__(self, log: SharedLog, make: Callable[[], Coordinator], *, what: str = "the log") -> None:
        """Create it; ``start`` takes part in the election.

        Args:
            make: creates the coordinator of one term, on ``log``.
            what: the log, or its partition, for messages.
        """
        self.log, self._make, self._what = log, make, what
        self._refusing = make()  # never started: knows the responses that carry an error
        self.serving: Coordinator | None = None
        self.on_term_end: Callable[[], None] = lambda: None
        self._campaigning: asyncio.Task[None] | None = None
        # What ``ownership`` reads, or has read last.
        self._ownership: asyncio.Future[Ownership] | None = None

    async def start(self) -> None:
        """Check the log, then try to own it in the background; raises as ``connect``."""
        await self.connect()
        self.take_part()

    async def connect(self) -> None:
        """Check the log. While its database is away, wait for that.

        Raises:
            LogError: the log cannot be used.
        """
        is_away = False
        while True:
            try:
                await self.log.connect()
                break
            except LogAway as error:
                if not is_away:
                    logger.warning("%s; waiting until it can be reached", error)
                is_away = True
                await asyncio.sleep(RETRY_S)
        if is_away:
            logger.info("the log can be reached")

    def take_part(self) -> None:
        """Try to own the log in the background."""
        self._campaigning = asyncio.create_task(self._campaign(), name="election of the coordinator")

    async def close(self) -> None:
        """Stop serving and hand the log over."""
        campaigning, self._campaigning = self._campaigning, None
        if campaigning is None:
            return
        campaigning.cancel()
        await asyncio.gather(campaigning, return_exceptions=True)
        await self.log.close()

    async def hand_over(self, successor: str) -> None:
        """Stop serving, as ``close`` does, then stand by: the coordinator at this address is to serve.

        Without effect while this one does not serve.
        """
        if self.serving is None:
            return
        campaigning, self._campaigning = self._campaigning, None
        if campaigning is None:
            return
        logger.info("hands %s over to the coordinator at %s", self._what, printable(successor))
        self.log.successor = successor
        campaigning.cancel()
        await asyncio.gather(campaigning, return_exceptions=True)
        self.take_part()

    def find(self, group_id: str = "") -> tuple[str, int, int] | None:
        """Host, port and node id of the coordinator that serves; ``None`` if none is known.

        Clients of Kafka's protocol keep connections by node id: two coordinators must not have the same.
        """
        owner = self.log.owner
        if not owner:
            return None
        return *parse_address("advertised", owner), zlib.crc32(owner.encode()) & 0x7FFFFFFF

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """See ``protocol.messages.api.Handler``."""
        if isinstance(request, DescribeCoordinatorsRequest):
            return replace(await described(self._ownerships(), request), coordinator_epoch=self.log.epoch)
        if isinstance(request, FindCoordinatorRequest):  # of a client in this process; the port responds itself
            return found_coordinators(request, self.find)
        if self.serving is None:
            return self._refusal(request)
        return await self.serving.handle(request, client_host=client_host, client_id=client_id, principal=principal)

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        """See ``protocol.messages.api.DirectHandler``."""
        if self.serving is None:
            return False
        return self.serving.begin(
            request, client_host=client_host, client_id=client_id, principal=principal, respond=respond
        )

    def on_connection_lost(self, request: Request, principal: str) -> None:
        """See ``TcpServer``."""
        if self.serving is not None:
            self.serving.on_connection_lost(request, principal)

    async def ownership(self) -> Ownership:
        """See ``SharedLog``. Clients that ask together, as after a fail-over, cost the log one query."""
        if self._ownership is None or self._ownership.done():
            self._ownership = asyncio.ensure_future(self.log.ownership())
        return await asyncio.shield(self._ownership)

    async def _ownerships(self) -> Sequence[Ownership]:
        return (await self.ownership(),)

    def _refusal(self, request: Request) -> Response:
        owner = self.log.owner
        where = f"the coordinator at {printable(owner)} does" if owner else "no coordinator is known to do so yet"
        why = f"this coordinator does not serve {self._what}; {where}"
        return self._refusing.refusal(request, NotCoordinator(why))

    async def _campaign(self) -> None:
        problem: str | None = None  # logged once for as long as it lasts
        while True:
            try:
                await self.log.stand_by()
                coordinator = self._make()
                await coordinator.start()
            except LogHeld as error:
                logger.info("%s", error)
                continue
            except Exception as error:
                if str(error) != problem:
                    logger.error("cannot serve, retrying: %s", error, exc_info=not isinstance(error, ConnectGroupError))
                problem = str(error)
                await asyncio.sleep(RETRY_S)
                continue
            self.serving, problem = coordinator, None
            logger.info("owns %s since epoch %d, serves its groups", self._what, self.log.epoch)
            try:
                reason = await self.log.wait_lost()
                logger.error("no longer the coordinator, stands by: %s", reason)
            finally:
                self.serving = None
                await asyncio.shield(self._closed(coordinator))

    async def _closed(self, coordinator: Coordinator) -> None:
        try:
            await coordinator.close()
        except Exception:
            logger.exception("a term was not closed cleanly")
        if self.log.successor is not None:
            self.log.successor = ""
        self.on_term_end()


async def described(
    ownerships: Awaitable[Sequence[Ownership]], request: DescribeCoordinatorsRequest
) -> DescribeCoordinatorsResponse:
    """The coordinators of a log, from the ownership of each of its partitions."""
    try:
        found = await ownerships
    except LogError as error:
        refused = CoordinatorNotAvailable(str(error))
        return DescribeCoordinatorsResponse(error_code=refused.code, error_message=str(refused))
    is_partitioned = len(found) > 1
    owners, standbys = owners_and_standbys(found)
    number, last = max(enumerate(found), key=lambda each: each[1].failover_ms)
    return DescribeCoordinatorsResponse(
        coordinators=(
            *(
                DescribedCoordinator(
                    address=each.address,
                    epoch=each.epoch,
                    since_ms=each.since_ms,
                    partition=owned if is_partitioned else -1,
                )
                for owned, each in owners
            ),
            *(
                DescribedCoordinator(address=each.address, since_ms=each.since_ms, lag_ms=each.lag_ms)
                for each in (standbys if request.include_standbys else ())
            ),
        ),
        failover_ms=last.failover_ms,
        failover_took_ms=last.failover_took_ms,
        failover_cause=last.failover_cause,
        failover_partition=number if is_partitioned and last.failover_ms >= 0 else -1,
        partitions=len(found),
    )
