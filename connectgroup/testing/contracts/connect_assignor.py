"""The contract of every connect assignor, as a pytest class to inherit.

    class TestMine(ConnectAssignorContract):
        def assignor(self) -> ConnectAssignor:
            return Mine()

runs the whole contract on a table of groups: without members, fresh, unbalanced, with members that left or joined, with
owned units that no longer exist. Set ``even = False`` for an assignor that does not aim at equal task counts (one that
balances by weight), ``sticky = False`` for one that ignores the current owners.

``AssignorPromises`` has the guarantees of any assignor; ``contracts.assignor`` has the class for assignors of
topic partitions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from ...assign.api import Assignor, AssignorInput, ConnectAssignment, ConnectAssignor, ConnectAssignorInput
from ...assign.convert import assignor_info, members_for_install
from ...assign.members import ConnectMember, ConnectorSpec, DelayedWork, Metadata
from ...assign.placement import NO_TRAITS, WorkerTraits
from ...assign.sandbox import configure_assignor, run_assignor
from ...checks import kind_of
from ...errors import PluginError
from ...protocol.messages.common import AssignorInfo
from ...protocol.units import TopicPartition, Unit, Units

GroupT = TypeVar("GroupT")
AnswerT = TypeVar("AnswerT")
ThingT = TypeVar("ThingT", Unit, TopicPartition)


def metadata_in(info: AssignorInfo) -> Metadata:
    """The metadata in what a member lists."""
    return Metadata(reason=info.reason, version=info.version, metadata=info.metadata)


def unless(switch: str) -> str:
    """The hint in a failure that the assignor may not aim at a guarantee."""
    return f" (if that is no aim of this assignor: {switch} = False in its test class)"


@contextlib.contextmanager
def on_group(name: str) -> Iterator[None]:
    """Let an error of the assignor in this block fail the test with one line: the error, its place, the sample group.

    Nearly all tests run the assignor, so that one mistake of it fails them all; a traceback of each would bury it.
    """
    try:
        yield
    except PluginError as error:
        raise pytest.fail.Exception(f"{error.with_location()}, on the group {name!r}", pytrace=False) from None


class AssignorPromises(Generic[GroupT, AnswerT, ThingT]):
    """Complete, valid, balanced, deterministic, order-independent, sticky on its own result.

    Attributes:
        even: whether the members' counts must differ by at most one.
        sticky: whether the assignor, run on its own result, must return it unchanged (KAFKA-18688).
    """

    even: ClassVar[bool] = True
    sticky: ClassVar[bool] = True

    # Defined by subclasses

    def assignor(self) -> Assignor[Any, Any, Any]:
        """A new assignor to test."""
        raise NotImplementedError("a contract test says which assignor it is about: def assignor(self)")

    def groups(self) -> dict[str, GroupT]:
        """The groups that the contract runs on, by name; small and deterministic."""
        raise NotImplementedError

    def metadata_of(self, member: Any) -> Metadata:
        """The metadata of a member of ``groups`` that has none: what the assignor returns on a worker of its traits.

        Override it if the assignor measures something: another result in each call would look like an assignor that is
        not deterministic.
        """
        raise NotImplementedError

    def configured(self, traits: WorkerTraits = NO_TRAITS) -> Any:
        """A new assignor, configured as a worker of these traits does it."""
        assignor = self.assignor()
        with on_group("any: before the first call"):
            configure_assignor(assignor, traits)
        return assignor

    def inputs(self) -> dict[str, GroupT]:
        """The groups with the metadata of their members."""
        return {name: self._introduced(name, group) for name, group in self.groups().items()}

    def _introduced(self, name: str, group: Any) -> Any:
        if not isinstance(group, AssignorInput):
            allowed = "ConnectAssignorInput(...) or PartitionAssignorInput(...)"
            raise pytest.fail.Exception(f"groups: {name!r}: got {kind_of(group)!r}; allowed: {allowed}", pytrace=False)
        members = []
        with on_group(name):
            for member in group.members:
                sent = Metadata(reason=member.reason, version=member.version, metadata=member.metadata)
                if sent == Metadata():
                    sent = self.metadata_of(member)
                members.append(
                    dataclasses.replace(member, reason=sent.reason, version=sent.version, metadata=sent.metadata)
                )
        return dataclasses.replace(group, members=members)

    def to_give(self, group: GroupT) -> frozenset[ThingT]:
        """All units that must be assigned."""
        raise NotImplementedError

    def shares(self, group: GroupT, answer: AnswerT) -> dict[str, frozenset[ThingT]]:
        """Every member's assignment, including members that the result omits."""
        raise NotImplementedError

    def left_out(self, answer: AnswerT) -> frozenset[ThingT]:
        """The units that the result omits on purpose, as listed in it."""
        return frozenset()

    def final(self, group: GroupT) -> tuple[GroupT, AnswerT]:
        """The result and the group it belongs to: after the last round, if the assignor takes more than one."""
        answer: Any = run_assignor(self.configured(), group)
        return group, answer

    def counts(self, group: GroupT, shares: Mapping[str, frozenset[ThingT]]) -> Iterator[tuple[str, list[int]]]:
        """The counts that must be balanced: a name, and each member's count."""
        raise NotImplementedError

    def owning(self, group: GroupT, shares: Mapping[str, frozenset[ThingT]]) -> GroupT:
        """The same input after every member has applied its assignment."""
        raise NotImplementedError

    def shuffled(self, group: GroupT, random: Random) -> GroupT:
        """The same input in another order."""
        raise NotImplementedError

    def text_of(self, answer: AnswerT) -> str:
        """A result as text: equal texts are equal bytes on the wire."""
        raise NotImplementedError

    # The guarantees

    def test_it_can_introduce_itself_to_the_group(self) -> None:
        assignor_info(self.configured(), frozenset({"t"}))

    def test_everything_is_given_to_exactly_one_member(self) -> None:
        for name, group in self.inputs().items():
            with on_group(name):
                answer: Any = run_assignor(self.configured(), group)  # raises with the first violation
                assert answer.error == 0, f"{name}: error {answer.error} {answer.message}"
                shares = self.shares(group, answer)
                given = frozenset[ThingT]().union(*shares.values())
                missing = self.to_give(group) - given - self.left_out(answer)
                assert not missing, f"{name}: neither assigned nor left out: {', '.join(map(str, sorted(missing)))}"
                # Without members, all units may be left out or not mentioned.
                surplus = (given | self.left_out(answer)) - self.to_give(group) if shares else frozenset()
                assert not surplus, f"{name}: nothing to assign: {', '.join(map(str, sorted(surplus)))}"

    def test_counts_are_within_one_of_each_other(self) -> None:
        if not self.even:
            return
        for name, group in self.inputs().items():
            with on_group(name):
                group, answer = self.final(group)
                for word, counts in self.counts(group, self.shares(group, answer)):
                    assert max(counts, default=0) - min(counts, default=0) <= 1, (
                        f"{name}: {word} {sorted(counts)}{unless('even')}"
                    )

    def test_its_own_answer_comes_back_unchanged(self) -> None:
        if not self.sticky:
            return
        for name, group in self.inputs().items():
            with on_group(name):
                group, answer = self.final(group)
                first = self.shares(group, answer)
                again = self.owning(group, first)
                answer = run_assignor(self.configured(), again)
                second = self.shares(again, answer)
                moved = sorted(thing for member_id in first for thing in first[member_id] - second[member_id])
                assert not moved, f"{name}: moved {', '.join(map(str, moved[:8]))}{unless('sticky')}"

    def test_order_of_the_input_has_no_effect(self) -> None:
        random = Random(1)
        for name, group in self.inputs().items():
            with on_group(name):
                expected = self.text_of(run_assignor(self.configured(), group))
                for _ in range(3):
                    shuffled = self.shuffled(group, random)
                    assert self.text_of(run_assignor(self.configured(), shuffled)) == expected, (
                        f"{name}: another result for the same group in another order; sort before you assign"
                    )

    def test_nothing_is_remembered_between_calls(self) -> None:
        used = self.configured()
        for name, group in [*self.inputs().items(), *reversed(self.inputs().items())]:
            with on_group(name):
                fresh = run_assignor(self.configured(), group)
                assert self.text_of(run_assignor(used, group)) == self.text_of(fresh), (
                    f"{name}: an assignor that was used before returns another result; it keeps state between calls"
                )

    def test_the_answer_does_not_hang_on_the_hash_seed(self) -> None:
        """Two processes that iterate over their sets in different orders return equal bytes."""
        for name, group in self.inputs().items():
            with on_group(name):
                run_assignor(self.configured(), group)  # an error is found before two processes start
        kind = type(self)
        where = (inspect.getfile(kind), kind.__module__, kind.__qualname__)
        call = f"from {__name__} import answers_of; answers_of(*{where!r})"
        first, second = (_run(call, hash_seed) for hash_seed in ("1", "2"))
        differs = [one for one, other in zip(first.splitlines(), second.splitlines(), strict=False) if one != other]
        assert first == second, (
            f"another result in another process, with another hash seed; sort sets before you assign: {differs[:1]}"
        )
        assert first.strip(), "no answers came back"


