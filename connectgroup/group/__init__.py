"""Coordinator logic: pure functions from a group and an input to a response, records and timers.

No clock, no randomness, no I/O. Start at ``handle.step``; the central function is ``reconcile.reconcile``.
"""
