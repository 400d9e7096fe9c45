"""The whole system under one seed: coordinators, workers, network, disk and sink in one thread, in virtual time.

Start at ``run.run_seed``. The invariants are in ``invariants``, the schedule of faults in ``schedule``, the rare states
that a suite must have reached in ``sometimes``.
"""
