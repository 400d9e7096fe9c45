"""Names of operating-system processes, by which another process on the same machine finds out that one has ended.

A name contains the boot of the machine and the PID namespace, because a process id means nothing on another machine, in
another container or after a reboot; and the start time, because process ids are used again. Linux only (``/proc``):
elsewhere a process has no name. The name of a process whose supervisor reports its end has one more part.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from functools import cache
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_START_TIME: Final = 19
"""Index of ``starttime`` in ``/proc/PID/stat`` behind the name of the program; the state is at index 0 (proc(5))."""


_SUPERVISED: Final = "/supervised"


def this_process(*, supervised: bool = False) -> str:
    """The name of this process, ``machine/pid/start time``; empty if the operating system does not tell.

    Args:
        supervised: a supervisor reports its end, unless the supervisor itself has ended.
    """
    machine, pid = _machine(), os.getpid()
    stat = _stat(pid)
    return f"{machine}/{pid}/{stat[_START_TIME]}{_SUPERVISED * supervised}" if machine and stat else ""


def is_supervised(process: str) -> bool:
    """Whether the supervisor of the process with this name reports its end."""
    return process.endswith(_SUPERVISED)


def has_ended(process: str) -> bool:
    """Whether the process with this name has ended; false if that is unknown.

    Args:
        process: what ``this_process`` returned in that process; any other text names no known process.
    """
    machine, _, rest = process.removesuffix(_SUPERVISED).partition("/")
    pid, _, start = rest.partition("/")
    if not machine or machine != _machine() or not (pid.isascii() and pid.isdigit() and 0 < int(pid[:12]) < 1 << 31):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, and is another user's
        pass
    stat = _stat(int(pid))
    # A zombie has ended: its parent has not reaped it yet.
    return bool(stat) and (stat[0] in ("Z", "X") or stat[_START_TIME] != start)


def memory_bytes() -> int:
    """Resident memory of this process and of all that it has started, in bytes; 0 if the system does not tell.

    Pages that processes share count for each of them.
    """
    total = 0
    for pid in _family(os.getpid()):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile, or this is not Linux
            pages = (_PROC / str(pid) / "statm").read_text(encoding="ascii").split()[1]
            total += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return total


def kill_family(pid: int) -> None:
    """Kill a process, its process group, and all that it has started, whatever process groups that has."""
    family = _family(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _kill(family)


def kill_children() -> None:
    """Kill all that this process has started, and what that has started."""
    _kill(_family(os.getpid()) - {os.getpid()})


def _kill(processes: set[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _family(pid: int) -> set[int]:
    """A process and all that it has started; elsewhere than on Linux, only itself."""
    found, left = {pid}, [pid]
    while left:
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            for thread in (_PROC / str(left.pop()) / "task").iterdir():
                children = [int(each) for each in (thread / "children").read_text(encoding="ascii").split()]
                left += [each for each in children if each not in found]
                found.update(children)
    return found


@cache
def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = (_PROC / "self/ns/pid").readlink()
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{namespace}".encode()).hexdigest()[:16]


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name of the program, which may contain spaces; empty if unknown."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return fields if len(fields) > _START_TIME else []
