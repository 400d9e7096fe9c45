"""The order of decisions: heartbeats of members first; all other requests share the time of the coordinator fairly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import pytest

from connectgroup.coordinator import intake
from connectgroup.coordinator.intake import MAX_IDLE, Command, FairQueue
from connectgroup.coordinator.runtime import Coordinator
from connectgroup.coordinator.shard import MAX_RECORDS
from connectgroup.errors import CoordinatorLoadInProgress, GroupIdNotFound, UnknownMemberId
from connectgroup.group.offsets import MAX_DECIDED
from connectgroup.group.registry import ClientInfo, RequestTraits
from connectgroup.protocol.messages.api import Request
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.messages.describe import (
    DescribeGroupsRequest,
    DescribeRequest,
    DescribeResponse,
    ListGroupsRequest,
)
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.messages.offsets import (
    GroupToFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionToDelete,
    TopicCommit,
    TopicToDelete,
    TopicToFetch,
)
from connectgroup.protocol.records.connect import Record

from .builders import GROUP, FaultyLog, add, ask, beat, change, serving, tick

# --------------------------------------------------------------------------------------------------
# The queue


def command(what: str, principal: str | None = "a", group_id: str = "g") -> Command:
    return Command(what, RequestTraits(group_id=group_id), ClientInfo(principal=principal))


def taken(queue: FairQueue, count: int, **cost_s: float) -> list[str]:
    """The next commands. Each takes the time given for its first letter, or none."""
    found: list[str] = []
    for _ in range(count):
        found.append(str(queue.take().what))
        queue.charge(cost_s.get(found[-1][0], 0.0))
    return found


def queued(*commands: Command) -> FairQueue:
    queue = FairQueue()
    for each in commands:
        queue.put(each)
    return queue


def test_principals_take_turns_whatever_they_have_queued() -> None:
    queue = queued(*(command(f"a{n}", "a") for n in range(1_000)), command("b0", "b"), command("b1", "b"))
    assert taken(queue, 6) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_principal_with_many_groups_gets_no_more_than_one_with_few() -> None:
    queue = queued(*(command(f"a{n}", "a", f"g{n}") for n in range(1_000)), *(command(f"b{n}", "b") for n in range(5)))
    assert [each for each in taken(queue, 10) if each.startswith("b")] == [f"b{n}" for n in range(5)]


def test_groups_of_one_principal_take_turns_and_each_keeps_its_order() -> None:
    queue = queued(
        *(command(f"x{n}", group_id="x") for n in range(100)), *(command(f"y{n}", group_id="y") for n in range(3))
    )
    assert taken(queue, 7) == ["x0", "y0", "x1", "y1", "x2", "y2", "x3"]


def test_expensive_commands_count_by_their_time() -> None:
    queue = queued(*(command(f"a{n}", "a") for n in range(100)), *(command(f"b{n}", "b") for n in range(100)))
    first = taken(queue, 44, a=0.010, b=0.001)
    assert 3 <= sum(each.startswith("a") for each in first) <= 5


def test_principal_that_sends_one_expensive_command_at_a_time_gets_no_more_than_its_share() -> None:
    """It is absent from the queue whenever the next command is chosen."""
    queue = queued(*(command(f"b{n}", "b") for n in range(200)))
    decided: list[str] = []
    queue.put(command("a", "a"))
    while len(decided) < 110:
        decided += taken(queue, 1, a=0.010, b=0.001)
        if decided[-1] == "a":
            queue.put(command("a", "a"))
    assert 9 <= decided.count("a") <= 12


def test_absence_earns_no_credit() -> None:
    queue = queued(*(command(f"a{n}", "a") for n in range(1_000)))
    taken(queue, 500, a=0.01)
    for n in range(100):
        queue.put(command(f"b{n}", "b"))
    assert sum(each.startswith("a") for each in taken(queue, 20, a=0.01, b=0.01)) >= 9


def test_command_that_arrives_while_the_last_of_its_principal_is_decided_keeps_its_place() -> None:
    queue = queued(command("a0", "a"), command("b0", "b"))
    assert queue.take().what == "a0"
    queue.put(command("a1", "a"))
    queue.lengths("a", "g")
    queue.charge(0.0)
    assert taken(queue, 2) == ["b0", "a1"]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.take()


def test_few_commands_keep_the_order_of_their_arrival() -> None:
    queue = FairQueue(few=4)
    for each in command("a0", "a"), command("a1", "a"), command("b0", "b"):
        queue.put(each)
    assert taken(queue, 3) == ["a0", "a1", "b0"]


def test_queue_forgets_those_that_have_gone() -> None:
    """Any client may send any group id, and another one each time."""
    queue = FairQueue()
    for n in range(5 * MAX_IDLE):
        queue.put(command("a", f"p{n}", f"g{n}"))
        taken(queue, 1)
    assert queue.lengths("p1", "g1") == (0, 0)
    assert len(queue) == 0


# --------------------------------------------------------------------------------------------------
# The coordinator


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns in which only a few requests are decided, so that the order of responses is that of decisions. All cost
    the same, also on a busy machine."""
    charge = FairQueue.charge
    monkeypatch.setattr(intake, "MAX_INPUTS_PER_TURN", 4)
    monkeypatch.setattr(FairQueue, "charge", lambda queue, seconds: charge(queue, 0.0))


