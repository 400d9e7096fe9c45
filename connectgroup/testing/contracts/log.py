"""The contract of every log, as tests: inherit ``LogContract``, define ``make_log``, and run pytest.

class TestMyLog(LogContract):
    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        return MyLog(place / "my.log", max_batch_bytes=max_batch_bytes)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from ...errors import LogError
from ...log.base import MAX_BATCH_BYTES, AppendRefused, Log
from ...protocol.messages.common import AssignorInfo, ConfigEntry, ConnectorTasks
from ...protocol.messages.describe import Move, Rebalance
from ...protocol.records.base import Key, Tombstone
from ...protocol.records.connect import (
    ComputationRecord,
    ConnectorRecord,
    CurrentRecord,
    GroupRecord,
    MemberRecord,
    MemberState,
    OwnedTasks,
    RebalanceRecord,
    Record,
    StatusRecord,
    TargetMemberRecord,
    TargetRecord,
    TargetState,
    TaskEntry,
    UnitState,
)


@asynccontextmanager
async def opened(log: Log) -> AsyncIterator[Log]:
    """The log, open; closed at the end."""
    await log.open()
    try:
        yield log
    finally:
        await log.close()


def member(name: str, *, group: str = "g", host: str = "") -> MemberRecord:
    """A small record with a key of its own."""
    return MemberRecord(group_id=group, member_id=name, client_host=host)


def newest(records: Iterable[Record]) -> dict[Key, Record]:
    """The state after replaying the records, by key: compaction must keep all of it."""
    state: dict[Key, Record] = {}
    for record in records:
        if isinstance(record, Tombstone):
            state.pop(record.key, None)
        else:
            state.pop(record.key, None)
            state[record.key] = record
    return state


async def contents(log: Log, group: str = "g") -> list[Record]:
    """The records of one group; asserts that they can be loaded."""
    loaded = (await log.load(group))[group]
    assert not isinstance(loaded, LogError), loaded
    return list(loaded)


ONE_OF_EACH: tuple[Record, ...] = (
    GroupRecord(group_id="g", epoch=2**31 - 1),
    MemberRecord(
        group_id="g",
        member_id="m",
        instance_id="i",
        client_host="10.0.0.1",
        rebalance_timeout_ms=60_000,
        server_assignor="balanced",
        assignors=(AssignorInfo(name="a", minimum_version=-1, maximum_version=3, reason=7, version=2, metadata=b"\0"),),
    ),
    TargetMemberRecord(
        group_id="g",
        member_id="m",
        units=(ConnectorTasks(connector="c", owns_connector=True, tasks=(0, 2)),),
        error=1,
        version=2,
        metadata=b"\xff",
    ),
    TargetRecord(group_id="g", epoch=3, assignor="a", computed_by="m"),
    CurrentRecord(
        group_id="g",
        member_id="m",
        epoch=3,
        previous_epoch=2,
        state=MemberState.UNRELEASED,
        assigned=(OwnedTasks(connector="c", tasks=(-1, 0), owner_epochs=(1, 3)),),
        pending=(OwnedTasks(connector="d", tasks=(5,), owner_epochs=(2,)),),
        at_ms=1_700_000_000_000,
    ),
    ConnectorRecord(
        group_id="g",
        connector="c",
        version=4,
        target_state=TargetState.PAUSED,
        config=(ConfigEntry(name="k", value="v"),),
        since_epoch=1,
        tasks=(TaskEntry(config=(ConfigEntry(name="t", value=""),), since_epoch=2), TaskEntry()),
        credential_names=("k",),
    ),
    ComputationRecord(
        group_id="g", epoch=3, member_id="m", prepared=True, failures=1, failed_members=("n",), error="e"
    ),
    StatusRecord(
        group_id="g", connector="c", task=1, member_id="m", owner_epoch=3, state=UnitState.FAILED, message="x"
    ),
    RebalanceRecord(
        group_id="g",
        rebalance=Rebalance(
            epoch=3,
            causes=("m joined",),
            started_ms=1,
            finished_ms=2,
            computed_by="m",
            moves=(Move(connector="c", task=0, source="n", target="m", handover_ms=12),),
        ),
    ),
    Tombstone(Key(kind=MemberRecord(group_id="g", member_id="n").key.kind, group_id="g", name="n")),
)


class LogContract:
    """The contract of ``log.base.Log``. Each test opens its own logs below ``place``, a separate directory."""

    contract_requires: ClassVar[tuple[str, ...]] = ("make_log",)

    def make_log(self, place: Path, *, max_batch_bytes: int = MAX_BATCH_BYTES) -> Log:
        """A log that is not open. The same ``place`` means the same stored records."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path

    # ------------------------------------------------------------------------------------------- order

    @pytest.mark.asyncio
    async def test_what_was_appended_comes_back_in_that_order(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            await log.append([member("a"), member("b")])
            await log.append([member("c")])
            assert await contents(log) == [member("a"), member("b"), member("c")]

    @pytest.mark.asyncio
    async def test_every_kind_of_record_comes_back_as_it_was(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            await log.append(ONE_OF_EACH)
            assert await contents(log) == list(ONE_OF_EACH)

    @pytest.mark.asyncio
    @pytest.mark.parametrize("name", ["", "\0", "a\0b", "'; DROP TABLE records; --", "ü\U0001f680", "x" * 10_000])
    async def test_any_text_can_be_a_name(self, place: Path, name: str) -> None:
        async with opened(self.make_log(place)) as log:
            await log.append([member(name, group=f"g{name}")])
            await log.append([member("other", group=f"g{name}")])
            assert await log.load() == {f"g{name}": (member(name, group=f"g{name}"), member("other", group=f"g{name}"))}

    @pytest.mark.asyncio
    async def test_appends_that_overlap_stand_in_the_order_of_their_calls(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            batches = [[member(f"{n}-0"), member(f"{n}-1")] for n in range(100)]
            await asyncio.gather(*(log.append(batch) for batch in batches))
            assert await contents(log) == [record for batch in batches for record in batch]

    @pytest.mark.asyncio
    async def test_a_load_sees_the_appends_called_before_it(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            appends = [asyncio.ensure_future(log.append([member(str(n))])) for n in range(10)]
            await asyncio.sleep(0)
            assert await contents(log) == [member(str(n)) for n in range(10)]
            await asyncio.gather(*appends)

    @pytest.mark.asyncio
    async def test_an_empty_batch_returns_only_after_the_batches_before_it(self, place: Path) -> None:
        """A response without records may reveal state that others wrote: it waits until that is durable (D1)."""
        async with opened(self.make_log(place)) as log:
            await log.append([])
            done: list[str] = []
            written = asyncio.ensure_future(log.append([member("a")]))
            written.add_done_callback(lambda _: done.append("written"))
            empty = asyncio.ensure_future(log.append([]))
            empty.add_done_callback(lambda _: done.append("empty"))
            await asyncio.gather(written, empty)
            await asyncio.sleep(0)
            assert done == ["written", "empty"]
            assert await contents(log) == [member("a")]

    # ------------------------------------------------------------------------------------------- groups

    @pytest.mark.asyncio
    async def test_each_group_has_its_own_records(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            await log.append([member("a", group="g"), member("a", group="h")])
            await log.append([member("b", group="h")])
            of_g, of_h = (member("a", group="g"),), (member("a", group="h"), member("b", group="h"))
            assert await log.load() == {"g": of_g, "h": of_h}
            assert await log.load("g") == {"g": of_g}
            assert await log.load("h") == {"h": of_h}

    @pytest.mark.asyncio
    async def test_unwritten_group_has_no_records(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            assert await log.load() == {}
            assert await log.load("g") == {"g": ()}

    # ------------------------------------------------------------------------------------------- refusals

    @pytest.mark.asyncio
    async def test_a_batch_with_one_record_too_large_is_refused_whole(self, place: Path) -> None:
        """D3, D9, KAFKA-19760: nothing of the batch is stored, and adjacent batches are not affected."""
        async with opened(self.make_log(place, max_batch_bytes=1000)) as log:
            outcomes = await asyncio.gather(
                log.append([member("before")]),
                log.append([member("small"), member("large", host="x" * 1000)]),
                log.append([member("after")]),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes] == [type(None), AppendRefused, type(None)]
            assert "1000" in str(outcomes[1])
            assert await contents(log) == [member("before"), member("after")]

    @pytest.mark.asyncio
    async def test_a_batch_that_just_fits_is_taken(self, place: Path) -> None:
        """The limit applies to uncompressed bytes: text that would compress well is not exempt."""
        async with opened(self.make_log(place, max_batch_bytes=1000)) as log:
            taken = 0
            for size in range(900, 1100):
                try:
                    await log.append([member("m", host="x" * size)])
                    taken = size
                except AppendRefused:
                    break
            assert 900 <= taken < 1000

    @pytest.mark.asyncio
    async def test_a_name_that_is_no_text_is_refused(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            with pytest.raises(AppendRefused):
                await log.append([member("fine"), member("\ud800")])
            await log.append([member("next")])
            assert await contents(log) == [member("next")]

    @pytest.mark.asyncio
    async def test_an_append_whose_caller_goes_away_is_written_whole_or_not_at_all(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            calls = [[member("a")], [member("b-0"), member("b-1")], [member("c")]]
            kept, gone, next_one = (asyncio.ensure_future(log.append(batch)) for batch in calls)
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.gather(kept, next_one)
            await log.append([member("d")])
            names = [record.member_id for record in await contents(log) if isinstance(record, MemberRecord)]
            assert names in (["a", "c", "d"], ["a", "b-0", "b-1", "c", "d"])

    # ------------------------------------------------------------------------------------------- restarts

    @pytest.mark.asyncio
    async def test_what_was_acknowledged_is_there_after_a_restart_and_the_epoch_has_grown(self, place: Path) -> None:
        epochs = []
        for turn in range(5):
            async with opened(self.make_log(place)) as log:
                epochs.append(log.epoch)
                assert await contents(log) == [member(str(n)) for n in range(turn)]
                await log.append([member(str(turn))])
        assert epochs == sorted(set(epochs))
        assert epochs[0] >= 1

    @pytest.mark.asyncio
    async def test_of_two_openings_at_most_one_can_write(self, place: Path) -> None:
        """D4: the second is rejected, or the first is fenced."""
        async with opened(self.make_log(place)) as first:
            await first.append([member("a")])
            second = self.make_log(place)
            try:
                await second.open()
            except LogError:
                await first.append([member("b")])
                return
            with pytest.raises(LogError):
                await first.append([member("lost")])
            await second.append([member("b")])
            assert await contents(second) == [member("a"), member("b")]
            assert second.epoch > first.epoch
            await second.close()

    @pytest.mark.asyncio
    async def test_a_log_that_is_not_open_says_so(self, place: Path) -> None:
        log = self.make_log(place)
        for _ in range(2):
            with pytest.raises(LogError, match="not open"):
                await log.append([member("a")])
            with pytest.raises(LogError, match="not open"):
                await log.load()
            with pytest.raises(LogError, match="not open"):
                await log.compact()
            await log.open()
            with pytest.raises(LogError, match="open already"):
                await log.open()
            await log.close()
            await log.close()

    # ------------------------------------------------------------------------------------------- compaction

    @pytest.mark.asyncio
    async def test_compaction_drops_what_is_replaced_and_removed_and_nothing_else(self, place: Path) -> None:
        """D2: the state is the same with and without compaction."""
        async with opened(self.make_log(place)) as log:
            await log.append([member("a", host="1"), member("b"), member("a", group="h")])
            await log.append([member("a", host="2"), Tombstone(member("b").key), Tombstone(member("never").key)])
            assert newest(await contents(log)) == {member("a").key: member("a", host="2")}
            assert await log.compact() == 4
            assert await contents(log) == [member("a", host="2")]
            assert await contents(log, "h") == [member("a", group="h")]
            assert await log.compact() == 0
            await log.append([member("b", host="again")])
        async with opened(self.make_log(place)) as log:
            assert await contents(log) == [member("a", host="2"), member("b", host="again")]

    @pytest.mark.asyncio
    async def test_a_group_of_which_all_is_removed_is_gone_after_compaction(self, place: Path) -> None:
        async with opened(self.make_log(place)) as log:
            await log.append([member("a")])
            await log.append([Tombstone(member("a").key)])
            await log.compact()
            assert await log.load() == {}
            await log.append([member("b")])
            assert await contents(log) == [member("b")]

    @pytest.mark.asyncio
    @pytest.mark.parametrize("seed", range(20))
    async def test_no_order_of_appends_compactions_and_restarts_changes_the_state(self, place: Path, seed: int) -> None:
        """D2 and D3 against a reference model, a dictionary."""
        dice = random.Random(seed)
        model: list[Record] = []
        log = self.make_log(place)
        await log.open()
        for _ in range(60):
            match dice.randrange(10):
                case 0:
                    await log.compact()
                case 1:
                    await log.close()
                    log = self.make_log(place)
                    await log.open()
                case _:
                    batch: list[Record] = []
                    for _ in range(dice.randrange(5)):
                        record = member(dice.choice("abcdef"), group=dice.choice("gh"), host=str(dice.random()))
                        batch.append(Tombstone(record.key) if dice.random() < 0.3 else record)
                    await log.append(batch)
                    model += batch
            for group in "gh":
                expected = newest(record for record in model if record.group_id == group)
                found = newest(await contents(log, group))
                assert found == expected, f"seed {seed}"
                assert list(found) == list(expected), f"seed {seed}: order"
        await log.close()
