"""ConnectGroupResetTopics: forget the topics that a connector has used (KIP-558)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTopicsRequest:
    """Forget the topics that the tasks of a connector have used so far."""

    group_id: str
    connector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTopicsResponse:
    """Whether the coordinator has forgotten them."""

    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = None
    coordinator_epoch: int = -1
