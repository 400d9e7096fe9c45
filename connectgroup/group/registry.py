"""Group types: what the coordinator's shard knows about a group.

A shard queues, appends, parks and arms timers for groups of any type. Everything else is the group type's: its state,
its requests, its rules. Each type is one object that implements ``GroupType``; ``Registry`` finds it by the name in
``GroupRecord.group_type``, or by the class of a request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import GroupError
from ..protocol.messages.api import Response
from ..protocol.messages.describe import DescribedGroup, DescribeRequest
from ..protocol.records.connect import Record
from .kernel.outcome import Compute, Converted, Outcome, SetTimer
from .kernel.state import NO_PROCESS, Process


class ClientInfo(NamedTuple):
    """The client that sent a request.

    Attributes:
        host: its network address.
        client_id: the client id in the request header; empty if there is none.
        principal: see ``Process``. The only one that is not informational.
    """

    host: str = ""
    client_id: str = ""
    principal: str | None = ""


NO_CLIENT = ClientInfo()


class RequestTraits(NamedTuple):
    """What a shard must know about a request. A tuple, which is made in a third of the time of a frozen dataclass.

    Attributes:
        group_id: the group that the request is about.
        member: the member that sends a heartbeat without a ``sender``. No heartbeat of a member is decided before its
            earlier requests that have it as their ``member``, as ``sender`` or in ``follows``.
        beats: whether it is a heartbeat of a member, not a join or a leave: those of members come before all others.
        sender: identifies the sender for parking and deduplication; usually the member id. At most one request of a
            sender is parked in a group; a later request of the sender completes it. Empty: the request is not parked.
            A request with a sender that fails because of the coordinator gets a retriable error.
        sequence: the sender's monotonic request number; -1: the request is not deduplicated.
        process: the sender's process. Sequences are numbers of one process.
        max_wait_ms: how long the request may be parked with a response.
        yields: the sender did not ask to be parked: a request of its member that ``follows`` completes it.
        follows: the member whose parked request, if it yields, is completed by this request: the response to this one
            may have to wait for it, because both are on one connection.
        renews: the timer that the arrival of the request re-arms if it is armed; ``None``: no timer.
        creates_group: the request may create the group.
    """

    group_id: str
    member: str = ""
    beats: bool = False
    sender: str = ""
    sequence: int = -1
    process: Process = NO_PROCESS
    max_wait_ms: int = 0
    yields: bool = False
    follows: str = ""
    renews: SetTimer | None = None
    creates_group: bool = False


class ServedGroup(Protocol):
    """The state of one group of any type."""

    @property
    def group_id(self) -> str: ...

    @property
    def exists(self) -> bool:
        """Whether records created this group. A group that was only looked up does not exist."""

    @property
    def members(self) -> Container[str]:
        """The senders of requests that are members."""

    def process_of(self, sender: str) -> Process:
        """The process that the member belongs to; ``ANY_PROCESS``: any process may send as the member."""

    @property
    def members_to_wake(self) -> set[str]:
        """Senders whose parked requests must be decided again; ``GroupType.apply`` adds, the shard clears."""

    @property
    def members_to_wake_later(self) -> set[str]:
        """As ``members_to_wake``, of senders that only learn a new epoch: the shard wakes them in slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorNumbers:
    """Tasks of a connector: all, those of a paused connector, and those that should run and that no member owns."""

    tasks: int = 0
    paused: int = 0
    unassigned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNumbers:
    """The state of a group as numbers, for metrics.

    Attributes:
        members: number of members.
        epoch: the group epoch.
        target_epoch: the epoch of the target assignment.
        computed_by: the member that computed it, or ``coordinator``; empty: none.
        is_rebalancing: whether members have not reached the target yet, or there is none for the group epoch.
        delayed_units: number of units that are delayed.
        computation_failures: failed computations since the target assignment.
        moves_not_started: moves since the load whose unit was released before its new owner reported it.
        connectors: by name.
    """

    members: int = 0
    epoch: int = 0
    target_epoch: int = 0
    computed_by: str = ""
    is_rebalancing: bool = False
    delayed_units: int = 0
    computation_failures: int = 0
    moves_not_started: int = 0
    connectors: Mapping[str, ConnectorNumbers] = field(default_factory=dict)


Input = Any
"""An input of a step: a request of ``request_types``, an expired ``TimerKey``, or a ``kernel.outcome.Computed``."""


