"""A separate process for the tests of the SQLite log: it is killed, runs out of disk space, or lacks permissions.

append FILE FIRST   append batches FIRST, FIRST+1, ... of three records each, forever; print each acknowledged number
share URL FIRST     the same with a log that coordinators share, once its former owner is gone
fill FILE           fill the disk, then get space
forbidden FILE      open as a user without permission
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from connectgroup.errors import LogError
from connectgroup.log.base import SharedLog
from connectgroup.log.registry import log_from_url
from connectgroup.log.sqlite.log import SqliteLog
from connectgroup.protocol.records.connect import MemberRecord
from tests.log.life import batch


async def append(path: Path, number: int) -> None:
    log = SqliteLog(path, compact_after=40)
    await log.open()
    while True:
        await log.append(batch(number))
        os.write(1, f"{number}\n".encode())
        number += 1


async def share(url: str, number: int) -> None:
    log = log_from_url(url)
    assert isinstance(log, SharedLog)
    await log.connect()
    await log.stand_by()
    await log.open()
    while True:
        await log.append(batch(number))
        os.write(1, f"{number}\n".encode())
        number += 1


async def fill(path: Path) -> None:
    log = SqliteLog(path)
    await log.open()
    acknowledged = set()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    number = 0
    try:
        while True:
            await log.append(batch(number))
            acknowledged.add(number)
            number += 1
    except LogError:
        print("full")
    with suppress(LogError):
        for _ in range(20):
            await log.append(batch(10**6))
        print("not full")
    print("still-full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    loaded = (await log.load("g"))["g"]
    if not isinstance(loaded, LogError):
        print("readable")
    await log.append(batch(2 * 10**6))
    print("recovered")
    await log.close()
    await log.open()
    loaded = (await log.load("g"))["g"]
    assert not isinstance(loaded, LogError), loaded
    found = [record.member_id for record in loaded if isinstance(record, MemberRecord)]
    whole = all(f"{number}-{part}" in found for number in (*acknowledged, 2 * 10**6) for part in range(3))
    partial = {name.split("-")[0] for name in found if name != "counter"}
    if whole and all(f"{number}-{part}" in found for number in partial for part in range(3)):
        print("complete")
    await log.close()


async def forbidden(path: Path) -> None:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    for _ in range(2):
        try:
            await SqliteLog(path).open()
        except LogError as error:
            print(error)


if __name__ == "__main__":
    _, what, file, *rest = sys.argv
    match what:
        case "append":
            asyncio.run(append(Path(file), int(rest[0])))
        case "share":
            asyncio.run(share(file, int(rest[0])))
        case "fill":
            asyncio.run(fill(Path(file)))
        case "forbidden":
            asyncio.run(forbidden(Path(file)))
