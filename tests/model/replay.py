"""The model beside the product: every input goes to both, and what they make of it is compared.

``Replay.step`` stands where ``connectgroup.group.connect.handle.step`` stands. The product decides. The
model is given what the product chose where it may choose. Response, state, records and timers are then compared.
``Replay.on_load`` stands where the runtime asks for the timers of a group it has read from the log: that group must be
one that was decided once, and the model goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectgroup.group.connect import handle, timers as timing
from connectgroup.group.connect.handle import GroupInput
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.group.connect.state import Group, replay
from connectgroup.group.kernel.effects import Computed
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.timers import TimerKey, TimerKind
from connectgroup.protocol.messages.api import Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest, PrepareResponse
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DeleteRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import Record

from .compare import answers_differ, effects_differ, members_to_wake, records_differ, timers_differ, woken_differ
from .model import Model
from .pictures import (
    Difference,
    Picture,
    limits_of,
    model_of,
    picture,
    picture_of,
    pictures_differ,
    proposal_of,
)
from .words import Answer, Choice, NotAllowed, Timer as TimerName

LONGEST_LINE = 1_000
"""Of a finding: a group of a hundred tasks fills pages."""


@dataclass(slots=True)
class Followed:
    """A product's group and its model.

    Attributes:
        shown: how the model looked after the last input.
        armed: the timers that were set for it, by name; each with the key it will expire with.
        hear: whom an empty heartbeat would have brought something then.
    """

    group: Group
    model: Model
    shown: Picture
    armed: dict[TimerName, TimerKey]
    hear: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One input on which the two do not agree."""

    what: object
    now_ms: int
    differences: tuple[Difference, ...]
    before: Picture

    def __str__(self) -> str:
        lines = [f"input at {self.now_ms} ms: {self.what}"]
        for name, product, model in self.differences:
            lines += [f"  {name}", f"    product: {product}", f"    model:   {model}"]
        lines += ["  the group before it:", *(f"    {name}: {value}" for name, value in self.before.items())]
        return "\n".join(line[:LONGEST_LINE] for line in lines)


