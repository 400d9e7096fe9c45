"""What every log that coordinators share promises of its lease (``LeasedLog``): inherit ``LeaseContract``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from connectgroup.errors import LogError
from connectgroup.log.base import LogFenced, LogHeld, Ownership
from connectgroup.log.leased import LeasedLog
from connectgroup.testing.contracts.log import contents, member, opened


async def ownership_with_standby(log: LeasedLog) -> Ownership:
    """The ownership, once a coordinator that stands by has announced itself; at the latest after a minute."""
    for _ in range(1_000):
        if len((found := await log.ownership()).coordinators) > 1:
            break
        await asyncio.sleep(0.05)
    return found


class LeaseContract:
    """Each test has a log of its own."""

    def coordinator(self) -> tuple[LeasedLog, Any]:
        """Another coordinator of the log, and its store, of which renewals can be ``cut``; ``loses = "answer"``: that
        of the next append is lost."""
        raise NotImplementedError

    async def test_log_with_a_lease_is_held_and_released_by_a_close(self) -> None:
        (first, _), (second, _) = self.coordinator(), self.coordinator()
        async with opened(first):
            await first.append([member("a")])
            with pytest.raises(LogHeld, match=f"owned by the coordinator at {first.address}, whose lease ends in"):
                await second.open()
            assert second.owner == first.address
        async with opened(second):
            assert second.epoch == first.epoch + 1
            assert await contents(second) == [member("a")]

    async def test_coordinator_that_is_stopped_while_it_takes_the_log_leaves_no_lease(self) -> None:
        (first, store), (second, _) = self.coordinator(), self.coordinator()
        take, taken = store.take, asyncio.Event()

        async def take_and_hang(*given: Any, **named: Any) -> None:
            await take(*given, **named)
            taken.set()
            await asyncio.Event().wait()

        store.take = take_and_hang
        opening = asyncio.ensure_future(first.open())
        await taken.wait()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await first.close()
        async with opened(second):  # it does not wait for the lease
            assert second.epoch == 2

    async def test_close_whose_caller_does_not_wait_for_the_last_batch_leaves_no_lease(self) -> None:
        (first, store), (second, _) = self.coordinator(), self.coordinator()
        writes = asyncio.Event()

        async def hang(*given: Any, **named: Any) -> None:
            writes.set()
            await asyncio.Event().wait()

        await first.open()
        store.append = hang
        appending = asyncio.ensure_future(first.append([member("a")]))
        await writes.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.close(), 0.01)
        appending.cancel()
        await asyncio.gather(appending, return_exceptions=True)
        await second.connect()
        async with asyncio.timeout(60):
            await second.stand_by()  # until the lease has expired without a renewal
        async with opened(second):
            assert await contents(second) == []

    async def test_owner_that_cannot_renew_its_lease_stops_before_another_opens_the_log(self) -> None:
        """D4, D5: the lease of the owner ends, on its own clock, before the log can be opened by another."""
        clock = asyncio.get_running_loop().time
        (first, store), (second, _) = self.coordinator(), self.coordinator()
        async with opened(first):
            await first.append([member("a")])
            await second.connect()
            store.cut = True
            lease_ends_s = first.lease_ends_s
            await second.stand_by()
            assert clock() > lease_ends_s
            assert "the lease has expired, it could not be renewed: no answer" in await first.wait_lost()
            async with opened(second):
                assert await contents(second) == [member("a")]
                with pytest.raises(LogFenced, match="the lease has expired"):
                    await first.append([member("b")])
                with pytest.raises(LogFenced):
                    await first.load()
            assert second.owner == "", "not the owner before it"

    async def test_ownership_lists_the_owner_those_that_stand_by_and_the_last_failover(self) -> None:
        (first, _), (second, _) = self.coordinator(), self.coordinator()
        async with opened(first):
            await first.mark_serving()
            standing_by = asyncio.ensure_future(second.stand_by())
            found = await ownership_with_standby(first)
            listed = [(each.address, each.epoch) for each in found.coordinators]
            assert listed == [(first.address, 1), (second.address, -1)]
            assert (found.failover_ms, found.failover_took_ms, found.failover_cause) == (-1, -1, "")
            shown = [(each.address, each.epoch, each.since_ms) for each in (await second.ownership()).coordinators]
            assert shown == [(each.address, each.epoch, each.since_ms) for each in found.coordinators]
            assert [each.lag_ms >= 0 for each in found.coordinators] == [False, True]
        await standing_by
        async with opened(second):
            await second.mark_serving()
            found = await second.ownership()
            assert [(each.address, each.epoch) for each in found.coordinators][:1] == [(second.address, 2)]
            assert found.failover_cause == "handed over"
            assert found.failover_took_ms >= 0
            assert found.coordinators[0].since_ms <= found.failover_ms

    async def test_batch_whose_answer_is_lost_is_there_once(self) -> None:
        """D6: the owner takes the log again at the next epoch and reads the group again."""
        log, store = self.coordinator()
        async with opened(log):
            await log.append([member("a")])
            store.loses = "answer"
            with pytest.raises(LogError, match="no answer") as error:
                await log.append([member("b")])
            assert type(error.value) is LogError, "its outcome is unknown"
            assert await contents(log) == [member("a"), member("b")]
            assert log.epoch == 2
            await log.append([member("c")])
            assert await contents(log) == [member("a"), member("b"), member("c")]
