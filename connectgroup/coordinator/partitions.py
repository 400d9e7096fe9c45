"""A coordinator of a log whose groups are spread over several partitions, each with an owner of its own.

Each partition is an election of its own (``ElectedCoordinator``); a request goes to the partition that has its group.
A request about several groups is split. Groups of a partition that another coordinator owns have the error
NOT_COORDINATOR each; a list of all groups has those of the partitions that are served here, and says which ones.

Ownership is balanced: of the coordinators that take part, none owns two partitions more than another. The one that owns
the most hands a partition over to the one that owns the fewest, one at a time, and each only once the one before is
served again. It names its successor in the log, and the others leave the partition to that one for ``YIELD_S``. If the
successor does not take it, the first that tries does, and this one hands it nothing for ``REFUSED_S``.

With one partition, which is the default, this is its ``ElectedCoordinator`` and nothing else.

Source: Kafka's ``GroupMetadataManager.partitionFor``, ``GroupCoordinatorService.listGroups``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from ..errors import ConfigError, LogError
from ..log.base import REGISTER_S, Ownership, SharedLog
from ..protocol.messages.api import Request, Response
from ..protocol.messages.cluster import DescribeCoordinatorsRequest, FindCoordinatorRequest
from ..protocol.messages.describe import DescribeResponse, ListGroupsRequest, ListGroupsResponse
from ..protocol.messages.rejected import error_of
from ..protocol.units import partition_of, printable
from ..transport.group_access import OF_ALL, SEVERAL, group_of, groups_asked
from ..transport.tcp_server import found_coordinators
from .election import ElectedCoordinator, described
from .runtime import Coordinator

BALANCE_S: Final = 1.0
"""Interval between two looks at who owns how many partitions."""

SEEN_S: Final = 1.5 * REGISTER_S
"""A coordinator that was registered longer ago is given no partition: it may have ended."""

REFUSED_S: Final = 60.0
"""How long a coordinator that has not taken a partition is given none."""

logger = logging.getLogger(__name__)


class PartitionedCoordinator:
    """The ``Handler`` of one of the coordinators that share a log.

    Attributes:
        parts: the elections, by partition; the first one alone until ``start`` knows how many there are.
    """

    def __init__(
        self, log: SharedLog, make: Callable[[SharedLog], Coordinator], *, max_partitions: int | None = None
    ) -> None:
        """Create it; ``start`` takes part in the elections.

        Args:
            make: creates the coordinator of one term of a partition, on its log.
            max_partitions: how many partitions the log may have; ``None``: any number.
        """
        self._log, self._make, self._max_partitions = log, make, max_partitions
        self.parts = [self._part(log, "the log")]
        # Called when a term ends, with a function: whether a group is of its partition; ``None``: all groups are.
        self.on_term_end: Callable[[Callable[[str], bool] | None], None] = lambda is_of_partition: None
        self._balancing: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None

    def _part(self, log: SharedLog, what: str) -> ElectedCoordinator:
        return ElectedCoordinator(log, lambda: self._make(log), what=what)

    async def start(self) -> None:
        """Check the log, then try to own its partitions in the background; raises as ``ElectedCoordinator.start``."""
        (first,) = self.parts
        await first.connect()
        count = self._log.partitions
        if self._max_partitions is not None and count > self._max_partitions:
            # Kafka's clients ask each broker for its groups, and a proxy is all brokers to them.
            raise ConfigError(
                "log", f"a log of {count} partitions", "a log of one partition; coordinators may have several"
            )
        if count > 1:
            self.parts = [
                self._part(self._log.partition(number), f"partition {number} of the log") for number in range(count)
            ]
        for part in self.parts:
            part.log.address, part.log.credentials = self._log.address, self._log.credentials
            part.on_term_end = partial(self.on_term_end, partial(self._is_part_of, part) if count > 1 else None)
            if count > 1:
                part.log.successor = ""
            part.take_part()
        if count > 1:
            self._balancing = asyncio.create_task(self._balance(), name="balance of partitions")

    async def close(self) -> None:
        """Stop serving and hand all partitions over."""
        balancing, self._balancing = self._balancing, None
        if balancing is not None:
            balancing.cancel()
            await asyncio.gather(balancing, return_exceptions=True)
        if self._handing_over is not None:
            await asyncio.gather(self._handing_over, return_exceptions=True)
        closed = await asyncio.gather(*(part.close() for part in self.parts), return_exceptions=True)
        for error in closed:
            if error is not None:
                raise error

    # ------------------------------------------------------------------------------------------ requests

    def part_of(self, group_id: str) -> ElectedCoordinator:
        """The election of the partition that has a group."""
        return self.parts[partition_of(group_id, len(self.parts))] if len(self.parts) > 1 else self.parts[0]

    def _is_part_of(self, part: ElectedCoordinator, group_id: str) -> bool:
        return self.part_of(group_id) is part

    def find(self, group_id: str = "") -> tuple[str, int, int] | None:
        """As ``ElectedCoordinator.find``, of a group; without a group, of any partition."""
        if group_id:
            return self.part_of(group_id).find()
        return next((found for part in self.parts if (found := part.find()) is not None), None)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """See ``protocol.messages.api.Handler``."""

        async def handled(part: ElectedCoordinator, request: Any) -> Any:
            return await part.handle(request, client_host=client_host, client_id=client_id, principal=principal)

        if len(self.parts) == 1:
            return cast(Response, await handled(self.parts[0], request))
        if isinstance(request, DescribeCoordinatorsRequest):
            return await described(self.ownerships(), request)
        if isinstance(request, FindCoordinatorRequest):  # of a client in this process; the port responds itself
            return found_coordinators(request, self.find)
        if not (asked := groups_asked(request)):
            if isinstance(request, OF_ALL):
                return await self._listed(request, handled)
            return cast(Response, await handled(self.part_of(getattr(request, "group_id", "")), request))

        several = SEVERAL[type(request)]
        by_part: dict[ElectedCoordinator, list[Any]] = {}
        for each in asked:
            by_part.setdefault(self.part_of(group_of(each)), []).append(each)
        responses = [
            await handled(part, replace(cast(Any, request), **{several.asked: tuple(groups)}))
            for part, groups in by_part.items()
        ]
        if len(responses) == 1:
            return cast(Response, responses[0])
        order = {group_of(each): position for position, each in enumerate(asked)}
        entries = sorted(
            (entry for each in responses for entry in getattr(each, several.answered)),
            key=lambda entry: order.get(entry.group_id, 0),
        )
        return cast(Response, replace(responses[0], **{several.answered: tuple(entries)}))

    async def _listed(self, request: Any, handled: Callable[[ElectedCoordinator, Any], Any]) -> Response:
        """All groups of the partitions that are served here."""
        groups: list[Any] = []
        covered: list[int] = []
        refused: Any = None
        for number, part in enumerate(self.parts):
            response = await handled(part, request)
            if error_of(request, response)[0]:
                refused = response
            else:
                covered.append(number)
                groups += response.groups
        if not covered:
            return cast(Response, refused)
        listed = tuple(sorted(groups, key=lambda group: group.group_id))
        if isinstance(request, ListGroupsRequest):
            return ListGroupsResponse(groups=listed)
        return DescribeResponse(groups=listed, partition_count=len(self.parts), partitions=tuple(covered))

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
        return self.part_of(getattr(request, "group_id", "")).begin(
            request, client_host=client_host, client_id=client_id, principal=principal, respond=respond
        )

    def on_connection_lost(self, request: Request, principal: str) -> None:
        """See ``TcpServer``."""
        self.part_of(getattr(request, "group_id", "")).on_connection_lost(request, principal)

    # ------------------------------------------------------------------------------------------ ownership

    def served(self) -> set[int]:
        """The partitions that are served here."""
        return {number for number, part in enumerate(self.parts) if part.serving is not None}

    async def ownerships(self) -> Sequence[Ownership]:
        """Who owns each partition, and who stands by for it.

        Raises:
            LogError: the log cannot be read.
        """
        return await asyncio.gather(*(part.ownership() for part in self.parts))

    async def _balance(self) -> None:
        """Hand partitions over to coordinators that own fewer."""
        loop = asyncio.get_running_loop()
        handed: tuple[int, str] | None = None  # the last partition, and its successor
        refused: dict[str, float] = {}  # until when a coordinator is given none
        while True:
            await asyncio.sleep(BALANCE_S)
            try:
                found = await self.ownerships()
            except LogError:  # the election logs it
                continue
            except Exception:
                logger.exception("the owners of the partitions are not known")
                continue
            if handed is not None:
                number, successor = handed
                owner = _owner_of(found[number])
                if not owner or (owner == self._log.address and self.parts[number].serving is None):
                    continue  # it is not served yet
                if owner != successor:
                    logger.warning("the coordinator at %s has not taken partition %d", printable(successor), number)
                    refused[successor] = loop.time() + REFUSED_S
                handed = None
            without = {address for address, until_s in refused.items() if loop.time() < until_s}
            surplus = surplus_of(self._log.address, found, without)
            if surplus is None:
                continue
            number, successor = surplus
            if self.parts[number].serving is not None:
                handed = surplus
                self._handing_over = asyncio.create_task(self.parts[number].hand_over(successor))
                await asyncio.shield(self._handing_over)


def _owner_of(ownership: Ownership) -> str:
    """The address of the owner; empty: there is none, or one that serves nothing, such as ``groups recover``."""
    return "" if ownership.owner is None else ownership.owner.address


def surplus_of(
    address: str, found: Sequence[Ownership], without: set[str] | frozenset[str] = frozenset()
) -> tuple[int, str] | None:
    """The partition that a coordinator is to hand over now, and its successor; ``None``: none.

    Args:
        address: of the coordinator.
        found: who owns each partition and who stands by for it.
        without: addresses of coordinators that are to get none.
    """
    owners = [_owner_of(ownership) for ownership in found]
    if not all(owners):
        return None  # a fail-over is under way
    owned = Counter(owners)
    if not owned[address] or address != min(owned, key=lambda each: (-owned[each], each)):
        return None  # another one owns more, and hands over first
    standing_by = {
        number: {
            each.address
            for each in ownership.coordinators
            if each.epoch < 0
            and 0 <= each.lag_ms <= 1_000 * SEEN_S
            and each.address not in ("", address, *without)  # empty: of ``groups recover``
        }
        for number, ownership in enumerate(found)
        if owners[number] == address
    }
    others = sorted(set().union(*standing_by.values()), key=lambda each: (owned[each], each))
    if not others or owned[address] - owned[others[0]] < 2:
        return None
    successor = others[0]
    return max(number for number, names in standing_by.items() if successor in names), successor
