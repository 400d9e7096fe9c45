"""A worker as a member of the classic protocol: its heartbeats as JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The state machine and the loop of a worker know one protocol, that of ConnectGroupHeartbeat. This client translates its
heartbeats (``group.connect.classic_members`` is the other side). The generation is the member epoch.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ..errors import IllegalGeneration, RebalanceInProgress, TransportError, WireError
from ..member.state_machine import Member
from ..protocol.messages.api import Request, Response
from ..protocol.messages.classic import (
    WORKER_PROTOCOL,
    WORKER_PROTOCOL_TYPE,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    OfferedProtocol,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ..protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ..protocol.units import JOIN_EPOCH
from ..transport.base import Client
from ..wire.embedded import decode_response, encode_request

SESSION_TIMEOUT_MS = 10_000
"""Session timeout in a worker's first JoinGroup. The coordinator uses its own, and returns it with SyncGroup."""

JOINS_AGAIN = (RebalanceInProgress.code, IllegalGeneration.code)
"""Errors of Heartbeat and SyncGroup after which a member sends JoinGroup."""


MAX_METADATA_BYTES = 1 << 20
"""The longest metadata that a coordinator reads from JoinGroup."""
SHORT_MESSAGE = 100
"""Characters of each status message if the metadata would be longer."""


def metadata_of(request: HeartbeatRequest) -> bytes:
    """The metadata of a JoinGroup: the heartbeat, with shorter messages of its statuses if it is too long."""
    metadata = encode_request(request)
    if len(metadata) <= MAX_METADATA_BYTES:
        return metadata
    statuses = tuple(replace(each, message=each.message[:SHORT_MESSAGE]) for each in request.statuses)
    return encode_request(replace(request, statuses=statuses))


class ClassicClient(Client):
    """A connection of a worker of the classic protocol; requests other than heartbeats are sent as they are."""

    def __init__(self, client: Client, member: Member) -> None:
        """``client``: the connection; ``member``: the worker's state machine, whose heartbeats are translated."""
        self._client, self._member = client, member

    @property
    def address(self) -> str:
        return self._client.address

    async def close(self) -> None:
        await self._client.close()

    async def call(self, request: Request, *, timeout_s: float) -> Response:
        if not isinstance(request, HeartbeatRequest):
            return await self._client.call(request, timeout_s=timeout_s)
        ends_s = asyncio.get_running_loop().time() + timeout_s
        if request.member_epoch < JOIN_EPOCH:
            return await self._leave(request, ends_s)
        if request.member_epoch > JOIN_EPOCH and request.owned is None and not request.statuses:
            response = await self._heartbeat(request, ends_s)
            if response.error_code not in JOINS_AGAIN:
                return HeartbeatResponse(
                    error_code=response.error_code,
                    member_epoch=request.member_epoch,
                    coordinator_epoch=response.coordinator_epoch,
                    logger_levels=response.logger_levels,
                )
        return await self._join(request, ends_s)

    async def _heartbeat(self, request: HeartbeatRequest, ends_s: float) -> GroupHeartbeatResponse:
        response = await self._call(
            GroupHeartbeatRequest(
                group_id=request.group_id,
                generation_id=request.member_epoch,
                member_id=request.member_id,
                group_instance_id=self._member.settings.instance_id,
                logger_stamp=request.logger_stamp,
            ),
            ends_s,
        )
        assert isinstance(response, GroupHeartbeatResponse)
        return response

    async def _join(self, request: HeartbeatRequest, ends_s: float) -> HeartbeatResponse:
        """Send a JoinGroup and a SyncGroup; return the response to the heartbeat.

        A JoinGroup is always a full heartbeat: it reports all units that the worker owns when it is sent.
        """
        settings = self._member.settings
        full = replace(self._member.full(request), progress=(), classic=True)
        response = await self._call(
            JoinGroupRequest(
                group_id=request.group_id,
                session_timeout_ms=self._member.session_timeout_ms or SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                member_id=request.member_id,
                group_instance_id=settings.instance_id,
                protocol_type=WORKER_PROTOCOL_TYPE,
                protocols=(OfferedProtocol(name=WORKER_PROTOCOL, metadata=metadata_of(full)),),
            ),
            ends_s,
        )
        assert isinstance(response, JoinGroupResponse)
        if response.error_code:
            return HeartbeatResponse(
                error_code=response.error_code,
                error_message=response.error_message,
                coordinator_epoch=response.coordinator_epoch,
            )
        return await self._sync(request, response, ends_s)

    async def _sync(self, request: HeartbeatRequest, joined: JoinGroupResponse, ends_s: float) -> HeartbeatResponse:
        response = await self._call(
            SyncGroupRequest(
                group_id=request.group_id,
                generation_id=joined.generation_id,
                member_id=request.member_id,
                group_instance_id=self._member.settings.instance_id,
                protocol_type=WORKER_PROTOCOL_TYPE,
                protocol_name=WORKER_PROTOCOL,
            ),
            ends_s,
        )
        assert isinstance(response, SyncGroupResponse)
        if response.error_code in JOINS_AGAIN or response.coordinator_epoch != joined.coordinator_epoch:
            # Another coordinator may have the response to an earlier JoinGroup of this generation. As if the response
            # was lost: the next heartbeat is a full one.
            raise TransportError(f"{self.address}: the group rebalances again; the worker sends JoinGroup again")
        if response.error_code:
            return HeartbeatResponse(error_code=response.error_code, coordinator_epoch=response.coordinator_epoch)
        try:
            return replace(decode_response(response.assignment), coordinator_epoch=response.coordinator_epoch)
        except WireError as error:
            raise TransportError(f"{self.address}: {error}") from error

    async def _leave(self, request: HeartbeatRequest, ends_s: float) -> HeartbeatResponse:
        leaving = LeavingMember(
            member_id=request.member_id,
            group_instance_id=request.instance_id,
            reason=request.cause or None,
            metadata=encode_request(replace(request, classic=True)),
        )
        response = await self._call(LeaveGroupRequest(group_id=request.group_id, members=(leaving,)), ends_s)
        assert isinstance(response, LeaveGroupResponse)
        code = response.error_code or (response.members[0].error_code if response.members else 0)
        return HeartbeatResponse(error_code=code, member_epoch=request.member_epoch)

    async def _call(self, request: Request, ends_s: float) -> Response:
        left_s = max(0.0, ends_s - asyncio.get_running_loop().time())
        return await self._client.call(request, timeout_s=left_s)
