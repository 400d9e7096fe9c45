"""``python -m tests.model``: ``python -m tests.simulation`` with every coordinator compared with the model."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence

from tests.simulation import command

from .simulated import with_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Same arguments; returns 0 if there was no difference and every invariant held."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if multiprocessing.get_start_method() != "fork":
        given += ["--jobs", "1"]  # another process would not have the model
    with with_model():
        return command.main(given)


if __name__ == "__main__":
    raise SystemExit(main())
