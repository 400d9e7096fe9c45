"""Coordinator logic: pure functions from a group and an input to a response, records and timers.

No clock, no randomness, no I/O. ``kernel`` has what all group types share; its central function is
``kernel.reconcile.reconcile``. ``registry`` says what the coordinator knows of a group type; ``connect``, ``consumer``
and ``classic`` are the three.
"""
