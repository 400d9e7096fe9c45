"""What becomes of the connectors of a Kafka Connect cluster here, and of their offsets: ``connectors import``.

A connector runs as it is if the plug-in path has its Java class; otherwise as a pipeline, if ``translation`` knows one
that needs nothing more and its offsets mean the same there. Offsets that cannot be kept exactly are a reason not to
move a connector: a pipeline that began anew would read everything again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from ..connector import PartitionOffset
from ..dataplane.java_plugins import CONSUMER_OVERRIDES, MAX_POLL_RECORDS, artifact_of, find_java_class, java_classes
from ..errors import ConfigError, ConnectGroupError
from ..masking import HIDDEN
from ..protocol.units import name_violation, printable
from .connector_validation import validate
from .translation import translate

Result = Literal["as it is", "native", "needs plug-in", "cannot"]

_OF_WORKERS: Final = "those of Kafka Connect's workers, which its REST API does not tell: --set them to what they are"
_OF_FRAMEWORK: Final = ("admin.override.", "consumer.override.", "producer.override.", "topic.creation.")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A connector of a Kafka Connect cluster.

    Attributes:
        name, config: as Kafka Connect has them.
        kind: source or sink.
        state: of the connector: RUNNING, PAUSED, STOPPED, FAILED, UNASSIGNED.
        failed: the number of its tasks that have failed.
        offsets: its committed offsets.
        offsets_error: why they cannot be read; empty if they can.
    """

    name: str
    config: Mapping[str, str]
    kind: Literal["source", "sink"]
    state: str
    failed: int = 0
    offsets: Sequence[PartitionOffset] = ()
    offsets_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What becomes of a connector.

    Attributes:
        original: the connector.
        result: whether and how it can run here.
        why: the reason, or the class or source and sink that it runs as; a line.
        configs: the configuration of each connector here, by name; empty if it cannot run.
        notes: what is different here, a line each.
    """

    original: Original
    result: Result
    why: str
    configs: Mapping[str, Mapping[str, str]]
    notes: tuple[str, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Whether it can run here."""
        return bool(self.configs)


def decide(
    original: Original, *, bootstrap_servers: str = "", native: bool = False, more: Mapping[str, str] = _NOTHING
) -> Relocation:
    """Decide what becomes of a connector; ``offsets_here`` has its offsets.

    Args:
        bootstrap_servers: the brokers of the Kafka Connect cluster, which are no setting of a connector there.
        native: whether a pipeline is preferred where the Java class could run.
        more: settings of each connector here, which replace those of the original.
    """
    if (allowed := name_violation(original.name)) is not None:
        why = f"name: got {printable(original.name)!r}; allowed: {allowed}"
        return Relocation(original=original, result="cannot", why=why, configs={})
    if any(HIDDEN in value for value in original.config.values()):
        return Relocation(original=original, result="cannot", why="its configuration has masked values", configs={})
    if original.offsets_error:
        return Relocation(original=original, result="cannot", why=original.offsets_error, configs={})
    class_name = java_name(original.config.get("connector.class", ""))
    as_it_is = _as_it_is(original, class_name, bootstrap_servers, more)
    if as_it_is.is_possible and not native:
        return as_it_is
    own = _native(original, bootstrap_servers, more)
    if own.is_possible:
        return own
    if as_it_is.result == "needs plug-in":
        # The translation's reason is of interest where it knows the class.
        return as_it_is if own.result == "needs plug-in" else _with_reason(as_it_is, own.why)
    return as_it_is


def java_name(name: str) -> str:
    """The full name of a class of a connector on the plug-in path, which Kafka Connect also finds by simple names."""
    if find_java_class(name) is not None:
        return name
    known = [each.name for each in java_classes() if each.kind in ("source", "sink")]
    short = [each for each in known if each.rpartition(".")[2] in (name, f"{name}Connector")]
    return short[0] if len(set(short)) == 1 else name


def _with_reason(move: Relocation, why: str) -> Relocation:
    return Relocation(original=move.original, result=move.result, why=f"{move.why}; as a pipeline: {why}", configs={})


