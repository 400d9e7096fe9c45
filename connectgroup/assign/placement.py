"""The traits a worker offers and the constraints a connector sets, as used by ``weighted`` and similar assignors.

A worker sends its capacity, labels, rack and host when it joins its group: ``WorkerTraits``. A connector declares its
constraints in its configuration, under ``assignment.*``: ``Placement``. The coordinator stores both and passes them to
assignors. It rejects invalid values on receipt: those of a worker when it joins, those of a connector when its
configuration is written.

All values are bounded and validated on receipt. Parsed values are sorted, so equal settings are equal values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..checks import check_text, check_whole
from ..errors import UNKNOWN_SETTING, ConfigError
from ..protocol.units import printable

PREFIX: Final = "assignment."
LABELS: Final = "assignment.labels"
PROGRESS_TIMEOUT: Final = "task.progress.timeout.ms"
DEFAULT_PROGRESS_TIMEOUT_MS: Final = "300000"
"""As ``max.poll.interval.ms`` of Kafka's consumers: a batch may take minutes."""
MIN_PROGRESS_TIMEOUT_S: Final = 30
"""Spark reports the polls of a query without data every 10 s."""
RETRY_TIMEOUT: Final = "errors.retry.timeout"
RETRY_DELAY: Final = "errors.retry.delay.max.ms"
MAX_RETRY_MS: Final = 86_400_000
FRAMEWORK_SETTINGS: Final = (PROGRESS_TIMEOUT, RETRY_TIMEOUT, RETRY_DELAY)
"""Settings of every connector that the worker reads, and the connector's class does not."""
MAX_TASKS: Final = 100_000
"""Tasks of one connector; a group also has a limit in bytes (``group.sizes``)."""
MAX_WEIGHT: Final = 1_000_000
MAX_CAPACITY: Final = 1_000_000_000
MAX_TRAITS: Final = 4_096
"""Bytes of all strings in one worker's traits: 1,000 workers must fit into one frame."""
MAX_LABELS: Final = 64
MAX_WORD: Final = 249
LABELS_FORM: Final = "pairs of a name and a value: (('gpu', 'true'),)"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A connector's constraints on the workers that run its units.

    Attributes:
        weight: ``assignment.weight``, load of the connector itself, 0 by default because it mostly monitors.
        task_weights: ``assignment.task.weight``: one number for all tasks, or one per task (``5,1,1``; a missing one
            is 1); empty means 1 each.
        labels: ``assignment.labels``, sorted: a worker must have all of them (``gpu=true,zone=a``).
        max_per_worker: ``assignment.max.per.worker``: maximum number of its tasks on one worker; 0 is no limit.
        max_per_rack: ``assignment.max.per.rack``: maximum number of its tasks in one rack; 0 is no limit. Workers
            without a rack count as one rack.
        exclusive: ``assignment.exclusive``, sorted: resources of a host (``port:8080``) that each task needs for
            itself.
        affinity: ``assignment.affinity``, sorted: connectors whose tasks should run on the same worker. A preference.
        anti_affinity: ``assignment.anti.affinity``, sorted: connectors whose tasks must not run on the same worker.
    """

    weight: int = 0
    task_weights: tuple[int, ...] = ()
    labels: Labels = ()
    max_per_worker: int = 0
    max_per_rack: int = 0
    exclusive: tuple[str, ...] = ()
    affinity: tuple[str, ...] = ()
    anti_affinity: tuple[str, ...] = ()

    def weights_of(self, num_tasks: int) -> tuple[int, ...]:
        """The weight of each task; empty if all have the default of 1."""
        if len(self.task_weights) == 1:
            return self.task_weights * num_tasks if self.task_weights != (1,) else ()
        return self.task_weights[:num_tasks]


NO_PLACEMENT: Final = Placement()


def placement_of(config: Mapping[str, str]) -> Placement:
    """Parse the placement constraints of a connector's configuration. Keys without the prefix ``assignment.`` are
    ignored.

    Raises:
        ConfigError: a setting is unknown or invalid; carries its name, its value and the allowed values.
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
        field, read, _ = _SETTINGS[key]
        fields[field] = read(key, value)
    return Placement(**fields)


def placement_settings() -> dict[str, str]:
    """The meaning and form of each placement setting, by name, sorted."""
    return {name: form for name, (_, _, form) in sorted(_SETTINGS.items())}


def max_tasks(config: Mapping[str, str]) -> int:
    """``tasks.max``: the maximum number of tasks of a connector, 1 if not set.

    Raises:
        ConfigError: not an integer from 1 to ``MAX_TASKS``.
    """
    return _whole(1, MAX_TASKS)("tasks.max", config.get("tasks.max", "1"))


