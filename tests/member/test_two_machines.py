"""Members and the group rules joined, through lost requests, lost and late answers and slow stops, by seed.

Late copies of requests are the runtime's to drop: tests/coordinator.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from connectgroup.group.connect.handle import GroupRequest
from connectgroup.group.connect.state import Group
from connectgroup.group.kernel.timers import TimerKey, TimerKind
from connectgroup.member.actions import Action, Assign, Fail, Lose, Revoke
from connectgroup.member.state_machine import Member, MemberSettings, Phase
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, TaskConfig, UpdateConnectorsRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.protocol.units import Unit
from tests.group import invariants
from tests.group.effects import step_and_compute
from tests.worker.builders import settings

GROUP = "workers"


@dataclass(eq=False)
class Player:
    """One member with what it really runs: it starts some time after it is told, and stops some time after."""

    member: Member
    running: dict[Unit, int] = field(default_factory=dict)
    todo: list[Action] = field(default_factory=list)
    on_the_way: list[tuple[HeartbeatRequest, HeartbeatResponse]] = field(default_factory=list)
    heard_epoch: int = 0


class Theatre:
    """A group and its members, driven by dice; every turn is checked."""

    def __init__(self, seed: int, loss: float) -> None:
        self.dice = random.Random(seed)
        self.loss = loss
        self.group = Group(GROUP)
        self.settings = settings(session_timeout_ms=1_000_000_000)
        self.now_ms = 0
        self.players: dict[str, Player] = {}
        self.granted: dict[Unit, tuple[int, str]] = {}
        self.loud = 0

    def act(self, what: GroupRequest | TimerKey) -> Any:
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
        self.act(
            UpdateConnectorsRequest(
                group_id=GROUP, changes=(ConnectorChange(connector=name, config=entries({"v": str(tasks)})),)
            )
        )
        holder = self.group.holders.get(Unit(name))
        if holder is not None:
            configs = tuple(TaskConfig(config=entries({"n": str(n)})) for n in range(tasks))
            change = ConnectorChange(connector=name, task_configs=configs, owner_epoch=holder[1])
            self.act(UpdateConnectorsRequest(group_id=GROUP, member_id=holder[0], changes=(change,)))

    def join(self, name: str) -> None:
        self.players[name] = Player(Member(MemberSettings(group_id=GROUP, member_id=name)))

    def turn(self, player: Player) -> None:
        """One of the things that can happen to a member."""
        roll = self.dice.random()
        if roll < 0.45:
            self.speak(player)
        elif roll < 0.75 and player.todo:
            self.perform(player)
        elif roll < 0.85 and player.on_the_way:
            request, response = player.on_the_way.pop(self.dice.randrange(len(player.on_the_way)))
            self.hear(player, request, response)
        self.check()

    def speak(self, player: Player) -> None:
        request = player.member.next_request(self.now_ms)
        if request is None:
            return
        self.loud += 1
        if self.dice.random() < self.loss:
            if self.dice.random() < 0.5:
                player.member.on_no_answer(request)
            return
        response = self.act(request)
        assert isinstance(response, HeartbeatResponse)
        roll = self.dice.random()
        if roll < self.loss:
            if self.dice.random() < 0.5:
                player.member.on_no_answer(request)
        elif roll < 1.5 * self.loss:
            player.on_the_way.append((request, response))
            del player.on_the_way[:-3]
        else:
            self.hear(player, request, response)

    def hear(self, player: Player, request: HeartbeatRequest, response: HeartbeatResponse) -> None:
        for action in player.member.on_response(request, response):
            assert not isinstance(action, Fail), response
            if isinstance(action, Lose):
                player.todo.clear()
            player.todo.append(action)
        epoch = player.member.epoch
        assert epoch == 0 or epoch >= player.heard_epoch, "S5"
        player.heard_epoch = epoch

    def perform(self, player: Player) -> None:
        match player.todo.pop(0):
            case Revoke(units=units):
                for unit in units:
                    player.running.pop(unit, None)
                player.member.mark_revoked(units)
            case Assign(grants=grants):
                for grant in grants:
                    player.running[grant.unit] = grant.owner_epoch
            case Lose():
                player.running.clear()
                player.member.mark_lost()
                player.heard_epoch = 0

    def check(self) -> None:
        """S2: members the group knows, and that have not been told they are out, never run the same unit."""
        runs: dict[Unit, str] = {}
        for name, player in self.players.items():
            in_it = name in self.group.members and player.member.phase is Phase.MEMBER
            if not in_it or player.member.epoch not in (
                self.group.current(name).epoch,
                self.group.current(name).previous_epoch,
            ):
                continue
            for unit in player.running:
                assert unit not in runs, f"{unit} runs on {runs[unit]} and on {name}"
                runs[unit] = name
            assert player.running.keys() <= player.member.owned.keys() or player.todo

    def settle(self) -> int:
        """Faults are over: until everybody runs their share and nobody has anything to say; how many rounds."""
        self.loss = 0.0
        for player in self.players.values():
            player.on_the_way.clear()
        for round_number in range(1, 40):
            for player in self.players.values():
                self.speak(player)
                while player.todo:
                    self.perform(player)
                self.check()
            everything = {unit for player in self.players.values() for unit in player.running}
            quiet = not self.group.behind and everything == self.group.runnable.keys()
            if quiet and not any(player.member.has_unsent_changes for player in self.players.values()):
                return round_number
        missing = self.group.runnable.keys() - everything
        raise AssertionError(f"not quiet: behind {self.group.behind}, missing {missing}, target {self.group.targets}")


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(40))
def test_each_unit_runs_once_at_the_end_of_random_runs(seed: int, loss: float) -> None:
    """S2, S5, S6, S16, F1-F3, L1. Run one again: the seed and the loss are the test's name."""
    theatre = Theatre(seed, loss)
    dice = random.Random(f"{seed} {loss}")
    theatre.connector("c", 0)
    theatre.join("a")
    for _ in range(400):
        theatre.now_ms += 1_000
        roll = dice.random()
        if roll < 0.015 and len(theatre.players) < 5:
            theatre.join(f"m{len(theatre.players)}")
        elif roll < 0.03:
            theatre.connector(dice.choice("cd"), dice.randrange(6))
        elif roll < 0.035:
            theatre.act(TimerKey(TimerKind.SESSION, GROUP, dice.choice(sorted(theatre.players))))
        elif roll < 0.04:
            theatre.act(TimerKey(TimerKind.REBALANCE, GROUP, dice.choice(sorted(theatre.players))))
        else:
            theatre.turn(theatre.players[dice.choice(sorted(theatre.players))])
    assert theatre.settle() < 15


def test_member_that_loses_every_other_response_is_never_fenced() -> None:
    """S16: an honest member with a bad line comes through."""
    for seed in range(50):
        theatre = Theatre(seed, 0.5)
        theatre.connector("c", 0)
        for name in "ab":
            theatre.join(name)
        fenced = 0
        for _ in range(300):
            player = theatre.players[theatre.dice.choice("ab")]
            theatre.turn(player)
            if theatre.dice.random() < 0.05:
                theatre.connector("c", theatre.dice.randrange(1, 6))
            fenced += sum(isinstance(action, Lose) for action in player.todo)
        theatre.settle()
        assert fenced == 0, f"seed {seed}"
