"""An archive of the classes that Spark loads: Java maps it instead of reading, checking and linking 15,000 classes.

Starting a session and its first query takes 11 s of processor time without it, and 7 s with it. ``connectgroup
prepare`` makes the archive once for each Java and each installation of pyspark. Java itself checks that it fits, and
ignores one that does not. Source: JEP 350 (dynamic archives), JEP 310.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..private import check_private, make_private
from ..threads import off_loop
from .java import CACHE, cache_directory, find_java

SPARK_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Environment variable with further options of the Java that Spark starts."""


ARCHIVE_AFTER_S: Final = 600.0
"""How long Spark runs before its classes are archived, if they are not yet: not while it is busy with its start."""
QUIET: Final = ("-Xlog:cds=off", "-Xlog:cds*=off")
"""No messages about archives: a session starts all the same."""


def archive_options(java: Path) -> list[str]:
    """The options with which this Java uses its archive; none if there is no archive.

    Raises:
        ConfigError: others can write the directory of the archive, and so what Java would run.
    """
    top = _archive(java)
    for directory in (cache_directory(), top.parent):
        if os.path.lexists(directory):
            check_private(directory, directory.lstat(), CACHE)
    try:
        # Java maps the file, and crashes if a part of it is missing.
        complete = int(_size_file(top).read_text()) == top.stat().st_size
    except (OSError, ValueError):
        return []
    if not complete:
        return []
    base = _base(java)
    files = [str(top)] if base is None else [str(base), str(top)]
    if any(os.pathsep in each for each in files):
        return []  # Java takes it for two files, and more than two for an error
    return [java_option(f"-XX:SharedArchiveFile={os.pathsep.join(files)}"), "-Xshare:auto", *QUIET]


def java_option(text: str) -> str:
    """One option in a list of Java's options as Spark reads it: a path in it may have blanks and quotation marks."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@contextmanager
def recording(java: Path) -> Iterator[Path]:
    """A session that starts and stops inside the block writes the archive, whose path is yielded, when its Java ends.

    Raises:
        ConfigError: pyspark is missing, this Java cannot archive classes, or the archive cannot be written.
    """
    top = _archive(java)
    try:
        make_private(top.parent, CACHE, below=cache_directory())
        with tempfile.TemporaryDirectory(dir=top.parent) as folder:
            new = Path(folder, top.name)
            options = [java_option(f"-XX:ArchiveClassesAtExit={new}"), *QUIET]
            base = _base(java)
            if base is not None:
                _write_base(java, base)
                options.append(java_option(f"-XX:SharedArchiveFile={base}"))
            _size_file(top).unlink(missing_ok=True)  # a session would use the archive
            os.environ[SPARK_OPTIONS] = " ".join(options)
            try:
                yield top
            finally:
                del os.environ[SPARK_OPTIONS]
            if not new.exists():
                raise ConfigError("java", java, "a Java that can archive classes (-XX:ArchiveClassesAtExit)")
            new.replace(top)
            _size_file(top).write_text(str(top.stat().st_size))
    except OSError as error:
        allowed = f"a directory that can be written ({error.strerror})"
        raise ConfigError(CACHE, cache_directory(), allowed) from error


def _archive(java: Path) -> Path:
    """The archive for this Java and this installation of pyspark."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ConfigError("spark", "no package pyspark", "pip install 'connectgroup[spark]' on each worker")
    key = hashlib.sha256(f"{java}\n{found.origin}".encode()).hexdigest()[:12]
    return cache_directory() / f"classes-{key}" / "spark.jsa"


def _size_file(archive: Path) -> Path:
    return archive.with_suffix(".size")


def _base(java: Path) -> Path | None:
    """The archive of Java's own classes on which the other builds; ``None`` for the one that belongs to this Java."""
    if (java.parent.parent / "lib" / "server" / "classes.jsa").exists():
        return None
    return _archive(java).with_name("java.jsa")


def _write_base(java: Path, base: Path) -> None:
    command = [str(java), "-Xshare:dump", f"-XX:SharedArchiveFile={base}", "-XX:+UseSerialGC"]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def archive_classes(
    after_s: float = ARCHIVE_AFTER_S, command: Sequence[str] = (sys.executable, "-P", "-m", "connectgroup", "prepare")
) -> None:
    """Archive the classes that Spark loads, for later starts, in a process of the lowest priority; once for all workers
    of this user.

    Args:
        after_s: how long to wait before.
        command: what makes the archive.
    """
    await asyncio.sleep(after_s)
    with contextlib.ExitStack() as closing, contextlib.suppress(ConfigError, OSError):
        java = await off_loop("find Java", find_java)
        closing.callback(os.close, await off_loop("lock the archive", _lock_of_archive))
        if archive_options(java):
            return
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "19", *command),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
            start_new_session=True,
        )
        try:
            await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def _lock_of_archive() -> int:
    """Lock the file that one process of this user has while it makes the archive; return its descriptor.

    Raises:
        ConfigError: the cache cannot be written.
        OSError: another process has it.
    """
    make_private(cache_directory(), CACHE)
    descriptor = os.open(cache_directory() / "archive.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