def _as_it_is(original: Original, class_name: str, bootstrap_servers: str, more: Mapping[str, str]) -> Relocation:
    """The Java class in Kafka Connect's own form."""
    if find_java_class(class_name) is None:
        artifact = artifact_of(class_name)
        hint = f": connectgroup plugins install {artifact}:VERSION" if artifact else ""
        why = f"{printable(class_name)}{hint}"
        return Relocation(original=original, result="needs plug-in", why=why, configs={})
    end = "sink" if original.kind == "source" else "source"
    config = {**original.config, "connector.class": class_name, "name": original.name}
    if bootstrap_servers and end not in {**config, **more}:
        config[f"{end}.bootstrap.servers"] = bootstrap_servers
    config |= more
    errors = validate(config).errors
    if errors:
        hint = " (--bootstrap-servers)" if f"{end}.bootstrap.servers" in errors[0] else ""
        return Relocation(original=original, result="cannot", why=f"{errors[0]}{hint}", configs={})
    left = original.config.keys() - {*CONSUMER_OVERRIDES, MAX_POLL_RECORDS}
    ignored = [name for name in sorted(left) if name.startswith(_OF_FRAMEWORK)]
    missing = [name for name in ("key.converter", "value.converter") if name not in config]
    form = ", or records have another form from here on: JSON without schemas" if original.kind == "source" else ""
    notes = [f"{', '.join(missing)}: {_OF_WORKERS}{form}"] if missing and end not in config else []
    notes += [
        f"{printable(name)}: has no effect here; see {end}.client, and create topics beforehand" for name in ignored
    ]
    configs = {original.name: config}
    return Relocation(original=original, result="as it is", why=class_name, configs=configs, notes=tuple(notes))


def _native(original: Original, bootstrap_servers: str, more: Mapping[str, str]) -> Relocation:
    """A pipeline, or several."""
    config = {**original.config, "name": original.name}
    try:
        pipelines, notes = translate(config, bootstrap_servers=bootstrap_servers)
    except ConfigError as error:
        result: Result = "needs plug-in" if error.field == "connector.class" else "cannot"
        return Relocation(original=original, result=result, why=str(error), configs={})
    missing = [text for each in pipelines for text in each.missing if text.partition(":")[0] not in more]
    if missing:
        return Relocation(original=original, result="cannot", why=missing[0], configs={})
    configs = {each.config["name"]: {**each.config, **more} for each in pipelines}
    for each in configs.values():
        if errors := validate(each).errors:
            return Relocation(original=original, result="cannot", why=str(errors[0]), configs={})
    try:
        for name in configs:
            offsets_here(original, configs, name)
    except ConnectGroupError as error:
        return Relocation(original=original, result="cannot", why=str(error), configs={})
    first = next(iter(configs.values()))
    several = f", {len(configs)} pipelines" if len(configs) > 1 else ""
    why = f"source {first['source']}, sink {first['sink']}{several}"
    # Here the offsets do move.
    kept = tuple(each for each in notes if not each.startswith("source.starting.offsets"))
    return Relocation(original=original, result="native", why=why, configs=configs, notes=kept)


# --------------------------------------------------------------------------------------------------
# Offsets: in Kafka Connect's shape there, and in that of the connector here.


class OffsetsDiffer(ConnectGroupError):
    """The offsets of a connector mean something else in the other one."""


def offsets_here(original: Original, configs: Mapping[str, Mapping[str, str]], name: str) -> Sequence[PartitionOffset]:
    """Return the offsets of one of the connectors that an original becomes.

    Raises:
        OffsetsDiffer: they have no exact equal.
    """
    config = configs[name]
    if config.get("connector.class") != "pipeline":
        return original.offsets
    if original.kind == "sink":
        topics = {each.strip() for each in config.get("source.topics", "").split(",")}
        return [each for each in original.offsets if len(configs) == 1 or each.partition.get("kafka_topic") in topics]
    given = [each for each in original.offsets if each.offset is not None]
    if not given:
        return ()
    if config["source"] == "files":
        return [_of_file(each) for each in given]
    if config["source"] in ("sqlite", "postgres"):
        return _of_table(given, original.config, config)
    raise OffsetsDiffer(f"its offsets have no equal in the source {config['source']}")


