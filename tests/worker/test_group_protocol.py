"""Workers of the classic and of the connect protocol in one group (``group.protocol``), in virtual time.

``World`` checks in each test that no unit runs on two workers at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from connectgroup.client.admin import Admin
from connectgroup.config.worker import WorkerConfig
from connectgroup.errors import ConfigError, GroupMaxSizeReached
from connectgroup.member.settings import GroupProtocol, MemberSettings
from connectgroup.protocol.messages.assignment import PrepareRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, TaskStatus
from connectgroup.wire.embedded import decode_request, encode_request
from connectgroup.worker.classic import MAX_METADATA_BYTES, SHORT_MESSAGE, metadata_of
from tests.volume import volume

from .builders import GROUP, Actor, Spread, World, settings

pytestmark = pytest.mark.asyncio

CLASSIC, CONNECT = GroupProtocol.CLASSIC, GroupProtocol.CONNECT


async def stop(actor: Actor) -> None:
    actor.worker.stop()
    assert actor.task is not None
    await asyncio.wait_for(actor.task, 5)


async def protocols(world: World) -> list[str]:
    return ["classic" if member.classic else "connect" for member in (await world.describe()).members]


async def test_cn_18_rolling_upgrade_and_rollback(tmp_path: Path) -> None:
    """Each worker is restarted with the other protocol, and back. No unit is idle for a session timeout."""
    async with World(tmp_path, group=settings()) as world:
        await world.add("c", 6)
        for name in "abc":
            world.start(name, group_protocol=CLASSIC, assignors=[Spread()])
        await world.settled()
        epoch = (await world.describe()).group_epoch
        for protocol in (CONNECT, CLASSIC):
            for number, name in enumerate("abc"):
                await stop(world.actors[name])
                world.start(name, group_protocol=protocol, assignors=[Spread()])
                shares = await world.settled()
                assert all(shares.values())
                other = CLASSIC if protocol is CONNECT else CONNECT
                assert await protocols(world) == [protocol] * (number + 1) + [other] * (2 - number)
        described = await world.describe()
        assert described.group_epoch > epoch, "the epochs go on: the group is the same"
        idle_ms = [rebalance.max_handover_ms for rebalance in described.rebalances]
        assert 0 < max(idle_ms) < settings().session_timeout_ms
        assert not any(actor.worker.lost for actor in world.actors.values())


async def test_worker_of_the_classic_protocol_sends_no_heartbeat_of_the_other(tmp_path: Path) -> None:
    """It leads: it computes the target assignment with its own assignor."""
    async with World(tmp_path) as world:
        a = world.start("a", group_protocol=CLASSIC, assignors=[Spread()])
        b = world.start("b", group_protocol=CLASSIC, assignors=[Spread()])
        await world.until(lambda: a.worker.member.epoch)
        await world.add("c", 3)
        await world.settled()
        assert a.heartbeats.heartbeats + b.heartbeats.heartbeats == 0
        assert (await world.describe()).rebalances[-1].computed_by in ("a", "b")


async def test_member_of_the_connect_protocol_computes_if_there_is_one(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", group_protocol=CLASSIC, assignors=[Spread()])
        await world.settled()
        world.start("b", assignors=[Spread()])
        await world.settled()
        asked = sum(isinstance(request, PrepareRequest) for _, request in a.control.requests)
        world.start("d", group_protocol=CLASSIC, assignors=[Spread()])
        await world.settled()
        assert (await world.describe()).rebalances[-1].computed_by == "b"
        assert sum(isinstance(request, PrepareRequest) for _, request in a.control.requests) == asked


async def test_silent_member_of_the_classic_protocol_is_removed_and_returns(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        a = world.start("a", group_protocol=CLASSIC)
        world.start("b")
        await world.settled()
        a.cut()
        await world.until(lambda: len(world.actors["b"].units) == 4, within=20)
        assert not a.units, "its lease has expired before its session"
        a.heal()
        assert all((await world.settled()).values())
        assert a.worker.lost == 1


async def test_members_of_both_protocols_stay_through_a_failover_of_the_coordinator(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a", group_protocol=CLASSIC)
        world.start("b")
        before = await world.settled()
        await world.restart()
        await asyncio.sleep(20)
        assert await world.settled() == before
        assert world.count(" stop ") == world.count(" start ") - 3
        await world.add("d", 3)
        await world.settled()
        assert not any(actor.worker.lost for actor in world.actors.values())


async def test_static_worker_keeps_its_units_when_its_protocol_changes(tmp_path: Path) -> None:
    """ST-01: it leaves temporarily with LeaveGroup, and no epoch advances."""
    async with World(tmp_path) as world:
        await world.add("c", 3)
        world.start("a")
        first = world.start("b1", group_protocol=CLASSIC, instance_id="b")
        before = await world.settled()
        epoch = (await world.describe()).group_epoch
        await stop(first)
        del world.actors["b1"]
        world.start("b2", instance_id="b")
        assert await world.settled(within=2) == {"a": before["a"], "b2": before["b1"]}
        assert (await world.describe()).group_epoch == epoch


async def test_worker_that_restarts_gets_its_units_back(tmp_path: Path) -> None:
    """It leaves with ``returns``, so its units are delayed for it; none moves."""
    async with World(tmp_path, group=settings(scheduled_delay_ms=60_000)) as world:
        await world.add("c", 3)
        world.start("a", group_protocol=CLASSIC)
        first = world.start("b", group_protocol=CLASSIC)
        before = await world.settled()
        first.worker.restart()
        assert first.task is not None
        await asyncio.wait_for(first.task, 5)
        world.start("b", group_protocol=CLASSIC)
        assert await world.settled() == before
        assert world.count("a stop") == 0


async def test_revocation_that_takes_long_delays_no_heartbeat_of_the_classic_protocol(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        await world.add("c", 4)
        a = world.start("a", group_protocol=CLASSIC)
        await world.settled()
        for number in range(4):
            world.hook[f"a stop c-{number}"] = world.slow(25)
        world.start("b")
        await asyncio.sleep(20)
        assert world.count("b start") == a.worker.lost == 0
        assert all((await world.settled(within=60)).values())


@pytest.mark.parametrize("seed", range(volume(user=3, ci=8, soak=100)))
async def test_random_faults_in_a_group_of_both_protocols(tmp_path: Path, seed: int) -> None:
    """Workers stop, start with either protocol, restart and lose their connections; the coordinator restarts.

    No unit runs twice meanwhile, and in the end all units run.
    """
    random = Random(seed)
    names = [f"w{number}" for number in range(4)]

    async with World(tmp_path, group=settings(scheduled_delay_ms=random.choice([0, 3_000]))) as world:

        def start(name: str) -> None:
            world.start(
                name,
                group_protocol=random.choice([CLASSIC, CONNECT]),
                instance_id=name if static else None,
                assignors=[Spread()] if lists_assignor else [],
            )

        static, lists_assignor = random.random() < 0.5, random.random() < 0.5
        await world.add("c", 6)
        for name in names:
            start(name)
            world.hook[f"{name} stop c-{random.randrange(6)}"] = world.slow(random.uniform(0, 1.5))
        for _ in range(15):
            await asyncio.sleep(random.choice([0.1, 1, 4, 15]))
            actor = world.actors[name := random.choice(names)]
            assert actor.task is not None
            match random.choice(["restart", "restart", "stop", "cut", "coordinator", "tasks"]):
                case "restart" | "stop" as what:
                    actor.heal()
                    if what == "restart":
                        actor.worker.restart()
                    else:
                        actor.worker.stop()
                    await asyncio.wait_for(actor.task, 60)
                    start(name)
                case "cut":
                    actor.cut()
                    asyncio.get_running_loop().call_later(random.uniform(1, 20), actor.heal)
                case "coordinator":
                    await world.restart()
                case "tasks":
                    await world.add("c", random.randint(2, 8))
        for actor in world.actors.values():
            actor.heal()
        await world.settled(within=120)


async def test_logger_level_of_an_operator_reaches_workers_of_both_protocols_once(tmp_path: Path) -> None:
    """KIP-976, scope ``cluster``: also a worker that starts later."""
    async with World(tmp_path) as world, Admin.local(world.coordinator) as admin:
        levels: dict[str, list[tuple[str, str]]] = {"a": [], "b": [], "later": []}

        def start(name: str, protocol: GroupProtocol) -> None:
            worker = world.start(name, group_protocol=protocol).worker
            worker.set_logger_levels_by(lambda logger, level: levels[name].append((logger, level)))

        start("a", CLASSIC)
        start("b", CONNECT)
        await world.settled()
        await admin.set_logger_level(GROUP, "x", "INFO")
        await admin.set_logger_level(GROUP, "y", "DEBUG")
        await world.until(lambda: levels["a"] and levels["b"])
        start("later", CLASSIC)
        await world.until(lambda: levels["later"])
        await asyncio.sleep(60)
        assert list(levels.values()) == [[("x", "INFO"), ("y", "DEBUG")]] * 3


async def test_full_group_rejects_a_worker_of_the_classic_protocol_with_one_line(tmp_path: Path) -> None:
    async with World(tmp_path, group=settings(max_members=1)) as world:
        world.start("a")
        await world.until(lambda: world.actors["a"].worker.member.epoch)
        b = world.make("b", group_protocol=CLASSIC)
        with pytest.raises(GroupMaxSizeReached, match="b cannot join"):
            await asyncio.wait_for(b.worker.run(), 5)


async def test_metadata_with_many_long_messages_is_shortened() -> None:
    """JoinGroup has a limit that a heartbeat of the connect protocol does not have."""
    message = "д" * 1_000
    statuses = tuple(
        TaskStatus(connector="c", task=each, owner_epoch=1, state=2, message=message) for each in range(1_000)
    )
    request = HeartbeatRequest(group_id="g", member_id="a", member_epoch=1, owned=(), statuses=statuses)
    metadata = metadata_of(request)
    assert len(metadata) <= MAX_METADATA_BYTES < len(encode_request(request))
    assert {each.message for each in decode_request(metadata).statuses} == {message[:SHORT_MESSAGE]}
    assert metadata_of(few := replace(request, statuses=statuses[:10])) == encode_request(few)


async def test_generic_is_another_name_of_classic(tmp_path: Path) -> None:
    """The name of the sources."""
    config = WorkerConfig.model_validate({"group": "g", "scratch": tmp_path, "group_protocol": "generic"})
    assert config.member_settings().group_protocol is CLASSIC
    with pytest.raises(ConfigError, match="group_protocol"):
        MemberSettings(group_id="g", member_id="a", group_protocol="generic")  # type: ignore[arg-type]
