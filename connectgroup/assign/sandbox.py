"""Run an untrusted assignor: every failure becomes one ``PluginError`` with a one-line message.

Both the worker and the coordinator use ``run_assignor``. It calls ``assign`` and validates the result: the type, known
members, every unit known and assigned exactly once, versions within range. Violations are sorted, so the same invalid
result gives the same message everywhere. A call that never returns is the caller's responsibility: run it in a thread
with a time limit. Nothing in this process can prevent ``os._exit`` in a plug-in.

``first_violation`` validates an assignment only; the coordinator also uses it to check an installed assignment.
"""

from __future__ import annotations

import difflib
import inspect
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from ..errors import PluginError
from ..masking import masked_text
from ..protocol.messages.common import MAX_METADATA
from ..protocol.units import Partitions, TopicPartition, Unit, Units, printable
from .api import (
    Assignment,
    Assignor,
    AssignorInput,
    ConnectAssignment,
    ConnectAssignorInput,
    PartitionAssignment,
    PartitionAssignorInput,
)
from .members import ConnectMemberAssignment, Metadata, PartitionMemberAssignment
from .placement import WorkerTraits

if TYPE_CHECKING:
    from .columns import ConnectColumns, Integers, PartitionColumns
from .legality import _not_subscribed, first_violation

GroupT = TypeVar("GroupT", bound=AssignorInput)


AssignmentT = TypeVar("AssignmentT", bound=Assignment)


ResultT = TypeVar("ResultT")


_MAX_TEXT: Final = 2_000
"""Characters of an exception's text in which credentials are searched for; the rest is dropped."""

METHODS: Final = ("assign", "configure", "metadata", "on_assignment")
"""What is called of an assignor; all but the first are optional."""

_CALLERS = (__name__, "connectgroup.plugins")
"""Modules that call plug-ins; a built-in plug-in has the same top-level package."""


def run_assignor(assignor: Assignor[GroupT, AssignmentT, Any], group: GroupT) -> AssignmentT:
    """Run the assignor and validate its result.

    Args:
        assignor: any plug-in; nothing is assumed about it.
        group: the input.

    Returns:
        A valid result, or one with the assignor's own ``error`` set, whose members are not checked.

    Raises:
        PluginError: the assignor raised (``SystemExit`` included), or its result is invalid; the first
            violation, sorted, on one line.
    """

    def ask() -> tuple[AssignmentT, str | None]:
        result = assignor.assign(group)
        return result, _violation(assignor, group, result)

    result, violation = _guarded(assignor, "assign", ask)
    if violation is not None:
        raise PluginError(f"{describe_assignor(assignor)}: {violation}")
    return result


def configure_assignor(assignor: Assignor[Any, Any, Any], traits: WorkerTraits) -> None:
    """Pass the traits of its worker to the assignor.

    Raises:
        PluginError: ``configure`` raised.
    """
    _guarded(assignor, "configure", lambda: assignor.configure(traits))


def notify_plugin_assignor(assignor: Assignor[Any, Any, Any], share: ConnectMemberAssignment) -> None:
    """Pass the member's target assignment to the assignor.

    Raises:
        PluginError: ``on_assignment`` raised. The assignment stays in effect.
    """
    _guarded(assignor, "on_assignment", lambda: assignor.on_assignment(share))


def declaration_violation(assignor: Assignor[Any, Any, Any]) -> str | None:
    """Return the violation in an assignor's name, versions or methods; None if there is none.

    Source: "Connect on the new protocol", request validation of the heartbeat.
    """
    name, low, high = assignor.name, assignor.minimum_version, assignor.maximum_version
    if not isinstance(name, str) or not name:
        return f"name: got {printable(repr(name))}; allowed: a non-empty string"
    for field, value, least in (("minimum_version", low, -1), ("maximum_version", high, max(0, low))):
        if not _is_integer(value):
            return f"{field}: got {printable(repr(value))}; allowed: an integer"
        if not least <= value <= 32767:
            return f"{field}: got {value}; allowed: {least} .. 32767"
    return _method_violation(assignor)


