"""A member belongs to the process that joined, and to the principal of its connection (PD-15).

Each worker process draws a random process id at its start and sends it with every request, on any connection. Who knows
the id is not the member yet: the connection must be one of the principal that joined, too. Both are in the member's
record, so the rule holds after a coordinator failover. A process id of -1 or a principal of null is unknown: a member
without one (its record is of an earlier version) accepts every process or principal until it joins again.

Requests of the classic protocol, except for JoinGroup and a worker's LeaveGroup, have no process id; their principal is
checked all the same.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ...errors import FencedInstanceId, UnreleasedInstanceId
from ...protocol.records.connect import MemberRecord
from ...protocol.units import printable
from ..kernel.process import Process
from ..registry import Client
from .settings import GroupSettings
from .state import Group


class ProcessEnded(NamedTuple):
    """An input of a group: the process that joined as a member has ended without a leave (PD-13).

    Attributes:
        process: the process that has ended; its id is not -1.
    """

    member_id: str
    process: Process


class FromProcess(Protocol):
    """A request that has a process id."""

    @property
    def process_id(self) -> int: ...


def sender_of(request: FromProcess, client: Client) -> Process:
    """The process that sends a request, or the heartbeat in a JoinGroup or LeaveGroup."""
    return Process(request.process_id, client.principal)


def check_process(group: Group, member_id: str, sender: Process) -> None:
    """Check that a request of a member was sent by the process that joined as the member.

    Raises:
        FencedInstanceId: the member belongs to another process. The sender must stop its units and end.
    """
    member = group.members.get(member_id)
    if member is not None and not group.process_of(member_id).accepts(sender):
        raise FencedInstanceId(
            f"MemberId: {printable(member_id)!r} belongs to {_other(member, sender)}, at {_address(member)}; "
            "this process must stop its units and end"
        )


def check_join(group: Group, member_id: str, sender: Process, settings: GroupSettings) -> None:
    """Check that a process may join as a member: no other process is the member now.

    The member is free once its process has left, has temporarily left (static member), or was removed. If the process
    is dead and no supervisor has reported it, its session expires.

    Raises:
        UnreleasedInstanceId: another process is the member. The sender retries until the member is free.
    """
    member = group.members.get(member_id)
    if member is None or group.process_of(member_id).accepts(sender) or group.current(member_id).temporarily_left:
        return
    raise UnreleasedInstanceId(
        f"MemberId: {printable(member_id)!r} is in use by {_other(member, sender)}, at {_address(member)}, until that "
        f"process leaves or sends no heartbeat for {settings.session_timeout_ms} ms; two workers cannot have one name"
    )


def _other(member: MemberRecord, sender: Process) -> str:
    is_principal = member.process_id in (-1, sender.process_id)
    return "a process of another principal" if is_principal else "another process"


def _address(member: MemberRecord) -> str:
    """Where the process of a member is: its network address, and the name of its machine if the member has sent one."""
    machine = f" ({printable(member.host)})" if member.host else ""
    return f"{printable(member.client_host) or 'an unknown address'}{machine}"
