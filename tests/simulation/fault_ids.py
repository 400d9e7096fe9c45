"""The fault of reliability (F1 to F37) that each kind of the simulator injects, and where the other faults are tested.

A dash: the kind is not in that list; it is a point of ``connectgroup.fault_points``, or a failing task.
"""

from __future__ import annotations

from typing import Final

FAULT_IDS: Final = {
    "request lost": "F1",
    "response lost": "F1",
    "message copied": "F2",
    "message delayed": "F3",
    "partition": "F4",
    "partition of answers": "F4",
    "partition of requests": "F4",
    "swizzle-clog": "F4",
    "clog": "F4",
    "connection reset": "F5",
    "crash before append": "F6",
    "crash after append": "F7",
    "coordinator killed": "F7",
    "torn tail": "F9",
    "append lost": "F10",
    "batch refused": "F10",
    "load failed": "F10",
    "slow disk": "F11",
    "append outlasts a session timer": "F11",
    "append outlasts a rebalance timer": "F11",
    "append outlasts a compute timer": "F11",
    "takeover": "F12",
    "coordinator pauses": "F12",
    "coordinator restarted in good order": "F12",
    "append in, answered as failed": "F13",
    "append in doubt": "F13",
    "wall clock jumps": "F14",
    "clocks drift": "F14",
    "worker pauses": "F15",
    "worker crashes": "F16",
    "worker power-cycles": "F16",
    "worker crashes, another joins": "F16",
    "a stop is slow": "F17",
    "a stop overstays": "F17",
    "a listener raises": "F18",
    "a listener hangs": "F18",
    "an assignor raises": "F19",
    "an assignor reports an error": "F19",
    "an assignor hangs": "F20",
    "an assignor's answer is not legal": "F21",
    "an install is not legal": "F21",
    "an assignor asks for a rebalance": "F23",
    "compaction": "F26",
    "connector scaled": "F31",
    "connector storm": "F31",
    "connector removed": "F31",
    "connector switched": "F31",
    "source grows": "F31",
    "worker joins": "F32",
    "worker leaves": "F32",
    "worker restarts": "F32",
    "worker drains": "F32",
    "all workers bounce": "F32",
    "rolling bounce": "F32",
    "workers 1, N, 0, N": "F32",
    "two processes with one id": "F33",
    "the sink fails before a write": "F34",
    "the sink fails after a write": "F34",
    "a write is late": "F34",
    "rolling upgrade to the consumer protocol": "F32",
    "rolling downgrade to the classic protocol": "F32",
    "consumer changes its protocol": "F32",
    "partition added": "F31",
    "task fails": "-",
    "a task's start fails": "-",
    "every heartbeat is a full one": "-",
    "a lease ends early": "-",
    "a parked heartbeat is answered at once": "-",
    "a request is repeated after its response": "-",
    "a task list is published again": "-",
    "the coordinator forgets a group": "-",
    "the coordinator is loading": "-",
}
"""By kind, as in the table that ``python -m tests.simulation`` prints."""

ELSEWHERE: Final = {
    "F8": "tests/log/test_killed.py",
    "F22": "tests/group/test_computing.py",
    "F24": "tests/wire/test_bad_input.py",
    "F27": "tests/log/test_sqlite_damage.py",
    "F28": "tests/log/test_damaged_files.py",
    "F35": "tests/known_bugs/test_exactly_once_on_spark.py",
    "F36": "tests/cli/test_exhaustion.py",
}
"""Faults that need a real file, real bytes, a real pipeline, or an exact moment: the file whose tests name them."""

NOT_YET: Final = {
    "F25": "only one version of the software exists so far",
    "F29": "the log has no Kafka back end yet",
    "F30": "coordinators are not elected yet",
    "F37": "there is no REST server yet",
}
"""Why the fault has no test."""
