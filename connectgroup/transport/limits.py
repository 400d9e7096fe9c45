"""What a server takes from its peers, and where it may listen; settings import it, so it imports little."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

LOOPBACK: Final = "an address of this machine's own (127.0.0.1, ::1, localhost)"
"""What a coordinator without authentication may listen on, as an error says it."""


def is_address(host: str) -> bool:
    """Whether a host is an IP address; otherwise it is a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is an IP address that only this machine can reach; false of a name."""
    return is_address(host) and ipaddress.ip_address(host).is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server takes from its peers.

    Attributes:
        max_frame_bytes: longest request: an assignment for 1,000 workers and 100,000 tasks takes 2 MiB. As much as
            the log takes in one batch.
        max_connections: in all; a connection counts until its last request is done, also when it was lost before. A
            worker needs two, a command one while it runs.
        max_connections_per_address: of them from one address.
        max_refused: connections above a limit that are read from at a time, until their first request has been answered
            with an error; any more are closed unread.
        refused_deadline_s: how long such a connection is read from.
        max_in_flight: requests of one connection at a time; it is not read from while there are more.
        max_unsent_bytes: answers waiting in one connection; it is not read from while there are more.
        frame_deadline_s: from a frame's first byte to its last, and from a connection's start to its first frame.
        unsent_deadline_s: how long a peer may leave more than ``max_unsent_bytes`` unread.
        idle_deadline_s: without a byte or a request under way.
    """

    max_frame_bytes: int = 8 << 20
    max_connections: int = 2000
    max_connections_per_address: int = 1500
    max_refused: int = 64
    refused_deadline_s: float = 5.0
    max_in_flight: int = 64
    max_unsent_bytes: int = 256 * 1024
    frame_deadline_s: float = 30.0
    unsent_deadline_s: float = 30.0
    idle_deadline_s: float = 600.0
