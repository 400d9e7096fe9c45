"""``python -m tests.scenes [--write] [name ...]``: show how scenes differ from their actual output, or accept it."""

from __future__ import annotations

import argparse
import sys

from .play import difference, play, scenes
from .words import SceneError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="scenes without .txt; default: all")
    parser.add_argument("--write", action="store_true", help="write the actual output into the scenes, for review")
    options = parser.parse_args()
    chosen = [path for path in scenes() if not options.names or path.stem in options.names]
    different = 0
    for path in chosen:
        text = path.read_text(encoding="utf-8")
        try:
            played = play(text, path.name)
        except SceneError as error:
            print(error, file=sys.stderr)
            different += 1
            continue
        if played != text:
            different += 1
            sys.stdout.write(difference(path.name, text, played))
            if options.write:
                path.write_text(played, encoding="utf-8")
    print(f"{len(chosen)} scenes, {different} {'written' if options.write else 'different'}")
    return 1 if different and not options.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
