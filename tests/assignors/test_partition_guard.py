"""Whatever an assignor of partitions does wrong becomes one line that names it and the violation.

Results as arrays are covered in ``test_partition_columns``; checks common to both kinds in ``test_assignor_guard``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from connectgroup.assign.api import ConnectAssignment, PartitionAssignment, PartitionAssignor, PartitionAssignorInput
from connectgroup.assign.convert import assignor_info
from connectgroup.assign.members import Metadata, PartitionMember, PartitionMemberAssignment
from connectgroup.assign.sandbox import run_assignor
from connectgroup.errors import PluginError
from connectgroup.protocol.units import TopicPartition
from connectgroup.threads import off_loop

from .partition_tables import input_group, partitions

INPUT = input_group({"t": 2, "u": 1}, {"m1": "t", "m2": "*"}, owned={"m1": "t{0}", "m2": "u{0}"})


class Scripted(PartitionAssignor):
    """Returns what the test gives it."""

    name = "scripted"

    def __init__(self, result: Callable[[Any], Any]) -> None:
        self._result = result

    def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
        result: PartitionAssignment = self._result(group)
        return result


def result(*given: tuple[str, str], withheld: Any = frozenset(), **more: Any) -> PartitionAssignment:
    members = [PartitionMemberAssignment(member_id=name, partitions=partitions(its), **more) for name, its in given]
    return PartitionAssignment(members=members, withheld=withheld)


def holding(*things: object) -> PartitionAssignment:
    held: Any = frozenset(things)
    return PartitionAssignment(members=[PartitionMemberAssignment(member_id="m1", partitions=held)])


async def _too_late() -> None: ...


def _raise(_: object) -> None:
    raise ValueError("two\nlines")


BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    ("raises", _raise, r"assign raised ValueError: two\nlines"),
    ("exits", lambda _: sys.exit(3), "assign raised SystemExit: 3"),
    ("overflows", lambda group: BAD[2][1](group), "assign raised RecursionError"),
    ("nothing", lambda _: None, "assign returned None; allowed: PartitionAssignment"),
    ("a dict", lambda _: {"m1": ["t-0"]}, "assign returned a dict; allowed: PartitionAssignment"),
    ("other kind", lambda _: ConnectAssignment(), "assign returned a ConnectAssignment; allowed: PartitionAssignment"),
    ("async", lambda _: _too_late(), "assign is async; allowed: a plain method that returns PartitionAssignment"),
    ("other members", lambda _: PartitionAssignment(members=["m1"]), "members holds a str; allowed: PartitionMember"),  # type: ignore[list-item]
    ("no members", lambda _: PartitionAssignment(members=None), "members: got None; allowed: a list or tuple"),  # type: ignore[arg-type]
    ("invalid member id", lambda _: result((7, "t{0}")), "member_id: got 7; allowed: a string"),  # type: ignore[arg-type]
    ("stranger", lambda _: result(("m1", "t{0,1}"), ("m2", "u{0}"), ("x\x1b", "")), r"x\x1b is not a member"),
    ("listed twice", lambda _: result(("m2", "t{0}"), ("m2", "t{1} u{0}")), "m2 is listed twice"),
    ("twice", lambda _: result(("m2", "t{0,1} u{0}"), ("m1", "t{0}")), "t-0 is assigned twice: to m1 and m2"),
    ("unknown topic", lambda _: result(("m1", "t{0,1}"), ("m2", "u{0} v{0}")), "v-0, assigned to m2, does not exist"),
    ("unknown", lambda _: result(("m1", "t{0,1,2}"), ("m2", "u{0}")), "t-2, assigned to m1, does not exist"),
    ("left out", lambda _: result(("m1", "t{0}")), "t-1 is not assigned (and 1 more)"),
    ("all left out", lambda _: result(), "t-0 is not assigned (and 2 more)"),
    (
        "not subscribed",
        lambda _: result(("m1", "t{0} u{0}"), ("m2", "t{1}")),
        "u-0 is assigned to m1, which is not subsc",
    ),
    ("text", lambda _: holding("t-0"), "m1: its assignment holds 't-0'; allowed: TopicPartition"),
    ("plain tuple", lambda _: holding(("t", 0)), "m1: its assignment holds ('t', 0); allowed: TopicPartition"),
    (
        "invalid number",
        lambda _: holding(TopicPartition("t", True)),
        "m1: its assignment holds TopicPartition(topic='t', par",
    ),
    ("version", lambda _: result(("m1", ""), version=1), "m1: version: got 1; allowed: 0 .. 0"),
    ("metadata", lambda _: result(("m1", ""), metadata="text"), "m1: metadata: got a str; allowed: bytes"),
    (
        "withheld and given",
        lambda _: result(("m2", "t{0,1} u{0}"), withheld=partitions("t{0}")),
        "t-0, assigned to m2, is",
    ),
    (
        "withheld invalid",
        lambda _: result(("m2", "t{0,1} u{0}"), withheld=["t"]),
        "withheld: got ['t']; allowed: a frozen",
    ),
    ("withheld gone", lambda _: result(("m2", "t{0,1} u{0}"), withheld=partitions("t{9}")), "t-9, delayed, does not"),
    ("clears", lambda group: group.members.clear(), "assign raised AttributeError: 'tuple' object has no attribute"),
    ("empties", lambda group: setattr(group, "members", ()), "assign raised FrozenInstanceError"),
    ("takes", lambda group: group.members[0].owned.clear(), "assign raised AttributeError: 'frozenset' object has no"),
    ("subscribes", lambda group: setattr(group.members[0], "subscribed", "u"), "assign raised FrozenInstanceError"),
    ("overwrites", lambda group: group.columns().partition_owner.fill(0), "assign raised ValueError: assignment dest"),
    ("resubscribes", lambda group: group.columns().subscribed.fill(1), "assign raised ValueError: assignment dest"),
]


@pytest.mark.parametrize(("scripted", "line"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_invalid_result_is_one_line_naming_plug_in_and_violation(scripted: Callable[[Any], Any], line: str) -> None:
    with pytest.raises(PluginError) as caught:
        run_assignor(Scripted(scripted), INPUT)
    message = str(caught.value)
    assert message.startswith("assignor 'scripted' (")
    assert f": {line}" in message
    assert message.isprintable(), "one line without control characters"


def test_every_column_is_read_only() -> None:
    columns = INPUT.columns()
    arrays = [getattr(columns, name) for name in columns.__slots__ if hasattr(getattr(columns, name), "flags")]
    assert len(arrays) == 8
    assert not any(array.flags.writeable for array in arrays)


def test_input_made_of_lists_cannot_be_changed_through_them() -> None:
    members = [PartitionMember(member_id="m1")]
    group = PartitionAssignorInput(members=members)
    members.clear()
    assert [member.member_id for member in group.members] == ["m1"]


def test_input_may_be_used_again_after_an_invalid_result() -> None:
    for _, scripted, _ in BAD:
        with pytest.raises(PluginError):
            run_assignor(Scripted(scripted), INPUT)
    good = result(("m1", "t{0}"), ("m2", "t{1} u{0}"))
    assert run_assignor(Scripted(lambda _: good), INPUT) is good


async def test_hanging_assignor_is_abandoned() -> None:
    """In its own thread, as in the leader of a group; the loop continues, and the thread does not delay the exit."""
    forever = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await off_loop("assignor scripted", run_assignor, Scripted(lambda _: forever.wait()), INPUT)
    forever.set()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"name": ""}, "name: got ''; allowed: a non-empty string"),
        ({"minimum_version": 3, "maximum_version": 2}, "maximum_version: got 2; allowed: 3 .. 32767"),
        ({"metadata": lambda _, subscribed: None}, "metadata returned None; allowed: Metadata"),
        ({"metadata": lambda _, subscribed: Metadata(version=1)}, "version: got 1; allowed: 0 .. 0"),
        ({"metadata": lambda _, subscribed: sys.exit(1)}, "metadata raised SystemExit: 1"),
    ],
)
def test_assignor_with_invalid_metadata_or_name_is_rejected(fields: dict[str, object], line: str) -> None:
    with pytest.raises(PluginError) as caught:
        assignor_info(type("Bad", (Scripted,), fields)(lambda _: None))
    assert f": {line}" in str(caught.value)
