"""Kafka Connect's Java plug-ins on the plug-in path of this process: where they are, and which classes they offer.

The layout is that of Kafka Connect's ``plugin.path``: each directory of the path has one directory for each plug-in,
with its jars (``DIR/debezium-postgres/*.jar``), or single jars (``DIR/connect-file-4.3.1.jar``). Nothing of them is
run here, and no Java is needed: a class is listed if its jar declares it (``META-INF/services``), or if the plug-in is
so old that it declares no connector, and a class file says that it is one; it is found if a jar has it.
``spark.connect_runtime`` loads them.

Source: KIP-146 (isolation), KIP-898 (discovery by ServiceLoader).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ..errors import ConfigError

if TYPE_CHECKING:
    import zipfile

PLUGIN_PATH: Final = "CONNECTGROUP_PLUGIN_PATH"
"""Environment variable: the directories of the plug-in path, separated by commas, as in Kafka Connect."""

JavaKind = Literal["source", "sink", "transformation", "predicate", "converter", "header_converter"]
SERVICES: Final[dict[str, JavaKind]] = {
    "org.apache.kafka.connect.source.SourceConnector": "source",
    "org.apache.kafka.connect.sink.SinkConnector": "sink",
    "org.apache.kafka.connect.transforms.Transformation": "transformation",
    "org.apache.kafka.connect.transforms.predicates.Predicate": "predicate",
    "org.apache.kafka.connect.storage.Converter": "converter",
    "org.apache.kafka.connect.storage.HeaderConverter": "header_converter",
}
"""Kafka's ``PluginType`` of each interface for which a jar may declare classes."""
_FILES: Final = "org.apache.kafka:connect-file"
_ARTIFACTS: Final = {
    "org.apache.kafka.connect.file.": _FILES,
    "org.apache.kafka.connect.mirror.": "org.apache.kafka:connect-mirror",
    "io.debezium.connector.postgresql.": "io.debezium:debezium-connector-postgres",
    "io.debezium.connector.mysql.": "io.debezium:debezium-connector-mysql",
    "io.debezium.connector.mariadb.": "io.debezium:debezium-connector-mariadb",
    "io.debezium.connector.mongodb.": "io.debezium:debezium-connector-mongodb",
    "io.debezium.connector.sqlserver.": "io.debezium:debezium-connector-sqlserver",
    "io.debezium.connector.oracle.": "io.debezium:debezium-connector-oracle",
    "io.debezium.connector.jdbc.": "io.debezium:debezium-connector-jdbc",
    "org.apache.iceberg.connect.": "org.apache.iceberg:iceberg-kafka-connect",
    "com.mongodb.kafka.connect.": "org.mongodb.kafka:mongo-kafka-connect",
}
"""Maven's names of well-known plug-ins, by package."""
KAFKA_CONVERTERS: Final = (
    "org.apache.kafka.connect.json.JsonConverter",
    "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "org.apache.kafka.connect.storage.StringConverter",
    *(
        f"org.apache.kafka.connect.converters.{kind}Converter"
        for kind in ("Boolean", "ByteArray", "Double", "Float", "Integer", "Long", "Short")
    ),
)
"""Kafka Connect's own converters: they need no plug-in."""
_SIMPLE_CONVERTERS: Final = {
    simple: name
    for name in KAFKA_CONVERTERS
    for simple in (name.rpartition(".")[2], name.rpartition(".")[2].removesuffix("Converter"))
}
CONVERTERS_OF_SINKS: Final = ("key.converter", "value.converter", "header.converter")
CONSUMER_OVERRIDES: Final = {
    "consumer.override.auto.offset.reset": "starting.offsets",
    "consumer.override.isolation.level": "isolation.level",
}
"""Settings of the consumer of a sink connector, and those of the source that mean the same."""
MAX_POLL_RECORDS: Final = "consumer.override.max.poll.records"
"""How many records a sink connector gets at once; 500 by default, as in Kafka Connect."""
_INTERFACES: Final = ("org/apache/kafka/connect/source/", "org/apache/kafka/connect/sink/")
_CLASS_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)+")


