"""The group type ``connect``, as the coordinator's shard knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ...errors import GroupError, InconsistentGroupProtocol
from ...protocol.messages.api import Response
from ...protocol.messages.assignment import InstallRequest, PrepareRequest
from ...protocol.messages.classic import (
    GroupHeartbeatRequest,
    GroupRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from ...protocol.messages.common import RestartRequest
from ...protocol.messages.connectors import UpdateConnectorsRequest
from ...protocol.messages.describe import DeleteRequest, DescribedGroup, DescribeRequest
from ...protocol.messages.heartbeat import HeartbeatRequest
from ...protocol.records.connect import GROUP_TYPE, Record
from ...protocol.units import JOIN_EPOCH
from ..classic.refusals import refused
from ..classic.step import GROUP_TYPE as CLASSIC
from ..kernel.deadlines import session
from ..kernel.effects import Compute
from ..kernel.outcome import Outcome
from ..registry import NO_CLIENT, Client, Converted, GroupNumbers, Input, RequestTraits
from . import validate
from .classic_members import ClassicRules, WorkerFormat, decide as decide_classic, heartbeat_of, metadata_of
from .describe import describe
from .handle import error_response, on_load, step, unchanged
from .measure import measure
from .process import sender_of
from .settings import GroupSettings, ServerAssignment
from .state import Group

MANY_UNITS: Final = 5_000
"""A description of so many units takes 20 ms."""


class ConnectGroupType:
    """Worker groups of connectors and tasks: the ``registry.GroupType`` of type ``connect``."""

    name = GROUP_TYPE
    request_types: tuple[type, ...] = (
        HeartbeatRequest,
        PrepareRequest,
        InstallRequest,
        UpdateConnectorsRequest,
        DeleteRequest,
        RestartRequest,
    )
    member_request_types: tuple[type, ...] = (
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
    )
    claimed_request_types: tuple[type, ...] = (JoinGroupRequest, LeaveGroupRequest)

    def __init__(self, settings: GroupSettings, worker_format: WorkerFormat) -> None:
        """Create the type.

        Args:
            settings: for all groups of this type.
            worker_format: the bytes that workers of the classic protocol exchange with the coordinator.
        """
        self.settings, self._worker_format = settings, worker_format

    def claims(self, request: object) -> bool:
        """Whether one of our workers sends the request: its group is of this type, not of type ``classic``."""
        return metadata_of(request) is not None

    def new(self, group_id: str) -> Group:
        return Group(group_id)

    def traits(self, request: Any, client: Client = NO_CLIENT) -> RequestTraits:
        """A heartbeat re-arms the session timer of its sender when it arrives.

        A join does not: it proves that the previous incarnation of its sender is dead. Otherwise a join that is
        rejected and retried would keep the dead member in the group forever, with all units it owns.
        """
        match request:
            case HeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch):
                return RequestTraits(
                    group_id=group_id,
                    sender=member_id,
                    sequence=request.sequence,
                    process=sender_of(request, client),
                    max_wait_ms=min(request.max_wait_ms, self.settings.max_park_ms),
                    renews=session(group_id, member_id, self.settings) if epoch > JOIN_EPOCH else None,
                    beats=epoch > JOIN_EPOCH,
                    creates_group=epoch == JOIN_EPOCH,
                )
            case JoinGroupRequest() | LeaveGroupRequest():
                try:
                    beat = heartbeat_of(self._worker_format, request)
                except GroupError:
                    return RequestTraits(group_id=request.group_id)
                return self.traits(beat, client)
            case DeleteRequest(group_ids=(group_id,)):
                return RequestTraits(group_id=group_id)
            case _:
                return RequestTraits(
                    group_id=request.group_id, creates_group=isinstance(request, UpdateConnectorsRequest)
                )

    def convert(self, group_type: str, group: Any) -> Converted:
        """Reject the conversion of a group with members: the coordinator does not have their connectors (CN-18).

        Raises:
            InconsistentGroupProtocol: always.
        """
        if group_type == CLASSIC:
            what = "their connectors are in topics that this coordinator does not read"
        else:
            what = "they are consumers"
        raise InconsistentGroupProtocol(
            f"the group has members of another protocol, and {what}: stop its members first, "
            "or choose another group id for these workers"
        )

    def step(self, group: Group, what: Input, now_ms: int, client: Client) -> Outcome[Response | None]:
        if isinstance(what, HeartbeatRequest) or not isinstance(what, GroupRequest):
            return step(group, what, now_ms, self.settings, client=client)

        def decide_heartbeat(beat: HeartbeatRequest, client: Client) -> Outcome[Response | None]:
            return step(group, beat, now_ms, self.settings, client=client)

        try:
            rules = ClassicRules(self.settings, self._worker_format, decide_heartbeat)
            return decide_classic(group, what, now_ms, client, rules)
        except GroupError as error:
            return Outcome(response=_refused(what, error))

    def unchanged(self, group: Group, request: HeartbeatRequest, client: Client) -> Outcome[Any] | None:
        return unchanged(group, request, self.settings, client)

    def apply(self, group: Group, record: Record) -> None:
        group.apply(record)

    def on_load(self, group: Group, now_ms: int) -> Outcome[None]:
        return on_load(group, now_ms, self.settings)

    def describe(self, group: Group, request: DescribeRequest, now_ms: int) -> DescribedGroup:
        """Describe a group.

        Raises:
            InvalidGroupId: the group id is invalid.
        """
        validate.group_id(group.group_id)
        return describe(group, now_ms, request=request, settings=self.settings)

    def takes_long_to_describe(self, group: Group, request: DescribeRequest) -> bool:
        named = None if request.connectors is None else map(group.connectors.get, request.connectors)
        described = group.connectors.values() if named is None else filter(None, named)
        units = sum(len(each.tasks) for each in described) + (0 if request.connectors_only else len(group.holders))
        return units > MANY_UNITS

    def measure(self, group: Group) -> GroupNumbers:
        return measure(group)

    def error_response(self, request: Any, error: GroupError) -> Response:
        return _refused(request, error) if isinstance(request, GroupRequest) else error_response(request, error)

    def run_assignor(self, effect: Compute) -> ServerAssignment:
        result = self.settings.server_assignors[effect.assignor](effect.input)
        return result if isinstance(result, ServerAssignment) else ServerAssignment(members=result)


def _refused(request: GroupRequest, error: GroupError) -> Response:
    """The response to a request of the classic protocol with an error; that to a JoinGroup has its message, too."""
    response = refused(request, error.code)
    return replace(response, error_message=str(error)) if isinstance(response, JoinGroupResponse) else response
