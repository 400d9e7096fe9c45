"""The whole system under one seed: coordinators, workers, network, disk and sink in one thread, in virtual time.

Start at ``run.play``. What must hold is in ``invariants``, what befalls the cluster in ``storm``, what must have been
seen for a green suite to mean anything in ``sometimes``.
"""
