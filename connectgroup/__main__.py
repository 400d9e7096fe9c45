"""``python -m connectgroup`` is the command ``connectgroup``."""

from .cli import main

raise SystemExit(main())
