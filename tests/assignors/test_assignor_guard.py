"""Whatever a plug-in does wrong becomes one line that names it and the violation."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectgroup.assign.api import (
    ConnectAssignment,
    ConnectAssignor,
    ConnectAssignorInput,
    PartitionAssignment,
    PartitionAssignor,
    PartitionAssignorInput,
)
from connectgroup.assign.convert import assignor_info, members_for_install
from connectgroup.assign.legality import first_violation
from connectgroup.assign.members import (
    ConnectMember,
    ConnectMemberAssignment,
    ConnectorSpec,
    DelayedWork,
    Metadata,
    PartitionMember,
    PartitionMemberAssignment,
    TopicSpec,
)
from connectgroup.assign.sandbox import notify_plugin_assignor, run_assignor
from connectgroup.errors import PluginError
from connectgroup.protocol.messages.common import MAX_METADATA
from connectgroup.protocol.units import TopicPartition, Unit

from .tables import group, units

INPUT = group({"a": 1, "b": 1}, {"m1": "a a-0", "m2": "b b-0"})


class Scripted(ConnectAssignor):
    """Returns what the test gives it."""

    name = "scripted"

    def __init__(self, result: Callable[[ConnectAssignorInput], Any]) -> None:
        self._result = result

    def assign(self, group: ConnectAssignorInput) -> ConnectAssignment:
        result: ConnectAssignment = self._result(group)
        return result


def shares(*given: tuple[str, str], **more: Any) -> ConnectAssignment:
    return ConnectAssignment(
        members=[ConnectMemberAssignment(member_id=name, units=units(text), **more) for name, text in given]
    )


def odd(*things: object) -> ConnectAssignment:
    held: Any = frozenset(things)
    return ConnectAssignment(members=[ConnectMemberAssignment(member_id="m1", units=held)])


def raising(error: BaseException) -> Callable[[ConnectAssignorInput], Any]:
    def result(_: ConnectAssignorInput) -> Any:
        raise error

    return result


def by_column(owner: Any) -> Callable[[ConnectAssignorInput], ConnectAssignment]:
    return lambda group: ConnectAssignment.from_columns(group.columns(), owner)


async def _too_late() -> None: ...


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no description")


INVALID_RESULTS: Sequence[tuple[str, Callable[[ConnectAssignorInput], Any], str]] = [
    ("raises", raising(ValueError("two\nlines")), r"assign raised ValueError: two\nlines"),
    ("asserts", raising(AssertionError()), "assign raised AssertionError"),
    ("exits", raising(SystemExit(3)), "assign raised SystemExit: 3"),
    ("exception without a text", raising(Unspeakable()), "assign raised Unspeakable: (no description)"),
    ("nothing", lambda _: None, "assign returned None; allowed: ConnectAssignment"),
    ("a generator", lambda _: (each for each in "ab"), "assign returned a generator; allowed: ConnectAssignment"),
    ("a dict", lambda _: {"m1": units("a")}, "assign returned a dict; allowed: ConnectAssignment"),
    ("async", lambda _: _too_late(), "assign is async; allowed: a plain method that returns ConnectAssignment"),
    ("other members", lambda _: ConnectAssignment(members=["m1"]), "members holds a str; allowed: ConnectMember"),  # type: ignore[list-item]
    ("stranger", lambda _: shares(("m1", "a a-0 b b-0"), ("x\x1b", "")), r"x\x1b is not a member"),
    ("listed twice", lambda _: shares(("m1", "a a-0"), ("m1", "b b-0")), "m1 is listed twice"),
    ("unit twice", lambda _: shares(("m2", "a b b-0"), ("m1", "a a-0")), "a is assigned twice: to m1 and m2"),
    ("unknown unit", lambda _: shares(("m1", "a a-0 a-7"), ("m2", "b b-0")), "a-7, assigned to m1, does not exist"),
    ("left out", lambda _: shares(("m1", "a"), ("m2", "b b-0")), "a-0 is not assigned"),
    ("all left out", lambda _: shares(), "a is not assigned (and 3 more)"),
    ("mixed", lambda _: odd("a-0", 5, None), "m1: its assignment holds 'a-0'; allowed: Unit"),
    ("plain tuple", lambda _: odd(("a", 0)), "m1: its assignment holds ('a', 0); allowed: Unit"),
    (
        "invalid unit",
        lambda _: odd(Unit("a", "0")),  # type: ignore[arg-type]
        "m1: its assignment holds Unit(connector='a', task='0'); allowed: Unit",
    ),
    ("version", lambda _: shares(("m1", ""), version=1), "m1: version: got 1; allowed: 0 .. 0"),
    ("metadata", lambda _: shares(("m1", ""), metadata="text"), "m1: metadata: got a str; allowed: bytes"),
    ("too much", lambda _: shares(("m1", ""), metadata=bytes(10**7)), "m1: metadata: got 10000000 bytes; allowed: at"),
    ("column short", by_column(np.zeros(3, int)), "owner: got int64 of shape (3,); allowed: signed integers of shape"),
    ("column of text", by_column(np.full(4, "m1")), "owner: got <U2 of shape (4,); allowed: signed integers"),
    ("column a list", by_column([0, 0, 0, 0]), "owner: got a list; allowed: signed integers of shape (4,)"),
    ("column beyond", by_column(np.array([0, 0, 2, 1])), "owner of b: got 2; allowed: -1 .. 1"),
    ("column left out", by_column(np.array([0, -1, -1, 1])), "a-0 is not assigned (and 1 more)"),
    (
        "other columns",
        lambda _: ConnectAssignment.from_columns(group({"a": 1}, {}).columns(), np.zeros(2, int)),
        "from_columns: got columns of another group",
    ),
    ("error", lambda _: ConnectAssignment(error="no"), "error: got 'no'; allowed: -128 .. 127"),  # type: ignore[arg-type]
    ("error range", lambda _: ConnectAssignment(error=70_000), "error: got 70000; allowed: -128 .. 127"),
    (
        "generator",
        lambda _: ConnectAssignment(members=(ConnectMemberAssignment(member_id=name) for name in "ab")),  # type: ignore[arg-type]
        "members: got a generator; allowed: a list or tuple of ConnectMemberAssignment",
    ),
    ("read-only", lambda group: group.columns().unit_owner.fill(0), "assign raised ValueError: assignment destination"),
    ("frozen", lambda group: setattr(group.members[0], "owned", ()), "assign raised FrozenInstanceError"),
]


@pytest.mark.parametrize(
    ("result", "line"), [case[1:] for case in INVALID_RESULTS], ids=[case[0] for case in INVALID_RESULTS]
)
def test_invalid_result_is_one_line_naming_plug_in_and_violation(result: Callable[[Any], Any], line: str) -> None:
    with pytest.raises(PluginError) as caught:
        run_assignor(Scripted(result), INPUT)
    message = str(caught.value)
    assert message.startswith("assignor 'scripted' (")
    assert f": {line}" in message
    assert message.isprintable(), "one line without control characters"


def test_keyboard_interrupt_of_the_operator_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_assignor(Scripted(raising(KeyboardInterrupt())), INPUT)


def test_keyboard_interrupt_in_a_thread_is_an_error_of_the_plug_in() -> None:
    """Otherwise it would end the coordinator, which runs its assignors in threads."""
    scripted = Scripted(raising(KeyboardInterrupt()))
    with ThreadPoolExecutor(1) as pool, pytest.raises(PluginError, match="assign raised KeyboardInterrupt"):
        pool.submit(run_assignor, scripted, INPUT).result()


def test_plug_in_cannot_change_the_input_it_is_checked_against() -> None:
    """The result is validated against the original input, not against what the plug-in left of it."""
    members, connectors = [ConnectMember(member_id="m1")], [ConnectorSpec(name="a", num_tasks=1)]

    def emptied(_: ConnectAssignorInput) -> ConnectAssignment:
        members.clear()
        connectors.clear()
        return ConnectAssignment()

    with pytest.raises(PluginError, match=r"a is not assigned \(and 1 more\)"):
        run_assignor(Scripted(emptied), ConnectAssignorInput(members=members, connectors=connectors))


def test_valid_result_passes_in_either_form() -> None:
    objects = run_assignor(Scripted(lambda _: shares(("m1", "a a-0"), ("m2", "b b-0"))), INPUT)
    columns = run_assignor(Scripted(by_column(np.array([0, 0, 1, 1]))), INPUT)
    assert columns.members == objects.members


def test_result_by_column_has_the_version_of_each_member() -> None:
    """So that a server-side assignor can serve members that list a later version of another assignor."""
    input_group = ConnectAssignorInput(members=[ConnectMember(member_id="m1", version=5)], connectors=INPUT.connectors)
    result = run_assignor(Scripted(by_column(np.zeros(4, int))), input_group)
    assert [member.version for member in result.members] == [5]
    assert [member.version for member in members_for_install(result)] == [5]


def test_error_of_an_assignor_is_passed_on() -> None:
    result = run_assignor(Scripted(lambda _: ConnectAssignment(error=7, message="no capacity")), INPUT)
    assert (result.error, result.message) == (7, "no capacity")


def test_delayed_units_may_not_be_assigned() -> None:
    held: dict[str, Any] = {"delayed": units("b-0"), "delay_ms": 5}

    def column(*owner: int) -> Callable[[ConnectAssignorInput], ConnectAssignment]:
        return lambda group: ConnectAssignment.from_columns(group.columns(), np.array(owner), **held)

    without, everything = shares(("m1", "a a-0"), ("m2", "b")), shares(("m1", "a a-0"), ("m2", "b b-0"))

    def objects(result: ConnectAssignment) -> Callable[[ConnectAssignorInput], ConnectAssignment]:
        return lambda _: replace(result, **held)

    for right in (objects(without), column(0, 0, 1, -1)):
        result = run_assignor(Scripted(right), INPUT)
        assert (result.delayed, result.delay_ms) == (units("b-0"), 5)
    for too_much in (objects(everything), column(0, 0, 1, 1)):
        with pytest.raises(PluginError, match="b-0, assigned to m2, is delayed"):
            run_assignor(Scripted(too_much), INPUT)


def _echo(result: ConnectAssignment, _: ConnectAssignorInput) -> ConnectAssignment:
    return result


def test_units_delayed_for_a_lost_worker_may_be_assigned_or_omitted() -> None:
    waiting = replace(INPUT, delayed=[DelayedWork(member_id="m3", left_ms=7, units=units("b-0"))])
    for result in (shares(("m1", "a a-0"), ("m2", "b")), shares(("m1", "a a-0"), ("m2", "b b-0"))):
        assert run_assignor(Scripted(partial(_echo, result)), waiting) is result
    for owner in ([0, 0, 1, -1], [0, 0, 1, 1]):
        run_assignor(Scripted(by_column(np.array(owner))), waiting)
    with pytest.raises(PluginError, match="a-0 is not assigned"):
        run_assignor(Scripted(by_column(np.array([0, -1, 1, -1]))), waiting)


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"delay_ms": -1}, "delay_ms: got -1; allowed: 0 .. 2147483647"),
        ({"delay_ms": True}, "delay_ms: got True"),
        ({"delay_ms": 1, "delayed": {"b-0"}}, "delayed: got .*; allowed: a frozenset of Unit"),
        ({"delayed": units("b-0")}, "delayed: got 1 units with delay_ms 0"),
        ({"delay_ms": 1, "delayed": units("c")}, "c, delayed, does not exist"),
    ],
)
def test_invalid_delay_is_a_violation(fields: dict[str, Any], violation: str) -> None:
    whole = shares(("m1", "a a-0"), ("m2", "b b-0"))
    with pytest.raises(PluginError, match=violation):
        run_assignor(Scripted(lambda _: replace(whole, **fields)), INPUT)


def test_empty_group_has_no_unassigned_units() -> None:
    assert first_violation([], members=(), units=units("a a-0")) is None
    assert first_violation([], members=("m1",), units=units("a a-0")) == "a is not assigned (and 1 more)"


def test_duplicate_unit_of_one_member_is_a_violation() -> None:
    given = [("m1", [Unit("a"), Unit("a")])]
    assert first_violation(given, members=("m1",), units=units("a")) == "a is assigned twice: to m1 and m1"


def test_partitions_are_assigned_to_subscribers_only() -> None:
    input_group = PartitionAssignorInput(
        members=[PartitionMember(member_id="m1", subscribed=frozenset({"t"})), PartitionMember(member_id="m2")],
        topics=[TopicSpec(name="t", num_partitions=2), TopicSpec(name="unsubscribed", num_partitions=1)],
    )

    class Fixed(PartitionAssignor):
        name = "fixed"

        def __init__(self, **held: set[int]) -> None:
            self.held = held

        def assign(self, group: PartitionAssignorInput) -> PartitionAssignment:
            return PartitionAssignment(
                members=[
                    PartitionMemberAssignment(
                        member_id=member_id, partitions=frozenset(TopicPartition("t", number) for number in numbers)
                    )
                    for member_id, numbers in self.held.items()
                ]
            )

    assert run_assignor(Fixed(m1={0, 1}), input_group).members[0].partitions == frozenset(input_group.partitions)
    for wrong, line in (
        (Fixed(m1={0}, m2={1}), "t-1 is assigned to m2, which is not subscribed to it"),
        (Fixed(m1={0}), "t-1 is not assigned"),
        (Fixed(m1={0, 1, 2}), "t-2, assigned to m1, does not exist"),
    ):
        with pytest.raises(PluginError, match=line):
            run_assignor(wrong, input_group)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"name": ""}, "name: got ''; allowed: a non-empty string"),
        ({"name": 5}, "name: got 5; allowed: a non-empty string"),
        ({"minimum_version": -2}, "minimum_version: got -2; allowed: -1 .. 32767"),
        ({"minimum_version": 3, "maximum_version": 2}, "maximum_version: got 2; allowed: 3 .. 32767"),
        ({"minimum_version": -1, "maximum_version": -1}, "maximum_version: got -1; allowed: 0 .. 32767"),
        ({"maximum_version": True}, "maximum_version: got True; allowed: an integer"),
        ({"metadata": lambda _: None}, "metadata returned None; allowed: Metadata"),
        ({"metadata": lambda _: Metadata(version=1)}, "version: got 1; allowed: 0 .. 0"),
        ({"metadata": lambda _: Metadata(reason=128)}, "reason: got 128; allowed: -128 .. 127"),
        ({"metadata": lambda _: Metadata(metadata=bytes(MAX_METADATA + 1))}, "metadata: got 65537 bytes"),
        ({"metadata": lambda _: 1 / 0}, "metadata raised ZeroDivisionError: division by zero"),
    ],
)
def test_assignor_with_invalid_metadata_is_rejected(fields: dict[str, object], line: str) -> None:
    bad = type("Bad", (Scripted,), fields)(lambda _: None)
    with pytest.raises(PluginError) as caught:
        assignor_info(bad)
    assert f": {line}" in str(caught.value)


def test_assignor_uses_its_highest_version_by_default() -> None:
    kind = type("Later", (Scripted,), {"minimum_version": 1, "maximum_version": 5})
    assert assignor_info(kind(lambda _: None)).version == 5


def test_on_assignment_that_raises_is_one_line() -> None:
    kind = type("Sulks", (Scripted,), {"on_assignment": lambda _, share: share.nothing})
    with pytest.raises(PluginError, match="on_assignment raised AttributeError"):
        notify_plugin_assignor(kind(lambda _: None), ConnectMemberAssignment(member_id="m1"))


def test_exception_is_located_in_the_code_of_the_plug_in() -> None:
    """Not where the standard library raised it, and not where the plug-in was called."""

    def helper(group: ConnectAssignorInput) -> ConnectAssignment:
        return json.loads("not json")  # type: ignore[no-any-return]

    with pytest.raises(PluginError) as caught:
        run_assignor(Scripted(helper), ConnectAssignorInput())
    line = helper.__code__.co_firstlineno + 1
    assert caught.value.location == f"{__file__}:{line}"
    assert caught.value.with_location() == f"{caught.value} (at {__file__}:{line})"
    assert __file__ not in str(caught.value), "the message goes to the group"


def test_violation_without_an_exception_has_no_location() -> None:
    with pytest.raises(PluginError) as caught:
        run_assignor(Scripted(lambda _: None), ConnectAssignorInput())
    assert caught.value.location == ""
    assert caught.value.with_location() == str(caught.value)


def test_numpy_is_imported_for_columns_only() -> None:
    imports = "connectgroup.assign.api, connectgroup.assign.sandbox, connectgroup.plugins, connectgroup.listener"
    code = f"import sys, {imports}; assert 'numpy' not in sys.modules"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


def test_assignment_to_strangers_is_refused_in_time_linear_in_their_number() -> None:
    """An Install may name 10,000: the coordinator served no other request for many seconds."""
    given: list[tuple[str, tuple[Unit, ...]]] = [(f"m{number}", ()) for number in range(8_000)]
    began = time.process_time()
    violation = first_violation(given, members=("m0",), units=units("a"))
    assert time.process_time() - began < 0.5
    assert violation == "m1 is not a member (and 7999 more)"
