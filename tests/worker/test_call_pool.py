"""Code that hangs in its own thread."""

from __future__ import annotations

import subprocess
import sys

HANGS = """
import asyncio, threading
from connectgroup.threads import off_loop

async def main():
    try:
        await asyncio.wait_for(off_loop("hangs", threading.Event().wait), 0.1)
    except TimeoutError:
        print("abandoned", flush=True)

asyncio.run(main())
"""


def test_process_exits_although_a_plug_in_hangs() -> None:
    """L7: a supervisor waits for the process of a stopped worker, and kills it if it does not end."""
    ran = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "abandoned\n"