class Sender:
    """Sends requests at once; ``answered`` has the names of those that were answered, in order."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._tasks: list[asyncio.Task[None]] = []
        self.answered: list[str] = []
        self.codes: list[int] = []

    def send(self, name: str, request: Request, principal: str = "") -> None:
        async def run() -> None:
            response = await self._coordinator.handle(request, client_host="h", principal=principal)
            self.answered.append(name)
            self.codes.append(getattr(response, "error_code", 0))

        self._tasks.append(asyncio.create_task(run()))

    async def all(self) -> None:
        await asyncio.gather(*self._tasks)


@pytest.mark.usefixtures("short_turns")
async def test_flood_of_one_user_does_not_delay_another_user() -> None:
    async with serving() as coordinator:
        sender = Sender(coordinator)
        for n in range(300):
            sender.send("ghost", beat(f"g{n}", sequence=1, group_id=f"ghosts-{n % 7}"), "mallory")
        for n in range(5):
            sender.send("honest", beat(f"w{n}", sequence=1), "alice")
        await sender.all()
    assert max(n for n, name in enumerate(sender.answered) if name == "honest") < 30


@pytest.mark.usefixtures("short_turns")
async def test_flood_in_one_group_does_not_delay_other_groups_of_the_same_user() -> None:
    async with serving() as coordinator:
        sender = Sender(coordinator)
        for n in range(300):
            sender.send("ghost", beat(f"g{n}", sequence=1, group_id="ghosts"))
        for n in range(5):
            sender.send("honest", beat(f"w{n}", sequence=1))
        await sender.all()
    assert max(n for n, name in enumerate(sender.answered) if name == "honest") < 30


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize(
    "request_",
    [DescribeRequest(group_ids=("unknown",)), DescribeGroupsRequest(groups=("unknown",)), ListGroupsRequest()],
    ids=lambda request: type(request).__name__,
)
async def test_descriptions_of_one_user_do_not_delay_those_of_another(request_: Request) -> None:
    """A coordinator makes them itself, from descriptions of single groups."""
    async with serving() as coordinator:
        await ask(coordinator, beat("a", sequence=1))
        sender = Sender(coordinator)
        for _ in range(300):
            sender.send("flood", request_, "mallory")
        for _ in range(5):
            sender.send("honest", request_, "alice")
        await sender.all()
    assert max(n for n, name in enumerate(sender.answered) if name == "honest") < 30


@pytest.mark.usefixtures("short_turns")
async def test_descriptions_of_one_user_do_not_use_up_the_limit_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_OF_GROUP", 50)
    async with serving() as coordinator:
        sender = Sender(coordinator)
        for _ in range(200):
            sender.send("flood", DescribeRequest(group_ids=("unknown",)), "mallory")
        await asyncio.sleep(0)
        request = DescribeRequest(group_ids=("unknown",))
        described = await coordinator.handle(request, client_host="h", principal="alice")
        await sender.all()
    assert isinstance(described, DescribeResponse)
    assert [each.error_code for each in described.groups] == [GroupIdNotFound.code]


def joins(member_id: str, group_id: str = "classic") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, member_id=member_id,
        protocol_type="consumer", protocols=(OfferedProtocol(name="range", metadata=b"m"),),
    )  # fmt: skip


async def joined(coordinator: Coordinator) -> JoinGroupResponse:
    """A member of a classic group that has completed a rebalance."""
    response = await coordinator.handle(joins(""), client_host="h")
    assert isinstance(response, JoinGroupResponse)
    sync = SyncGroupRequest(group_id="classic", generation_id=response.generation_id, member_id=response.member_id)
    await coordinator.handle(sync, client_host="h")
    return response


@pytest.mark.usefixtures("short_turns")
async def test_heartbeats_of_classic_members_come_first_too() -> None:
    """They have no numbers, and no process ids."""
    async with serving() as coordinator:
        member, sender = await joined(coordinator), Sender(coordinator)
        for n in range(100):
            sender.send("ghost", joins(f"unknown-{n}"))
        heartbeat = GroupHeartbeatRequest(
            group_id="classic", generation_id=member.generation_id, member_id=member.member_id
        )
        sender.send("member", heartbeat)
        await sender.all()
    assert sender.answered.index("member") < 8
    assert sender.codes[sender.answered.index("member")] == 0


@pytest.mark.usefixtures("short_turns")
async def test_heartbeat_does_not_overtake_an_earlier_commit_of_its_member() -> None:
    """On one connection a client expects its requests to be decided in their order."""
    async with serving() as coordinator:
        member, sender = await joined(coordinator), Sender(coordinator)
        for n in range(40):
            sender.send("ghost", joins(f"unknown-{n}"))
        partition = PartitionCommit(partition_index=0, committed_offset=1, committed_metadata="")
        topic = TopicCommit(name="t", partitions=(partition,))
        sender.send("commit", OffsetCommitRequest(
            group_id="classic", generation_id_or_member_epoch=member.generation_id, member_id=member.member_id,
            topics=(topic,),
        ))  # fmt: skip
        sender.send("heartbeat", GroupHeartbeatRequest(
            group_id="classic", generation_id=member.generation_id, member_id=member.member_id
        ))  # fmt: skip
        await sender.all()
    assert [name for name in sender.answered if name != "ghost"] == ["commit", "heartbeat"]


async def test_heartbeats_of_another_process_do_not_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can send heartbeats under the name of a member."""
    monkeypatch.setattr(intake, "MAX_INPUTS_PER_TURN", 4)
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a", sequence=1, process_id=1))).member_epoch
        sender = Sender(coordinator)
        for n in range(100):
            sender.send("impostor", beat("a", epoch, sequence=100 + n, process_id=2), "mallory")
        sender.send("honest", beat("b", sequence=1, group_id="other"), "alice")
        await sender.all()
    assert sender.answered.index("honest") < 10


