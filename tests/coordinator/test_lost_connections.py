"""A member whose process has ended is removed soon after its connection is lost, before its session expires (PD-13)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from connectgroup.coordinator import runtime
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.errors import UnreleasedInstanceId
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.log.memory import MemoryLog, MemoryStorage
from connectgroup.os_process import has_ended, kill_family, this_process
from connectgroup.protocol.messages.classic import (
    WORKER_PROTOCOL,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    OfferedProtocol,
)
from connectgroup.wire.embedded import encode_request
from tests.worker.builders import settings

from .builders import GROUP, add, ask, beat, change, look, served, serving

LONG = settings(session_timeout_ms=600_000)
DELAYED = settings(session_timeout_ms=600_000, scheduled_delay_ms=30_000)
ENDED = "the process that has ended"
SUPERVISED = f"{ENDED}/supervised"


async def lose_a(coordinator: Coordinator, *, process_id: int = 1, os_process: str = ENDED, **more: Any) -> set[str]:
    """Members a and b join; the connection of a is lost. Returns the members a few seconds later.

    Args:
        process_id, os_process: in the last request of the lost connection.
    """
    coordinator.lost_connections.has_ended = lambda process: process in (ENDED, SUPERVISED)
    await change(coordinator, add())
    await ask(coordinator, beat("a", process_id=1, os_process=os_process, **more))
    await ask(coordinator, beat("b", process_id=2))
    epoch = served(coordinator).current("a").epoch
    coordinator.lost_connections.on_lost(beat("a", epoch, process_id=process_id, os_process=os_process))
    await asyncio.sleep(5)
    return set(served(coordinator).members)


async def test_member_is_removed_when_its_process_has_ended() -> None:
    async with serving(group=LONG) as coordinator:
        assert await lose_a(coordinator) == {"b"}
        causes = [cause for rebalance in (await look(coordinator)).rebalances for cause in rebalance.causes]
        assert "a ended without leaving the group" in causes


async def test_member_of_the_classic_protocol_is_removed_when_its_process_has_ended() -> None:
    """Its Heartbeat does not name the process; its JoinGroup did."""
    async with serving(group=LONG) as coordinator:
        coordinator.lost_connections.has_ended = lambda process: process == ENDED
        await change(coordinator, add())
        metadata = encode_request(beat("a", process_id=1, os_process=ENDED))
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            member_id="a",
            protocol_type="connect",
            protocols=(OfferedProtocol(name=WORKER_PROTOCOL, metadata=metadata),),
        )
        joined: Any = await coordinator.handle(join, client_host="h")
        assert joined.error_code == 0
        successor = replace(
            join, protocols=(replace(join.protocols[0], metadata=encode_request(beat("a", process_id=2))),)
        )
        coordinator.lost_connections.on_lost(
            GroupHeartbeatRequest(group_id=GROUP, member_id="a", generation_id=joined.generation_id)
        )
        await asyncio.sleep(1)
        assert not served(coordinator).members
        # Its successor need not wait for a lost connection.
        await coordinator.handle(join, client_host="h")
        refused: Any = await coordinator.handle(successor, client_host="h")
        assert refused.error_code == UnreleasedInstanceId.code
        assert (await coordinator.handle(successor, client_host="h")).error_code == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("group", "sender"),
    [
        pytest.param(LONG, {"os_process": "a live process"}, id="the process lives and will connect again"),
        pytest.param(LONG, {"os_process": ""}, id="the member has not named its process"),
        pytest.param(LONG, {"os_process": SUPERVISED}, id="its supervisor says when it has ended"),
        pytest.param(LONG, {"process_id": 3}, id="the member belongs to another process"),
        pytest.param(LONG, {"instance_id": "i"}, id="the session timeout is a static member's time to return"),
        pytest.param(
            settings(session_timeout_ms=600_000, connection_loss_grace_ms=0), {}, id="connection.loss.grace.ms is 0"
        ),
    ],
)
async def test_member_keeps_its_session_when_its_connection_is_lost(
    group: GroupSettings, sender: dict[str, Any]
) -> None:
    async with serving(group=group) as coordinator:
        assert await lose_a(coordinator, **sender) == {"a", "b"}


@pytest.mark.parametrize("instance_id", [None, "i"])
async def test_units_of_a_process_that_ended_are_delayed_for_its_successor(instance_id: str | None) -> None:
    """S15: as after the session timeout, the units wait for the scheduled rebalance delay, also a static member's."""
    async with serving(group=DELAYED) as coordinator:
        assert await lose_a(coordinator, instance_id=instance_id) == {"b"}
        [delayed] = (await look(coordinator)).delayed
        assert delayed.member_id == "a"
        joined = await ask(coordinator, beat("a", process_id=3, instance_id=instance_id))
        assert joined.error_code == 0
        assert served(coordinator).current("a").assigned