@dataclass(frozen=True, slots=True)
class JavaClass:
    """A class that a plug-in declares.

    Attributes:
        name: the full name of the class.
        kind: Kafka's type of the plug-in.
        version: that of the jar; empty if the jar tells none.
        plugin: the plug-in that has the class.
    """

    name: str
    kind: JavaKind
    version: str
    plugin: JavaPlugin


@dataclass(frozen=True, slots=True)
class JavaPlugin:
    """One plug-in: a directory of jars, or one jar.

    Attributes:
        path: the directory or the jar.
        jars: its jars, sorted.
    """

    path: Path
    jars: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The name of the directory, or of the jar without its ending."""
        return self.path.name.removesuffix(".jar")

    def has(self, class_name: str) -> bool:
        """Whether one of the jars has a class."""
        entry = class_name.replace(".", "/") + ".class"
        return any(entry in _entries(jar, *_stamp(jar)) for jar in self.jars)

    def may_call(self, method: str) -> bool:
        """Whether a class in one of the jars has, or calls, a method of a name; Kafka Connect's own do not count."""
        return any(method in _names(jar, *_stamp(jar), (method,)) for jar in self.jars)

    def classes(self) -> list[JavaClass]:
        """The classes that the jars declare, or have if they declare no connector, sorted by name."""
        offered = [each for jar in self.jars for each in _declared(jar, *_stamp(jar))]
        if not any(kind in ("source", "sink") for _, kind, _ in offered):
            offered += _scanned(self.jars, tuple(map(_stamp, self.jars)))
        found = {(name, kind): JavaClass(name, kind, version, self) for name, kind, version in offered}
        return [found[key] for key in sorted(found)]


def plugin_path() -> tuple[Path, ...]:
    """The plug-in path of this process; empty by default.

    Raises:
        ConfigError: a directory is relative.
    """
    paths = tuple(Path(text.strip()) for text in os.environ.get(PLUGIN_PATH, "").split(",") if text.strip())
    for path in paths:
        if not path.is_absolute():
            raise ConfigError("plugin.path", path, "directories as absolute paths, separated by commas")
    return paths


def set_plugin_path(paths: tuple[Path, ...]) -> None:
    """Set the plug-in path of this process and of those that it starts."""
    os.environ[PLUGIN_PATH] = ",".join(map(str, paths))
    plugin_path()


def java_plugins() -> list[JavaPlugin]:
    """The plug-ins on the plug-in path, in its order; those of a directory by name. A directory may be missing.

    Raises:
        ConfigError: a directory is relative, or cannot be read.
    """
    found = []
    for directory in plugin_path():
        try:
            paths = sorted(directory.iterdir()) if directory.is_dir() else []
        except OSError as error:
            what = f"a directory that can be read ({error.strerror})"
            raise ConfigError("plugin.path", directory, what, is_path=True) from error
        for path in paths:
            if path.name.startswith("."):
                continue  # an installation that is not finished
            if path.is_dir() and (jars := tuple(sorted(path.rglob("*.jar")))):
                found.append(JavaPlugin(path, jars))
            elif path.suffix == ".jar" and path.is_file():
                found.append(JavaPlugin(path, (path,)))
    return found


def java_classes() -> list[JavaClass]:
    """The classes that all plug-ins declare. One that two plug-ins have is listed twice; the first one runs."""
    return [each for plugin in java_plugins() for each in plugin.classes()]


def is_java_name(name: str) -> bool:
    """Whether a text has the form of a Java class with its package."""
    return _CLASS_NAME.fullmatch(name) is not None


def find_java_class(name: str) -> JavaPlugin | None:
    """The first plug-in on the path that has a class, declared or not; ``None`` if none has it."""
    if not is_java_name(name):
        return None
    return next((plugin for plugin in java_plugins() if plugin.has(name)), None)


def artifact_of(class_name: str) -> str:
    """Maven's name of the plug-in that has a class, without a version; empty if it is not known."""
    if class_name in ("FileStreamSource", "FileStreamSink"):
        return _FILES
    return next((each for prefix, each in _ARTIFACTS.items() if class_name.startswith(prefix)), "")


def how_to_install(class_name: str) -> str:
    """The command that installs the plug-in that has a class."""
    return f"connectgroup plugins install {artifact_of(class_name) or 'GROUP:ARTIFACT'}:VERSION on each worker"