async def test_heartbeats_leave_time_for_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members may send any number of heartbeats, of any cost."""
    monkeypatch.setattr(intake, "MAX_TURN_S", 0.0)
    monkeypatch.setattr(intake, "MIN_OTHERS_S", 0.0)
    async with serving() as coordinator:
        members = [f"m{n}" for n in range(50)]
        epochs = {name: (await ask(coordinator, beat(name, sequence=1))).member_epoch for name in members}
        sender = Sender(coordinator)
        for name in members:
            sender.send("member", beat(name, epochs[name], sequence=2))
        sender.send("other", DescribeRequest(group_ids=("unknown",)))
        await sender.all()
    assert sender.answered.index("other") < 10


async def test_requests_above_the_limit_of_a_group_get_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of members and of other groups do not."""
    monkeypatch.setattr(intake, "MAX_OF_GROUP", 50)
    async with serving() as coordinator:
        epoch = (await ask(coordinator, beat("a", sequence=1))).member_epoch
        sender = Sender(coordinator)
        for n in range(200):
            sender.send("ghost", beat(f"g{n}", 7, sequence=1))
        sender.send("member", beat("a", epoch, sequence=2))
        sender.send("elsewhere", beat("b", 7, sequence=1, group_id="other"))
        await sender.all()
    by_name = dict(zip(sender.answered, sender.codes, strict=True))
    assert sender.codes.count(CoordinatorLoadInProgress.code) == 150
    assert CoordinatorLoadInProgress.retriable
    assert by_name["member"] == 0
    assert by_name["elsewhere"] == GroupIdNotFound.code


async def test_requests_above_the_limit_of_a_principal_get_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_OF_GROUP", 20)
    monkeypatch.setattr(intake, "MAX_OF_PRINCIPAL", 50)
    async with serving() as coordinator:
        sender = Sender(coordinator)
        for n in range(200):
            sender.send("ghost", beat("g", 7, sequence=1, group_id=f"{n}"), "mallory")
        sender.send("honest", beat("a", sequence=1), "alice")
        await sender.all()
    assert sender.codes.count(CoordinatorLoadInProgress.code) == 150
    assert sender.codes[sender.answered.index("honest")] == 0