class GroupType(Protocol):
    """The rules of one type of group. Pure, except for ``run_assignor``."""

    @property
    def name(self) -> str:
        """The value of ``GroupRecord.group_type``."""

    @property
    def request_types(self) -> tuple[type, ...]:
        """The classes of the requests that this type handles."""

    def new(self, group_id: str) -> Any:
        """A group without records, a ``ServedGroup``; it does not exist."""

    def traits(self, request: Any, client: ClientInfo = NO_CLIENT) -> RequestTraits:
        """What the shard must know about a request of ``request_types``, and of the client that sent it."""

    def step(self, group: Any, what: Input, now_ms: int, client: ClientInfo) -> Outcome[Response | None]:
        """Decide one input and apply the records of the outcome to the group.

        A rejected request is a response, not an exception. An exception is a bug: the shard drops the group and loads
        it again.
        """

    def apply(self, group: Any, record: Record) -> None:
        """Apply one record of the log. Live requests and loading use the same function."""

    def on_load(self, group: Any, now_ms: int) -> Outcome[None]:
        """The timers to arm and the effects to perform after a group has been loaded; no records."""

    def describe(self, group: Any, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        """The description of a group, also of one that does not exist.

        Raises:
            GroupError: the group cannot be described.
        """

    def takes_long_to_describe(self, group: Any, request: DescribeRequest) -> bool:
        """Whether to describe a copy of the group in a thread. The values in its dictionaries must never change."""

    def measure(self, group: Any) -> GroupNumbers:
        """The state of a group that exists, as numbers.

        Called in a thread while the group may change: of each collection, read a ``copy()`` (``telemetry.metrics``).
        """

    def error_response(self, request: Any, error: GroupError) -> Response:
        """The response of the request's own type that carries the error."""

    def run_assignor(self, effect: Compute) -> Any:
        """Run the assignor of an effect; return ``Computed.result``. Runs in a thread; may block and may raise."""


class Steady(GroupType, Protocol):
    """A group type that keeps the outcomes of heartbeats that report nothing (``kernel.state.GroupState.keep``)."""

    def unchanged(self, group: Any, request: Any, client: ClientInfo) -> Outcome[Any] | None:
        """The outcome that ``step`` would return for a heartbeat, kept from the last equal one, or ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A group without members that a group of another type replaces.

    Attributes:
        removed: the records that remove what the other type does not have, without the ``GroupRecord``.
        kept: the records that the other type applies: committed offsets.
    """

    removed: tuple[Record, ...] = ()
    kept: tuple[Record, ...] = ()


@runtime_checkable
class Converting(Protocol):
    """A group type into which groups of other types are converted when a member joins (KIP-848, "Migration").

    Such a group has members of both protocols. It handles ``member_request_types`` while it has members; without
    members, it may be replaced by a group of the other type, if it is ``Replaceable``.
    """

    @property
    def member_request_types(self) -> tuple[type, ...]:
        """The classes of the requests that members of the other protocol send."""

    def convert(self, group_type: str, group: Any) -> Converted:
        """Convert a group with members, of the type with this name.

        Raises:
            GroupError: it cannot be converted; the request that joins is rejected with this error.
        """


@runtime_checkable
class Claiming(Protocol):
    """A group type to which some requests of other types' clients belong, depending on their contents.

    A group that such a request creates is of this type, and no group of another type handles it.
    """

    @property
    def claimed_request_types(self) -> tuple[type, ...]:
        """The classes of these requests."""

    def claims(self, request: object) -> bool:
        """Whether a request of ``claimed_request_types`` belongs to this type."""


@runtime_checkable
class Replaceable(Protocol):
    """A group type whose empty groups may be replaced by a group of another type (KIP-848, "Migration")."""

    def retire(self, group: Any) -> Retired | None:
        """What becomes of the records of a group; ``None``: it has members."""


class Registry:
    """The group types that a coordinator serves."""

    def __init__(self, group_types: Iterable[GroupType]) -> None:
        """``group_types``: the first one describes groups that do not exist."""
        self._types = {group_type.name: group_type for group_type in group_types}
        self._owners: dict[type, GroupType] = {}
        for group_type in self._types.values():
            for request_type in group_type.request_types:
                self._owners.setdefault(request_type, group_type)
        self._claiming = {
            request_type: (group_type, group_type.claims)
            for group_type in self._types.values()
            if isinstance(group_type, Claiming)
            for request_type in group_type.claimed_request_types
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the types, sorted."""
        return tuple(sorted(self._types))

    @property
    def default(self) -> GroupType:
        """The first type."""
        return next(iter(self._types.values()))

    def get(self, name: str) -> GroupType | None:
        """The type of that name, or ``None``."""
        return self._types.get(name)

    def claimed_by(self, request: object) -> GroupType | None:
        """The type that claims the request (``Claiming``), or ``None``."""
        claiming = self._claiming.get(type(request))
        return claiming[0] if claiming is not None and claiming[1](request) else None

    def owner(self, request: object) -> GroupType | None:
        """The type that claims the request or handles it first; a group that the request creates is of this type."""
        return self.claimed_by(request) or self._owners.get(type(request))
