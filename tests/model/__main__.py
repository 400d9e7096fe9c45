"""``python -m tests.model``: ``python -m tests.simulation``, with the model beside every coordinator."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence

from tests.simulation import command

from .beside import beside


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the two never differed and every promise held; same arguments."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if multiprocessing.get_start_method() != "fork":
        given += ["--jobs", "1"]  # another process would know nothing of the model
    with beside():
        return command.main(given)


if __name__ == "__main__":
    raise SystemExit(main())
