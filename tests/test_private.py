"""Directories with scripts, jars, secrets and logs belong to one user."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectgroup.dataplane.java_install import FetchedJar, install
from connectgroup.errors import ConfigError
from connectgroup.private import make_private
from connectgroup.spark.archive import archive_options
from connectgroup.spark.java import cache_directory, kafka_jars, make_launcher, make_script
from connectgroup.spark.session import settings
from connectgroup.transport.credentials import create_credentials
from connectgroup.worker.scratch import Scratch, default_parent, new_directory


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_directories_of_scripts_have_mode_0700_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    home = make_launcher(Path("/usr/bin/java"), tmp_path / "a" / "connectgroup")
    script = home / "bin" / "java"
    assert [mode(path) for path in (home.parent, home, script.parent, script)] == [0o700] * 4
    assert make_launcher(Path("/usr/bin/java"), tmp_path / "a" / "connectgroup") == home
    make_private(tmp_path / "data" / "deep", "--data")
    assert mode(tmp_path / "data" / "deep") == 0o700


@pytest.mark.parametrize("what", ["scratch", "run", "credentials", "plug-ins"])
def test_no_other_user_can_write_a_directory_that_is_created_whatever_the_umask_is(
    tmp_path: Path, umask: int, what: str
) -> None:
    """What is below belongs to one user; a user who may write the directory could replace it."""
    deep = tmp_path / "a" / "b"
    match what:
        case "scratch":
            Scratch(deep, "w").remove()
        case "run":
            new_directory(deep, "c-0")
        case "credentials":
            create_credentials(deep / "c" / "credentials")
        case "plug-ins":
            jar = tmp_path / "tables-1.0.jar"
            with zipfile.ZipFile(jar, "w") as archive:
                archive.writestr("META-INF/services/org.apache.kafka.connect.source.SourceConnector", "acme.Tables")
            sha256 = hashlib.sha256(jar.read_bytes()).hexdigest()
            name = "acme:tables:1.0"
            fetched = FetchedJar(coordinates=name, path=jar, size=jar.stat().st_size, sha256=sha256, licence="")
            installed = install((fetched,), name, deep)
            assert [mode(path) & 0o022 for path in (installed.path, *installed.path.iterdir())] == [0] * 3
    assert [mode(path) & 0o722 for path in (deep, deep.parent)] == [0o700] * 2


def test_mode_that_is_right_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems without modes refuse to set one, as vfat and CIFS do."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "chmod", refuse)
    before = os.umask(0o022)
    try:
        Scratch(tmp_path / "a" / "b", "w").remove()
        make_private(tmp_path / "c" / "d", "--data")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a" / "b"), mode(tmp_path / "c" / "d")) == (0o755, 0o700)


def test_missing_directory_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system cannot be written."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setenv("TMPDIR", "/none")
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for use in (cache_directory, settings, default_parent):
        with pytest.raises(ConfigError, match=r"^TMPDIR: got '/none'; allowed: a directory that can be written"):
            use()


def _script(cache: Path) -> None:
    make_script(cache, "java", "exec true\n")


def _jars(cache: Path) -> None:
    kafka_jars()


def _archive(cache: Path) -> None:
    archive_options(Path("/usr/bin/java"))


@pytest.mark.parametrize("use", [_script, _jars, _archive])
@pytest.mark.parametrize("what", ["writable for others", "writable for the group", "of another user", "a link"])
def test_directory_that_others_may_change_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], None], what: str
) -> None:
    """What others have put there would be executed as this user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = cache_directory()
    match what:
        case "writable for others":
            cache.mkdir()
            cache.chmod(0o757)
        case "writable for the group":
            cache.mkdir()
            cache.chmod(0o775)
        case "of another user":
            if os.geteuid() != 0:
                pytest.skip("only root may give a directory away")
            cache.mkdir()
            os.chown(cache, 12345, 12345)
        case "a link":
            (tmp_path / "elsewhere").mkdir()
            cache.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"XDG_CACHE_HOME: got .*connectgroup'; allowed: a directory, no link, that"):
        use(cache)
    assert [*cache.iterdir()] == []


def test_directory_that_cannot_be_created_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"^data: got '/proc/x/y'; allowed: a directory that can be created \(No such"
    ):
        make_private(Path("/proc/x/y"), "data")


def test_directory_below_the_cache_that_others_may_change_is_refused(tmp_path: Path) -> None:
    script = make_script(tmp_path / "connectgroup", "java", "exec true\n")
    for directory in script.parent, script.parent.parent:
        directory.chmod(0o777)
        with pytest.raises(ConfigError, match="allowed: a directory, no link, that belongs to this user"):
            make_script(tmp_path / "connectgroup", "java", "exec true\n")
        directory.chmod(0o755)
    assert make_script(tmp_path / "connectgroup", "java", "exec true\n") == script


def test_data_directory_that_others_can_write_is_refused_and_scratch_may_be_sticky(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match="--data: got"):
        make_private(tmp_path, "--data")
    make_private(tmp_path, "--scratch", may_be_sticky=True)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="--scratch: got"):
        make_private(tmp_path, "--scratch", may_be_sticky=True)