def progress_timeout_s(config: Mapping[str, str]) -> float:
    """``task.progress.timeout.ms`` in seconds: how long a task may complete no poll of its source; 0: no limit.

    Raises:
        ConfigError: not an integer from 0 to one day.
    """
    return _whole(0, 86_400_000)(PROGRESS_TIMEOUT, config.get(PROGRESS_TIMEOUT, DEFAULT_PROGRESS_TIMEOUT_MS)) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long a failed unit is retried (KIP-298, with other defaults: Kafka Connect does not retry).

    Attributes:
        timeout_s: ``errors.retry.timeout`` in seconds: a unit that has failed for this long without writing a row stays
            FAILED; 0: from its first failure, null (-1): never.
        max_delay_s: ``errors.retry.delay.max.ms`` in seconds: the maximum back-off; ``None``: the worker's.
    """

    timeout_s: float | None = None
    max_delay_s: float | None = None


def retries_of(config: Mapping[str, str]) -> Retries:
    """Parse the retry settings of a connector.

    Raises:
        ConfigError: not an integer from -1 (timeout) or 1 (delay) to one day.
    """
    timeout, delay = config.get(RETRY_TIMEOUT, "-1").strip(), config.get(RETRY_DELAY)
    timeout_s = None
    if timeout != "-1":
        try:
            timeout_s = _whole(0, MAX_RETRY_MS)(RETRY_TIMEOUT, timeout) / 1000
        except ConfigError as error:
            allowed = f"-1, or a whole number from 0 to {MAX_RETRY_MS}"
            raise ConfigError(RETRY_TIMEOUT, printable(timeout), allowed) from error
    delay_s = None if delay is None else _whole(1, MAX_RETRY_MS)(RETRY_DELAY, delay) / 1000
    return Retries(timeout_s=timeout_s, max_delay_s=delay_s)


RESERVED: Final = ("task", "tasks")
"""Keys that a connector class adds to the configurations of its tasks."""

_NOT_TASKS_MAX: Final = ("max.task", "max.tasks", *RESERVED)


_SIMILARITY: Final = 0.85
_MAX_COMPARED: Final = 20
"""A comparison takes some microseconds, and a request has room for 500,000 settings."""


def _misspelt_tasks_max(config: Mapping[str, str]) -> list[str]:
    """Settings that are similar to ``tasks.max``, among the first ones that have its length and characters."""
    name = "tasks.max"
    own = dict.fromkeys(map(ord, name))
    # The similarity is twice the number of characters in common by the number of all: no more than this.
    possible = [
        key
        for key in config
        if abs(len(key) - len(name)) <= 3
        and 2 * (len(key) - len(key.translate(own))) >= _SIMILARITY * (len(key) + len(name))
        and key != name
    ]
    return [key for key in possible[:_MAX_COMPARED] if difflib.get_close_matches(key, (name,), cutoff=_SIMILARITY)]


def check_settings(connector: str, config: Mapping[str, str]) -> None:
    """Check the settings of a connector that the framework reads, whatever its class: name, ``tasks.max``,
    ``task.progress.timeout.ms``, retries, placement.

    Raises:
        ConfigError: a setting is reserved, misspelt or invalid.
    """
    # Some classes ignore unknown settings, and tasks.max has a default.
    for key in [*_misspelt_tasks_max(config), *(each for each in _NOT_TASKS_MAX if each in config)]:
        raise ConfigError(key, UNKNOWN_SETTING, "tasks.max (did you mean that?)")
    if config.get("name", connector) != connector:
        raise ConfigError("name", config["name"], f"{printable(connector)}, the name of the connector")
    max_tasks(config)
    if 0 < progress_timeout_s(config) < MIN_PROGRESS_TIMEOUT_S:
        raise ConfigError(PROGRESS_TIMEOUT, config[PROGRESS_TIMEOUT], f"0, or from {MIN_PROGRESS_TIMEOUT_S * 1000}")
    retries_of(config)
    placement_of(config)


def own_settings(config: Mapping[str, str]) -> dict[str, str]:
    """The part of a configuration that the connector itself reads: all keys except those of the framework alone."""
    return {key: value for key, value in config.items() if not key.startswith(PREFIX) and key not in FRAMEWORK_SETTINGS}


def _whole(least: int, limit: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit()) or len(word) > 12 or not least <= int(word) <= limit:
            raise ConfigError(key, printable(text), f"a whole number from {least} to {limit}")
        return int(word)

    return read


def _weights(key: str, text: str) -> tuple[int, ...]:
    one = _whole(0, MAX_WEIGHT)
    return tuple(one(key, word) for word in text.split(","))


def _words(key: str, text: str) -> tuple[str, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(0 < len(word) <= MAX_WORD and word.isprintable() for word in words) or len(words) > MAX_LABELS:
        raise ConfigError(key, printable(text), f"1 to {MAX_LABELS} words, separated by commas")
    return tuple(sorted(set(words)))


def _labels(key: str, text: str) -> Labels:
    return labels_of(key, _words(key, text))


def labels_of(key: str, pairs: Iterable[str]) -> Labels:
    """Parse ``name=value`` strings into labels, sorted.

    Raises:
        ConfigError: a string does not have that form, or a name occurs twice.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals or not value or name in labels:
            raise ConfigError(key, printable(pair), "name=value, each name once")
        labels[name] = value
    return tuple(sorted(labels.items()))


