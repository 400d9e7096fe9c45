"""Drives the rules of a classic group without a coordinator, and checks that its records rebuild it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from connectgroup.group.classic.group_type import ClassicGroupType
from connectgroup.group.classic.state import ClassicSettings
from connectgroup.group.kernel.outcome import Outcome, SetTimer, TimerKey, TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.classic import (
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberShare,
    OfferedProtocol,
    SyncGroupRequest,
)
from connectgroup.protocol.records.base import Key, Tombstone
from connectgroup.protocol.records.connect import Record

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
NO_DELAY = ClassicSettings(initial_rebalance_delay_ms=0)


def offers(*names: str, metadata: bytes = b"m", version: int = -1) -> tuple[OfferedProtocol, ...]:
    return tuple(OfferedProtocol(name=name, metadata=metadata, assignor_version=version) for name in names)


class Driver:
    """One group.

    Attributes:
        answers: the responses to parked requests that later steps have sent, by member id.
        timers: the armed timers: milliseconds by key without ``belongs_to``.
    """

    def __init__(self, settings: ClassicSettings = NO_DELAY) -> None:
        ids = count(1)
        self.type = ClassicGroupType(settings, new_id=lambda: str(next(ids)))
        self.group = self.type.new(GROUP)
        self.log: dict[Key, Record] = {}
        self.answers: dict[str, Any] = {}
        self.timers: dict[TimerKey, SetTimer] = {}
        self.parked: set[str] = set()

    # ---- requests

    def send(self, request: Any, client: str = "c") -> Any:
        """Decide a request; the response, or None if it is parked."""
        traits = self.type.traits(request)
        outcome = self.type.step(self.group, request, 1_000, ClientInfo("h", client))
        self._take(outcome)
        if outcome.parks:
            assert outcome.response is None
            self.parked.add(outcome.sender or traits.sender)
        return outcome.response

    def _take(self, outcome: Outcome[Any]) -> None:
        for sender, response in outcome.parked_responses.items():
            if sender in self.parked:
                self.parked.discard(sender)
                self.answers[sender] = response
        for timer in outcome.timers:
            self.timers.pop(timer.key.identity, None)
            if isinstance(timer, SetTimer):
                self.timers[timer.key.identity] = timer
        for record in outcome.records:
            if isinstance(record, Tombstone):
                self.log.pop(record.key, None)
            else:
                self.log[record.key] = record
        loaded = self.type.new(GROUP)
        for record in self.log.values():
            loaded.apply(record)
        kept = ("exists", "generation", "record", "members", "created_ms")
        if self.group.exists:
            assert [getattr(loaded, name) for name in kept] == [getattr(self.group, name) for name in kept]
            assert list(loaded.members) == list(self.group.members)

    def restart(self) -> None:
        """Another coordinator loads the group."""
        self.group = self.type.new(GROUP)
        for record in self.log.values():
            self.group.apply(record)
        self.timers, self.parked, self.answers = {}, set(), {}
        self._take(self.type.on_load(self.group, 2_000))

    def expire(self, kind: TimerKind, member_id: str = "") -> None:
        """Let an armed timer expire."""
        timer = self.timers.pop(TimerKey(kind, GROUP, member_id))
        self._take(self.type.step(self.group, timer.key, 3_000, ClientInfo()))

    def join(
        self,
        member_id: str = "",
        *,
        protocols: tuple[OfferedProtocol, ...] = offers("range"),
        instance: str | None = None,
        **changes: Any,
    ) -> Any:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
        }
        values |= changes
        return self.send(
            JoinGroupRequest(member_id=member_id, group_instance_id=instance, protocols=protocols, **values)
        )

    def sync(
        self, member_id: str, generation: int | None = None, assignments: Iterable[str] = (), **changes: Any
    ) -> Any:
        """``assignments``: the members that are assigned something: their own member id as bytes."""
        shares = tuple(MemberShare(member_id=each, assignment=each.encode()) for each in assignments)
        generation = self.group.generation if generation is None else generation
        return self.send(
            SyncGroupRequest(
                group_id=GROUP, member_id=member_id, generation_id=generation, assignments=shares, **changes
            )
        )

    def heartbeat(self, member_id: str, generation: int | None = None, instance: str | None = None) -> int:
        generation = self.group.generation if generation is None else generation
        request = GroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, generation_id=generation, group_instance_id=instance
        )
        code: int = self.send(request).error_code
        return code

    def leave(self, member_id: str, instance: str | None = None) -> int:
        leaving = LeavingMember(member_id=member_id, group_instance_id=instance)
        response = self.send(LeaveGroupRequest(group_id=GROUP, members=(leaving,)))
        code: int = response.members[0].error_code
        return code

    # ---- whole rebalances

    def stable(self, *names: str) -> list[str]:
        """A stable group with these dynamic members, the first one leads; their member ids."""
        ids = []
        for name in names:
            answer = self.send(
                JoinGroupRequest(
                    group_id=GROUP,
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                    member_id="",
                    protocol_type="consumer",
                    protocols=offers("range"),
                ),
                client=name,
            )
            ids.append(answer.member_id if answer else next(reversed(self.group.members)))
            for member in ids[:-1]:
                self.join(member)
        self.finish(ids)
        return ids

    def finish(self, ids: Iterable[str]) -> None:
        """Every member sends SyncGroup."""
        leader = self.group.record.leader
        for member in ids:
            if member != leader:
                self.sync(member)
        self.sync(leader, assignments=ids)
        assert self.state == "Stable"

    @property
    def state(self) -> str:
        return self.group.state.shown
