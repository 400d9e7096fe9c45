"""Who sends as a member: a process, on connections of one principal."""

from __future__ import annotations

from typing import NamedTuple


class Process(NamedTuple):
    """The process that a member belongs to, or that sends a request.

    The process id is a part of the request; the principal is known from the connection alone.

    Attributes:
        process_id: drawn at random by the process; -1: none or unknown.
        principal: the authenticated user of the connection, or the name in its TLS certificate; empty: the server does
            not authenticate. ``None``: unknown (an earlier version has stored the member), or the sender is a part of
            the coordinator's own process that acts for any principal.
    """

    process_id: int = -1
    principal: str | None = ""

    def accepts(self, sender: Process) -> bool:
        """Whether a member of this process accepts a request of the sender; what is unknown accepts everything."""
        if self == sender:  # nearly always
            return True
        if self.process_id not in (-1, sender.process_id):
            return False
        return self.principal == sender.principal or self.principal is None or sender.principal is None


NO_PROCESS = Process()
"""The process of a request without a process id, on a connection without authentication."""

ANY_PROCESS = Process(-1, None)
"""The process of a member that accepts every sender."""
