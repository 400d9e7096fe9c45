"""``python -m tests.model``: ``python -m tests.simulation`` with every coordinator compared with the model.

``--type consumer`` instead runs consumer groups with inputs of any kind, ``--type classic`` classic groups, and
``--type mixed`` groups with members of both protocols, and conversions (``consumer.command``).
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence

from tests.simulation import command

from .consumer import command as consumer
from .simulated import with_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Same arguments; returns 0 if there was no difference and every invariant held."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--type", choices=("connect", *consumer.DRIVERS), default="connect")
    options, given = parser.parse_known_args(arguments)
    if options.type != "connect":
        return consumer.main(given, options.type)
    if multiprocessing.get_start_method() != "fork":
        given += ["--jobs", "1"]  # another process would not have the model
    with with_model():
        return command.main(given)


if __name__ == "__main__":
    raise SystemExit(main())