def offsets_there(
    original: Mapping[str, str], config: Mapping[str, str], offsets: Sequence[PartitionOffset]
) -> Sequence[PartitionOffset]:
    """Return the offsets that a connector in Kafka Connect needs to go on where the connector here is.

    Args:
        original: the configuration there.
        config: the configuration here.
        offsets: those of the connector here.

    Raises:
        OffsetsDiffer: they have no exact equal.
    """
    if config.get("connector.class") != "pipeline" or config.get("source") in ("kafka", "connect"):
        return offsets
    file = original.get("file", "")
    if config.get("source") == "files" and file and Path(file).parent == Path(config.get("source.path", "")):
        name = Path(file).name
        positions = [each.offset["position"] for each in offsets if each.offset and each.partition == {"slice": name}]
        for position in positions:
            _check_ascii(Path(file), int(position))
        return [PartitionOffset(partition={"filename": file}, offset={"position": each}) for each in positions]
    raise OffsetsDiffer("its offsets have no exact equal in Kafka Connect's connector")


def changes_between(found: Sequence[PartitionOffset], wanted: Sequence[PartitionOffset]) -> Sequence[PartitionOffset]:
    """Return the changes that make offsets equal to others: a partition that is not wanted is forgotten."""
    known = [(each.partition, each.offset) for each in found]
    partitions = [each.partition for each in wanted]
    forgotten = [
        PartitionOffset(partition=each.partition, offset=None) for each in found if each.partition not in partitions
    ]
    return [*forgotten, *(each for each in wanted if (each.partition, each.offset) not in known)]


def _of_file(given: PartitionOffset) -> PartitionOffset:
    """FileStream's source partition is the file, its offset a number of characters that it takes for bytes."""
    file = given.partition.get("filename")
    position = (given.offset or {}).get("position")
    if not isinstance(file, str) or not isinstance(position, int) or isinstance(position, bool):
        raise OffsetsDiffer(f"its offset {printable(repr(given.offset))} is none of FileStream's")
    _check_ascii(Path(file), position)
    return PartitionOffset(partition={"slice": Path(file).name}, offset={"position": position})


def _check_ascii(file: Path, position: int) -> None:
    """Check that characters are bytes up to a position, and that a line ends there.

    Raises:
        OffsetsDiffer: they are not, or the file cannot be read here.
    """
    left, last = position, b"\n"
    try:
        with file.open("rb") as content:
            while left > 0:
                block = content.read(min(left, _BLOCK_BYTES))
                if not block:
                    raise OffsetsDiffer(f"{file}: is shorter than its offset, {position}")
                if not block.isascii():
                    raise OffsetsDiffer(
                        f"{file}: has characters of several bytes before its offset {position}: FileStream counts"
                        " characters, and begins again at bytes"
                    )
                left, last = left - len(block), block[-1:]
    except OSError as error:
        raise OffsetsDiffer(
            f"{file}: cannot be read here ({error.strerror}), so it cannot be told whether its offset is exact;"
            " allowed: run this where the file is"
        ) from error
    if last != b"\n":
        raise OffsetsDiffer(f"{file}: no line ends at its offset {position}")


def _of_table(
    given: Sequence[PartitionOffset], original: Mapping[str, str], config: Mapping[str, str]
) -> Sequence[PartitionOffset]:
    """The JDBC source's offset is the last key that was read; ours is the next one, of each part of the keys."""
    table = config.get("source.table", "")
    of_table = [each for each in given if str(each.partition.get("table", "")).rpartition(".")[2].strip('"') == table]
    if not of_table:
        return ()
    keys = {(each.offset or {}).get("incrementing") for each in of_table}
    (key,) = keys if len(keys) == 1 else (None,)
    if original.get("mode") != "incrementing" or not isinstance(key, int):
        raise OffsetsDiffer(f"its offsets have no exact equal in the source {config['source']}: not mode=incrementing")
    slices = int(config.get("source.slices") or _default_slices(config["source"]))
    return [
        PartitionOffset(partition={"slice": f"keys {number} of {slices}"}, offset={"position": key + 1})
        for number in range(slices)
    ]


def _default_slices(source: str) -> int:
    from ..plugins import load_source_class

    default: Any = load_source_class(source).Settings.model_fields["slices"].default
    return int(default)
