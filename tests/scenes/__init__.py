"""Scenes: the protocol as plays, to be read from top to bottom. Each is a text that a test plays on the shipped rules.

In a scene, what stands at the left margin is done: a worker joins, beats (sends a heartbeat), has stopped something;
time passes; the coordinator restarts. What comes after ``->`` or is indented is what really came out: first the answer
as it is on the wire (the member's epoch, then its whole assignment or "as before") and what the worker makes of it,
then what changed for all to see.

``foo`` is a connector, ``foo-1`` one of its tasks, ``foo-1@7`` that task as it was given at epoch 7: its fencing token.
Members list assignors of their own (``joins with even``) and one of them computes; where one lists none the coordinator
does, and ``the coordinator would give`` is what its assignor answers. ``at rest at epoch 10`` sets a group on the stage
that has been there for a while. Workers ask for a rebalance timeout of 10 s; all else is as ``GroupSettings`` has it.

How a rebalance goes (begin with the first)
    basic                  Three tasks, one worker, then two, then three
    incremental            Two tasks reach a third worker one by one, each as soon as it is free
    member-failure         A worker falls silent, and the others take its tasks over
    task-added             A connector gets one task more
    third-member           A third member joins: a whole rebalance, heartbeat by heartbeat
    newer-target           A newer target overtakes one that is still being reached
    never-both             Revoked or assigned, never both in one answer
    connectors             The life of a connector
    target-records         What a new target writes

Who computes the target
    choosing               Who computes: the member whose versions cover everybody's
    preferences            Which assignor: one that all members list
    computing              A member is asked to compute a target, and only that member may
    metadata               An assignor has something new to say
    overtaken              A worker joins while the target is being computed
    silent-computer        The member that was asked to compute does nothing
    replaced-computer      The group epoch advances before the chosen member has prepared
    bad-assignments        Assignors that are wrong, or fail
    installed-twice        A target that is sent twice

Coming and going
    no-group               A group that is not there yet
    joins-again            A member that joins although it is one already
    leaving                Leaving for good
    full-group             A group that is full
    draining               A worker is drained before it goes
    all-draining           Everybody drains
    rounds                 Moves by the round
    deleting               A group is deleted

When something goes wrong
    lost-answers           Answers that never arrive, requests that arrive twice
    lost-in-a-row          One answer after the other is lost while the group goes on
    full-heartbeats        What a heartbeat leaves out, and what is answered to one that leaves out nothing
    fencing                Members that speak from the wrong epoch
    slow-stop              A worker that takes too long to stop
    paused-meanwhile       A connector is paused while a revocation is pending
    cut-off                A worker that cannot reach the coordinator
    reload                 The coordinator is replaced while a rebalance is under way
    refused                Requests that break a rule

Coming back
    static-bounce          A static member is bounced, and nobody else notices
    static-changed         A static member comes back with something new
    static-midway          A static member is bounced in the middle of a rebalance
    static-renamed         A worker takes another static name
    static-clash           Two workers with one static name
    static-gone            A static member that does not come back
    delay-comes-back       A lost worker comes back within the scheduled delay
    restart                A worker is restarted, and nothing moves
    restart-both           Two workers are restarted at the same time
    delay-is-over          A lost worker does not come back
    delay-new-coordinator  A scheduled delay survives the coordinator
    delay-and-more         While a lost worker is waited for, something else happens
    delay-asked-for        An assignor asks for a delay of its own

``python -m tests.scenes`` shows where scenes and rules differ, ``--write`` writes what came out into the scenes,
to be reviewed. To add a scene, write a ``.txt`` with nothing but what is done and have the rest written. The kinds of
lines there are stand in ``lines.py`` and ``looks.py``, a function each.
"""
