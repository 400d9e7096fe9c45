"""How long to wait before the next attempt: one policy for workers, commands and consumers."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackOff:
    """Random waits, whose upper bound doubles with each consecutive failure.

    The jitter prevents processes that lost the same server from connecting together ("Exponential Backoff And Jitter",
    AWS Architecture Blog: full jitter).

    Attributes:
        first_s: upper bound of the first wait, in seconds.
        max_s: upper bound of all waits, in seconds.
    """

    first_s: float
    max_s: float

    def limit_s(self, failures: int) -> float:
        """The upper bound of the wait after so many consecutive failures: the wait of a sender that has no rival."""
        return min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 60))

    def wait_s(self, failures: int) -> float:
        """The wait after so many consecutive failures, at least one."""
        # Imported at the first failure: most commands have none, and its import takes a tenth of their start.
        from tenacity import RetryCallState, Retrying, wait_random_exponential

        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = failures
        return wait_random_exponential(multiplier=self.first_s, max=self.max_s)(state)


class Attempts:
    """The attempts of one call until one succeeds.

    Attributes:
        failures: how many have failed. ``pause`` counts.
    """

    def __init__(self, back_off: BackOff, *, for_s: float = math.inf) -> None:
        """``for_s``: how long to go on, in seconds on the event loop's clock."""
        self.failures = 0
        self._back_off, self._ends_s = back_off, asyncio.get_running_loop().time() + for_s

    async def pause(self) -> bool:
        """An attempt has failed: wait before the next one. Returns false, without a wait, if the time would be over."""
        self.failures += 1
        wait_s = self._back_off.wait_s(self.failures)
        if asyncio.get_running_loop().time() + wait_s >= self._ends_s:
            return False
        await asyncio.sleep(wait_s)
        return True


def should_log(failures: int) -> bool:
    """Whether to log the n-th consecutive failure: the first, the fifth, and then every twentieth are logged."""
    return failures in (1, 5) or failures % 20 == 0
