"""The settings of one seed and all its faults, as values: a run can be repeated without drawing anything, and with
faults left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from connectgroup import fault_points as fault_point

REQUESTS_REBALANCE = "an assignor asks for a rebalance"

FAULT_RATES: Mapping[str, float] = {
    "a stop is slow": 0.5,
    "a stop overstays": 0.05,
    "a listener raises": 0.05,
    "a listener hangs": 0.03,
    "an assignor raises": 0.3,
    "an assignor reports an error": 0.2,
    "an assignor hangs": 0.2,
    "an assignor's answer is not legal": 0.4,
    REQUESTS_REBALANCE: 0.02,
    "an install is not legal": 0.4,
    "a task's start fails": 0.1,
    "the sink fails before a write": 0.1,
    "the sink fails after a write": 0.1,
    "a write is late": 0.1,
}
"""Upper bound of each fault's rate per call, in the seeds that have the fault at all."""

MAX_START_S = 8.0
"""The coordinator's limit on starts that moves wait for, in seconds; some starts take longer."""

MAX_SLOW_START_S = 12
"""Upper bound on the start of a task, in seconds."""

VERSIONS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 0),),
    ((0, 1), (1, 2), (0, 2)),
    ((0, 1), (1, 1), (1, 3)),
    ((0, 2), (1, 2), (3, 3), (0, 3)),
)
"""Ranges of assignor versions that the workers of a seed draw from: the same for all, one that covers all others, none
that does, and disjoint ones, where the second member's join is rejected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """How bad the network is. Times in seconds; the other values are probabilities."""

    lose_request: float = 0.0
    lose_response: float = 0.0
    copy: float = 0.0
    late: float = 0.0
    max_late_s: float = 0.0
    min_s: float = 0.0005
    max_usual_s: float = 0.01

    @property
    def is_rough(self) -> bool:
        """Whether messages may be lost or late."""
        return bool(self.lose_request or self.lose_response or self.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Attributes:
    fault_rates: probability of each fault per call; includes the points of ``connectgroup.fault_points``.
    drift: maximum relative error of a process's clock.
    versions: assignor version ranges that workers draw from.
    max_inputs_per_turn: requests that a coordinator decides in one turn.
    batch_bytes: maximum size of a batch of the log.
    delay_s: scheduled rebalance delay.
    max_moves: units that may move in one round; 0: no limit.
    statics: whether workers have instance ids, and mostly a new member id after each restart.
    """

    network_faults: NetworkFaults = field(default_factory=NetworkFaults)
    fault_rates: Mapping[str, float] = field(default_factory=dict)
    drift: float = 0.0
    versions: tuple[tuple[int, int], ...] = VERSIONS[0]
    max_inputs_per_turn: int = 500
    batch_bytes: int = 1 << 23
    delay_s: float = 0.0
    max_moves: int = 0
    statics: bool = False


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault. ``arguments`` are plain values: names, numbers, lists and dicts of them."""

    at_s: float
    kind: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.at_s:9.3f} s  {self.kind}  {arguments}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run; nothing in it is drawn.

    Attributes:
        ends_s: when the faults end.
    """

    seed: int
    members: int | None
    tasks: int | None
    setting: Setting
    faults: tuple[PlannedFault, ...]
    ends_s: float

    def to_json(self) -> str:
        """One line; floats are preserved exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of ``to_json``."""
        raw = json.loads(text)
        setting = raw["setting"]
        setting["network_faults"] = NetworkFaults(**setting["network_faults"])
        setting["versions"] = tuple((low, high) for low, high in setting["versions"])
        faults = tuple(PlannedFault(**fault) for fault in raw["faults"])
        return cls(**{**raw, "setting": Setting(**setting), "faults": faults})

    def __str__(self) -> str:
        plain = Setting()
        parts = [f"seed {self.seed}, {self.members or 'drawn'} members, {self.tasks or 'drawn'} tasks"]
        if self.setting.network_faults != plain.network_faults:
            parts.append(f"{self.setting.network_faults}")
        parts += [f"fault rate {chance:.3f} {fault}" for fault, chance in sorted(self.setting.fault_rates.items())]
        rest = replace(self.setting, network_faults=plain.network_faults, fault_rates={})
        parts += [
            f"{name} {getattr(rest, name)}"
            for name in ("drift", "versions", "max_inputs_per_turn", "batch_bytes", "delay_s", "max_moves", "statics")
            if getattr(rest, name) != getattr(plain, name)
        ]
        parts += [str(fault) for fault in self.faults]
        return "\n".join([*parts, f"{self.ends_s:9.3f} s  quiet"])


def is_mixed(seed: int) -> bool:
    """Whether the group of a seed consists of consumers, of both protocols: each tenth seed."""
    return seed % 10 == 6


def is_classic(seed: int) -> bool:
    """Whether a seed has workers of the classic protocol: another tenth."""
    return seed % 10 == 8


def draw(random: Random, session_s: float) -> Setting:
    """Draw the settings of a seed. Swarm testing: a run with every fault at once makes no progress."""
    fault_rates = {fault: limit * random.random() for fault, limit in FAULT_RATES.items() if random.random() < 0.5}
    fault_rates |= {
        point: limit * random.random() for point, limit in fault_point.POINTS.items() if random.random() < 0.3
    }
    network_faults = NetworkFaults()
    if random.random() < 0.8:
        network_faults = NetworkFaults(
            lose_request=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
            lose_response=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
            copy=random.choice([0, 0.1, 0.5]) * random.random(),
            late=random.choice([0, 0.05, 0.2]) * random.random(),
            max_late_s=random.choice([0.5, 1, 2]) * session_s,
            max_usual_s=random.choice([0.002, 0.02, 0.1]),
        )
    return Setting(
        network_faults=network_faults,
        fault_rates=fault_rates,
        drift=random.choice([0.0, 0.0, 0.01, 0.05]),
        versions=random.choice([VERSIONS[0], *VERSIONS]),
        max_inputs_per_turn=random.choice([500, 500, 500, 3, 1]),
        batch_bytes=random.choice([1 << 23, 1 << 23, 1 << 23, 24_000]),
        delay_s=random.choice([0.0, 0.0, 5.0, 15.0]),
        max_moves=random.choice([0, 0, 0, 3]),
        statics=random.random() < 0.4,
    )
