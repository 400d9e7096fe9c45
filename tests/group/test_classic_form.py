"""A connect group in the form of a classic group."""

from __future__ import annotations

import struct

from connectgroup.group.connect.classic_members import assignment, metadata
from connectgroup.protocol.messages.common import ConnectorTasks


def test_structures_of_kafka_connect() -> None:
    assert metadata("u") == struct.pack(">hh", 1, 1) + b"u" + struct.pack(">qi", -1, -1)
    assigned = (ConnectorTasks(connector="c", owns_connector=True, tasks=(0, 2)),)
    head = struct.pack(">hhhhq", 1, 0, 0, 0, -1)
    units = struct.pack(">ih", 1, 1) + b"c" + struct.pack(">iiii", 3, -1, 0, 2)
    assert assignment(assigned, ()) == head + units + struct.pack(">ii", 0, 0)
