"""``python -m connectgroup`` is the command ``connectgroup``."""

import sys

if not sys.flags.safe_path:
    # "-m" put the current directory here. As for the installed command, its modules must not shadow others.
    del sys.path[0]

from .cli.command import main

raise SystemExit(main())
