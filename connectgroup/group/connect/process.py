"""A member belongs to the process that joined (PD-15).

Each worker process draws a random process id at its start and sends it with every request, on any connection. The
process that joined is in the member's record, so the rule holds after a coordinator failover too. A process id of -1 is
unknown: a member without one (its record is of an earlier version) accepts every process until it joins again.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import FencedInstanceId, UnreleasedInstanceId
from ...protocol.records.connect import MemberRecord
from ...protocol.units import printable
from .settings import GroupSettings
from .state import Group


class ProcessEnded(NamedTuple):
    """An input of a group: the process that joined as a member has ended without a leave (PD-13).

    Attributes:
        process_id: of the process that has ended; not -1.
    """

    member_id: str
    process_id: int


def check_process(group: Group, member_id: str, process_id: int) -> None:
    """Check that a request of a member was sent by the process that joined as the member.

    Raises:
        FencedInstanceId: the member belongs to another process. The sender must stop its units and end.
    """
    member = group.members.get(member_id)
    if member is not None and member.process_id not in (-1, process_id):
        raise FencedInstanceId(
            f"MemberId: {printable(member_id)!r} belongs to another process, at {_address(member)}; "
            "this process must stop its units and end"
        )


def check_join(group: Group, member_id: str, process_id: int, settings: GroupSettings) -> None:
    """Check that a process may join as a member: no other process is the member now.

    The member is free once its process has left, has temporarily left (static member), or was removed. If the process
    is dead and no supervisor has reported it, its session expires.

    Raises:
        UnreleasedInstanceId: another process is the member. The sender retries until the member is free.
    """
    member = group.members.get(member_id)
    if member is None or member.process_id in (-1, process_id) or group.current(member_id).temporarily_left:
        return
    raise UnreleasedInstanceId(
        f"MemberId: {printable(member_id)!r} is in use by another process, at {_address(member)}, until that process "
        f"leaves or sends no heartbeat for {settings.session_timeout_ms} ms; two workers cannot have one name"
    )


def _address(member: MemberRecord) -> str:
    """Where the process of a member is: its network address, and the name of its machine if the member has sent one."""
    machine = f" ({printable(member.host)})" if member.host else ""
    return f"{printable(member.client_host) or 'an unknown address'}{machine}"
