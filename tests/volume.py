"""How much a test with generated inputs tries: in a user's run, in continuous integration, and in the soak.

``TEST_VOLUME`` is ``user``, ``ci`` or ``soak``; unset, it is ``ci`` where CI=true and ``user`` elsewhere. ``make soak``
runs the modules that import ``volume``, or a number of ``tests.fuzzing`` that depends on it, with the largest numbers:
their tests have the marker ``generated``.

A user's run takes about nine minutes on two cores. Tests with the mark ``ci_only`` are not in it: few, each takes
much processor time, and each names what a user's run has of the same behaviour. ``TEST_VOLUME=ci make test`` runs them
too.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

SIZES: Final = ("user", "ci", "soak")
SIZE: Final = os.environ.get("TEST_VOLUME") or ("ci" if os.environ.get("CI") == "true" else "user")
if SIZE not in SIZES:
    raise ValueError(f"TEST_VOLUME: got {SIZE!r}; allowed: {', '.join(SIZES)}")


def volume(user: int, ci: int, soak: int | None = None) -> int:
    """The number of inputs, seeds or examples for this run; ``soak`` is three times ``ci`` unless given."""
    return {"user": user, "ci": ci, "soak": 3 * ci if soak is None else soak}[SIZE]


def ci_only(reason: str) -> pytest.MarkDecorator:
    """The mark of a test that a user's run leaves out (see ``pytest_collection_modifyitems`` of ``tests.conftest``).

    Args:
        reason: what it costs, and which other tests or commands show the behaviour in a user's run.
    """
    return pytest.mark.ci_only(reason)
