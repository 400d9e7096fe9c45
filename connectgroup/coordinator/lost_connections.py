"""Members whose process has ended are removed soon after the loss of their connection (PD-13).

The kernel closes the connections of a process that ends, and the coordinator sees that at once; a session timeout takes
seconds. A lost connection alone proves nothing: a worker that lives opens another one, and must not lose its session.
So the coordinator looks whether the process exists, which it can do for a worker on its own machine.

It also looks when a worker cannot join because another process is the member: that one may have ended while there was
no coordinator that could see its connection lost. That is all for a process whose supervisor reports its end: tasks of
a worker that is known to be dead move without the delay of one that is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..group.connect.members import ProcessEnded
from ..group.kernel.state import Process
from ..os_process import has_ended, is_supervised
from ..protocol.messages.api import Request
from ..protocol.messages.classic import GroupHeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from ..protocol.messages.heartbeat import HeartbeatRequest
from ..protocol.records.connect import MemberRecord

FIRST_LOOK_S = 0.01
"""Wait before the second look; doubled for each further one: a process ends shortly after its connections."""

MAX_LOOKS = 1_000
"""Processes that are looked for at a time: any client may open and close connections. The members of others are removed
at their session timeouts."""


class LostConnections:
    """Looks for the processes behind lost connections.

    Attributes:
        has_ended: whether the process with a name (``HeartbeatRequest.os_process``) has ended.
    """

    def __init__(
        self,
        submit: Callable[[str, ProcessEnded], None],
        member_of: Callable[[str, str], MemberRecord | None],
        *,
        grace_s: float,
    ) -> None:
        """Look for no process yet.

        Args:
            submit: takes a group and one of its inputs.
            member_of: the member of a connect group with a member id.
            grace_s: how long to look for a process; 0: not.
        """
        self.has_ended = has_ended
        self._submit, self._member_of, self._grace_s = submit, member_of, grace_s
        self._looking: set[asyncio.Task[None]] = set()

    def on_lost(self, request: Request, principal: str | None = "") -> None:
        """A connection of a principal is lost; ``request`` is the last one that was received on it.

        The request names a process to look for. If the member belongs to another principal, the name may be that of any
        process, and the end of that process removes no member.
        """
        if len(self._looking) >= MAX_LOOKS or not self._grace_s:
            return
        sender: HeartbeatRequest | MemberRecord | None = None
        if isinstance(request, HeartbeatRequest):
            sender = request
        elif isinstance(request, JoinGroupRequest | SyncGroupRequest | GroupHeartbeatRequest):
            # Most requests of the classic protocol do not name the process: its join did.
            sender = self._member_of(request.group_id, request.member_id)
        if sender is not None and sender.os_process and not is_supervised(sender.os_process):
            ended = ProcessEnded(sender.member_id, Process(sender.process_id, principal))
            task = asyncio.get_running_loop().create_task(self._look(sender, ended))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    def on_refused_join(self, group_id: str, member: MemberRecord) -> None:
        """A process cannot join because this member exists. It tries again, so one look is enough."""
        if member.os_process and self._grace_s and self.has_ended(member.os_process):
            self._submit(group_id, ProcessEnded(member.member_id, Process(member.process_id, member.principal)))

    async def _look(self, sender: HeartbeatRequest | MemberRecord, ended: ProcessEnded) -> None:
        loop = asyncio.get_running_loop()
        ends_s, wait_s = loop.time() + self._grace_s, FIRST_LOOK_S
        while not self.has_ended(sender.os_process):
            left_s = ends_s - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(wait_s, left_s))
            wait_s *= 2
        self._submit(sender.group_id, ended)

    def close(self) -> None:
        """Stop looking."""
        self._grace_s = 0.0
        for task in self._looking:
            task.cancel()