class Replay:
    """Follows every group of every coordinator of one run.

    Attributes:
        findings: on what the two did not agree.
        inputs: how many there were.
    """

    def __init__(self, rules: Callable[..., Outcome[Response | None]] = handle.step) -> None:
        """``rules``: the product's, which are looked at."""
        self.findings: list[Finding] = []
        self.inputs = 0
        self._rules = rules
        self._followed: dict[int, Followed] = {}
        self._decided: list[Picture] = []
        self._durable: list[Picture] = []

    def step(
        self,
        group: Group,
        what: GroupInput,
        now_ms: int,
        settings: GroupSettings,
        *,
        client_host: str = "",
        client_id: str = "",
    ) -> Outcome[Response | None]:
        """One input, to both."""
        self.inputs += 1
        followed = self._followed.get(id(group)) or self.follow(group, settings)
        before, model = followed.shown, followed.model
        model.requested = False
        outcome = self._rules(group, what, now_ms, settings, client_host=client_host, client_id=client_id)
        response, asked = outcome.response, group.computation
        model.now_ms = now_ms
        model.choice = Choice(
            computer=asked.member_id if asked is not None else "",
            assignor=response.assignor_name if isinstance(response, PrepareResponse) else group.target_assignor,
            made_ms=group.created_ms,
            server_assignor=asked.assignor if asked is not None and asked.prepared and not asked.member_id else None,
        )
        found: list[Difference] = []
        try:
            expected = None if _is_stale(what, followed.armed) else decide(model, what)
            model.rest()
        except NotAllowed as error:
            found.append(("choice", "as in the input", error))
        else:
            followed.shown = picture(model)
            # Records are the only way in which a product's group changes.
            product = picture_of(group) if outcome.records else before
            found += answers_differ(model, what, response, expected)
            found += pictures_differ(product, followed.shown)
            found += timers_differ(model, followed.armed, what, outcome.timers, before, expected)
            found += records_differ(what, before, followed.shown, outcome.records)
            found += effects_differ(model, outcome.effects)
            if outcome.parks and (told := members_to_wake(what, response)):
                found.append(("parked", told, "nothing to say"))
            if outcome.records:
                hear = model.hear() | (before["members"].keys() - model.members.keys())
                found += woken_differ(what, followed.hear, hear, group.members_to_wake)
                followed.hear = hear
                found += [("promise", "kept", broken) for broken in model.broken()]
                self._decided.append(followed.shown)
        if found:
            self._find(what, now_ms, found, before)
            self.follow(group, settings)
        return outcome

    def on_load(self, group: Group, now_ms: int, settings: GroupSettings) -> Outcome[None]:
        """A group was read from the log."""
        outcome = handle.on_load(group, now_ms, settings)
        timers = outcome.timers
        shown = picture_of(group)
        known = not group.created_ms or _is_among(shown, self._durable or self._decided)
        followed = self.follow(group, settings)
        followed.model.now_ms = now_ms
        followed.armed.clear()
        found = list(timers_differ(followed.model, followed.armed, None, timers, {}, None))
        if not known:
            found.append(("loaded", shown, "no group that was ever decided, and is on the disk"))
        if found:
            self._find("read from the log", now_ms, found, {})
        return outcome

    def on_durable(self, group: Group) -> None:
        """A batch is safe on the disk, and has made this of the group: what was decided once, whole (D2, D3)."""
        shown = picture_of(group)
        self._durable.append(shown)
        if not _is_among(shown, self._decided):
            self._find("a batch is safe", 0, [("durable", shown, "no group that was ever decided")], {})

    def read(self, group_id: str, log: Iterable[Record], now_ms: int, settings: GroupSettings) -> Group:
        """The group that a new coordinator makes of a log."""
        group = replay(group_id, log)
        self.on_load(group, now_ms, settings)
        return group

    def armed(self, group: Group) -> list[TimerKey]:
        """The timers that are set for a group."""
        return sorted(self._followed[id(group)].armed.values()) if id(group) in self._followed else []

    def follow(self, group: Group, settings: GroupSettings) -> Followed:
        """From now on, or anew, from where the product stands."""
        model = model_of(group, limits_of(settings))
        followed = self._followed[id(group)] = Followed(
            group=group,
            model=model,
            shown=picture(model),
            armed={(str(key.kind), key.member_id): key for key in _armed(group, model)},
            hear=model.hear(),
        )
        self._decided.append(followed.shown)
        return followed

    def _find(self, what: object, now_ms: int, found: list[Difference], before: Picture) -> None:
        self.findings.append(Finding(what=what, now_ms=now_ms, differences=tuple(found), before=before))


def decide(model: Model, what: GroupInput) -> Answer | None:
    """The input, as the model has it."""
    inputs: dict[Any, Callable[[Any], Answer | None]] = {
        HeartbeatRequest: model.heartbeat,
        PrepareRequest: model.prepare,
        InstallRequest: model.install,
        UpdateConnectorsRequest: model.update_connectors,
        DeleteRequest: lambda _: model.delete(),
        Computed: lambda said: model.computed(
            said.epoch, said.assignor, None if said.error else proposal_of(said.result)
        ),
        TimerKind.SESSION: lambda key: model.expire_session(key.member_id),
        TimerKind.REBALANCE: lambda key: model.expire_rebalance(key.member_id),
        TimerKind.COMPUTE: lambda _: model.expire_computation(),
        TimerKind.DELAY: lambda key: model.expire_delay(key.member_id),
    }
    decided = inputs.get(what.kind if isinstance(what, TimerKey) else type(what))
    return decided(what) if decided else None  # a description changes nothing


def _armed(group: Group, model: Model) -> Iterator[TimerKey]:
    """The keys of all timers that must be running."""
    for kind, who in model.timers():
        key = TimerKey(TimerKind(kind), group.group_id, who)
        yield key._replace(belongs_to=timing.belongs_to(group, key))


def _is_stale(what: object, armed: Mapping[TimerName, TimerKey]) -> bool:
    """Whether an expired timer is not the one that was armed last: it belongs to a former epoch and does nothing."""
    if not isinstance(what, TimerKey) or what.kind not in (TimerKind.COMPUTE, TimerKind.REBALANCE):
        return False
    return armed.get((str(what.kind), what.member_id)) != what


def _is_among(shown: Picture, pictures: Sequence[Picture]) -> bool:
    """Mostly one of the last; two that are not the same have different epochs as a rule, so this is quick."""
    return any(shown == each for each in reversed(pictures))
