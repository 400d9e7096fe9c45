"""The log holds connector configurations: only its owner may read it (reliability, section 5, secrets at rest)."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.records.connect import GroupRecord


@pytest.fixture(params=[0o000, 0o022], ids=["umask 000", "umask 022"], autouse=True)
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {path.name: f"{stat.S_IMODE(path.stat().st_mode):04o}" for path in sorted(folder.iterdir())}


async def test_log_files_are_private_to_their_owner(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "groups.sqlite")
    await log.open()
    await log.append([GroupRecord(group_id="g", epoch=1)])
    try:
        found = modes(tmp_path)
    finally:
        await log.close()
    assert found == dict.fromkeys(
        ["groups.sqlite", "groups.sqlite-shm", "groups.sqlite-wal", "groups.sqlite.lock"], "0600"
    )


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
async def test_log_readable_by_others_is_opened_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "groups.sqlite"
    for _ in range(2):
        caplog.clear()
        log = SqliteLog(path)
        with caplog.at_level(logging.WARNING):
            await log.open()
        await log.close()
        path.chmod(mode)
    warned = f"{path}: other users may access it (mode {mode:04o})" in caplog.text
    assert warned is (mode != 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == mode
