"""Quotas of requests by principal: a client above its quota gets ThrottleTimeMs, and its connection is muted so long.
The REST API refuses its requests with 429.

Each principal has a bucket of tokens, which holds one second of its quota; each request takes one. A request that finds
none is processed like any other, but the server reads no further request of its connection until there are tokens
again, at most ``MAX_THROTTLE_S``; every response has the time that is left in ``ThrottleTimeMs``. So no request is
refused, and a heartbeat is never later than by that time: a quota costs no worker its lease. HTTP has no such field,
and its clients know 429 with ``Retry-After``: there, a request that finds no token is refused and takes none.

Source: KIP-124, KIP-219, KAFKA-10023; ``ClientRequestQuotaManager`` has the same bound.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Final

from ..protocol.units import printable
from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Value
from .access_rules import ANONYMOUS, AccessRules

MAX_THROTTLE_S: Final = 1.0
"""Longest time that a connection is muted for one request, and the longest debt of a principal."""

MAX_PRINCIPALS: Final = 1_000
"""Principals that are remembered; the one that was idle longest is forgotten first."""


def quotas_of(rules: AccessRules | None, default: int, *, server: str) -> RequestQuotas:
    """The quotas that rules of access name, and a default for all other principals; 0: none."""

    def quota(principal: str) -> float | None:
        own = rules.quota(principal) if rules is not None else None
        return (float(default) or None) if own is None else own

    return RequestQuotas(quota, server)


class _OfPrincipal(MetricSource):
    """The tokens of one principal, and what has happened to its requests."""

    scope: ClassVar[Scope] = "principal"

    def __init__(self, server: str, principal: str, now_s: float) -> None:
        self.labels: Mapping[str, str] = {"server": server, "principal": principal or ANONYMOUS}
        # Changed by take and admit; the last one by RequestQuotas.count_denied.
        self.tokens, self.at_s = math.inf, now_s
        self.requests = self.throttled = self.denied = 0
        self.throttled_s = 0.0

    def take(self, quota: float, now_s: float) -> float:
        """Take a token, of which there may be none; returns for how many seconds the client is to be muted."""
        self._refill(quota, now_s)
        self.tokens = max(self.tokens - 1, -quota * MAX_THROTTLE_S)
        if self.tokens > -1e-6:
            return 0.0
        delay_s = min(-self.tokens / quota, MAX_THROTTLE_S)
        self.throttled += 1
        self.throttled_s += delay_s
        return delay_s

    def admit(self, quota: float, now_s: float) -> bool:
        """Take a token if there is one; returns whether there was."""
        self._refill(quota, now_s)
        if self.tokens < 1 - 1e-6:
            self.throttled += 1
            return False
        self.tokens -= 1
        return True

    def _refill(self, quota: float, now_s: float) -> None:
        self.tokens = min(quota, self.tokens + (now_s - self.at_s) * quota)
        self.at_s = now_s
        self.requests += 1

    def values(self) -> Mapping[str, Value]:
        return {
            "request-total": self.requests,
            "throttled-request-total": self.throttled,
            "throttle-time-ms-total": self.throttled_s * 1000,
            "denied-request-total": self.denied,
        }


class RequestQuotas(MetricSource):
    """The quotas of all principals of one server.

    Args:
        quota: requests per second of a principal, at least 1; ``None``: none.
        server: what the requests are sent to, as metrics name it: ``coordinator``, ``proxy`` or ``rest``.
        clock: seconds.
    """

    scope: ClassVar[Scope] = "principal"

    def __init__(
        self,
        quota: Callable[[str], float | None] = lambda principal: None,
        server: str = "coordinator",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.labels: Mapping[str, str] = {}
        self._quota, self._server, self._clock = quota, server, clock
        self._principals: OrderedDict[str, _OfPrincipal] = OrderedDict()  # that of the latest request last

    def take(self, principal: str) -> float:
        """Count a request; returns for how many seconds its connection is to be muted."""
        quota = self._quota(principal)
        return 0.0 if quota is None else self._of(principal).take(quota, self._clock())

    def refusal(self, principal: str) -> str:
        """Count a request; returns why it is refused, empty if it is not."""
        quota = self._quota(principal)
        if quota is None or self._of(principal).admit(quota, self._clock()):
            return ""
        who = printable(principal or ANONYMOUS)
        return f"{who}: too many requests; allowed: {quota:g} per second, the quota of this user"

    def count_denied(self, principal: str) -> None:
        """Count a request that was denied."""
        self._of(principal).denied += 1

    def _of(self, principal: str) -> _OfPrincipal:
        found = self._principals.get(principal)
        if found is None:
            found = self._principals[principal] = _OfPrincipal(self._server, principal, self._clock())
            if len(self._principals) > MAX_PRINCIPALS:
                self._principals.popitem(last=False)
        else:
            self._principals.move_to_end(principal)
        return found

    def parts(self) -> Iterable[MetricSource]:
        """The principals that have a quota, or were denied a request."""
        return tuple(self._principals.copy().values())
