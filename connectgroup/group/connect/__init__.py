"""Coordinator logic of groups of type ``connect``. Start at ``group_type.step``.

Decisions about epochs and heartbeats:

- The first member of a new group has epoch 1, as in KIP-848's case studies (Kafka's trunk has 2). The epoch of an
  unknown group above zero is GROUP_ID_NOT_FOUND, as Kafka shipped it; workers treat it as UNKNOWN_MEMBER_ID.
- INVALID_GROUP_ID is the error for an invalid group id in Describe and Delete (as in Kafka), and in Prepare and
  Install for an id that is not empty but no valid name: the source lists it there, and puts an empty id under
  INVALID_REQUEST. Heartbeats get INVALID_REQUEST.
- A second heartbeat in UNRELEASED writes no record (RE-04 has one): nothing has changed.
- A unit that must not run any more does not wait for an acknowledgement (CA-19): the units of a connector that is
  stopped, paused, deleted or reconfigured join the pending revocation, and the rebalance timer is re-armed. The worker
  stops them concurrently with the earlier ones, because the timer does not wait for those either.
- A stop that fails is not acknowledged: the member is removed at its rebalance timeout, and only then is the unit
  assigned to another member.
- A member that rejoins at epoch 0 gets the target epoch before it is asked to compute again: each heartbeat at epoch 0
  is a join and clears ``prepared``, so in a group under constant change it would never get its own tasks.
- The record that explains a rebalance precedes the tombstones of the member that left: downtime is measured from its
  time. A target's epoch follows the members' assignments in the batch, so that half a target is never current.
- A rebalance's explanation keeps counts and its 100 longest moves: it is one record of a log whose batches are
  bounded.
- Session timeout 10 s and heartbeats every 3 s by default: Kafka Connect's worker defaults, not the consumer's.

Decisions about delays, static members and restarts:

- The coordinator delays units, for all assignors (PD-08 leaves it to the assignor): one implementation instead of one
  for each plug-in, and none can omit it. An assignor may request a delay of its own. Units are delayed only for
  workers that did not announce their departure, and only while other members remain. Only units that are owned and in
  the target are delayed: those being assigned to the lost worker still run elsewhere, those being revoked belong to
  another member. The deadline is the one timer that is stored: after a load it continues with the remaining wall-clock
  time, never below zero and never above the whole delay; if it fires late, it waits a moment for unread messages.
- ``scheduled.rebalance.max.delay.ms`` is one setting, the group's: Prepare carries it. 0 is no delay.
- A returning worker's target is restored without an assignor if nothing has happened since it was lost; otherwise its
  return is one more trigger, and the assignor sees the delayed units as owned by it.
- The session of a static member that leaves temporarily is re-armed at the leave, and if it does not return in time,
  its units get no scheduled delay on top. An instance id in use is UNRELEASED_INSTANCE_ID for a join: the successor of
  a crashed worker joins when the old session has expired; of two live processes the second waits and reports it.
- A worker that restarts leaves with epoch -1 and ``Returns``, and its units are delayed for its member id, also when
  it is the last. Not with epoch -2: that belongs to an instance id and is bounded by the session timeout, which is
  kept short, while a restart may take the whole delay; the delay's deadline survives a failover, a session does not;
  and the new process gets its units at a later owner epoch. The price: two group epochs for each restart, the second
  without a computation. A static member that restarts leaves with epoch -2.
- A restart, and a drain, are requested through the coordinator (ConnectGroupRestartMember, key 20486), which reaches
  every worker, whatever started it. A response that carries the request is never parked; repeating it changes nothing;
  a rejoin at epoch 0 without a leave keeps it; draining ends it.
- A draining worker stays a member and is left out of the assignor's input: draining needs no state in reconciliation,
  and moves tasks at the pace of the rounds.
- A member belongs to a process and a principal (PD-15, ``members``), which the transport cannot combine: a worker of
  the classic protocol sends its process id within the metadata of JoinGroup; SyncGroup and Heartbeat have none, and
  only their principal is checked. An operator names a member but sends nothing as the member, so any principal may;
  the supervisor's leave counts for any principal. A renewed certificate or a new password is the same principal;
  another user name is not. The price: a worker that crashed without a supervisor on another machine waits for the
  session timeout. Supervisors draw the process ids of their workers (``CONNECTGROUP_PROCESS_ID``), so theirs rejoin at
  once.
- A restart of a unit names the grant that it ends (its owner epoch), so a repeated request restarts nothing twice. It
  raises ``since_epoch``: the unit is revoked and granted again, usually on the same worker.

Decisions about targets and connectors:

- An assignment must be complete: a target that omits a unit is INVALID_ASSIGNMENT, unless the result lists it as
  delayed, and for how long. Members that joined since the assignment was prepared have no units yet; units that were
  added or reconfigured since are granted by the next target, because no unit is granted at an owner epoch below that
  of its configuration; delayed units of a member that returned since stay reserved for it.
- Prepare's response has connectors where KIP-848 has topics. A member's target is a list of unit indices there
  (``PrepareResponse.shares``), counted through the connectors: by name, 10,000 tasks on 100 workers took 284 kB
  instead of 68, and 11 ms to decode instead of 0.9. Install, which must be able to be wrong, has names.
- Each round of moves (``target``) is a target of its own: a move beyond the limit is left out, so that every rule
  about targets applies unchanged, and the assignor is called again when all members have reached it. With an
  assignor that keeps units apart (a port, a licence), set no limit: a partly applied target may put them together for
  a round.
- Configurations travel with grants (tagged ``Grants``, ``Configs``), not by a second store: a worker can never run a
  configuration that its grant was not created for. A change of a connector's configuration in anything but
  ``tasks.max`` clears its task list until its owner has made a new one: no task runs half on the old configuration and
  half on the new one (KAFKA-9228). When the division of a source changes, the owner epochs of all tasks that touch the
  same slices increase; tasks whose configuration did not change are not interrupted.
- A connector's version is the group epoch of its last change, not a count: a count restarts when a connector is
  deleted and created again, and a late copy of a former deletion would match. It does not help across the deletion of
  a whole group, nor against a late copy of the creation itself.
- A PAUSED connector keeps running itself but none of its tasks; a STOPPED one runs nothing. Both are revocations.
- The coordinator applies a patch of a configuration: clients see credentials masked, and could not write a whole one.
- A group's connectors and tasks may take 7.5 MB (``group.sizes``), since the last member is granted all of them in one
  response: 100,000 tasks of ``idle`` take 3.6 MB, a pipeline's task some 350 bytes. Grants in slices would lift this,
  but a member would have to report a partial assignment as such. The limit of time is ``max_units``, 25,000 by
  default: two workers on two cores hold 20,000 tasks with the default session timeout and lose their leases at
  100,000. Statuses go 1,000 in a heartbeat. A raised ``tasks.max`` that leaves no room is rejected when the connector
  is written, as no client waits for its task list. A change that does not grow a group is never rejected, so that one
  above a lowered limit can be made smaller.
- A deleted group leaves one record, its creation time: a group created again under its name has a higher incarnation,
  otherwise its sinks would reject it. The latest 1,000 of these are kept, because any client can create and delete
  groups; for older ones the clock must not have been set back behind the deletion.
- A group of our workers is of type ``connect``, whatever protocol they use. A group of type ``classic`` has no records
  of connectors, so its leader would have nothing to assign. A JoinGroup of our workers, known by the name of its
  protocol (``connectgroup``), creates a connect group (``registry.Claiming``), its generation is the group epoch from
  the beginning, and an upgrade or a rollback converts nothing.
- A classic worker computes only if no member of the connect protocol can: its heartbeats are not parked, so each step
  of a rebalance takes up to the shorter of its heartbeat interval and ``max_wait_ms``. Heartbeat decides one of the
  connect protocol without applying it: REBALANCE_IN_PROGRESS, if there would be records or a new response. The
  response to a JoinGroup is kept in memory for the SyncGroup that follows; after a failover the member joins again.
- Kafka Connect's own workers with members never become a connect group: their connectors are in topics that the
  coordinator does not read. A worker of ours that joins is rejected until they have stopped.
"""
