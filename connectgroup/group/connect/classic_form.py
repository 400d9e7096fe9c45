"""A connect group in the form of a classic group: the metadata and assignments of Kafka Connect's workers.

Source: Kafka's ``IncrementalCooperativeConnectProtocol`` (version 1 of both structures).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from ...protocol.messages.common import ConnectorTasks

PROTOCOL_TYPE: Final = "connect"

_VERSION: Final = 1
_NO_OFFSET: Final = -1
"""There is no topic of configurations, and no offset in it."""

STATES: Final = {"Assigning": "PreparingRebalance", "Reconciling": "CompletingRebalance"}
"""The states of a connect group in terms of a classic one; the others have the same names."""


def metadata(url: str) -> bytes:
    """The metadata of a worker: version, URL, offset of the configurations, no assignment."""
    return struct.pack(">h", _VERSION) + _text(url) + struct.pack(">qi", _NO_OFFSET, -1)


def assignment(assigned: Iterable[ConnectorTasks], revoked: Iterable[ConnectorTasks]) -> bytes:
    """The assignment of a worker: version, error, leader, URL, offset, assigned and revoked units, delay."""
    head = struct.pack(">hh", _VERSION, 0) + _text("") + _text("") + struct.pack(">q", _NO_OFFSET)
    return head + _units(assigned) + _units(revoked) + struct.pack(">i", 0)


def _units(groups: Iterable[ConnectorTasks]) -> bytes:
    parts = []
    for group in groups:
        tasks = [*([-1] if group.owns_connector else []), *group.tasks]
        parts.append(_text(group.connector) + struct.pack(f">i{len(tasks)}i", len(tasks), *tasks))
    return struct.pack(">i", len(parts)) + b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