@contextmanager
def turns_of_the_loop() -> Iterator[list[int]]:
    """Counts the turns of the event loop in which other work can run."""
    turns = [0]

    async def run() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    try:
        yield turns
    finally:
        task.cancel()


@pytest.mark.usefixtures("short_turns")
async def test_event_loop_runs_between_turns_without_an_append() -> None:
    """Heartbeats are read from sockets only then, and responses are sent."""
    async with serving() as coordinator:
        await change(coordinator, add())
        await tick()
        sender = Sender(coordinator)
        for n in range(400):
            sender.send("unknown", beat(f"u{n}", 7, sequence=1, group_id=GROUP))
        before = coordinator.shard.turns
        with turns_of_the_loop() as turns:
            await sender.all()
        assert turns[0] >= coordinator.shard.turns - before >= 100


async def steady(coordinator: Coordinator, member_id: str, group_id: str) -> int:
    """The epoch of a new member whose heartbeats report nothing and change nothing; it has used the numbers 1 to 5."""
    epoch = 0
    for sequence in range(1, 6):
        request = beat(member_id, epoch, sequence=sequence, group_id=group_id)
        response = await coordinator.handle(request, client_host="h")
        assert isinstance(response, HeartbeatResponse)
        assert response.error_code == 0
        epoch = response.member_epoch
        await tick()
    return epoch


@asynccontextmanager
async def during_an_append(of_group: str) -> AsyncIterator[tuple[Sender, int, int]]:
    """Member a of group workers and b of another one are steady, at these epochs; until the block ends, a record of a
    third member of a group is appended."""
    log = FaultyLog()
    async with serving(log) as coordinator:
        epochs = await steady(coordinator, "a", GROUP), await steady(coordinator, "b", "other")
        log.gate, sender = asyncio.Event(), Sender(coordinator)
        sender.send("appends", beat("c", sequence=1, group_id=of_group))
        await tick()
        yield sender, *epochs
        log.gate.set()
        await sender.all()


async def test_heartbeat_that_reports_nothing_waits_for_no_append_of_another_group() -> None:
    """Nor for requests of other groups that are queued before it."""
    async with during_an_append("other") as (sender, epoch, of_other):
        sender.send("queued", beat("d", sequence=1, group_id="third"))
        sender.send("of the group that appends", beat("b", of_other, sequence=6, group_id="other"))
        sender.send("of another group", beat("a", epoch, sequence=6))
        await tick()
        assert sender.answered == ["of another group"]
    assert set(sender.codes) == {0}


async def test_heartbeat_does_not_overtake_a_queued_request_of_its_group() -> None:
    async with during_an_append("other") as (sender, epoch, _):
        sender.send("leaves", beat("a", -1, sequence=6))
        sender.send("beats", beat("a", epoch, sequence=7))
        await tick()
        assert sender.answered == []
    assert sender.codes[sender.answered.index("beats")] == UnknownMemberId.code, "it was decided after the other"


async def test_heartbeat_waits_until_the_records_of_its_group_are_durable() -> None:
    async with serving(log := FaultyLog()) as coordinator:
        epoch, sender = await steady(coordinator, "a", GROUP), Sender(coordinator)
        log.gate = asyncio.Event()
        sender.send("appends", beat("a", epoch, sequence=6, rebalance_timeout_ms=61_000))
        sender.send("of the same turn", beat("a", epoch, sequence=7))
        await tick()
        sender.send("of a later one", beat("a", epoch, sequence=8))
        await tick()
        assert sender.answered == []
        log.gate.set()
        await sender.all()
    assert sender.codes == [0, 0, 0]


def commit(*topics: tuple[str, int]) -> OffsetCommitRequest:
    """A commit of an operator: for each topic the number of its partitions."""
    return OffsetCommitRequest(
        group_id="committed",
        member_id="",
        topics=tuple(
            TopicCommit(
                name=name,
                partitions=tuple(
                    PartitionCommit(partition_index=each, committed_offset=each, committed_metadata="m" * (each % 7))
                    for each in range(count)
                ),
            )
            for name, count in topics
        ),
    )


