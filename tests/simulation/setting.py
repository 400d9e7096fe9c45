"""What one seed is like from its beginning to its end, and all that befalls it: as values, so that it can be played
again without drawing anything, and with parts left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from connectgroup import fault_points as fault_point

ASKS_AGAIN = "an assignor asks for a rebalance"

MOODS: Mapping[str, float] = {
    "a stop is slow": 0.5,
    "a stop overstays": 0.05,
    "a listener raises": 0.05,
    "a listener hangs": 0.03,
    "an assignor raises": 0.3,
    "an assignor reports an error": 0.2,
    "an assignor hangs": 0.2,
    "an assignor's answer is not legal": 0.4,
    ASKS_AGAIN: 0.02,
    "an install is not legal": 0.4,
    "a task's start fails": 0.1,
    "the sink fails before a write": 0.1,
    "the sink fails after a write": 0.1,
    "a write is late": 0.1,
}
"""How often somebody misbehaves, at most, where a seed knows of it at all."""

VERSIONS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 0),),
    ((0, 1), (1, 2), (0, 2)),
    ((0, 1), (1, 1), (1, 3)),
    ((0, 2), (1, 2), (3, 3), (0, 3)),
)
"""Ranges of assignor versions that the workers of a seed draw from: one for all, one that covers all, none that does,
and such as have nothing in common, where who comes second is turned away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad the network is. Times in seconds, the rest are chances."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    copy: float = 0.0
    late: float = 0.0
    latest_s: float = 0.0
    nearest_s: float = 0.0005
    usual_s: float = 0.01

    @property
    def is_rough(self) -> bool:
        """Whether something may not arrive, or not soon."""
        return bool(self.lose_request or self.lose_answer or self.late)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Attributes:
    moods: how often somebody misbehaves, by what he does; the points of ``connectgroup.fault_points`` are among them.
    drift: how far a process's clock may be off, as a part of its speed.
    versions: assignor version ranges that workers draw from.
    most_a_turn: requests that a coordinator decides in one turn.
    batch_bytes: the most that a batch of the log may have.
    delay_s: how long a lost worker's work waits for it.
    max_moves: units that may change hands in one round; 0 is any number.
    statics: whether workers have instance ids, and mostly another member id in each life.
    """

    weather: Weather = field(default_factory=Weather)
    moods: Mapping[str, float] = field(default_factory=dict)
    drift: float = 0.0
    versions: tuple[tuple[int, int], ...] = VERSIONS[0]
    most_a_turn: int = 500
    batch_bytes: int = 1 << 23
    delay_s: float = 0.0
    max_moves: int = 0
    statics: bool = False


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One thing that befalls a cluster. ``arguments`` are plain values: names, numbers, lists and dicts of them."""

    at_s: float
    kind: str
    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.at_s:9.3f} s  {self.kind}  {said}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run: nothing of it is drawn.

    Attributes:
        ends_s: when the faults are over.
    """

    seed: int
    members: int | None
    tasks: int | None
    setting: Setting
    faults: tuple[PlannedFault, ...]
    ends_s: float

    def to_json(self) -> str:
        """One line; floats come back as they were."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The inverse of ``to_json``."""
        raw = json.loads(text)
        setting = raw["setting"]
        setting["weather"] = Weather(**setting["weather"])
        setting["versions"] = tuple((low, high) for low, high in setting["versions"])
        faults = tuple(PlannedFault(**fault) for fault in raw["faults"])
        return cls(**{**raw, "setting": Setting(**setting), "faults": faults})

    def __str__(self) -> str:
        plain = Setting()
        parts = [f"seed {self.seed}, {self.members or 'drawn'} members, {self.tasks or 'drawn'} tasks"]
        if self.setting.weather != plain.weather:
            parts.append(f"{self.setting.weather}")
        parts += [f"mood {chance:.3f} {mood}" for mood, chance in sorted(self.setting.moods.items())]
        rest = replace(self.setting, weather=plain.weather, moods={})
        parts += [
            f"{name} {getattr(rest, name)}"
            for name in ("drift", "versions", "most_a_turn", "batch_bytes", "delay_s", "max_moves", "statics")
            if getattr(rest, name) != getattr(plain, name)
        ]
        parts += [str(fault) for fault in self.faults]
        return "\n".join([*parts, f"{self.ends_s:9.3f} s  quiet"])


def draw(random: Random, session_s: float) -> Setting:
    """What a seed is like: a swarm, for a run in which everything happens all the time never gets anywhere."""
    moods = {mood: limit * random.random() for mood, limit in MOODS.items() if random.random() < 0.5}
    moods |= {point: limit * random.random() for point, limit in fault_point.POINTS.items() if random.random() < 0.3}
    weather = Weather()
    if random.random() < 0.8:
        weather = Weather(
            lose_request=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
            lose_answer=random.choice([0, 0.02, 0.1, 0.3]) * random.random(),
            copy=random.choice([0, 0.1, 0.5]) * random.random(),
            late=random.choice([0, 0.05, 0.2]) * random.random(),
            latest_s=random.choice([0.5, 1, 2]) * session_s,
            usual_s=random.choice([0.002, 0.02, 0.1]),
        )
    return Setting(
        weather=weather,
        moods=moods,
        drift=random.choice([0.0, 0.0, 0.01, 0.05]),
        versions=random.choice([VERSIONS[0], *VERSIONS]),
        most_a_turn=random.choice([500, 500, 500, 3, 1]),
        batch_bytes=random.choice([1 << 23, 1 << 23, 1 << 23, 24_000]),
        delay_s=random.choice([0.0, 0.0, 5.0, 15.0]),
        max_moves=random.choice([0, 0, 0, 3]),
        statics=random.random() < 0.4,
    )
