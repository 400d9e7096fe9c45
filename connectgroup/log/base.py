"""A log stores the records of many groups in order, in batches, and replays them after a restart.

The contract of a log, in the order of its life cycle:

1. ``open`` takes ownership of the log for this process and increments its *epoch*. Either a second process is
   rejected, or it takes over and the next ``append`` of the first process fails with ``LogFenced``. Two processes
   never both write (D4). Workers reject responses of the first process, whose epoch is lower; clients of Kafka's
   protocols do not know it, so that the first process must not respond any more when a second one serves: the log is
   locked (SQLite), or the owner has a lease (``SharedLog``).
2. ``load`` returns each group's records in append order, whole batches only. It waits for the appends called before
   it. If a group has a corrupt record (unknown kind or version, wrong checksum, bytes that do not decode, a missing
   record), ``load`` returns an error instead of the group's records; the group is never served without that record
   (D7, KAFKA-18672). Other groups are not affected.
3. ``append`` writes one batch atomically and returns when the batch is durable, that is, when it survives the crashes
   that this log promises to survive (D3). Batches are in the order of the ``append`` calls, also when calls overlap.
   An empty batch writes nothing and returns when all earlier batches are durable: a response that exposes state
   waits for this.
4. A failed ``append`` has one of three meanings. ``AppendRefused``: nothing was written, nothing else is affected, and
   no reload is needed. ``LogNotWritable``: nothing was written, and nothing can be for now. Any other ``LogError``, or
   a cancelled call: the outcome is unknown; the caller drops its state of the group, reloads the group, and never
   retries the batch without the reload (D6).
5. A log may be compacted at any time. Compaction may remove a record that a later record of the same key replaces,
   and a tombstone together with the records that it deletes. Replaying the remaining records gives the same state (D2).
6. ``close`` closes the log. Acknowledged batches remain; every later call raises ``LogError``.

One log belongs to one event loop. Sources: Kafka's ``CoordinatorRuntime`` and ``CoordinatorLoader``; reliability
list D1-D10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from ..errors import LogError, WireError
from ..protocol.records.base import Key
from ..protocol.records.connect import Record
from ..protocol.units import printable
from ..wire.record_codec import encode_record

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Default maximum batch size: a target assignment for 1,000 workers and 100,000 tasks takes about 1 MB."""

Loaded = tuple[Record, ...] | LogError
"""One loaded group: its records, or the error because of which it must not be served."""


class AppendRefused(LogError):
    """The log rejected the batch and wrote nothing: it is too large, or a value in it cannot be encoded."""


class LogNotWritable(LogError):
    """Nothing was written, because the log takes no writes now: its disk is full, fails or is read-only.

    It can still be read. The same batch may be appended later; ``check_writable`` tells when.
    """


class LogAway(LogNotWritable):
    """The server of the log cannot be reached, or is not ready yet: an attempt in a while may succeed.

    Any other error of ``SharedLog.connect`` stays until an operator has changed something.
    """


class LogFenced(LogError):
    """Another process has opened the log. This process must stop serving; to reopen would fence the other process."""


class LogHeld(LogError):
    """Another coordinator owns the log and its lease has not expired: ``SharedLog.stand_by`` waits for that."""


class Log(Protocol):
    """The log interface of the coordinator runtime; the module docstring is its contract."""

    @property
    def epoch(self) -> int:
        """The coordinator epoch of this opening, >= 1; it increases with each opening of the same log."""

    async def open(self) -> None:
        """Take ownership of the log for this process and increment its epoch.

        Raises:
            LogError: a one-line description of the problem. No resource is held, and ``open`` may be retried.
        """

    async def load(self, group_id: str | None = None) -> dict[str, Loaded]:
        """Return the records of one group, or of all groups.

        Args:
            group_id: the group; the result then has exactly this key, with ``()`` if the log has no records of it.

        Raises:
            LogError: the log cannot be read at all.
        """

    async def append(self, records: Sequence[Record]) -> None:
        """Append one batch; it is durable on return.

        Raises:
            AppendRefused: nothing was written, and only this caller is affected (KAFKA-19760).
            LogNotWritable: nothing was written; the log can be read.
            LogFenced: another process owns the log now.
            LogError: the outcome is unknown; the caller must reload.
        """

    async def check_writable(self) -> None:
        """Return if an append would succeed now. Only a log that raises ``LogNotWritable`` needs more than this.

        Raises:
            LogError: the log takes no writes.
        """
        return  # a log that never raises it

    async def compact(self) -> int:
        """Remove records that later records replace; return the number of removed records."""

    async def close(self) -> None:
        """Close the log and release its ownership. A second call has no effect."""


