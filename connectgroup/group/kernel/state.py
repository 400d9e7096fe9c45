"""The state of one group whose members are reconciled with a target assignment, derived from its records.

``apply`` is the only function that changes a group. Live traffic and replay both use it. It is total: a tombstone for
an unknown key is a no-op (KAFKA-17306). It accepts every order of records that compaction can produce (KAFKA-19862).
State that is not in a record is derived here from records alone, so that replaying a log restores the group.

The group types ``connect`` and ``consumer`` add their own records (``connect.state``, ``consumer.state``).

``GroupDraft`` is the group as it will be once the records written so far in a step are applied. Handlers read the draft
and write records to it; the group itself does not change. So a step that fails half-way has changed nothing
(reliability D8), and later code in the same step reads what earlier code has written.

Here is also the selection of the group's client-side assignor, and of the members that can run it.

Source: "Connect on the new protocol", "Worker Selection"; KIP-848, "Assignor Selection".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from ...errors import UnsupportedAssignor
from ...protocol.messages.api import Response
from ...protocol.messages.common import AssignorInfo
from ...protocol.records.base import Key, Kind, MemberState, Tombstone
from ...protocol.records.connect import ComputationRecord, GroupRecord, MemberRecord, Record, TargetRecord
from ...protocol.records.consumer import ConsumerMemberRecord
from ...protocol.units import counted, printable
from . import outcome
from .outcome import Outcome, Timer
from .reconcile import NOTHING, Current, U

GroupMember = MemberRecord | ConsumerMemberRecord
"""The record of a member of a group that assigns (groups of type ``classic`` have their own rules)."""

Listing = tuple[tuple[str, int, int], ...]
"""The assignors that a member lists, in their order: name, minimum and maximum version. Most members of a group have
the same listing, so a group counts listings: a join in a large group takes no longer than in a small one."""


def listing_of(member: GroupMember) -> Listing:
    return tuple([(info.name, info.minimum_version, info.maximum_version) for info in member.assignors])


def count_listing(listings: Counter[Listing], member: GroupMember, by: int) -> None:
    """Add a member to the counts (1), or remove it (-1)."""
    listing = listing_of(member)
    listings[listing] += by
    if not listings[listing]:
        del listings[listing]


def info_of(member: GroupMember, assignor: str) -> AssignorInfo | None:
    for info in member.assignors:
        if info.name == assignor:
            return info
    return None


def version_violation(member_id: str, member: GroupMember | None, assignor: str, version: int) -> str | None:
    """Why a member of an assignment cannot read its metadata; ``None`` if it can, or is no member."""
    info = info_of(member, assignor) if member else None
    if info is None or info.minimum_version <= version <= info.maximum_version:
        return None
    reads = f"{info.minimum_version} to {info.maximum_version}"
    return f"version {version} for {printable(member_id)}, which reads {reads}"


def select_assignor(listings: Mapping[Listing, int]) -> str | None:
    """The client-side assignor to use: one that all members list with overlapping versions. Among several, the one
    that most members list first, then the first by name.

    Args:
        listings: of the members of the group, each with the number of members that have it.

    Returns:
        ``None`` if a member lists no assignor: the group then uses a server-side assignor.

    Raises:
        UnsupportedAssignor: all members list assignors, but none is common to all ("ClientAssignors' version range must
            overlap with the other members in the group").
    """
    if not listings or () in listings:
        return None
    common = set.intersection(*({name for name, _, _ in listing} for listing in listings))
    # In one pass: a member may list a hundred assignors, and each of a thousand members may have a listing of its own.
    ranges: dict[str, set[tuple[int, int]]] = {name: set() for name in common}
    for listing in listings:
        for name, low, high in listing:
            if name in ranges:
                ranges[name].add((low, high))
    # Ranges that overlap pairwise have a common version (Helly's theorem on a line).
    usable = [assignor for assignor in sorted(common) if _range(ranges[assignor]) is not None]
    if not usable:
        if not common:
            listed: Counter[str] = Counter()
            for listing, count in listings.items():
                listed.update({name: count for name, _, _ in listing})
            whose = ", ".join(f"{name} by {counted(count, 'member')}" for name, count in sorted(listed.items()))
            raise UnsupportedAssignor(
                f"ClientAssignors: no assignor is listed by all members; listed: {printable(whose, limit=300)}"
            )
        counts: Counter[tuple[str, int, int]] = Counter()
        for listing, count in listings.items():
            counts.update({entry: count for entry in listing if entry[0] in common})
        whose = "; ".join(
            f"{name} {low}-{high} of {counted(count, 'member')}" for (name, low, high), count in sorted(counts.items())
        )
        raise UnsupportedAssignor(f"ClientAssignors: version ranges do not overlap: {printable(whose, limit=300)}")
    firsts: Counter[str] = Counter()
    for listing, count in listings.items():
        firsts[listing[0][0]] += count
    return min(usable, key=lambda assignor: (-firsts[assignor], assignor))


def _range(ranges: Collection[tuple[int, int]]) -> tuple[int, int] | None:
    """The lowest and the highest version of the ranges of members; ``None`` if no version is common to all."""
    if max(low for low, _ in ranges) <= min(high for _, high in ranges):
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    return None


def covers_all(member: GroupMember, assignor: str, listings: Mapping[Listing, int]) -> bool:
    """Whether the version range of a member covers the ranges of all members: it is then able to compute."""
    info = info_of(member, assignor)
    ranges = {(low, high) for listing in listings for name, low, high in listing if name == assignor}
    return info is not None and _range(ranges) == (info.minimum_version, info.maximum_version)


def members_able_to_compute(members: Sequence[GroupMember], assignor: str, present: Container[str]) -> list[str]:
    """Members whose version range covers the ranges of all members: A [1-5] for A [1-5], B [3-4], C [2-4].

    If no present member's range does, members that can read the current metadata version of every member.
    """
    infos = {member.member_id: info for member in members if (info := info_of(member, assignor))}
    low = min(info.minimum_version for info in infos.values())
    high = max(info.maximum_version for info in infos.values())
    there = [(member_id, infos[member_id]) for member_id in sorted(infos) if member_id in present]
    covering = [m for m, info in there if info.minimum_version <= low and info.maximum_version >= high]
    if covering:
        return covering
    versions = [info.version for info in infos.values()]
    return [m for m, info in there if info.minimum_version <= min(versions) and max(versions) <= info.maximum_version]


def check_assignors(member: GroupMember, others: Mapping[Listing, int], server_assignors: Collection[str]) -> None:
    """Reject a member that would leave the group without an assignor.

    Args:
        others: the listings of the other members.

    Raises:
        UnsupportedAssignor: "ServerAssignor must be supported by the server"; version ranges do not overlap.
    """
    if member.server_assignor is not None and member.server_assignor not in server_assignors:
        allowed = ", ".join(sorted(server_assignors)) or "none on this coordinator"
        raise UnsupportedAssignor(f"ServerAssignor: got {printable(member.server_assignor)!r}; allowed: {allowed}")
    # Members that list no assignor are excluded: once they leave, the other members need a common assignor, and at that
    # point no request could be rejected with UNSUPPORTED_ASSIGNOR.
    listings = Counter(others)
    count_listing(listings, member, 1)
    del listings[()]
    select_assignor(listings)


M = TypeVar("M", MemberRecord, ConsumerMemberRecord)
"""The record of a member."""


class Process(NamedTuple):
    """The process that a member belongs to, or that sends a request (PD-15).

    The process id is a part of the request; the principal is known from the connection alone.

    Attributes:
        process_id: drawn at random by the process; -1: none or unknown.
        principal: the authenticated user of the connection, or the name in its TLS certificate; empty: the server does
            not authenticate. ``None``: unknown (an earlier version has stored the member), or the sender is a part of
            the coordinator's own process that acts for any principal.
    """

    process_id: int = -1
    principal: str | None = ""

    def accepts(self, sender: Process) -> bool:
        """Whether a member of this process accepts a request of the sender; what is unknown accepts everything."""
        if self == sender:  # nearly always
            return True
        if self.process_id not in (-1, sender.process_id):
            return False
        return self.principal == sender.principal or self.principal is None or sender.principal is None


NO_PROCESS: Final = Process()
"""The process of a request without a process id, on a connection without authentication."""

ANY_PROCESS: Final = Process(-1, None)
"""The process of a member that accepts every sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Generic[U]):
    """One member's target assignment, with the assignor's error and metadata for the member."""

    units: frozenset[U] = frozenset()
    error: int = 0
    version: int = 0
    metadata: bytes = b""


