"""The wake-up event, and the back-off after failures."""

from __future__ import annotations

import asyncio

from connectgroup.backoff import Attempts, BackOff
from connectgroup.worker.call_pool import WakeUp


async def test_wake_ups_before_the_wait_count_once() -> None:
    """Several messages to send in one turn of the event loop are the usual case."""
    wake_up = WakeUp()
    listening = asyncio.create_task(wake_up.wait(60))
    await asyncio.sleep(0)
    wake_up.notify()
    wake_up.notify()
    await listening
    wake_up.clear()
    again = asyncio.create_task(wake_up.wait(60))
    await asyncio.sleep(1)
    assert not again.done()
    wake_up.notify()
    await again


async def test_wait_ends_at_its_timeout() -> None:
    loop = asyncio.get_running_loop()
    wake_up = WakeUp()
    began = loop.time()
    await wake_up.wait(5)
    assert loop.time() - began == 5
    wake_up.notify()
    await wake_up.wait(5)
    assert loop.time() - began == 5


def test_back_off_is_limited_after_any_number_of_failures() -> None:
    """A coordinator may be down for a night; 2 ** 1,100 overflows a float."""
    for failures in (1, 10, 1_100, 100_000):
        assert 0 <= BackOff(0.1, 5.0).wait_s(failures) <= 5.0
    assert BackOff(0.1, 5.0).wait_s(1) <= 0.1


def test_equal_numbers_of_failures_have_jittered_back_offs() -> None:
    """KAFKA-19813: otherwise a thousand workers would all retry at the same moment."""
    waits = [BackOff(0.1, 5.0).wait_s(10) for _ in range(200)]
    assert min(waits) < 1.0
    assert max(waits) > 4.0


async def test_attempts_end_before_their_time_is_over() -> None:
    loop = asyncio.get_running_loop()
    began, attempts = loop.time(), Attempts(BackOff(0.1, 1.0), for_s=10)
    while await attempts.pause():
        assert loop.time() - began < 10
    assert loop.time() - began > 8.9
    assert attempts.failures > 10
    assert not await Attempts(BackOff(0.1, 1.0), for_s=0).pause(), "no second attempt"
