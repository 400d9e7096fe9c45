"""Members and the group rules together, with lost requests, lost and late responses and slow stops, by seed.

Late duplicates of requests are dropped by the runtime: tests/coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from connectgroup.group.connect.group_type import ConnectRequest
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import TimerKey, TimerKind
from connectgroup.member.actions import Action, Assign, Fail, Lose, Revoke
from connectgroup.member.settings import MemberSettings
from connectgroup.member.state_machine import Member, Phase
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.units import Unit
from tests.group import invariants
from tests.group.effects import step_and_compute
from tests.worker.builders import settings

GROUP = "workers"


@dataclass(eq=False)
class Process:
    """One member with the units that it runs: it performs its actions some time after it received them."""

    member: Member
    running: dict[Unit, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    in_flight: list[tuple[HeartbeatRequest, HeartbeatResponse]] = field(default_factory=list)
    epoch: int = 0


class MachineHarness:
    """A group and its members, driven by a seed; every step is checked."""

    def __init__(self, seed: int, loss: float) -> None:
        self.random = Random(seed)
        self.loss = loss
        self.group = ConnectGroupState(GROUP)
        self.settings = settings(session_timeout_ms=3_600_000)
        self.now_ms = 0
        self.processes: dict[str, Process] = {}
        self.granted: dict[Unit, tuple[int, str]] = {}
        self.requests = 0

    def send(self, what: ConnectRequest | TimerKey) -> Any:
        response = step_and_compute(self.group, what, self.now_ms, self.settings).response
        invariants.one_owner(self.group)
        for unit, (member_id, epoch) in self.group.holders.items():
            before = self.granted.get(unit, (0, ""))
            now = epoch, member_id
            assert now == before or epoch > before[0], f"S6: {unit} was granted {before}, now {now}"
            self.granted[unit] = now
        return response

    def connector(self, name: str, tasks: int) -> None:
        """Set a connector's task count, as its owner would."""
        self.send(
            UpdateConnectorsRequest(
                group_id=GROUP, changes=(ConnectorChange(connector=name, config=entries({"v": str(tasks)})),)
            )
        )
        holder = self.group.holders.get(Unit(name))
        if holder is not None:
            configs = tuple(TaskConfig(config=entries({"n": str(n)})) for n in range(tasks))
            change = ConnectorChange(connector=name, task_configs=configs, owner_epoch=holder[1])
            self.send(UpdateConnectorsRequest(group_id=GROUP, member_id=holder[0], changes=(change,)))

    def join(self, name: str) -> None:
        self.processes[name] = Process(Member(MemberSettings(group_id=GROUP, member_id=name)))

    def step(self, process: Process) -> None:
        """One random event of a member."""
        roll = self.random.random()
        if roll < 0.45:
            self.heartbeat(process)
        elif roll < 0.75 and process.actions:
            self.perform(process)
        elif roll < 0.85 and process.in_flight:
            request, response = process.in_flight.pop(self.random.randrange(len(process.in_flight)))
            self.receive(process, request, response)
        self.check()

    def heartbeat(self, process: Process) -> None:
        request = process.member.next_request(self.now_ms)
        if request is None:
            return
        self.requests += 1
        if self.random.random() < self.loss:
            if self.random.random() < 0.5:
                process.member.on_no_answer(request)
            return
        response = self.send(request)
        assert isinstance(response, HeartbeatResponse)
        roll = self.random.random()
        if roll < self.loss:
            if self.random.random() < 0.5:
                process.member.on_no_answer(request)
        elif roll < 1.5 * self.loss:
            process.in_flight.append((request, response))
            del process.in_flight[:-3]
        else:
            self.receive(process, request, response)

    def receive(self, process: Process, request: HeartbeatRequest, response: HeartbeatResponse) -> None:
        for action in process.member.on_response(request, response):
            assert not isinstance(action, Fail), response
            if isinstance(action, Lose):
                process.actions.clear()
            process.actions.append(action)
        epoch = process.member.epoch
        assert epoch == 0 or epoch >= process.epoch, "S5"
        process.epoch = epoch

    def perform(self, process: Process) -> None:
        match process.actions.pop(0):
            case Revoke(units=units):
                for unit in units:
                    process.running.pop(unit, None)
                process.member.mark_revoked(units)
            case Assign(grants=grants):
                for grant in grants:
                    process.running[grant.unit] = grant.owner_epoch
            case Lose():
                process.running.clear()
                process.member.mark_lost()
                process.epoch = 0

    def check(self) -> None:
        """S2: members of the group at a current epoch never run the same unit."""
        runs: dict[Unit, str] = {}
        for name, process in self.processes.items():
            in_it = name in self.group.members and process.member.phase is Phase.MEMBER
            if not in_it or process.member.epoch not in (
                self.group.current(name).epoch,
                self.group.current(name).previous_epoch,
            ):
                continue
            for unit in process.running:
                assert unit not in runs, f"{unit} runs on {runs[unit]} and on {name}"
                runs[unit] = name
            assert process.running.keys() <= process.member.owned.keys() or process.actions

    def settle(self) -> int:
        """Without faults: until each unit runs and no member has unsent changes; returns the number of rounds."""
        self.loss = 0.0
        for process in self.processes.values():
            process.in_flight.clear()
        for round_number in range(1, 40):
            for process in self.processes.values():
                self.heartbeat(process)
                while process.actions:
                    self.perform(process)
                self.check()
            everything = {unit for process in self.processes.values() for unit in process.running}
            idle = not self.group.behind and everything == self.group.runnable.keys()
            if idle and not any(process.member.has_unsent_changes for process in self.processes.values()):
                return round_number
        missing = self.group.runnable.keys() - everything
        raise AssertionError(f"not idle: behind {self.group.behind}, missing {missing}, target {self.group.targets}")


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_each_unit_runs_once_at_the_end_of_random_runs(seed: int, loss: float) -> None:
    """S2, S5, S6, S16, F1-F3, L1. The test's parameters reproduce a run."""
    harness = MachineHarness(seed, loss)
    random = Random(f"{seed} {loss}")
    harness.connector("c", 0)
    harness.join("a")
    for _ in range(400):
        harness.now_ms += 1_000
        roll = random.random()
        if roll < 0.015 and len(harness.processes) < 5:
            harness.join(f"m{len(harness.processes)}")
        elif roll < 0.03:
            harness.connector(random.choice("cd"), random.randrange(6))
        elif roll < 0.035:
            harness.send(TimerKey(TimerKind.SESSION, GROUP, random.choice(sorted(harness.processes))))
        elif roll < 0.04:
            harness.send(TimerKey(TimerKind.REBALANCE, GROUP, random.choice(sorted(harness.processes))))
        else:
            harness.step(harness.processes[random.choice(sorted(harness.processes))])
    assert harness.settle() < 15


def test_member_that_loses_every_other_response_is_never_fenced() -> None:
    """S16: a member that follows the protocol is not fenced because of the network."""
    for seed in range(50):
        harness = MachineHarness(seed, 0.5)
        harness.connector("c", 0)
        for name in "ab":
            harness.join(name)
        fenced = 0
        for _ in range(300):
            process = harness.processes[harness.random.choice("ab")]
            harness.step(process)
            if harness.random.random() < 0.05:
                harness.connector("c", harness.random.randrange(1, 6))
            fenced += sum(isinstance(action, Lose) for action in process.actions)
        harness.settle()
        assert fenced == 0, f"seed {seed}"
