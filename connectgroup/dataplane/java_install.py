"""Installs a Java plug-in of Kafka Connect into the plug-in path, with its dependencies, by the ordinary Maven client.

Maven resolves and downloads, with the user's settings, and rejects what its checksums do not fit. The jars are copied
from its local repository to a directory of the plug-in, which appears whole or not at all. What every worker has itself
is left out: a plug-in that brings its own copy of Kafka Connect's interfaces cannot be cast to them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from ..errors import ConfigError, PluginError
from ..private import make_directories, set_mode, temporary_directory, write_temporary
from ..protocol.units import printable
from .java_plugins import JavaClass, JavaPlugin

TIMEOUT_S: Final = 540
MANIFEST: Final = "connectgroup-plugin.json"
"""In the directory of an installed plug-in: its coordinates, and coordinates, SHA-256 and licence of each jar."""
LEFT_OUT: Final = (
    ("org.apache.kafka", "connect-api"),
    ("org.apache.kafka", "connect-runtime"),
    ("org.apache.kafka", "kafka-clients"),
    ("org.slf4j", "*"),
)
"""Group and artifact of what a worker has itself."""
_COORDINATES: Final = re.compile(r"[A-Za-z0-9_][\w.-]*:[A-Za-z0-9_][\w.-]*:[A-Za-z0-9_][\w.-]*", re.ASCII)
_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>connectgroup</groupId><artifactId>plugin</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions>{}</exclusions>
    </dependency>
  </dependencies>
</project>
"""
_EXCLUSION: Final = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
_UNFINISHED: Final = ".installing-"
_UNREACHABLE: Final = re.compile(
    r"Could not transfer|No plugin found for prefix|Unknown host|Connection refused|timed out|offline", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedJar:
    """A jar in Maven's local repository.

    Attributes:
        coordinates: ``group:artifact:version``.
        path: the file.
        size: in bytes.
        sha256: of the file, in hexadecimal digits.
        licence: the names of its licences, from its POM or that of a parent; empty if none tells one.
    """

    coordinates: str
    path: Path
    size: int
    sha256: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """The result of ``install``.

    Attributes:
        path: its directory.
        jars: what it consists of.
        classes: the classes that it offers.
        is_new: false if it was there before, and was left alone.
    """

    path: Path
    jars: tuple[FetchedJar, ...]
    classes: tuple[JavaClass, ...]
    is_new: bool = True


def check_coordinates(text: str) -> tuple[str, str, str]:
    """Return group, artifact and version.

    Raises:
        ConfigError: the text has another form, or the version is none that stays the same.
    """
    group, _, rest = text.partition(":")
    artifact, _, version = rest.partition(":")
    if _COORDINATES.fullmatch(text) is None or version.upper() in ("LATEST", "RELEASE"):
        allowed = "GROUP:ARTIFACT:VERSION of a Maven repository with a fixed version, such as "
        raise ConfigError("plugin", text, f"{allowed}io.debezium:debezium-connector-postgres:3.6.1.Final")
    return group, artifact, version


def fetch(coordinates: str) -> tuple[FetchedJar, ...]:
    """Have Maven resolve a plug-in and what it needs at run time; return the jars without what is left out.

    Raises:
        ConfigError: see ``check_coordinates``; or Maven is not installed.
        PluginError: Maven does not find it, cannot reach its repositories, or a checksum does not fit.
    """
    wanted = check_coordinates(coordinates)
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(
            "mvn", "no such program", "Maven installed, or the plug-in's jars copied to a directory of the plug-in path"
        )
    with temporary_directory("connectgroup-plugin-") as scratch:
        project, paths = scratch / "pom.xml", scratch / "paths"
        exclusions = "".join(_EXCLUSION.format(*each) for each in LEFT_OUT)
        write_temporary(project, _PROJECT.format(*wanted, exclusions))
        command = [maven, "-q", "-B", "-C", "-f", str(project), "dependency:build-classpath"]
        command += ["-DincludeScope=runtime", f"-Dmdep.outputFile={paths}", f"-Dmdep.pathSeparator={os.pathsep}"]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
            )
            found = [Path(path) for path in paths.read_text().strip().split(os.pathsep) if path]
            jars = tuple(_fetched(path) for path in found if path.suffix == ".jar")
        except subprocess.CalledProcessError as error:
            raise PluginError(_explained(coordinates, error.stdout + error.stderr)) from error
        except subprocess.TimeoutExpired as error:
            raise PluginError(
                f"{coordinates}: Maven has not ended within {TIMEOUT_S} s; allowed: run it again"
            ) from error
        except OSError as error:
            raise PluginError(
                f"{coordinates}: what Maven has resolved cannot be read: {error}; allowed: a retry"
            ) from error
    return tuple(each for each in jars if not _is_left_out(each.coordinates))