NO_TARGET: Final[Target[Any]] = Target()


class MemberKinds(NamedTuple):
    """The kinds of a member's records in a group type, in the order in which they are removed (HB-19)."""

    current: Kind
    target: Kind
    member: Kind


CacheKey = tuple[str, *tuple[object, ...]]
"""The member id, and what else the outcome of a heartbeat depends on besides the state of the group."""


class Computing:
    """What a group has in common with the draft of its next state: the epochs, and who computes.

    Attributes:
        group_id: never changes.
        epoch: the group epoch; 0 if no record created the group.
        target_epoch: the epoch of the target assignment; at most ``epoch``. 0: there is none yet.
        computation: the latest computation of a target assignment, also one that has ended. It is in progress only if
            its epoch is above ``target_epoch`` (``computation.under_way``).
    """

    group_id: str
    epoch: int
    target_epoch: int
    computation: ComputationRecord | None


class GroupState(Computing, Generic[M, U]):
    """The state of one group. Any code may read it; only ``apply`` changes it, except where an attribute says so.

    The first attributes are what the records say; the others are derived from them, so that nothing need be searched.
    """

    group_type: ClassVar[str]
    """The name of the group's type in its ``GroupRecord``."""
    kinds: ClassVar[MemberKinds]
    reaches_all_units: ClassVar[bool]
    """Whether a member at the target epoch has all units of its target assignment. A consumer need not: topics that it
    does not subscribe to any more are left out."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # Raised by a GroupRecord, whenever a new target assignment is needed; 0 again after the group's tombstone.
        self.epoch = 0
        # The wall clock when the group was created. It outlives the group's tombstone: a group of the same name that is
        # created later must have a later one (``GroupDraft.created_ms``).
        self.created_ms = 0
        # The members by id: set by a member's record, removed by its tombstone.
        self.members: dict[str, M] = {}
        # Of the installed target assignment: a TargetRecord sets these, its tombstone resets them. The units are in
        # ``targets``: a TargetMemberRecord sets and removes those of one member.
        # Above ``target_epoch``, the group is waiting for the next one; members go on with this one.
        self.target_epoch = 0
        self.target_assignor = ""
        # The member that computed it, or ``COORDINATOR``; empty: none, or it comes from the group's former type.
        self.computed_by = ""
        # Of the Install request, to recognize a repeated one; 0 if no member computed it.
        self.target_checksum = 0
        # When it was installed; 0 if the group had no members. The assignment interval counts from it.
        self.target_ms = 0
        # The target assignment by member. A member that joined since the installation has none. Written one by one
        # before the TargetRecord that makes them current.
        self.targets: dict[str, Target[U]] = {}
        # The current assignment of each member, and of a removed member until its own tombstone. Of all current
        # assignments, only one holds a unit, except while a compacted log is replayed.
        self.currents: dict[str, Current[U]] = {}
        # Replaced by each ComputationRecord. Not cleared by the installation, which ends it by its epoch.
        self.computation: ComputationRecord | None = None

        # ---- derived

        # The member id of each group instance id: of the member that joined last with it.
        self.instances: dict[str, str] = {}
        # The owner of each unit in a current assignment, pending revocations included, with the owner epoch.
        self.holders: dict[U, tuple[str, int]] = {}
        # The member that has the unit in its target assignment: it is woken when the unit is released.
        self.wanted_by: dict[U, str] = {}
        # The members that have not reached the target assignment (``_see_progress``). Never one that left temporarily.
        self.behind: set[str] = set()
        # How many members list which client-side assignors.
        self.listings: Counter[Listing] = Counter()
        # Outcomes of heartbeats that report nothing, by member id. ``keep`` adds them, any record clears them.
        self.heartbeat_cache: dict[str, tuple[CacheKey, Outcome[Any]]] = {}
        # Members that may have a new response since the shard last cleared this set: their parked heartbeats are
        # decided again at once.
        self.members_to_wake: set[str] = set()
        # Members that only learn a new epoch, and that the shard wakes in slices. A member may be in both sets.
        self.members_to_wake_later: set[str] = set()

    @property
    def exists(self) -> bool:
        """Whether a record created this group. A group that was only looked up does not exist."""
        return self.epoch > 0

    @property
    def state_name(self) -> str:
        """Dead (no such group), Empty, Assigning (a target assignment is being computed), Reconciling (members are
        behind it), or Stable (S8).
        """
        if not self.exists:
            return "Dead"
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Reconciling" if self.behind else "Stable"

    def current(self, member_id: str) -> Current[U]:
        """The member's current assignment; empty for a member without a record."""
        return self.currents.get(member_id, NOTHING)

    def target(self, member_id: str) -> Target[U]:
        """The member's target assignment."""
        return self.targets.get(member_id, NO_TARGET)

    def process_of(self, sender: str) -> Process:
        """The process that joined as the member; ``ANY_PROCESS`` if there is no such member, or it is unknown."""
        return ANY_PROCESS

    @classmethod
    def replay(cls, group_id: str, records: Iterable[Record]) -> Self:
        """Rebuild a group from its log."""
        group = cls(group_id)
        for record in records:
            group.apply(record)
        group.members_to_wake.clear()
        group.members_to_wake_later.clear()
        return group

    # ----------------------------------------------------------------------------------------------
    # Records

    def apply(self, record: Record) -> None:
        """Apply one record. Never raises for a record of a known class."""
        self.heartbeat_cache.clear()
        match record:
            case GroupRecord():
                self.epoch, self.created_ms = record.epoch, record.created_ms
            case TargetRecord():
                self.target_epoch, self.target_assignor = record.epoch, record.assignor
                self.computed_by, self.target_checksum = record.computed_by, record.checksum
                self.target_ms = record.at_ms
                for member_id in self.members:
                    self._see_progress(member_id)
                self._wake_all()
            case ComputationRecord():
                self.computation = record
                if record.member_id and not record.prepared:
                    self.members_to_wake.add(record.member_id)
            case Tombstone():
                self._remove(record.key)
            case _:
                pass

    def _set_member(self, record: M) -> None:
        member_id = record.member_id
        self._forget_instance(member_id)
        self._count(self.members.get(member_id), record)
        self.members[member_id] = record
        if record.instance_id is not None:
            self.instances[record.instance_id] = member_id
        self.currents.setdefault(member_id, NOTHING)
        self._see_progress(member_id)

    def _set_target(self, member_id: str, target: Target[U]) -> None:
        self._forget_wanted(member_id)
        self.targets[member_id] = target
        self.wanted_by.update(dict.fromkeys(target.units, member_id))

    def _set_current(self, member_id: str, after: Current[U]) -> None:
        before_held, after_held = self.current(member_id).held, after.held
        for unit in before_held:
            if unit not in after_held and self.holders.get(unit, ("", 0))[0] == member_id:
                del self.holders[unit]
                if (waiting := self.wanted_by.get(unit)) is not None:
                    self.members_to_wake.add(waiting)
        for unit, epoch in after_held.items():
            holder = self.holders.get(unit)
            # A compacted log can show the new owner before the release by the old one: the higher owner epoch wins.
            if holder is None or holder[0] == member_id or holder[1] < epoch:
                self.holders[unit] = (member_id, epoch)
        self.currents[member_id] = after
        self._see_progress(member_id)

    def _remove(self, key: Key) -> None:
        """Apply a tombstone."""
        kind, name = key.kind, key.name
        if kind is self.kinds.current:
            self._set_current(name, NOTHING)
            if name not in self.members:
                del self.currents[name]
        elif kind is self.kinds.target:
            self._forget_wanted(name)
            self.targets.pop(name, None)
            self._see_progress(name)
        elif kind is self.kinds.member:
            self._forget_instance(name)
            self._count(self.members.pop(name, None), None)
            if not self.current(name).held:
                self.currents.pop(name, None)
            self.behind.discard(name)
            self.members_to_wake.add(name)
        elif kind is Kind.COMPUTATION:
            self.computation = None
        elif kind is Kind.TARGET:
            self.target_epoch, self.target_assignor, self.computed_by = 0, "", ""
            self.target_checksum = self.target_ms = 0
        elif kind is Kind.GROUP:
            self.epoch = 0

    # ----------------------------------------------------------------------------------------------
    # What is derived

    def _wake_all(self) -> None:
        """All members learn a new target epoch."""
        self.members_to_wake.update(self.members)

    def _count(self, before: M | None, after: M | None) -> None:
        """Update what is counted of the members, so that a join need not look at all of them."""
        if before is not None:
            count_listing(self.listings, before, -1)
        if after is not None:
            count_listing(self.listings, after, 1)

    def _forget_instance(self, member_id: str) -> None:
        """Free a group instance id when its member is removed or changes its instance id (KAFKA-20747)."""
        member = self.members.get(member_id)
        name = member.instance_id if member is not None else None
        # In a compacted log the record of the next member with this instance id may precede this member's tombstone.
        if name is not None and self.instances.get(name) == member_id:
            del self.instances[name]

    def _forget_wanted(self, member_id: str) -> None:
        for unit in self.target(member_id).units:
            if self.wanted_by.get(unit) == member_id:
                del self.wanted_by[unit]

    def _see_progress(self, member_id: str) -> None:
        """Update ``behind``: a member is behind until it has the target epoch, all units, and nothing to revoke.

        A member that left temporarily is never behind.
        """
        if member_id not in self.members:
            return
        current = self.current(member_id)
        if current.temporarily_left or (
            current.epoch == self.target_epoch
            and not current.pending
            and current.state == MemberState.STABLE
            and (not self.reaches_all_units or current.assigned.keys() == self.target(member_id).units)
        ):
            self.behind.discard(member_id)
        else:
            self.behind.add(member_id)

    # ----------------------------------------------------------------------------------------------
    # The outcome of a heartbeat that reports nothing is kept until a record changes the group.
    #
    # Nearly all heartbeats are of this kind: the member has reached the target assignment, and neither side has
    # anything to tell. Such a heartbeat is decided by the same rules as any other; its outcome depends on the group and
    # on the fields in its key, not on the time, so it is the outcome of the next one with that key as well.

    def kept(self, key: CacheKey) -> Outcome[Any] | None:
        """The outcome of an equal heartbeat since the last record, or ``None``."""
        known = self.heartbeat_cache.get(key[0])
        return known[1] if known is not None and known[0] == key else None

    def keep(self, key: CacheKey, outcome: Outcome[Any]) -> None:
        """Keep the outcome of a heartbeat that reports nothing, if it will be that of the next one with this key.

        While a target assignment is missing, an outcome depends on the time; and members that are behind advance.
        """
        if (
            self.epoch == self.target_epoch
            and key[0] not in self.behind
            and not (outcome.records or outcome.effects)
            and not getattr(outcome.response, "error_code", 0)
        ):
            self.heartbeat_cache[key[0]] = key, outcome