async def test_commit_of_many_partitions_leaves_the_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decided and stored at once, one with 100,000 partitions would delay the heartbeats of all groups by a second."""
    monkeypatch.setattr(intake, "MAX_TURN_S", 0.0)
    monkeypatch.setattr(intake, "MIN_OTHERS_S", 0.0)
    log, parts = FaultyLog(), 7
    log.refuses = lambda records: len(records) > MAX_DECIDED + 2
    async with serving(log) as coordinator:
        request = commit(("a", MAX_DECIDED + 1), ("none", 0), ("b", (parts - 1) * MAX_DECIDED - 1))
        with turns_of_the_loop() as turns:
            response = await coordinator.handle(request, client_host="h")
    assert turns[0] >= log.appends == parts
    assert isinstance(response, OffsetCommitResponse)
    assert [topic.name for topic in response.topics] == ["a", "none", "b"]
    for asked, topic in zip(request.topics, response.topics, strict=True):
        assert [each.partition_index for each in topic.partitions] == [
            each.partition_index for each in asked.partitions
        ]
        assert not any(each.error_code for each in topic.partitions)


@pytest.mark.parametrize("in_groups", [False, True])
async def test_fetch_and_deletion_of_many_offsets_leave_the_others_their_turns(
    in_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MAX_TURN_S", 0.0)
    monkeypatch.setattr(intake, "MIN_OTHERS_S", 0.0)
    parts, numbers = 5, tuple(range(4 * MAX_DECIDED + 1))

    def fetch(topics: tuple[TopicToFetch, ...] | None) -> OffsetFetchRequest:
        if in_groups:
            return OffsetFetchRequest(groups=(GroupToFetch(group_id="committed", topics=topics),))
        return OffsetFetchRequest(group_id="committed", topics=topics)

    async with serving() as coordinator:
        await coordinator.handle(commit(("a", len(numbers)), ("b", 1)), client_host="h")
        named = TopicToFetch(name="a", partition_indexes=numbers), TopicToFetch(name="b", partition_indexes=(0,))
        deleted = tuple(
            TopicToDelete(
                name=each.name,
                partitions=tuple(PartitionToDelete(partition_index=number) for number in each.partition_indexes),
            )
            for each in named
        )
        for topics in (named, None):
            with turns_of_the_loop() as turns:
                fetched = await coordinator.handle(fetch(topics), client_host="h")
            assert turns[0] >= parts
            assert isinstance(fetched, OffsetFetchResponse)
            assert {
                topic.name: tuple(each.committed_offset for each in topic.partitions) for topic in fetched.first.topics
            } == {"a": numbers, "b": (0,)}
        with turns_of_the_loop() as turns:
            gone = await coordinator.handle(OffsetDeleteRequest(group_id="committed", topics=deleted), client_host="h")
        assert turns[0] >= parts
        assert isinstance(gone, OffsetDeleteResponse)
        assert [[each.partition_index for each in topic.partitions] for topic in gone.topics] == [[*numbers], [0]]
        nothing = await coordinator.handle(fetch(None), client_host="h")
        assert isinstance(nothing, OffsetFetchResponse)
        assert (nothing.first.topics, nothing.first.error_code) == ((), 0)
        unknown = await coordinator.handle(OffsetDeleteRequest(group_id="unknown", topics=deleted), client_host="h")
        assert unknown == OffsetDeleteResponse(error_code=GroupIdNotFound.code)


async def test_no_later_request_overtakes_a_part_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_TURN_S", 0.0)
    count = 3 * MAX_DECIDED
    async with serving() as coordinator:
        topics = (TopicToFetch(name="a", partition_indexes=tuple(range(count))),)
        requests = commit(("a", count)), OffsetFetchRequest(group_id="committed", topics=topics)
        _, fetched = await asyncio.gather(*(coordinator.handle(each, client_host="h") for each in requests))
    assert isinstance(fetched, OffsetFetchResponse)
    assert [each.committed_offset for each in fetched.topics[0].partitions] == list(range(count))


async def test_records_of_a_turn_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast they are decided: heartbeats wait for the append."""
    monkeypatch.setattr(intake, "MAX_TURN_S", 60.0)
    log, sizes = FaultyLog(), list[int]()

    def note(records: Sequence[Record]) -> bool:
        sizes.append(len(records))
        return False

    log.refuses = note
    commits = tuple(
        [PartitionCommit(partition_index=n, committed_offset=n, committed_metadata="") for n in range(1_000)]
    )
    async with serving(log) as coordinator:
        sender = Sender(coordinator)
        for n in range(3 * MAX_RECORDS // 1_000):
            commit = OffsetCommitRequest(
                group_id=f"g{n}", member_id="", topics=(TopicCommit(name="t", partitions=commits),)
            )
            sender.send("commits", commit)
        await sender.all()
    assert sender.codes == [0] * len(sender.codes)
    assert MAX_RECORDS <= max(sizes) <= MAX_RECORDS + 1_100