def install(
    jars: tuple[FetchedJar, ...], coordinates: str, directory: Path, *, replace: bool = False
) -> InstalledPlugin:
    """Copy the jars of a plug-in to ``DIRECTORY/ARTIFACT``; it appears whole or not at all.

    Args:
        jars: what ``fetch`` returned.
        directory: a directory of the plug-in path; it is created.
        replace: whether another version is replaced.

    Raises:
        ConfigError: another version, or something else, is there already; or the directory cannot be written.
        PluginError: the jars have no class that Kafka Connect calls a plug-in.
    """
    _, artifact, _ = check_coordinates(coordinates)
    target = directory / artifact
    try:
        with _locked(directory):
            for leftover in directory.glob(f"{_UNFINISHED}*"):  # of an installation that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            installed = installed_coordinates(target)
            if installed == coordinates and _is_whole(target):
                classes = tuple(JavaPlugin(target, tuple(sorted(target.glob("*.jar")))).classes())
                return InstalledPlugin(path=target, jars=jars, classes=classes, is_new=False)
            if target.exists() and not replace:
                what = f"{target} with {installed}" if installed else f"{target}, which this command did not make"
                raise ConfigError("plugin", coordinates, f"--replace, to replace {what}")
            scratch = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=directory))
            try:
                classes = _fill(scratch / "new", jars, coordinates, target)
                if target.exists():
                    target.rename(scratch / "old")
                (scratch / "new").rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        allowed = f"a directory that can be written ({error.strerror or error})"
        raise ConfigError("plugin.path", directory, allowed, is_path=True) from error
    return InstalledPlugin(path=target, jars=jars, classes=classes)