def _method_violation(assignor: Assignor[Any, Any, Any]) -> str | None:
    """A method that is a coroutine function, which nothing would await, or that has nearly the name of an optional one
    and would never be called."""
    for method in METHODS:
        if inspect.iscoroutinefunction(getattr(assignor, method)):
            return f"{method}: got 'a coroutine function'; allowed: a plain function, which runs in a thread"
    for name, near in _nearly_methods(tuple(dir(type(assignor)))):
        if callable(getattr(assignor, name, None)):
            return f"{name}: unknown; allowed: {near} (did you mean that?)"
    return None


@lru_cache(maxsize=64)
def _nearly_methods(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Public names that are nearly those of optional methods, each with that method."""
    others = (name for name in names if name not in METHODS and not name.startswith("_"))
    near = ((name, difflib.get_close_matches(name, METHODS[1:], n=1, cutoff=0.8)) for name in others)
    return tuple((name, found[0]) for name, found in near if found)


def describe_assignor(assignor: object) -> str:
    """A plug-in's name and class, for messages about it."""
    name = getattr(assignor, "name", "")
    kind = assignor if isinstance(assignor, type) else type(assignor)
    return f"assignor {printable(name)!r} ({printable(f'{kind.__module__}.{kind.__qualname__}')})"


def _guarded(assignor: object, method: str, call: Callable[[], ResultT]) -> ResultT:
    try:
        return call()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # sent by the operator; in any other thread only the plug-in can have raised it
        message = f"{describe_assignor(assignor)}: {method} raised {describe(error)}"
        raise PluginError(message, location=location_of(error, assignor)) from error


def location_of(error: BaseException, plugin: object) -> str:
    """``file:line`` of the innermost frame of the plug-in's own code in a traceback, else empty.

    Its own code is all of its top-level package: frames of packages that it calls are less useful for locating the
    fault.
    """
    kind = plugin if isinstance(plugin, type) else type(plugin)
    return location_in(error, kind.__module__)


def location_in(error: BaseException, plugin_module: str) -> str:
    """Like ``location_of``, for the module of a plug-in that has no class because its import failed."""
    package = plugin_module.partition(".")[0]
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == package and module not in _CALLERS:
            found = f"{frame.f_code.co_filename}:{line}"
    if not found and isinstance(error, SyntaxError) and error.filename:
        found = f"{error.filename}:{error.lineno}"  # no line of the module has run
    return printable(found, limit=300)


def describe(error: BaseException) -> str:
    """Format an exception on one line, even if its ``__str__`` raises: ``ValueError: message``; credentials masked."""
    try:
        text = str(error)
    except Exception:
        text = "(no description)"
    name = printable(type(error).__name__)
    return f"{name}: {printable(masked_text(text[:_MAX_TEXT]), limit=200)}" if text else name


def _violation(assignor: Assignor[Any, Any, Any], group: AssignorInput, result: object) -> str | None:
    expected: type[Assignment] = ConnectAssignment if isinstance(group, ConnectAssignorInput) else PartitionAssignment
    share = ConnectMemberAssignment if isinstance(group, ConnectAssignorInput) else PartitionMemberAssignment
    if inspect.iscoroutine(result):
        result.close()
        return f"assign is async; allowed: a plain method that returns {expected.__name__}"
    if not isinstance(result, expected):
        return f"assign returned {_type(result)}; allowed: {expected.__name__}"
    if violation := _number_violation("error", result.error):
        return violation
    if not isinstance(result.message, str):
        return f"message: got {_type(result.message)}; allowed: a string"
    if result.error:
        return None
    if isinstance(result, ConnectAssignment) and isinstance(group, ConnectAssignorInput):
        if violation := _delay_violation(result):
            return violation
        if result.by_column is not None:
            columns, owner, assignor_state = result.by_column
            if violation := _bytes_violation(assignor_state):
                return violation
            return _column_violation(group, columns, owner, delayed=result.delayed)
    if isinstance(result, PartitionAssignment) and isinstance(group, PartitionAssignorInput):
        if not _all_units(result.withheld, TopicPartition):
            return f"withheld: got {printable(repr(result.withheld))}; allowed: a frozenset of TopicPartition"
        if result.by_column is not None:
            return _partition_column_violation(group, *result.by_column, withheld=result.withheld)
    if not isinstance(result.members, Sequence):
        # A generator would be exhausted after the first pass.
        return f"members: got {_type(result.members)}; allowed: a list or tuple of {share.__name__}"
    members: list[Any] = list(result.members)
    for member in members:
        if not isinstance(member, share):
            return f"members holds {_type(member)}; allowed: {share.__name__}"
        if not isinstance(member.member_id, str):
            return f"member_id: got {printable(repr(member.member_id))}; allowed: a string"
    for member in sorted(members, key=lambda member: member.member_id):
        violation = _share_violation(assignor, member)
        if violation is not None:
            return f"{printable(member.member_id)}: {violation}"
    known = {member.member_id for member in group.members}
    if isinstance(group, ConnectAssignorInput) and isinstance(result, ConnectAssignment):
        return first_violation(
            [(member.member_id, member.units) for member in members],
            members=known,
            units=frozenset(group.units),
            delayed=result.delayed,
            waiting=group.waiting,
        )
    if isinstance(group, PartitionAssignorInput) and isinstance(result, PartitionAssignment):
        return _partition_violation(group, members, result.withheld)
    return None


def _share_violation(assignor: Assignor[Any, Any, Any], member: Any) -> str | None:
    kind: type[Any] = Unit if isinstance(member, ConnectMemberAssignment) else TopicPartition
    things = member.units if kind is Unit else member.partitions
    if not isinstance(things, (frozenset, set)):
        return f"its assignment is {_type(things)}; allowed: a frozenset of {kind.__name__}"
    # Check the types before anything is compared: objects of other types may not be sortable.
    odd = sorted(printable(repr(thing)) for thing in things if not _is_unit(thing, kind))
    if odd:
        return f"its assignment holds {odd[0]}; allowed: {kind.__name__}"
    return _metadata_violation(assignor, member)


def _is_unit(thing: object, kind: type[Any]) -> bool:
    return isinstance(thing, kind) and isinstance(thing[0], str) and _is_integer(thing[1])


def _all_units(things: object, kind: type[Any]) -> bool:
    return isinstance(things, (frozenset, set)) and all(_is_unit(thing, kind) for thing in things)


def _metadata_violation(assignor: Assignor[Any, Any, Any], declared: Any) -> str | None:
    """Validate metadata to or from an assignor: version within range, metadata of type bytes and within the limit."""
    if not isinstance(declared, (Metadata, ConnectMemberAssignment, PartitionMemberAssignment)):
        return f"metadata returned {_type(declared)}; allowed: Metadata"
    field = "reason" if isinstance(declared, Metadata) else "error"
    if violation := _number_violation(field, getattr(declared, field)):
        return violation
    low, high = assignor.minimum_version, assignor.maximum_version
    if not _is_integer(declared.version) or not low <= declared.version <= high:
        return f"version: got {printable(repr(declared.version))}; allowed: {low} .. {high}"
    return _bytes_violation(declared.metadata)


def _number_violation(field: str, number: object) -> str | None:
    """Validate an assignor's own number, an error or a reason: one byte on the wire."""
    if not _is_integer(number) or not -128 <= number <= 127:
        return f"{field}: got {printable(repr(number))}; allowed: -128 .. 127"
    return None


def _bytes_violation(metadata: object) -> str | None:
    if not isinstance(metadata, bytes):
        return f"metadata: got {_type(metadata)}; allowed: bytes"
    if len(metadata) > MAX_METADATA:
        return f"metadata: got {len(metadata)} bytes; allowed: at most {MAX_METADATA}"
    return None


def _delay_violation(result: ConnectAssignment) -> str | None:
    if not _is_integer(result.delay_ms) or not 0 <= result.delay_ms < 1 << 31:
        return f"delay_ms: got {printable(repr(result.delay_ms))}; allowed: 0 .. {(1 << 31) - 1}"
    if not _all_units(result.delayed, Unit):
        return f"delayed: got {printable(repr(result.delayed))}; allowed: a frozenset of Unit"
    if result.delayed and not result.delay_ms:
        return f"delayed: got {len(result.delayed)} units with delay_ms 0; allowed: a delay_ms above 0"
    return None


def _column_violation(
    group: ConnectAssignorInput, columns: ConnectColumns, owner: Integers, *, delayed: Units
) -> str | None:
    if violation := _array_violation(columns, group.columns(), owner, len(columns.unit_owner), columns.unit):
        return violation
    left_out = owner < 0
    if delayed or group.waiting:
        held, waiting = columns.indices(delayed), columns.indices(group.waiting)
        fine = len(held) == len(delayed) and bool(left_out[held].all())
        left_out[held] = left_out[waiting] = False
        if fine and not (left_out.any() and columns.member_ids):
            return None
        shares = [(member.member_id, member.units) for member in ConnectAssignment.from_columns(columns, owner).members]
        return first_violation(
            shares,
            members=columns.member_ids,
            units=frozenset(group.units),
            delayed=delayed,
            waiting=group.waiting,
        )
    if columns.member_ids and left_out.any():
        more = f" (and {int(left_out.sum()) - 1} more)" if left_out.sum() > 1 else ""
        return f"{printable(columns.unit(int(left_out.argmax())))} is not assigned{more}"
    # The version needs no check: each member's metadata has the version that the member sent.
    return None


def _partition_column_violation(
    group: PartitionAssignorInput, columns: PartitionColumns, owner: Integers, *, withheld: Partitions
) -> str | None:
    """Like ``_column_violation``; also, an array may assign a partition to a member that is not subscribed to it."""
    import numpy as np

    name = columns.partition
    if violation := _array_violation(columns, group.columns(), owner, len(columns.partition_owner), name):
        return violation
    if {name(index) for index in np.flatnonzero(owner < 0).tolist()} != withheld:
        return _partition_violation(group, PartitionAssignment.from_columns(columns, owner).members, withheld)
    given = np.flatnonzero(owner >= 0)
    kind = columns.member_kind[owner[given]]
    for index in given[~columns.subscribed[kind, columns.partition_topic[given]]][:1].tolist():
        return _not_subscribed(name(index), columns.member_ids[owner[index]])
    return None


def _array_violation(
    columns: ConnectColumns | PartitionColumns,
    expected: ConnectColumns | PartitionColumns,
    owner: Integers,
    size: int,
    name: Callable[[int], object],
) -> str | None:
    """Validate an array result. It cannot assign a unit twice; its columns, type, shape or indices can be invalid."""
    import numpy as np

    if columns is not expected:
        return "from_columns: got columns of another group; allowed: group.columns()"
    shape, members = (size,), len(columns.member_ids)
    if not isinstance(owner, np.ndarray) or owner.dtype.kind != "i" or owner.shape != shape:
        got = f"{owner.dtype} of shape {owner.shape}" if isinstance(owner, np.ndarray) else _type(owner)
        return f"owner: got {got}; allowed: signed integers of shape {shape}"
    outside = np.flatnonzero((owner < -1) | (owner >= members))
    if outside.size:
        index = int(outside[0])
        return f"owner of {printable(name(index))}: got {int(owner[index])}; allowed: -1 .. {members - 1}"
    return None


def _partition_violation(group: PartitionAssignorInput, members: Sequence[Any], withheld: Partitions) -> str | None:
    given = [(member.member_id, member.partitions) for member in members]
    known = {member.member_id: member.subscribed for member in group.members}
    violation = first_violation(given, members=known, units=frozenset(group.partitions), delayed=withheld)
    if violation is not None:
        return violation
    for member_id, partitions in sorted(given):
        for partition in sorted(partitions):
            if partition.topic not in known[member_id]:
                return _not_subscribed(partition, member_id)
    return None


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _type(value: object) -> str:
    return "None" if value is None else f"a {printable(type(value).__name__)}"