@runtime_checkable
class SignsOfLife(Protocol):
    """A log whose next process can tell when the present one, which may be killed, was last alive.

    Attributes:
        last_alive_ms: when the process that had the log before was last alive, in milliseconds since 1970; of a new
            log: when it was created. ``open`` sets it.
    """

    last_alive_ms: int

    async def show_alive(self) -> None:
        """Leave a sign of life, without waiting for the disk.

        Raises:
            LogError: the log is not open.
        """


REGISTER_S: Final = 2.0
"""A coordinator that stands by is registered again after this time; after five times that it is no longer listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One of the coordinators of a shared log, for operators.

    Attributes:
        address: the ``host:port`` that it advertises.
        epoch: the coordinator epoch of the owner; -1: it stands by.
        since_ms: since when it owns the log or stands by, in milliseconds since 1970, by the clock of the database.
        lag_ms: of one that stands by: time since it has last registered, which it does every ``REGISTER_S`` once it has
            read the log; -1: the owner.
    """

    address: str
    epoch: int
    since_ms: int
    lag_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Who coordinates the groups of a shared log, for operators.

    Attributes:
        coordinators: the owner first, if there is one, then those that stand by, sorted by address.
        failover_ms: when the owner took over, in milliseconds since 1970; -1: it is the first one of the log.
        failover_took_ms: from the last sign of life of its predecessor until then, in milliseconds.
        failover_cause: ``handed over``, ``lease expired``, or ``NONE_STOOD_BY``: the owner was started later; empty if
            there was no predecessor.
    """

    coordinators: tuple[Candidate, ...]
    failover_ms: int = -1
    failover_took_ms: int = -1
    failover_cause: str = ""

    @property
    def owner(self) -> Candidate | None:
        """The owner; ``None``: there is none."""
        return next((each for each in self.coordinators if each.epoch >= 0), None)


def owners_and_standbys(found: Sequence[Ownership]) -> tuple[list[tuple[int, Candidate]], list[Candidate]]:
    """The coordinators of a log, from the ownership of each of its partitions.

    Returns:
        The owner of each partition that has one, with its number; and once each, sorted by address, those that own
        none, with the largest lag of all partitions. Of several processes at one address, the newest counts; one
        without an address, such as ``groups recover``, is none.
    """
    owners = [(number, ownership.owner) for number, ownership in enumerate(found) if ownership.owner is not None]
    left_out = {"", *(owner.address for _, owner in owners)}
    standbys: dict[str, Candidate] = {}
    for ownership in found:
        newest: dict[str, Candidate] = {}
        for each in ownership.coordinators:
            if each.address not in left_out and (
                each.address not in newest or each.lag_ms < newest[each.address].lag_ms
            ):
                newest[each.address] = each
        for address, each in newest.items():
            if address not in standbys or each.lag_ms > standbys[address].lag_ms:
                standbys[address] = each
    return owners, [standbys[address] for address in sorted(standbys)]


NONE_STOOD_BY: Final = "no coordinator stood by"
"""``Ownership.failover_cause`` of an owner that was started when its predecessor had ended: no fail-over, but a gap."""


@runtime_checkable
class SharedLog(Log, Protocol):
    """A log that several coordinators share: one owns it, the others stand by and take over.

    7. ``open`` raises ``LogHeld`` while another coordinator holds the lease. The lease decides who *tries* to open the
       log; the epoch, which each ``append`` checks in the same atomic statement that writes, decides who *may* write.
    8. The owner renews its lease while the log is open. Until ``lease_ends_s`` no other coordinator opens the log: a
       response that was decided before, and before which the clock is read again, exposes no state that a successor
       has changed. That is what makes a second process safe for clients that do not know coordinator epochs (point 1):
       a response is at worst late, as on a slow network.
    9. Times are measured with the monotonic clocks of the coordinators alone. The owner counts from the *send* of its
       last confirmed renewal; another coordinator from the *arrival* of the answer in which it saw that renewal first,
       and for longer. No clock of the database is compared with any other.

    10. The groups may be spread over several partitions, each with an owner, a lease, an epoch and records of its own:
        ``units.partition_of`` says which partition has a group. The number of partitions is that of the first start.

    Attributes:
        address: the ``host:port`` at which clients reach this coordinator; set before ``connect``.
        credentials: a fingerprint of the users that this coordinator knows, to compare with those of the others; empty:
            unknown. Set before ``connect``.
        successor: of a partition: the address of the coordinator that ``close`` hands it to, for which the others
            wait; empty: whichever comes first. ``None``: the log has one partition.
    """

    address: str
    credentials: str
    successor: str | None

    @property
    def partitions(self) -> int:
        """The number of partitions of the log, once ``connect`` has returned."""

    def expect_partitions(self, count: int) -> None:
        """``connect`` creates a log with so many partitions, and rejects one that has another number of them."""

    def partition(self, number: int) -> SharedLog:
        """The log of a partition, from 0; this one is that of partition 0. Set the addresses of each."""

    @property
    def owner(self) -> str:
        """The advertised address of the coordinator that owns the log, as far as known; empty if there is none."""

    @property
    def lease_ends_s(self) -> float:
        """Until when this process owns the log, on the event loop's clock; after that, it must not respond."""

    @property
    def lost_records(self) -> str:
        """Why the log may lack acknowledged records (its database was restored or failed over); empty if it has all."""

    async def connect(self) -> None:
        """Check that the log can be used by this process; create it if necessary.

        Raises:
            LogAway: not now.
            LogError: a one-line description of the problem.
        """

    async def stand_by(self) -> None:
        """Wait until ``open`` may succeed, registered as one of the coordinators of the log."""

    async def wait_lost(self) -> str:
        """Wait until this process no longer owns the log; return the reason."""

    async def mark_serving(self) -> None:
        """The groups are loaded, and recovered if records may be missing (``coordinator.loading``): note both.

        Raises:
            LogError: as ``append``.
        """

    async def ownership(self) -> Ownership:
        """Who owns the log, and who stands by.

        Raises:
            LogError: the log cannot be read.
        """


