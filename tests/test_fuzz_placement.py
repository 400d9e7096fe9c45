"""Placement options of workers and connectors: parsed, or rejected in one line."""

from __future__ import annotations

import json
from typing import Final

from connectgroup.assign.placement import Placement, WorkerTraits, check_traits, placement_of
from connectgroup.errors import ConfigError

from .fuzzing import INPUTS, attack

TRAITS: Final = [
    b'{"capacity": 10, "labels": {"gpu": "true", "zone": "a"}, "rack": "r1", "host": "h"}',
    b'{"capacity": 1000000000, "labels": {}, "rack": "", "host": ""}',
    b'{"capacity": 0, "labels": {"": ""}, "rack": "\\ud800", "host": "\\u0000"}',
]
SETTINGS: Final = [
    b'{"assignment.weight": "3", "assignment.task.weight": "5,1,1", "assignment.labels": "gpu=true, zone=a"}',
    b'{"assignment.max.per.worker": "1", "assignment.max.per.rack": "100000", "x": "y"}',
    b'{"assignment.exclusive": "port:8080", "assignment.affinity": "a,b", "assignment.anti.affinity": "c"}',
]


def test_any_options_are_worker_properties_or_a_config_error() -> None:
    def decode(data: bytes) -> WorkerTraits:
        try:
            options = json.loads(data)
            labels = tuple((str(name), str(value)) for name, value in options["labels"].items())
            rack, capacity, host = str(options["rack"]), int(options["capacity"]), str(options["host"])
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ConfigError("none", "no traits", "test options") from error
        traits = WorkerTraits(labels=labels, rack=rack, capacity=capacity, host=host)
        check_traits(traits)
        return traits

    attack(decode, None, TRAITS, INPUTS, ConfigError)


def test_any_settings_make_a_placement_or_a_config_error() -> None:
    def decode(data: bytes) -> Placement:
        try:
            settings = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError("none", "no JSON", "test settings") from error
        words = settings.items() if isinstance(settings, dict) else ()
        return placement_of({key: value for key, value in words if isinstance(value, str)})

    attack(decode, None, SETTINGS, INPUTS, ConfigError)