def installed_coordinates(plugin: Path) -> str:
    """The coordinates of a plug-in that ``install`` has put there; empty for any other."""
    try:
        found = json.loads((plugin / MANIFEST).read_text())["plugin"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


def _fill(fresh: Path, jars: tuple[FetchedJar, ...], coordinates: str, target: Path) -> tuple[JavaClass, ...]:
    """Copy the jars to a new directory; return the classes, as they are when it is renamed to its target."""
    fresh.mkdir(mode=0o755)
    listed, names = [], set[str]()
    for jar in jars:
        name = jar.path.name if jar.path.name not in names else f"{jar.coordinates.partition(':')[0]}-{jar.path.name}"
        names.add(name)
        shutil.copyfile(jar.path, fresh / name)
        if _digest(fresh / name, "sha256") != jar.sha256:
            raise PluginError(f"{coordinates}: {name} has changed while it was copied; allowed: run it again")
        listed.append({"jar": name, "coordinates": jar.coordinates, "sha256": jar.sha256, "licence": jar.licence})
    (fresh / MANIFEST).write_text(json.dumps({"plugin": coordinates, "jars": listed}, indent=1) + "\n")
    for path in fresh.iterdir():
        # Workers execute it: no other user may write it, whatever the umask is.
        set_mode(path, stat.S_IMODE(path.stat().st_mode) & ~0o022)
    classes = JavaPlugin(fresh, tuple(sorted(fresh.glob("*.jar")))).classes()
    if not classes:
        raise PluginError(
            f"{coordinates}: has no connector, transformation, predicate or converter; allowed: a plug-in of Kafka"
            " Connect"
        )
    moved = JavaPlugin(target, tuple(target / name for name in sorted(names)))
    return tuple(JavaClass(each.name, each.kind, each.version, moved) for each in classes)


def _is_whole(plugin: Path) -> bool:
    """Whether a plug-in has the jars that it was installed with."""
    try:
        listed = json.loads((plugin / MANIFEST).read_text())["jars"]
        return all(_digest(plugin / each["jar"], "sha256") == each["sha256"] for each in listed)
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One installation at a time: the next one may remove what this one has not finished."""
    make_directories(directory)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------
# Maven's repository and Maven's errors.


def _fetched(jar: Path) -> FetchedJar:
    pom = _read_pom(jar.with_suffix(".pom"))
    version, artifact = jar.parent.name, jar.parent.parent.name
    group = _text(pom, "groupId") or _text(pom, "parent/groupId")
    sha1 = jar.with_name(f"{jar.name}.sha1")
    # Maven has checked it when it downloaded the jar, which may be long ago.
    if sha1.exists() and (said := sha1.read_text().split()) and _digest(jar, "sha1") != said[0].lower():
        raise PluginError(
            f"{jar}: differs from its checksum {sha1.name}; allowed: remove {jar.parent}, and run it again"
        )
    return FetchedJar(
        coordinates=f"{group}:{artifact}:{version}",
        path=jar,
        size=jar.stat().st_size,
        sha256=_digest(jar, "sha256"),
        licence=_licence(pom, jar.parents[len(group.split(".")) + 2]),
    )


def _licence(pom: ElementTree.Element | None, repository: Path, depth: int = 0) -> str:
    """The licences of a POM, which has those of its parent if it names none."""
    if pom is None or depth > 10:
        return ""
    names = [" ".join((each.text or "").split()) for each in pom.iterfind("{*}licenses/{*}license/{*}name")]
    if names:
        return printable(", ".join(dict.fromkeys(names)))
    group, artifact, version = (_text(pom, f"parent/{name}") for name in ("groupId", "artifactId", "version"))
    if not group:
        return ""
    parent = repository.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.pom")
    return _licence(_read_pom(parent), repository, depth + 1)


def _read_pom(path: Path) -> ElementTree.Element | None:
    """A POM of Maven's local repository; ``None`` if it cannot be read."""
    try:
        text = path.read_bytes()
        # Entities could grow without limit; a POM has no document type.
        return None if b"<!DOCTYPE" in text else ElementTree.fromstring(text)
    except (OSError, ElementTree.ParseError):
        return None


def _text(pom: ElementTree.Element | None, path: str) -> str:
    found = None if pom is None else pom.findtext("/".join(f"{{*}}{name}" for name in path.split("/")))
    return (found or "").strip()


def _is_left_out(coordinates: str) -> bool:
    group, artifact, _ = coordinates.split(":")
    return any(group == out and name in ("*", artifact) for out, name in LEFT_OUT)


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _explained(coordinates: str, output: str) -> str:
    """The error of a failed Maven in one line."""
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", output).splitlines() if line.startswith("[ERROR] ")]
    text = (lines[0] if lines else output).removeprefix("[ERROR] ").partition(" -> [Help")[0]
    if "hecksum" in text:
        return f"{coordinates}: a checksum does not fit: {printable(text, limit=300)}; allowed: run it again"
    if _UNREACHABLE.search(text):
        return f"{coordinates}: Maven cannot reach its repositories: {printable(text, limit=300)}; allowed: a network"
    if found := re.search(r"Could not find artifact (\S+)", text):
        group, artifact, kind, version = (found[1].split(":") + [""] * 4)[:4]
        missing = f"{group}:{artifact}:{version}" if kind == "jar" else found[1]
        which = "it" if missing == coordinates else f"{missing}, which it needs"
        return (
            f"{coordinates}: no repository of Maven has {printable(which)}; allowed: a published artifact and version"
        )
    return f"{coordinates}: Maven has failed: {printable(text, limit=300)}"
