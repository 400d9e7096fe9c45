"""``python -m tests.simulation --seeds N [--seed n]``; ``make simulate`` runs this."""

from .run import main

raise SystemExit(main())