def java_class_name(name: str) -> str:
    """The full name of a source or sink connector, given its simple name with or without ``Connector``, as in Kafka
    Connect (``PluginUtils``). Any other text, and a name that several have, is returned as it is."""
    if is_java_name(name) or not name:
        return name
    found = {
        each.name
        for each in java_classes()
        if each.kind in ("source", "sink")
        and name in (simple := each.name.rpartition(".")[2], simple.removesuffix("Connector"))
    }
    return next(iter(found)) if len(found) == 1 else name


def converter_class(name: str) -> str:
    """The full name of one of Kafka's own converters, given its simple name with or without ``Converter``, as in Kafka
    Connect; any other text as it is."""
    return _SIMPLE_CONVERTERS.get(name, name)


def converter_plugin(setting: str, name: str, own: JavaPlugin) -> JavaPlugin | None:
    """Return the plug-in that has a converter of a sink connector: that of the connector, or another one; null for one
    of Kafka's own.

    Raises:
        ConfigError: no plug-in has it.
    """
    name = converter_class(name)
    if name in KAFKA_CONVERTERS:
        return None
    if own.has(name):
        return own
    return require_java_class(setting, name, "header_converter" if setting.startswith("header") else "converter")


def require_java_class(setting: str, name: str, kind: JavaKind) -> JavaPlugin:
    """Return the plug-in that has a class.

    Raises:
        ConfigError: no plug-in has it, or it is of another kind; names the plug-in path, and the classes of this kind
            there.
    """
    plugin = find_java_class(name)
    if plugin is not None:
        others = {each.kind for each in plugin.classes() if each.name == name}
        if others and kind not in others:
            shown = {"source": "a source connector", "sink": "a sink connector"}.get(kind, f"a {kind}")
            raise ConfigError(setting, name, f"{shown}; this class is a {', '.join(sorted(others))}")
        return plugin
    paths = plugin_path()
    if not paths:
        allowed = f"a class in a jar on the plug-in path (--plugin-path, {PLUGIN_PATH}), which is empty here"
    else:
        listed = ", ".join(sorted({each.name for each in java_classes() if each.kind == kind})) or "none"
        allowed = f"a class in a jar on the plug-in path ({', '.join(map(str, paths))}): {listed}"
    raise ConfigError(setting, name, f"{allowed}; {how_to_install(name)}")


# --------------------------------------------------------------------------------------------------


def _stamp(jar: Path) -> tuple[int, int]:
    """Size and time of a jar: what is known of it is remembered until they change."""
    try:
        status = jar.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


@lru_cache(maxsize=1024)
def _entries(jar: Path, size: int, changed_ns: int) -> frozenset[str]:
    import zipfile

    try:
        with zipfile.ZipFile(jar) as archive:
            return frozenset(archive.namelist())
    except Exception:  # zipfile raises many types of errors for a damaged jar
        return frozenset()


@lru_cache(maxsize=1024)
def _names(jar: Path, size: int, changed_ns: int, wanted: tuple[str, ...]) -> frozenset[str]:
    """The names, of those wanted, that a class of a jar contains."""
    import zipfile

    found: set[str] = set()
    try:
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.namelist():
                if entry.endswith(".class") and not entry.startswith(_INTERFACES):
                    content = archive.read(entry)
                    found.update(name for name in wanted if name.encode() in content)
    except Exception:  # zipfile raises many types of errors for a damaged jar
        pass
    return frozenset(found)


@lru_cache(maxsize=1024)
def _declared(jar: Path, size: int, changed_ns: int) -> tuple[tuple[str, JavaKind, str], ...]:
    import zipfile

    try:
        with zipfile.ZipFile(jar) as archive:
            return tuple(_read_declared(archive, jar))
    except Exception:  # zipfile raises many types of errors for a damaged jar
        return ()


def _read_declared(archive: zipfile.ZipFile, jar: Path) -> Iterator[tuple[str, JavaKind, str]]:
    names = frozenset(archive.namelist())
    version = _version(archive, jar) if any(f"META-INF/services/{service}" in names for service in SERVICES) else ""
    for service, kind in SERVICES.items():
        if f"META-INF/services/{service}" not in names:
            continue
        for line in archive.read(f"META-INF/services/{service}").decode().splitlines():
            if name := line.partition("#")[0].strip():
                yield name, kind, version


