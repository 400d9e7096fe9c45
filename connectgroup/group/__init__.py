"""The coordinator's rules: pure functions from a group and an input to an answer, records and timers.

No clock, no randomness, no input or output. Start at ``handle.step``; the rule that everything serves is
``reconcile.reconcile``.
"""