class ConnectAssignorContract(AssignorPromises[ConnectAssignorInput, ConnectAssignment, Unit]):
    """The contract of assignors of connectors and tasks."""

    def assignor(self) -> ConnectAssignor:
        """A new assignor to test."""
        raise NotImplementedError("a contract test says which assignor it is about: def assignor(self)")

    def groups(self) -> dict[str, ConnectAssignorInput]:
        """See ``sample_groups``."""
        return sample_groups()

    def metadata_of(self, member: ConnectMember) -> Metadata:
        """What the assignor of a worker with these traits returns."""
        return metadata_in(assignor_info(self.configured(member.traits)))

    def to_give(self, group: ConnectAssignorInput) -> Units:
        """Every connector and task, if the group has members."""
        return frozenset(group.units) if group.members else frozenset()

    def shares(self, group: ConnectAssignorInput, answer: ConnectAssignment) -> dict[str, Units]:
        """Every member's assignment, including members that the result omits."""
        given = {member.member_id: member.units for member in answer.members}
        return {member.member_id: given.get(member.member_id, frozenset()) for member in group.members}

    def left_out(self, answer: ConnectAssignment) -> Units:
        """The delayed units."""
        return frozenset(answer.delayed)

    def final(self, group: ConnectAssignorInput) -> tuple[ConnectAssignorInput, ConnectAssignment]:
        """Run again while owned units are delayed, after their owner has stopped them, as the coordinator does."""
        for _ in range(20):
            answer = run_assignor(self.configured(), group)
            shares = self.shares(group, answer)
            held = frozenset[Unit]().union(*(member.owned for member in group.members))
            if not held & answer.delayed:
                return group, answer
            waiting = DelayedWork(left_ms=answer.delay_ms, units=answer.delayed)
            group = dataclasses.replace(self.owning(group, shares), delayed=[waiting])
        raise AssertionError("20 rounds, and units are delayed in each")

    def counts(self, group: ConnectAssignorInput, shares: Mapping[str, Units]) -> Iterator[tuple[str, list[int]]]:
        """Connectors and tasks are counted separately."""
        for is_connector, word in ((True, "connectors"), (False, "tasks")):
            yield word, [sum(unit.is_connector is is_connector for unit in units) for units in shares.values()]

    def owning(self, group: ConnectAssignorInput, shares: Mapping[str, Units]) -> ConnectAssignorInput:
        """The same input after every member has applied its assignment."""
        members = [dataclasses.replace(member, owned=shares[member.member_id]) for member in group.members]
        return dataclasses.replace(group, members=members, delayed=())

    def shuffled(self, group: ConnectAssignorInput, random: Random) -> ConnectAssignorInput:
        """The same input with members and connectors in another order."""
        members, connectors = list(group.members), list(group.connectors)
        random.shuffle(members)
        random.shuffle(connectors)
        return dataclasses.replace(group, members=members, connectors=connectors)

    def text_of(self, answer: ConnectAssignment) -> str:
        """The content of the install request."""
        return repr((answer.error, answer.message, members_for_install(answer)))


