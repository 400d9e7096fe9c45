"""The whole system under one seed: coordinators, workers, network, disk and sink in one thread, in virtual time.

Start at ``run.run_seed``. The invariants are in ``invariants``, the schedule of faults in ``schedule``, the rare
states that a suite must have reached in ``sometimes``. Each tenth seed has ``GroupConsumer``s of both protocols in one
group that is converted both ways (``mixed``), another tenth workers of both protocols (``classic``).

Simulated seconds for each second of one core, all invariants checked after every event (the lowest of several runs):

    3-10 members, 3-40 tasks                 whole seed                                  840-910
    10 members, 100 tasks                    whole seed: some 80 discrete faults         440-510
                                             without discrete faults                     750
                                             joins and leaves only                       1,000
                                             nothing but heartbeats                      1,370-1,470

A seed of 10 members and 100 tasks is 4,900 requests, 1,000 batches and 150 epochs: 250 µs for a request with both its
sides. The profile is flat. Tried on one machine: CPython built with profile-guided optimization is 1.2 times as fast;
3.13 to 3.15 no more than that; PyPy has a quarter of the speed; ``group`` and ``member`` compiled by mypyc gain
nothing, because the time is in dataclasses, dictionaries and sets.
"""
