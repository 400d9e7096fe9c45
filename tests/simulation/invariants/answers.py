"""What a coordinator says, and that saying it twice is saying it once: S16, S17, D1, D5, D8, D10."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectgroup.group.connect.handle import GroupInput, GroupRequest, expire, handle
from connectgroup.group.connect.state import Group
from connectgroup.group.kernel.effects import Computed
from connectgroup.group.kernel.outcome import Outcome
from connectgroup.group.kernel.timers import TimerKey, TimerKind
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.common import grouped
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Unit, show

from .base import COMPUTE, FENCED, INVALID_ASSIGNMENT, STALE_GROUP, Answer, Change, Grant, Invariant

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class TwiceIsOnce(Invariant):
    """S16: a request decided a second time changes nothing more, is answered the same, and fences nobody honest.

    A request that left records behind is put to the rules once more, at once, and only looked at: ``handle`` changes
    nothing. A heartbeat is put the way a worker repeats one whose answer was lost: in full. Its exact copy is for the
    runtime to tell by its number, and must never come this far once the original has been answered.
    """

    ids = "S16"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._answered: dict[tuple[int, str], int] = {}
        self.compared = 0

    def on_answer(self, answer: Answer) -> None:
        request = answer.request
        if not isinstance(request, HeartbeatRequest):
            return
        who = request.member_id
        if answer.code == FENCED and not self.cluster.has_twin(who):
            self.broken(f"{who} was fenced: {answer.response.error_message}")
        if not answer.copy and answer.code in (0, COMPUTE):
            key = (answer.peer.log.epoch, who)
            self._answered[key] = max(request.sequence, self._answered.get(key, -1))

    def on_step(self, group: Group, what: GroupInput, outcome: Outcome[Response | None], now_ms: int) -> None:
        if not self.watch.newest_decides():
            return
        if isinstance(what, Computed):
            return
        if isinstance(what, TimerKey):
            # That nobody was willing is counted at each try, and a timer fires once.
            if outcome.records and what.kind is not TimerKind.COMPUTE:
                again = expire(group, what, now_ms, self.cluster.settings)
                if again.records:
                    self.broken(f"{what} fires twice and writes {_kinds(again)}")
            return
        if isinstance(what, HeartbeatRequest):
            answered = self._answered.get((self.cluster.disk.storage.epoch, what.member_id), -1)
            # Of a member that is gone numbers are kept for a while only; then it is unknown, and that changes nothing.
            known = what.member_id in group.members and not self.cluster.has_twin(what.member_id)
            if what.sequence <= answered and known:
                self.broken(f"heartbeat {what.sequence} of {what.member_id} counts again after it was answered")
        if not outcome.records or isinstance(what, DescribeRequest) or _failed_install(what, outcome.response):
            return
        request = self._repeated(group, what)
        moved_on = isinstance(what, HeartbeatRequest) and any(
            isinstance(each, TargetRecord) for each in outcome.records
        )
        if request is None or moved_on:
            # With a new target, written because of what it said, a member's next step is another one.
            return
        self.compared += 1
        second = handle(group, request, now_ms, self.cluster.settings)
        if second.records:
            self.broken(f"{request}, repeated, writes {_kinds(second)}, after {_kinds(outcome)}")
        if not _same(what, outcome.response, second.response):
            self.broken(f"answered {outcome.response}, repeated {second.response}, to {what}")

    def _repeated(self, group: Group, what: GroupRequest) -> GroupRequest | None:
        """The request as an honest sender repeats it."""
        if not isinstance(what, HeartbeatRequest):
            return what
        if what.member_epoch <= 0:
            # A join that is repeated is given what it had under a later epoch (a token is given once), and who has
            # left is unknown: what a copy of these does is seen where the runtime refuses it.
            return None
        for node in self.watch.nodes_of(what.member_id):
            member = node.worker.member
            asked, had = self.watch.asked.get(node.name, (None, {}))
            if asked is what and not member._stopping_for_good and not self.cluster.has_twin(what.member_id):
                return replace(
                    what,
                    sequence=what.sequence + 1,
                    rebalance_timeout_ms=member.settings.rebalance_timeout_ms,
                    instance_id=member.settings.instance_id,
                    # Not the worker's own flag: a drain that began after the request was sent is another request.
                    draining=what.member_id in group.members and group.members[what.member_id].draining,
                    owned=grouped(had) if what.owned is None else what.owned,
                    statuses=(),
                )
        return None


def _kinds(outcome: Outcome[Any]) -> list[str]:
    return sorted({type(record).__name__ for record in outcome.records})


def _failed_install(what: GroupRequest, response: Any) -> bool:
    """A failure is counted, and where the same member is asked again at once, its repetition is counted too."""
    return isinstance(what, InstallRequest) and bool(what.error or response.error_code)


def _same(request: Request, first: Any, second: Any) -> bool:
    """Whether the second answer tells its receiver what the first did."""
    if isinstance(request, HeartbeatRequest):
        if second.error_code == COMPUTE:
            # An acknowledgement goes first, and is in now; its sender's own step waits until it has prepared.
            return True
        if (first.error_code, first.member_epoch) != (second.error_code, second.member_epoch):
            return False
        if first.assignment is None or second.assignment is None:
            return first.error_code != 0 or second.assignment is not None
        return bool(first.assignment == second.assignment)
    if isinstance(request, UpdateConnectorsRequest) and any(
        change.delete or change.expected_version >= 0 for change in request.changes
    ):
        # There is nothing to delete any more, or it has another version now: refused, and nothing changes.
        return True
    return bool(first == second)


class FullAnswers(Invariant):
    """S17: who asks in full is answered in full, and so is whoever gets another set at another epoch (KAFKA-16367)."""

    ids = "S17"

    def on_answer(self, answer: Answer) -> None:
        request, response = answer.request, answer.response
        if not isinstance(request, HeartbeatRequest) or answer.code or request.member_epoch < 0:
            return
        assignment = response.assignment
        if request.owned is not None and request.rebalance_timeout_ms != -1:
            if assignment is None:
                self.broken(f"no assignment in the answer to {request}")
        elif assignment is None and response.member_epoch != request.member_epoch and answer.newest:
            # Where the epoch alone has changed, "as before" is the truth, and Kafka says no more either.
            current = self.durable.current(request.member_id)
            if current.epoch != response.member_epoch:
                return
            for node in self.watch.nodes_of(request.member_id):
                asked, had = self.watch.asked.get(node.name, (None, {}))
                # What it did not take, because it was stopping something or is about to leave, it has asked for again.
                member = node.worker.member
                if asked is request and not (member._stopping_for_good or member._missed_assignment):
                    odd = current.assigned.keys() ^ had.keys()
                    if odd:
                        self.broken(f"{request.member_id} is at {current.epoch} now and not told of {show(odd)}")


class WriteBeforeReply(Invariant):
    """D1: what an answer reveals is on the disk."""

    ids = "D1"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._reached: dict[str, int] = {}
        # Also what has gone to a successor in the turn that answers: the answer was decided before.
        self._given: set[tuple[Grant, str]] = set()

    def on_change(self, change: Change) -> None:
        if change.record is not None:
            self._reached[change.member_id] = max(change.record.epoch, self._reached.get(change.member_id, 0))
        for grant in change.gained.items():
            self._given.add((grant, change.member_id))

    def on_answer(self, answer: Answer) -> None:
        request, response = answer.request, answer.response
        if answer.code or not answer.newest:
            return
        durable = self.durable
        match request:
            case HeartbeatRequest() if request.member_epoch >= 0:
                who, known = request.member_id, self._reached.get(request.member_id, 0)
                if response.member_epoch > known:
                    self.broken(f"{who} hears of epoch {response.member_epoch}, on the disk is {known}")
                for grant in response.assignment.grants if response.assignment else ():
                    if ((Unit(grant.connector, grant.task), grant.owner_epoch), who) not in self._given:
                        self.broken(f"{who} hears of {grant}, which is not on the disk")
            case InstallRequest() if not request.error and request.group_epoch > durable.target_epoch:
                self.broken(f"an install for {request.group_epoch} was acknowledged and is not on the disk")
            case UpdateConnectorsRequest() if response.group_epoch > durable.epoch:
                self.broken(f"a change of epoch {response.group_epoch} was acknowledged and is not on the disk")
            case PrepareRequest() if response.group_epoch > durable.epoch:
                self.broken(f"Prepare tells of epoch {response.group_epoch}, on the disk is {durable.epoch}")


class FormerCoordinatorsAreNotHeard(Invariant):
    """D5: every answer says which coordinator gave it, and a worker never goes back to an earlier one."""

    ids = "D5"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._heard: dict[str, int] = {}

    def on_answer(self, answer: Answer) -> None:
        said, epoch = answer.response.coordinator_epoch, answer.peer.log.epoch
        if said != epoch:
            self.broken(f"{answer.peer.name} of epoch {epoch} signs with {said}")

    def on_request(self, node: WorkerNode, request: Request) -> None:
        believes = node.worker.member.coordinator_epoch
        if believes < self._heard.get(node.name, -1):
            self.broken(f"{node.name} follows {believes} after {self._heard[node.name]}")
        self._heard[node.name] = believes


class RulesDoNotFail(Invariant):
    """D8: no request makes the rules raise, and one that is refused leaves nothing behind."""

    ids = "D8"

    def on_rule_failed(self, what: GroupInput, error: Exception) -> None:
        self.broken(f"{what}: {type(error).__name__}: {error}")

    def on_step(self, group: Group, what: GroupInput, outcome: Outcome[Response | None], now_ms: int) -> None:
        response: Any = outcome.response
        code = getattr(response, "error_code", 0)
        # A fenced member is removed, a failed assignor is noted, who is to compute has been taken in, and whose
        # assignment is stale is asked again.
        if code and outcome.records and code not in (COMPUTE, FENCED, INVALID_ASSIGNMENT, STALE_GROUP):
            self.broken(f"{what} was refused with {code} and left {_kinds(outcome)}")


class ReadsShowWrites(Invariant):
    """D10: who was told that a change is in, and reads, sees it. The simulated operator reads after it has written."""

    ids = "D10"

    def on_answer(self, answer: Answer) -> None:
        # One that has been replaced reads what it has; its answers carry its epoch and are not taken (D5).
        if not isinstance(answer.request, DescribeRequest) or not answer.newest:
            return
        desk = self.cluster.desk
        if desk.written_epoch is None:
            return
        for group in answer.response.groups:
            if not group.error_code and group.group_epoch < desk.written_epoch:
                self.broken(f"{answer.peer.name} shows epoch {group.group_epoch}, told was {desk.written_epoch}")