@lru_cache(maxsize=256)
def _scanned(jars: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> tuple[tuple[str, JavaKind, str], ...]:
    """The public, concrete classes of jars that extend or implement one of the interfaces, directly or not.

    As Kafka Connect's ``ReflectionScanner``, from the class files. Only a class file that has the name of an interface,
    or of a class that was found to be below one, can be below it; so few are parsed.
    """
    import zipfile

    kinds: dict[bytes, JavaKind] = {name.replace(".", "/").encode(): kind for name, kind in SERVICES.items()}
    files: list[tuple[bytes, str]] = []
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as archive:
                names = [each for each in archive.namelist() if each.endswith(".class")]
                names = [each for each in names if not each.startswith("META-INF/") and "module-info" not in each]
                if names:
                    version = _version(archive, jar)
                    files += [(archive.read(each), version) for each in names]
        except Exception:  # zipfile raises many types of errors for a damaged jar
            continue
    found: list[tuple[str, JavaKind, str]] = []
    new = list(kinds)
    while new:
        below: list[bytes] = []
        rest: list[tuple[bytes, str]] = []
        for content, version in files:
            parsed = _class_file(content) if any(name in content for name in new) else None
            kind = next((kinds[above] for above in parsed.above if above in kinds), None) if parsed else None
            if parsed is None or kind is None:
                rest.append((content, version))
                continue
            kinds[parsed.name] = kind
            below.append(parsed.name)
            if parsed.is_usable:
                found.append((parsed.name.decode(errors="replace").replace("/", "."), kind, version))
        files, new = rest, below
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class _ClassFile:
    """Attributes: the names in Java's internal form (``a/b/C``); ``above`` is the superclass and the interfaces."""

    name: bytes
    above: tuple[bytes, ...]
    is_usable: bool


def _class_file(content: bytes) -> _ClassFile | None:
    """What a class file says of its class; ``None`` if it is none. Source: the JVM specification, chapter 4."""
    unpack = struct.unpack_from
    try:
        if content[:4] != b"\xca\xfe\xba\xbe":
            return None
        (count,) = unpack(">H", content, 8)
        at, number = 10, 1
        texts: dict[int, bytes] = {}
        classes: dict[int, int] = {}
        while number < count:
            tag = content[at]
            if tag == 1:
                (length,) = unpack(">H", content, at + 1)
                texts[number] = content[at + 3 : at + 3 + length]
                at += 3 + length
            else:
                if tag == 7:
                    (classes[number],) = unpack(">H", content, at + 1)
                at += _CONSTANT_BYTES[tag]
            number += 2 if tag in (5, 6) else 1
        access, this, parent, interfaces = unpack(">4H", content, at)
        above = (parent, *unpack(f">{interfaces}H", content, at + 8))
        return _ClassFile(
            texts[classes[this]],
            tuple(texts[classes[each]] for each in above if each),
            bool(access & _PUBLIC) and not access & _NOT_CONCRETE,
        )
    except (struct.error, IndexError, KeyError):
        return None


_CONSTANT_BYTES: Final = {
    **dict.fromkeys((7, 8, 16, 19, 20), 3),
    **dict.fromkeys((3, 4, 9, 10, 11, 12, 17, 18), 5),
    **dict.fromkeys((5, 6), 9),
    15: 4,
}
"""The size of each constant of a class file by its tag, without those of texts."""
_PUBLIC: Final = 0x0001
_NOT_CONCRETE: Final = 0x0200 | 0x0400 | 0x1000
"""Interfaces, abstract classes, and classes that the compiler has made."""


def _version(archive: zipfile.ZipFile, jar: Path) -> str:
    """The version in the manifest, or in the name of the jar (``connect-file-4.3.1.jar``)."""
    if "META-INF/MANIFEST.MF" in archive.namelist():
        found = re.search(r"^Implementation-Version:\s*(\S+)", archive.read("META-INF/MANIFEST.MF").decode(), re.M)
        if found is not None:
            return found[1]
    in_name = re.search(r"-(\d[\w.]*)\.jar$", jar.name)
    return in_name[1] if in_name is not None else ""
