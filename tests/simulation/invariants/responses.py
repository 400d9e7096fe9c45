"""What a coordinator responds, and that repeated requests are idempotent: S16, S17, D1, D5, D8, D10."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectgroup.group.connect.group_type import ConnectRequest, GroupInput, expire, handle
from connectgroup.group.connect.members import ProcessEnded
from connectgroup.group.connect.state import ConnectGroupState
from connectgroup.group.kernel.outcome import Computed, Outcome, TimerKey, TimerKind
from connectgroup.protocol.messages.api import Request, Response
from connectgroup.protocol.messages.assignment import InstallRequest, PrepareRequest
from connectgroup.protocol.messages.common import grouped, units_of
from connectgroup.protocol.messages.connectors import UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest
from connectgroup.protocol.records.connect import TargetRecord
from connectgroup.protocol.units import Unit, show

from .base import COMPUTE, FENCED, INVALID_ASSIGNMENT, STALE_GROUP, Change, Grant, Invariant, SentResponse

if TYPE_CHECKING:
    from ..cluster import WorkerNode
    from .watch import Watch


class RequestsAreIdempotent(Invariant):
    """S16: a repeated request changes nothing more, gets the same response, and fences no correct member.

    A request that wrote records is handed to the rules once more, at once, and only observed: ``handle`` changes
    nothing. A heartbeat is repeated the way a worker repeats one whose response was lost: as a full request. The
    runtime recognizes an exact copy by its sequence, and must never pass it to the rules after the original has its
    response.
    """

    ids = "S16"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._answered: dict[tuple[int, str, int], int] = {}

    def on_response_sent(self, sent: SentResponse) -> None:
        request = sent.request
        if not isinstance(request, HeartbeatRequest):
            return
        member_id = request.member_id
        if sent.code == FENCED:
            self.broken(f"{member_id} was fenced: {sent.response.error_message}")
        if not sent.copy and sent.code in (0, COMPUTE):
            key = (sent.peer.log.epoch, member_id, request.process_id)
            self._answered[key] = max(request.sequence, self._answered.get(key, -1))

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        if not self.watch.newest_decides():
            return
        if isinstance(what, Computed):
            return
        if isinstance(what, ProcessEnded):
            return
        if isinstance(what, TimerKey):
            # Each attempt of a computation without a willing member is counted, and a timer fires once.
            if outcome.records and what.kind is not TimerKind.COMPUTE:
                again = expire(group, what, now_ms, self.cluster.settings)
                if again.records:
                    self.broken(f"{what} fires twice and writes {_kinds(again)}")
            return
        if isinstance(what, HeartbeatRequest):
            # Sequences of two processes are not comparable: a late heartbeat of a former process is rejected (PD-15).
            key = (self.cluster.disk.storage.epoch, what.member_id, what.process_id)
            answered = self._answered.get(key, -1)
            # Sequences of a former process are kept for a while only; then its member is unknown, or belongs to another
            # process, and its heartbeat changes nothing.
            member = group.members.get(what.member_id)
            known = member is not None and member.process_id == what.process_id
            if what.sequence <= answered and known and not self.cluster.has_twin(what.member_id):
                self.broken(f"heartbeat {what.sequence} of {what.member_id} is applied again after its response")
        if not outcome.records or isinstance(what, DescribeRequest) or _failed_install(what, outcome.response):
            return
        request = self._repeated(group, what)
        moved_on = isinstance(what, HeartbeatRequest) and any(
            isinstance(each, TargetRecord) for each in outcome.records
        )
        if request is None or moved_on:
            # With a new target, computed because of this heartbeat, the member's next step differs.
            return
        second = handle(group, request, now_ms, self.cluster.settings)
        if second.records:
            self.broken(f"{request}, repeated, writes {_kinds(second)}, after {_kinds(outcome)}")
        if not _same(what, _as_reported(group, what, request, outcome.response), second.response):
            self.broken(f"responded {outcome.response}, repeated {second.response}, to {what}")

    def _repeated(self, group: ConnectGroupState, what: ConnectRequest) -> ConnectRequest | None:
        """The request as a correct sender repeats it."""
        if not isinstance(what, HeartbeatRequest):
            return what
        if what.member_epoch <= 0:
            # A repeated join gets the same units at a later epoch (a token is issued once), and a member that left is
            # unknown. Exact copies of these requests are covered where the runtime rejects them.
            return None
        for node in self.watch.nodes_of(what.member_id):
            member = node.worker.member
            heartbeat, owned = self.watch.last_heartbeat.get(node.name, (None, {}))
            if heartbeat == what and not member.retiring and not self.cluster.has_twin(what.member_id):
                return replace(
                    what,
                    sequence=what.sequence + 1,
                    rebalance_timeout_ms=member.settings.rebalance_timeout_ms,
                    instance_id=member.settings.instance_id,
                    # Not the worker's current flag: a drain that began after the request was sent makes another
                    # request.
                    draining=what.member_id in group.members and group.members[what.member_id].draining,
                    owned=grouped(owned) if what.owned is None else what.owned,
                    statuses=(),
                )
        return None


def _kinds(outcome: Outcome[Any]) -> list[str]:
    return sorted({type(record).__name__ for record in outcome.records})


def _failed_install(what: ConnectRequest, response: Any) -> bool:
    """A failure is counted; if the same member is chosen again at once, the repetition is counted too."""
    return isinstance(what, InstallRequest) and bool(what.error or response.error_code)


def _as_reported(group: ConnectGroupState, what: ConnectRequest, repeated: ConnectRequest, response: Any) -> Any:
    """The response, without the units that a report of the owned units would have withheld (CN-13).

    A heartbeat without owned units says "unchanged", and the group does not keep what a member reported. If the
    response that assigned a unit was lost, and others must be revoked since, the response to that heartbeat lists the
    unit all the same, without a grant. A worker accepts no unit while it revokes (PD-02), and the report that
    acknowledges gets the grant.
    """
    if not isinstance(what, HeartbeatRequest) or what.owned is not None or not isinstance(repeated, HeartbeatRequest):
        return response
    if response.assignment is None or repeated.owned is None or not group.current(what.member_id).pending:
        return response
    known = units_of(response.assignment.units) & units_of(repeated.owned)
    return replace(response, assignment=replace(response.assignment, units=grouped(known)))


def _same(request: Request, first: Any, second: Any) -> bool:
    """Whether the second response gives its receiver the same information as the first."""
    if isinstance(request, HeartbeatRequest):
        if second.error_code == COMPUTE:
            # The acknowledgement was applied by the first; the sender's own step waits for its Prepare.
            return True
        if (first.error_code, first.member_epoch) != (second.error_code, second.member_epoch):
            return False
        if first.assignment is None or second.assignment is None:
            return first.error_code != 0 or second.assignment is not None
        return bool(first.assignment == second.assignment)
    if isinstance(request, UpdateConnectorsRequest) and any(
        change.delete or change.expected_version >= 0 for change in request.changes
    ):
        # The connector is deleted, or has another version by now: rejected, and nothing changes.
        return True
    return bool(first == second)


class FullResponses(Invariant):
    """S17: a full request gets a full response, and so does a member whose assignment changes with its epoch
    (KAFKA-16367).
    """

    ids = "S17"

    def on_response_sent(self, sent: SentResponse) -> None:
        request, response = sent.request, sent.response
        if not isinstance(request, HeartbeatRequest) or sent.code or request.member_epoch < 0:
            return
        assignment = response.assignment
        if request.owned is not None and request.rebalance_timeout_ms != -1:
            if assignment is None:
                self.broken(f"no assignment in the response to {request}")
        elif assignment is None and response.member_epoch != request.member_epoch and sent.newest:
            # If only the epoch has changed, "unchanged" is correct, and Kafka sends no more either.
            current = self.durable.current(request.member_id)
            if current.epoch != response.member_epoch:
                return
            for node in self.watch.nodes_of(request.member_id):
                heartbeat, owned = self.watch.last_heartbeat.get(node.name, (None, {}))
                # What it did not take, because it was stopping units or is about to leave, it has requested again.
                member = node.worker.member
                if heartbeat == request and not (member.retiring or member._missed_assignment):
                    wrong = current.assigned.keys() ^ owned.keys()
                    if wrong:
                        self.broken(
                            f"{request.member_id} is at {current.epoch} now without an assignment of {show(wrong)}"
                        )


class WriteBeforeReply(Invariant):
    """D1: what a response reveals is durable."""

    ids = "D1"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._reached: dict[str, int] = {}
        # Includes grants that moved to another member in the turn of the response: the response was decided before.
        self._given: set[tuple[Grant, str]] = set()

    def on_change(self, change: Change) -> None:
        if change.record is not None:
            self._reached[change.member_id] = max(change.record.epoch, self._reached.get(change.member_id, 0))
        for grant in change.gained.items():
            self._given.add((grant, change.member_id))

    def on_response_sent(self, sent: SentResponse) -> None:
        request, response = sent.request, sent.response
        if sent.code or not sent.newest:
            return
        durable = self.durable
        match request:
            case HeartbeatRequest() if request.member_epoch >= 0:
                member_id, known = request.member_id, self._reached.get(request.member_id, 0)
                if response.member_epoch > known:
                    self.broken(f"{member_id} gets epoch {response.member_epoch}, durable is {known}")
                for grant in response.assignment.grants if response.assignment else ():
                    if ((Unit(grant.connector, grant.task), grant.owner_epoch), member_id) not in self._given:
                        self.broken(f"{member_id} gets {grant}, which is not durable")
            case InstallRequest() if not request.error and request.group_epoch > durable.target_epoch:
                self.broken(f"an install for {request.group_epoch} was acknowledged and is not durable")
            case UpdateConnectorsRequest() if response.group_epoch > durable.epoch:
                self.broken(f"a change of epoch {response.group_epoch} was acknowledged and is not durable")
            case PrepareRequest() if response.group_epoch > durable.epoch:
                self.broken(f"Prepare returned epoch {response.group_epoch}, durable is {durable.epoch}")


class FormerCoordinatorsAreIgnored(Invariant):
    """D5: every response carries the epoch of its coordinator, and a worker never goes back to an earlier one."""

    ids = "D5"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._heard: dict[str, int] = {}

    def on_response_sent(self, sent: SentResponse) -> None:
        named, epoch = sent.response.coordinator_epoch, sent.peer.log.epoch
        if named != epoch:
            self.broken(f"{sent.peer.name} of epoch {epoch} responds with {named}")

    def on_request(self, node: WorkerNode, request: Request) -> None:
        believes = node.worker.member.coordinator_epoch
        if believes < 0 < node.worker.member.epoch:
            self.broken(f"{node.name} follows no coordinator")
        if believes < self._heard.get(node.name, -1):
            self.broken(f"{node.name} follows {believes} after {self._heard[node.name]}")
        self._heard[node.name] = believes


class RulesDoNotFail(Invariant):
    """D8: no request makes the rules raise, and a rejected request writes nothing."""

    ids = "D8"

    def on_rule_failed(self, what: GroupInput, error: Exception) -> None:
        self.broken(f"{what}: {type(error).__name__}: {error}")

    def on_step(
        self, group: ConnectGroupState, what: GroupInput, outcome: Outcome[Response | None], now_ms: int
    ) -> None:
        response: Any = outcome.response
        code = getattr(response, "error_code", 0)
        # Exceptions: the fenced member is removed, a failed computation is recorded, a member may be chosen to compute,
        # and the computing member of a stale assignment is chosen again.
        if code and outcome.records and code not in (COMPUTE, FENCED, INVALID_ASSIGNMENT, STALE_GROUP):
            self.broken(f"{what} was rejected with {code} and wrote {_kinds(outcome)}")


class ReadsShowWrites(Invariant):
    """D10: a read after an acknowledged write sees the write. The simulated operator reads after it has written."""

    ids = "D10"

    def on_response_sent(self, sent: SentResponse) -> None:
        # A replaced coordinator reads its own state; its responses carry its epoch and are dropped (D5).
        if not isinstance(sent.request, DescribeRequest) or not sent.newest:
            return
        operator = self.cluster.operator
        if operator.written_epoch is None:
            return
        for group in sent.response.groups:
            if not group.error_code and group.group_epoch < operator.written_epoch:
                self.broken(
                    f"{sent.peer.name} shows epoch {group.group_epoch}, acknowledged was {operator.written_epoch}"
                )
