"""What a worker offers and what a connector asks for, in the words that ``weighted`` and assignors like it go by.

A worker says its capacity, labels, rack and host when it joins its group: ``WorkerTraits``. A connector says what it
needs in its own configuration, under ``assignment.*``: ``Placement``. The coordinator keeps both and passes them to
assignors. It refuses what no assignor could read when it comes in: a worker's with its join, a connector's when the
connector is written.

Everything is bounded and checked where it comes in; what has been read is plain and sorted, so that equal settings
are equal values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import UNKNOWN_SETTING, ConfigError
from ..protocol.units import printable

PREFIX: Final = "assignment."
MAX_TASKS: Final = 100_000
"""Tasks of one connector; a group has a bound in bytes as well (``group.sizes``)."""
LARGEST_WEIGHT: Final = 1_000_000
LARGEST_CAPACITY: Final = 1_000_000_000
LARGEST_TRAITS: Final = 4_096
"""Bytes of all words of one worker's traits: 1,000 workers must fit a frame."""
MOST_LABELS: Final = 64
LONGEST_WORD: Final = 249

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What a connector asks of the workers that its units are given to.

    Attributes:
        weight: ``assignment.weight``, load of the connector itself, 0 by default because it mostly watches.
        task_weights: ``assignment.task.weight``: one number for all tasks, or one a task (``5,1,1``; a missing one
            is 1); empty means 1 each.
        labels: ``assignment.labels``, sorted: a worker must have all of them (``gpu=true,zone=a``).
        most_per_worker: ``assignment.most.per.worker``: tasks of it on one worker; 0 is no limit.
        most_per_rack: ``assignment.most.per.rack``: tasks of it in one rack; 0 is no limit. Workers that name no rack
            are in one together.
        exclusive: ``assignment.exclusive``, sorted: things of a host (``port:8080``) that each task needs for itself.
        beside: ``assignment.beside``, sorted: connectors whose tasks it likes to have on the same worker. A wish.
        apart_from: ``assignment.apart.from``, sorted: connectors whose tasks it must not share a worker with.
    """

    weight: int = 0
    task_weights: tuple[int, ...] = ()
    labels: Labels = ()
    most_per_worker: int = 0
    most_per_rack: int = 0
    exclusive: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    apart_from: tuple[str, ...] = ()

    def weights_of(self, num_tasks: int) -> tuple[int, ...]:
        """The weight of each task; empty where all have the usual 1."""
        if len(self.task_weights) == 1:
            return self.task_weights * num_tasks if self.task_weights != (1,) else ()
        return self.task_weights[:num_tasks]


NO_PLACEMENT: Final = Placement()


def placement_of(config: Mapping[str, str]) -> Placement:
    """What a connector's configuration asks for; all that does not begin with ``assignment.`` is not looked at.

    Raises:
        ConfigError: a setting is unknown or cannot be read: its name, what it says, what is allowed.
    """
    asked = {key: value for key, value in config.items() if key.startswith(PREFIX)}
    if not asked:
        return NO_PLACEMENT
    fields: dict[str, Any] = {}
    for key, value in sorted(asked.items()):
        if key not in _SETTINGS:
            near = difflib.get_close_matches(key, _SETTINGS, n=1)
            allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(sorted(_SETTINGS))
            raise ConfigError(printable(key), UNKNOWN_SETTING, allowed)
        field, read = _SETTINGS[key]
        fields[field] = read(key, value)
    return Placement(**fields)


def most_tasks(config: Mapping[str, str]) -> int:
    """``tasks.max``: the most tasks a connector may have, 1 where it does not say.

    Raises:
        ConfigError: not a whole number from 1 to ``MAX_TASKS``.
    """
    text = config.get("tasks.max", "1")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MAX_TASKS:
        raise ConfigError("tasks.max", text, f"a whole number from 1 to {MAX_TASKS}")
    return int(text)


def own_settings(config: Mapping[str, str]) -> dict[str, str]:
    """What of a configuration is the connector's own: all that does not say where it shall run."""
    return {key: value for key, value in config.items() if not key.startswith(PREFIX)}


def _whole(least: int, most: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit()) or len(word) > 12 or not least <= int(word) <= most:
            raise ConfigError(key, printable(text), f"a whole number from {least} to {most}")
        return int(word)

    return read


def _weights(key: str, text: str) -> tuple[int, ...]:
    one = _whole(0, LARGEST_WEIGHT)
    return tuple(one(key, word) for word in text.split(","))


def _words(key: str, text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(0 < len(word) <= LONGEST_WORD and word.isprintable() for word in words) or len(words) > MOST_LABELS:
        raise ConfigError(key, printable(text), f"1 to {MOST_LABELS} words, separated by commas")
    return tuple(sorted(set(words)))


def _labels(key: str, text: str) -> Labels:
    return labels_of(key, _words(key, text))


def labels_of(key: str, pairs: Iterable[str]) -> Labels:
    """``name=value`` words as labels, sorted.

    Raises:
        ConfigError: one is not of that form, or a name stands twice.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals or not value or name in labels:
            raise ConfigError(key, printable(pair), "name=value, each name once")
        labels[name] = value
    return tuple(sorted(labels.items()))


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "assignment.apart.from": ("apart_from", _words),
    "assignment.beside": ("beside", _words),
    "assignment.exclusive": ("exclusive", _words),
    "assignment.labels": ("labels", _labels),
    "assignment.most.per.rack": ("most_per_rack", _whole(1, 100_000)),
    "assignment.most.per.worker": ("most_per_worker", _whole(1, 100_000)),
    "assignment.task.weight": ("task_weights", _weights),
    "assignment.weight": ("weight", _whole(0, LARGEST_WEIGHT)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTraits:
    """What a worker offers.

    Attributes:
        capacity: weight it can carry at most, and its part of the load in proportion to the others'; 0 where it does
            not say: then it has no limit, and takes part like the average of those that do say.
        labels: sorted.
        rack: where it stands (a rack, a zone); empty where it does not say.
        host: the machine, which workers may share; empty where it does not say: then it is its own.
    """

    capacity: int = 0
    labels: Labels = ()
    rack: str = ""
    host: str = ""


NO_TRAITS: Final = WorkerTraits()


def check_traits(traits: WorkerTraits) -> None:
    """Refuse traits that are too long or out of range: they are stored, and sent to every assignor.

    Raises:
        ConfigError: the field, its value, what is allowed.
    """
    words = [traits.rack, traits.host, *(word for pair in traits.labels for word in pair)]
    for word in words:
        if len(word) > LONGEST_WORD or not word.isprintable():
            raise ConfigError("labels, rack, host", printable(word), f"printable words of at most {LONGEST_WORD}")
    names = [name for name, _ in traits.labels]
    if len(names) > MOST_LABELS or not all(names) or names != sorted(set(names)):
        raise ConfigError("labels", printable(", ".join(names)), f"at most {MOST_LABELS} names, each once, sorted")
    if not 0 <= traits.capacity <= LARGEST_CAPACITY:
        raise ConfigError("capacity", traits.capacity, f"0 to {LARGEST_CAPACITY}")
    size = sum(len(word.encode()) for word in words)
    if size > LARGEST_TRAITS:
        raise ConfigError("labels", f"{size} bytes", f"at most {LARGEST_TRAITS}")