async def test_process_that_ends_shortly_after_its_connection_is_found() -> None:
    async with serving(group=LONG) as coordinator:
        answers = iter([False, False, True])
        await change(coordinator, add())
        joined = await ask(coordinator, beat("a", process_id=1, os_process=ENDED))
        coordinator.lost_connections.has_ended = lambda process: next(answers)
        coordinator.lost_connections.on_lost(beat("a", joined.member_epoch, process_id=1, os_process=ENDED))
        await asyncio.sleep(1)
        assert not served(coordinator, GROUP).members


async def test_processes_that_are_looked_for_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client may open and close connections, each with another name."""
    monkeypatch.setattr(runtime, "MAX_LOOKS", 3)
    looked: set[str] = set()

    def has_ended(process: str) -> bool:
        looked.add(process)
        return False

    async with serving(group=LONG) as coordinator:
        coordinator.lost_connections.has_ended = has_ended
        for number in range(10):
            coordinator.lost_connections.on_lost(beat(f"m{number}", 1, process_id=number, os_process=f"p{number}"))
        await asyncio.sleep(5)
        assert looked == {"p0", "p1", "p2"}
        coordinator.lost_connections.on_lost(beat("later", 1, process_id=1, os_process="later"))
        await asyncio.sleep(1)
        assert "later" in looked, "each is looked for, for a limited time"


@pytest.mark.parametrize("name", [ENDED, SUPERVISED])
async def test_process_that_ended_without_a_coordinator_is_found_by_its_successor(name: str) -> None:
    """The record of the member names the process, so a coordinator that has never seen its connection can look."""
    storage = MemoryStorage()
    async with serving(MemoryLog(storage), group=LONG) as first:
        await change(first, add())
        await ask(first, beat("a", process_id=1, os_process=name))
    async with serving(MemoryLog(storage), group=LONG) as second:
        second.lost_connections.has_ended = lambda process: process == name
        refused = await ask(second, beat("a", process_id=2))
        assert refused.error_code == UnreleasedInstanceId.code
        joined = await ask(second, beat("a", process_id=2))
        assert joined.error_code == 0
        assert served(second).members["a"].process_id == 2


def test_operating_system_tells_whether_a_process_has_ended() -> None:
    name = this_process()
    assert not has_ended(name)
    assert not has_ended(this_process(supervised=True))
    code = "from connectgroup.os_process import this_process; print(this_process(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        named = other.stdout.readline().strip()
        machine, pid, start = named.split("/")
        assert (int(pid), machine) == (other.pid, name.split("/")[0])
        assert not has_ended(named)
        for kind in "", "/supervised":
            assert has_ended(f"{machine}/{pid}/{int(start) - 1}{kind}")  # an earlier process with this id
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie, which its parent has not reaped
        assert has_ended(named)
        other.wait()
        assert has_ended(named)
    for unknown in (
        "",
        "x",
        f"another machine/{pid}/{start}",
        f"{machine}/0/1",
        f"{machine}/-1/1",
        f"{machine}/" + "9" * 20,
    ):
        assert not has_ended(unknown)


def test_process_is_killed_with_all_that_it_has_started() -> None:
    """Also what has a session of its own, as Java has; the pipe closes when both have ended."""
    command = ["sh", "-c", "setsid sleep 600 & echo started; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        kill_family(parent.pid)
        assert parent.stdout.read() == ""
        assert parent.wait() == -signal.SIGKILL