def sample_groups() -> dict[str, ConnectAssignorInput]:
    """The groups that the contract runs on, by name; small and deterministic."""
    connectors = [ConnectorSpec(name="a", num_tasks=4), ConnectorSpec(name="b", num_tasks=7), ConnectorSpec(name="c")]
    everything = ConnectAssignorInput(connectors=connectors).units
    gone = frozenset({Unit("gone"), Unit("gone", 0), Unit("a", 99)})
    groups = {
        "no members and no connectors": ConnectAssignorInput(),
        "no members": ConnectAssignorInput(connectors=connectors),
        "nothing to do": _group([], {"m1": (), "m2": ()}),
        "nothing left to do": _group([], {"m1": gone, "m2": everything}),
        "one member, fresh": _group(connectors, {"m1": ()}),
        "three members, fresh": _group(connectors, {"m1": (), "m2": (), "m3": ()}),
        "more members than units": _group(connectors[2:], {f"m{n}": () for n in range(5)}),
        "one holds everything": _group(connectors, {"m1": everything, "m2": (), "m3": ()}),
        "holdings of what is gone": _group(connectors, {"m1": gone, "m2": everything[:5]}),
        "two claim the same": _group(connectors, {"m1": everything[:6], "m2": everything[3:9]}),
    }
    one_holds = groups["one holds everything"]
    groups["a group with a scheduled rebalance delay"] = dataclasses.replace(
        one_holds, scheduled_rebalance_max_delay_ms=300_000
    )
    groups["workers with labels, racks and equal capacities"] = dataclasses.replace(
        one_holds,
        members=[
            dataclasses.replace(member, labels=(("zone", zone),), rack=rack, capacity=100)
            for member, (zone, rack) in zip(one_holds.members, (("a", "r1"), ("a", ""), ("b", "r2")), strict=True)
        ],
    )
    random = Random(2)
    for number in range(12):
        specs = [ConnectorSpec(name=f"c{n}", num_tasks=random.randint(0, 9)) for n in range(random.randint(1, 8))]
        ids = [f"worker-{n}" for n in range(random.randint(1, 7))]
        held: dict[str, list[Unit]] = {member_id: [] for member_id in ids}
        holders = ids[: random.randint(1, len(ids))]
        for unit in ConnectAssignorInput(connectors=specs).units:
            if random.random() < 0.8:
                held[random.choice(holders)].append(unit)
        groups[f"random {number}"] = _group(specs, held)
    return groups


def answers_of(path: str, module: str, qualname: str) -> None:
    """Print the result of the contract class's assignor for every sample group; run in a process of its own."""
    sys.path.insert(0, str(Path(path).parents[module.count(".")]))  # so that the module finds its own package
    spec = importlib.util.spec_from_file_location("under_contract" if module == "__main__" else module, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    kind: object = loaded
    for part in qualname.split("."):
        kind = getattr(kind, part)
    assert isinstance(kind, type), qualname
    assert issubclass(kind, AssignorPromises), qualname
    contract: AssignorPromises[Any, Any, Any] = kind()
    for name, group in contract.inputs().items():
        with on_group(name):
            print(name, contract.text_of(run_assignor(contract.configured(), group)))


def _run(code: str, hash_seed: str) -> str:
    # Pass this process's sys.path: -P omits the current directory, and "" represents it where it is wanted.
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _group(connectors: Iterable[ConnectorSpec], held: Mapping[str, Iterable[Unit]]) -> ConnectAssignorInput:
    """A group from a mapping of member ids to owned units."""
    members = tuple(ConnectMember(member_id=member_id, owned=frozenset(units)) for member_id, units in held.items())
    return ConnectAssignorInput(members=members, connectors=tuple(connectors))
