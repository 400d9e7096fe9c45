"""A limit on requests per second for each client address: a token bucket that holds one second of requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MAX_ADDRESSES: Final = 10_000
"""Addresses that are remembered; the one that was idle longest is forgotten first."""


class RateLimit:
    """Admits requests at a rate. Uses a clock in seconds."""

    def __init__(self, requests_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Store the arguments."""
        self._rate, self._clock = requests_per_second, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admits(self, address: str) -> bool:
        """Whether a request of this address is within the limit; counts it if so."""
        now = self._clock()
        tokens, at = self._buckets.pop(address, (float(self._rate), now))
        tokens = min(float(self._rate), tokens + (now - at) * self._rate)
        admitted = tokens >= 1
        self._buckets[address] = (tokens - 1 if admitted else tokens), now
        if len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)
        return admitted
