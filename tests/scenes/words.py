"""The vocabulary of scenes: how the words of a line are parsed, and how output is formatted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from connectgroup.errors import from_code
from connectgroup.protocol.messages.common import AssignorInfo, entries, units_of
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.base import Key, Tombstone
from connectgroup.protocol.records.connect import Record
from connectgroup.protocol.units import Unit, Units
from tests.group.builders import names


class SceneError(Exception):
    """A scene that cannot be run as written."""


class NamedTarget(NamedTuple):
    """One member's target assignment; ``version`` of its metadata is ``None`` for the member's own version."""

    units: list[Unit]
    version: int | None = None


# ---- reading


def read_unit(word: str) -> Unit:
    """``foo-1`` is a task of foo, ``foo`` the connector itself."""
    name, _, task = word.rpartition("-")
    return Unit(name, int(task)) if name and task.isdigit() else Unit(word)


def read_units(words: str) -> list[Unit]:
    """Units in the order written, repeats included; ``nothing`` is the empty list."""
    return [] if words == "nothing" else [read_unit(word) for word in words.split()]


def read_grants(words: str) -> dict[Unit, int | None]:
    """Units, some with their owner epoch: ``foo-1@7``."""
    grants: dict[Unit, int | None] = {}
    for word in [] if words == "nothing" else words.split():
        unit, _, epoch = word.partition("@")
        grants[read_unit(unit)] = int(epoch) if epoch else None
    return grants


def read_targets(words: str) -> list[tuple[str, NamedTarget]]:
    """``A: foo foo-0; B: foo-1 (version 3)``."""
    targets = []
    for part in [] if words == "nothing" else words.split("; "):
        match = re.fullmatch(r"(\S+): (.+?)(?: \(version (-?\d+)\))?", part)
        if match is None:
            raise SceneError(f"got {part!r}; allowed: A: foo foo-0; B: foo-1 (version 3); C: nothing")
        targets.append((match[1], NamedTarget(read_units(match[2]), int(match[3]) if match[3] else None)))
    return targets


def read_assignors(words: str) -> tuple[AssignorInfo, ...]:
    """``even 0-3, other 1-1 version 1 reason 2 metadata cpu=4``; by default the version range is 0-0 and the metadata
    has the highest version.
    """
    infos = []
    for part in words.split(", "):
        match = re.fullmatch(
            r"(?P<name>\w+|'')(?: (?P<low>-?\d+)-(?P<high>-?\d+))?(?: version (?P<version>-?\d+))?"
            r"(?: reason (?P<reason>\d+))?(?: metadata (?P<metadata>\S+))?",
            part,
        )
        if match is None:
            raise SceneError(f"got {part!r}; allowed: even 0-3 version 1 reason 2 metadata cpu=4")
        infos.append(
            AssignorInfo(
                name=match["name"].strip("'"),
                minimum_version=int(match["low"] or 0),
                maximum_version=int(match["high"] or 0),
                version=int(match["version"] or match["high"] or 0),
                reason=int(match["reason"] or 0),
                metadata=(match["metadata"] or "").encode(),
            )
        )
    return tuple(infos)


def read_time(words: str) -> int:
    """``10 s`` or ``1 ms``, in milliseconds."""
    number, unit = words.split()
    return round(float(number) * (1_000 if unit == "s" else 1))


@dataclass(frozen=True, slots=True)
class Field:
    """A kind of word: its pattern, and how it is parsed."""

    pattern: str
    read: Callable[[str], Any] = str


UNIT = r"(?!with\b|as\b)[a-z]+(?:-\d+)?"

FIELDS: Final[Mapping[str, Field]] = {
    "who": Field(r"[A-Z]\w*|[a-z]\d"),
    "members": Field(r"\w+(?:(?:, | and )\w+)*", lambda words: re.split(", | and ", words)),
    "units": Field(rf"nothing|{UNIT}(?: {UNIT})*", read_units),
    "grants": Field(rf"nothing|{UNIT}(?:@\d+)?(?: {UNIT}(?:@\d+)?)*", read_grants),
    "targets": Field(r"nothing|\w+: .+?", read_targets),
    "assignors": Field(r"(?:\w+|'').*?", read_assignors),
    "server": Field(r"[\w-]+"),
    "connector": Field(r"[a-z]+"),
    "config": Field(r"\S+=\S+(?: \S+=\S+)*", lambda words: entries(dict(word.split("=", 1) for word in words.split()))),
    "instance": Field(r"\w+"),
    "setting": Field(r"[a-z_]+"),
    "epoch": Field(r"-?\d+", int),
    "computed": Field(r"\d+", int),
    "count": Field(r"\d+", int),
    "time": Field(r"\d+(?:\.\d+)? m?s", read_time),
    "words": Field(r".+"),
}
"""The fields of forms."""


# ---- output


def units_text(units: Iterable[Unit] | Mapping[Unit, int]) -> str:
    """Units as text, with their owner epochs if known."""
    if isinstance(units, Mapping):
        return " ".join(f"{unit}@{units[unit]}" for unit in sorted(units)) or "nothing"
    return " ".join(names(units)) or "nothing"


def targets_text(targets: Mapping[str, Units]) -> str:
    """A target assignment as text."""
    return "; ".join(f"{member_id} {units_text(units)}" for member_id, units in sorted(targets.items())) or "no members"


def duration_text(ms: int) -> str:
    """A duration as text."""
    return f"{ms / 1_000:g} s"


def error_name(code: int) -> str:
    """Kafka's name of an error."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(from_code(code, None)).__name__).upper()


def response_text(response: HeartbeatResponse) -> str:
    """A heartbeat response as it is on the wire: the whole assignment, or "unchanged"."""
    if response.error_code:
        return f"{error_name(response.error_code)}: {response.error_message}"
    words = f"epoch {response.member_epoch}"
    if response.member_epoch < 0:
        return words
    if response.assignment is None:
        return f"{words}, unchanged"
    words += f", assigned {units_text(units_of(response.assignment.units))}"
    if response.assignment.version:
        words += f" (version {response.assignment.version})"
    return words


def record_kinds(records: Iterable[Record]) -> str:
    """Records by kind and name, in log order."""
    return (
        ", ".join(f"{_key(record.key)}{' tombstone' if isinstance(record, Tombstone) else ''}" for record in records)
        or "none"
    )


def _key(key: Key) -> str:
    return f"{key.kind.name} {key.name}".replace("\n", "-").rstrip()
