"""Code that hangs in a thread of its own."""

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
        print("given up", flush=True)

asyncio.run(main())
"""


def test_process_exits_although_a_plug_in_hangs() -> None:
    """L7: whoever stops a worker waits for its process, and a supervisor kills what does not end."""
    ran = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "given up\n"