A = TypeVar("A", bound=Response | None)
"""The response of a step."""


class GroupDraft(Computing, Generic[M, U], ABC):
    """A group with the records of the current step applied to it.

    Attributes, besides those of ``Computing``; ``write`` changes them, except for ``group`` and ``now_ms``:
        group: state as of the last applied record.
        now_ms: the coordinator's wall clock; written into records for operators and for the computation of downtime.
        records: written so far, in order.
        target_assignor: the assignor that computed the target assignment.
    """

    def __init__(self, group: GroupState[M, U], now_ms: int) -> None:
        self.group: GroupState[M, U] = group
        self.now_ms = now_ms
        self.group_id = group.group_id
        self.epoch, self.target_epoch, self.computation = group.epoch, group.target_epoch, group.computation
        self.target_assignor = group.target_assignor
        self.records: list[Record] = []
        # What this step has written of members, current and target assignments; ``None``: removed.
        self._members: dict[str, M | None] = {}
        self._currents: dict[str, Current[U] | None] = {}
        self._targets: dict[str, Target[U] | None] = {}
        # Whether this step has advanced the group epoch: several causes in one step share one epoch.
        self._bumped = False

    def outcome(self, response: A, timers: tuple[Timer, ...] = (), **more: Any) -> Outcome[A]:
        """The outcome of the step, with the records written so far; ``more`` are other attributes of ``Outcome``."""
        return Outcome(response=response, records=tuple(self.records), timers=timers, **more)

    # ---- writing

    def write(self, record: Record) -> None:
        """Add a record; later reads of the draft include it."""
        self.records.append(record)
        match record:
            case GroupRecord():
                self.epoch = record.epoch
            case TargetRecord():
                self.target_epoch, self.target_assignor = record.epoch, record.assignor
            case ComputationRecord():
                self.computation = record
            case _:
                pass

    def forget(self, kind: Kind, name: str) -> None:
        """Write a tombstone, at most once."""
        tombstone = Tombstone(Key(kind, self.group_id, name))
        if tombstone not in self.records:
            self.write(tombstone)

    def set_member(self, member: M) -> None:
        """Write the record of a member."""
        self._members[member.member_id] = member
        self.write(member)

    def set_current(self, member_id: str, current: Current[U]) -> None:
        """Write the new current assignment of a member."""
        self._currents[member_id] = current
        self.write(self._current_record(member_id, current))

    def set_target(self, member_id: str, target: Target[U]) -> None:
        """Write the target assignment of a member."""
        self._targets[member_id] = target
        self.write(self._target_record(member_id, target))

    def forget_target(self, member_id: str) -> None:
        """Remove the target assignment of a member."""
        self._targets[member_id] = None
        self.forget(self.group.kinds.target, member_id)

    def forget_member(self, member_id: str) -> None:
        """Write tombstones for current assignment, target assignment and member, in this order (HB-19)."""
        self._members[member_id] = self._currents[member_id] = self._targets[member_id] = None
        for kind in self.group.kinds:
            self.forget(kind, member_id)

    @abstractmethod
    def _current_record(self, member_id: str, current: Current[U]) -> Record: ...
    @abstractmethod
    def _target_record(self, member_id: str, target: Target[U]) -> Record: ...

    # ---- reading

    @abstractmethod
    def computing_members(self) -> Container[str]:
        """The members that may compute now."""

    @property
    def next_epoch(self) -> int:
        """The group epoch after ``bump`` is called in this step."""
        return self.epoch if self._bumped else self.epoch + 1

    @property
    def created_ms(self) -> int:
        """The creation time of the group.

        A group created again under the id of a deleted group must have a later creation time, even if the clock was set
        back: fencing tokens count its seconds (``TaskContext.fencing_token``) and must increase.
        """
        known_ms = self.group.created_ms
        return known_ms if self.group.exists else max(self.now_ms, known_ms + 1_000)

    def member(self, member_id: str) -> M | None:
        """A member's record, or ``None`` if there is no such member."""
        if member_id in self._members:
            return self._members[member_id]
        return self.group.members.get(member_id)

    def members(self) -> Iterator[M]:
        """All members, sorted by id: an unsorted order that leaves the core would differ between runs."""
        for member_id in sorted(self.group.members.keys() | self._members.keys()):
            member = self.member(member_id)
            if member is not None:
                yield member

    def any_member(self, condition: Callable[[M], bool] = lambda member: True) -> bool:
        """Whether the condition holds for any member; usually it holds for the first one that is looked at."""
        changed = self._members
        return any(member is not None and condition(member) for member in changed.values()) or any(
            condition(member) for member_id, member in self.group.members.items() if member_id not in changed
        )

    def listings(self, *, without: str = "") -> Mapping[Listing, int]:
        """The assignors that the members list, with the number of members that list them (``kernel.state``).

        Args:
            without: a member that does not count.
        """
        changed: dict[str, M | None] = {**self._members, **({without: None} if without else {})}
        if not changed:
            return self.group.listings
        listings = Counter(self.group.listings)
        for member_id, after in changed.items():
            if (before := self.group.members.get(member_id)) is not None:
                count_listing(listings, before, -1)
            if after is not None:
                count_listing(listings, after, 1)
        return listings

    def current(self, member_id: str) -> Current[U]:
        """A member's current assignment."""
        if member_id in self._currents:
            return self._currents[member_id] or NOTHING
        return self.group.current(member_id)

    def target(self, member_id: str) -> Target[U]:
        """A member's target assignment."""
        if member_id in self._targets:
            return self._targets[member_id] or NO_TARGET
        return self.group.target(member_id)

    def has_target(self, member_id: str) -> bool:
        """Whether the target assignment has an entry for the member. It has none for a member that joined since."""
        if member_id in self._targets:
            return self._targets[member_id] is not None
        return member_id in self.group.targets

    def owner(self, unit: U) -> str | None:
        """The owner of a unit. A unit with a pending revocation still has its owner."""
        holder = self.group.holders.get(unit)
        if holder is None:
            return None
        member_id = holder[0]
        if member_id in self._currents:
            changed = self._currents[member_id]
            if changed is None or (unit not in changed.assigned and unit not in changed.pending):
                return None  # released in this step
        return member_id

    def is_settled(self, member_id: str) -> bool:
        """Whether a member has reached the newest target assignment and nothing has changed since.

        A fast path for the usual heartbeat, whose cost must not grow with the number of units the member owns. Every
        cause of a change first advances the group epoch past the target epoch.
        """
        group = self.group
        return (
            self.epoch == self.target_epoch == group.target_epoch
            and member_id not in self._currents
            and member_id in group.members
            and member_id not in group.behind
            and not group.current(member_id).temporarily_left
        )

    def rebalance_timer(self, member_id: str, before: Current[U], after: Current[U]) -> tuple[Timer, ...]:
        """Arm the timer when there are new pending revocations; cancel it when none is left (TO-02, TO-03)."""
        if after.state == MemberState.UNREVOKED:
            if after.pending == before.pending:
                return ()
            member = self.member(member_id)
            assert member is not None
            return (outcome.rebalance(self.group_id, member_id, after, member.rebalance_timeout_ms),)
        if before.state == MemberState.UNREVOKED:
            return (outcome.cancel_rebalance(self.group_id, member_id),)
        return ()


class Those(Container[str], Generic[M, U]):
    """The member ids of a draft for which a condition holds."""

    def __init__(self, draft: GroupDraft[M, U], condition: Callable[[M], bool]) -> None:
        self._draft: GroupDraft[M, U] = draft
        self._condition: Callable[[M], bool] = condition

    def __contains__(self, member_id: object) -> bool:
        member = self._draft.member(member_id) if isinstance(member_id, str) else None
        return member is not None and self._condition(member)