PLUGIN_LABEL: Final = "plugin."
"""Prefix of the labels that a worker has without being told: one for each Java class of a connector that it can run."""
_CLASS_SETTINGS: Final = ("connector.class", "source.connector.class", "sink.connector.class")


def plugin_labels(classes: Iterable[str]) -> Labels:
    """The labels of a worker that can run these Java classes, sorted."""
    names = (f"{PLUGIN_LABEL}{each}" for each in set(classes))
    return tuple(sorted((name, "true") for name in names if len(name) <= MAX_WORD))


def needed_plugins(config: Mapping[str, str], offered: Iterable[str]) -> Labels:
    """The labels of plug-ins that a worker must have to run a connector.

    A class that no worker has a label for is not among them: it is no plug-in in Java, or it is missing everywhere, and
    then a worker says so.

    Args:
        config: of the connector; it names Java classes as Kafka Connect does, by their full or simple names.
        offered: the names of the labels that any worker of the group has.
    """
    wanted = {config[setting] for setting in _CLASS_SETTINGS if config.get(setting)}
    found = set()
    for label in offered:
        if label.startswith(PLUGIN_LABEL):
            name = label.removeprefix(PLUGIN_LABEL)
            simple = name.rpartition(".")[2]
            if not wanted.isdisjoint((name, simple, simple.removesuffix("Connector"))):
                found.add((label, "true"))
    return tuple(sorted(found))


_SETTINGS: dict[str, tuple[str, Callable[[str, str], Any], str]] = {
    "assignment.anti.affinity": (
        "anti_affinity",
        _words,
        "connectors whose tasks must not run on the same worker: orders,prices",
    ),
    "assignment.affinity": (
        "affinity",
        _words,
        "connectors whose tasks should run on the same worker: orders,prices",
    ),
    "assignment.exclusive": (
        "exclusive",
        _words,
        "resources of a machine that each task needs for itself: port:8080,gpu",
    ),
    LABELS: ("labels", _labels, "labels that a worker must have: gpu=true,zone=a"),
    "assignment.max.per.rack": (
        "max_per_rack",
        _whole(1, 100_000),
        "maximum number of its tasks in one rack: 1 to 100000",
    ),
    "assignment.max.per.worker": (
        "max_per_worker",
        _whole(1, 100_000),
        "maximum number of its tasks on one worker: 1 to 100000",
    ),
    "assignment.task.weight": (
        "task_weights",
        _weights,
        "the load of a task: one number for all tasks, or one for each: 5,1,1",
    ),
    "assignment.weight": (
        "weight",
        _whole(0, MAX_WEIGHT),
        f"the load of the connector itself: 0 to {MAX_WEIGHT}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTraits:
    """The traits that a worker offers.

    Attributes:
        capacity: maximum weight it can run; its part of the load is proportional to it. 0 if not configured: the
            worker then has no limit, and its part is the average of the configured capacities.
        labels: pairs of a name and a value, sorted by name.
        rack: the worker's location (a rack, a zone); empty if not configured.
        host: the machine, which workers may share; empty if not configured: the worker then counts as a host of its
            own.

    Raises:
        ConfigError: a field is of the wrong type, or ``capacity`` is out of range. ``check_traits`` checks the rest.
    """

    capacity: int = 0
    labels: Labels = ()
    rack: str = ""
    host: str = ""

    def __post_init__(self) -> None:
        check_whole("capacity", self.capacity, 0, MAX_CAPACITY)
        check_text("rack", self.rack)
        check_text("host", self.host)
        if not isinstance(self.labels, tuple):
            raise ConfigError("labels", printable(self.labels), LABELS_FORM)


NO_TRAITS: Final = WorkerTraits()


def check_traits(traits: WorkerTraits) -> None:
    """Reject traits that are too long or out of range: they are stored, and sent to every assignor.

    Raises:
        ConfigError: the field, its value, and what is allowed.
    """
    if not isinstance(traits.labels, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(word, str) for word in pair)
        for pair in traits.labels
    ):
        raise ConfigError("labels", printable(traits.labels), LABELS_FORM)
    words = [traits.rack, traits.host, *(word for pair in traits.labels for word in pair)]
    for word in words:
        if len(word) > MAX_WORD or not word.isprintable():
            raise ConfigError("labels, rack, host", printable(word), f"printable words of at most {MAX_WORD}")
    names = [name for name, _ in traits.labels]
    if len(names) > MAX_LABELS or not all(names) or names != sorted(set(names)):
        raise ConfigError("labels", printable(", ".join(names)), f"at most {MAX_LABELS} names, each once, sorted")
    size = sum(len(word.encode()) for word in words)
    if size > MAX_TRAITS:
        raise ConfigError("labels", f"{size} bytes", f"at most {MAX_TRAITS}")
