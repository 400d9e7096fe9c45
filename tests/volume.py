"""How much a test with generated inputs tries: in a user's run, in continuous integration, and in the soak.

``TEST_VOLUME`` is ``user``, ``ci`` or ``soak``; unset, it is ``ci`` where CI=true and ``user`` elsewhere. ``make soak``
runs the modules that import ``volume``, or a number of ``tests.fuzzing`` that depends on it, with the largest numbers:
their tests have the marker ``generated``.
"""

from __future__ import annotations

import os
from typing import Final

SIZES: Final = ("user", "ci", "soak")
SIZE: Final = os.environ.get("TEST_VOLUME") or ("ci" if os.environ.get("CI") == "true" else "user")
if SIZE not in SIZES:
    raise ValueError(f"TEST_VOLUME: got {SIZE!r}; allowed: {', '.join(SIZES)}")


def volume(user: int, ci: int, soak: int | None = None) -> int:
    """The number of inputs, seeds or examples for this run; ``soak`` is ten times ``ci`` unless given."""
    return {"user": user, "ci": ci, "soak": 10 * ci if soak is None else soak}[SIZE]
