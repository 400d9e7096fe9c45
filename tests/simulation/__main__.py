"""``python -m tests.simulation --seeds N [--seed n]``; ``make simulate`` runs this."""

from .command import main

raise SystemExit(main())
