"""Scenes: transcripts of the protocol. Each is a text that a test runs with the shipped rules.

A line at the left margin is a command: a worker joins, heartbeats (sends a heartbeat) or acknowledges units (they have
stopped, and its next heartbeat omits them); time passes; the coordinator fails over. Text after ``->`` or indented is
the actual output: first the response as it is on the wire (the member epoch, then the whole assignment or "unchanged")
and the worker's actions, then the visible changes of the group.

``foo`` is a connector, ``foo-1`` one of its tasks, ``foo-1@7`` that task as granted at owner epoch 7, its fencing
token. Members list client-side assignors (``joins with even``) and one of them computes; if a member lists none, the
coordinator computes, and ``the server-side assignor returns`` sets the result. ``stable at epoch 10`` creates a group
that is stable at this epoch. The rebalance timeout of workers is 10 s; everything else is the default of
``GroupSettings``.

Rebalances (begin with the first)
    basic                   Three tasks, one worker, then two, then three
    incremental             Two tasks reach a third worker one by one, each as soon as it is free
    member-failure          A session expires, and the tasks move to the other members
    task-added              A connector gets an additional task
    third-member            A third member joins: a whole rebalance, heartbeat by heartbeat
    newer-target            A newer target replaces one that is still being reconciled
    revoke-before-assign    A response revokes or assigns, never both
    connectors              The life of a connector
    target-records          The records of a new target

Computation of the target
    computing-member        Which member computes: the one that supports the versions of all others
    assignor-selection      Which assignor: one that all members list
    computing               One member is chosen to compute a target, and only that member may
    metadata                An assignor changes its metadata or reason
    overtaken               A worker joins while the target is being computed
    compute-timeout         The chosen member does not install an assignment
    compute-replaced        The group epoch advances before the chosen member has prepared
    bad-assignments         Invalid assignments and failing assignors
    repeated-install        A repeated Install

Joins and leaves
    unknown-group           An unknown group
    rejoin                  A member rejoins
    leaving                 A member leaves
    full-group              A group that is full
    draining                A worker drains before it leaves
    all-draining            All members drain
    rounds                  A limited number of moves per round
    deleting                A group is deleted

Failures
    lost-responses          Lost responses and duplicated requests
    lost-in-a-row           Several lost responses while the target changes
    full-heartbeats         Incremental and full heartbeats
    fencing                 Members with a wrong epoch
    slow-stop               A worker exceeds the rebalance timeout
    pause-during-revocation A connector is paused while a revocation is pending
    cut-off                 A worker that cannot reach the coordinator
    coordinator-failover    A coordinator failover during a rebalance
    invalid-requests        Invalid requests

Restarts, static members, delays
    static-restart          A static member restarts without a rebalance
    static-changed          A static member returns with other assignors
    static-midway           A static member restarts during a rebalance
    static-renamed          A worker changes its instance id
    static-clash            Two workers with one instance id
    static-expired          A static member does not return
    delay-return            A lost worker returns within the scheduled delay
    restart                 A worker restarts, and no unit moves
    restart-both            Two workers restart at the same time
    delay-expires           A lost worker does not return
    delay-failover          A scheduled delay survives a coordinator failover
    delay-then-join         A member joins during a scheduled delay
    delay-by-assignor       An assignor requests a delay

``python -m tests.scenes`` shows where scenes and rules differ, ``--write`` writes the actual output into the scenes,
for review. To add a scene, write a ``.txt`` with the commands only and let ``--write`` add the output. The kinds of
lines are in ``lines.py`` and ``looks.py``, one function each.
"""