class EncodedRecord(NamedTuple):
    """A record as stored: its key, and its bytes or ``None`` for a tombstone."""

    key: Key
    value: bytes | None


def encode_batch(
    records: Sequence[Record], *, max_bytes: int, max_record_bytes: int | None = None
) -> list[EncodedRecord]:
    """Return a batch in its stored form. Only this function raises ``AppendRefused``.

    Args:
        max_bytes: maximum size of all keys and values.
        max_record_bytes: maximum size of the key and the value of one record; ``None``: no such limit.

    The limit applies to the uncompressed bytes of keys and values: an estimate of the compression ratio made the other
    writers of a shared batch fail (KAFKA-19760).
    """
    encoded = []
    size = 0
    for record in records:
        key = record.key
        try:
            value = encode_record(record)
            record_size = len(key.group_id.encode()) + len(key.name.encode()) + len(value or b"")
        except (WireError, UnicodeEncodeError) as error:
            raise AppendRefused(f"{where(key)}: cannot be stored: {printable(error)}") from error
        if max_record_bytes is not None and record_size > max_record_bytes:
            raise AppendRefused(f"{where(key)}: takes {record_size} bytes; allowed: up to {max_record_bytes}")
        size += record_size
        encoded.append(EncodedRecord(key, value))
    if size > max_bytes:
        raise AppendRefused(
            f"group {printable(encoded[0].key.group_id)}: a batch of {len(encoded)} records takes {size} bytes; "
            f"allowed: up to {max_bytes}"
        )
    return encoded


def where(key: Key) -> str:
    """Format a key for an error message."""
    return f"group {printable(key.group_id)}: {key.kind.name.lower()} {printable(key.name)!r}"


def copied(error: Exception) -> Exception:
    """Copy an error for one caller: a shared exception object would mix up the tracebacks of several callers."""
    if not isinstance(error, LogError):
        return error
    copy: LogError = type(error)(*error.args)
    copy.__cause__ = error
    return copy
