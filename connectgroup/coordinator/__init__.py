"""The coordinator process: request queue, log, timers and responses. Start at ``runtime.Coordinator``.

Decisions:

- Apply, append, respond, instead of append, apply, respond: the decisions of one turn see each other and share one
  commit. What clients see is the same, since nothing is revealed before it is durable; a failed append costs a reload.
- A turn ends after 25 ms, and the commands that it has not decided are the first of the next one: one append serves
  many commands, but nothing is read or sent meanwhile. One command is not divided.
- Heartbeats of members are taken first only when more is queued than one turn takes; within a turn, the order of
  arrival holds. Only numbered requests may overtake others, since a copy that is late is then recognized.
- Every heartbeat carries a monotonic ``Sequence`` (``parking.Dedup``): a copy that arrives after a later one gets
  STALE_MEMBER_EPOCH and changes nothing. Epochs are not enough: an acknowledgement sent at epoch 5 looks valid again
  once the unit has been granted and revoked again at epoch 5. In memory only: no connection outlives the coordinator.
- A heartbeat counts from its arrival: if it waits behind a slow append, its session is re-armed, and an expiry before
  no longer counts. A timer that fires late (the process was suspended) is re-armed: what members sent meanwhile is
  still unread. A message that ends a timer may wait in the queue with its expiry: deciding it removes the expiry.
- A parked heartbeat that a change has woken is decided before any queued command: behind a later heartbeat of the same
  member it would look stale and fence the member.
- At a limit the oldest unused thing gives way to the new one (connections without a request or before authentication,
  large incomplete requests, vacant groups, traces of deleted groups, member ids that no client has joined with),
  instead of an error for the newcomer: what is used is never lost, and what a client leaves open does not stop others.
  Only if all of it is in use, the newcomer is rejected.
- A large group is described in a thread, from a copy of the containers of its state (17 ms for 100,000 tasks), so that
  it blocks no other request: the longest turn was 580 ms and is 18 ms. Slices over several turns would mix epochs. One
  copy is made at a time.
- A server-side assignor has 5 s; then its thread is abandoned and the failure recorded. The same epoch is not computed
  again while the thread runs, the next one is, up to 8 abandoned threads for each assignor.
- A lost connection is a reason to look, not a verdict (PD-13): to shorten the session, and the lease with it, would
  stop the tasks of living workers when a coordinator is suspended or a proxy restarts. It looks on its own machine
  (Linux, same boot, same PID namespace). A worker under a supervisor names no process: its supervisor reports its
  death. Java may outlive its worker for a moment; sinks reject what it still writes.
- The numbers of tasks (rows, lag, activity) travel in heartbeats that are sent anyway, at most every 5 s and only
  those that have changed, and stay in memory: as statuses they would be a record for each task and second. Levels of
  loggers and topics in use are in memory, too: no rule depends on them. The stamp in a heartbeat says which levels a
  worker has; ``connectgroup worker`` sets them, an embedding program passes a function
  (``Worker.set_logger_levels_by``).
- While the log takes no writes, a parked request stays, and a rejected heartbeat says that its session has begun
  again.
- The broker decides about transactions (``transactions``, ``proxy.relay``): only its transaction coordinator knows
  producers, epochs and outcomes. It is asked first: if the group checked first, a member could lose a partition
  between the check and the record, and its next owner read from an offset that the transaction replaces. A pending
  offset is dropped only by an answer to a question that was asked after it was stored, since a second transaction may
  begin before the outcome of the first is known.
- Partitions of a shared log are logs of their own, with a lease, an epoch and a coordinator each (``partitions``): what
  holds of one owner holds of each partition, and nothing is decided over several. The client asks all owners for a
  list, as Kafka's admin client does: a coordinator that asked the others would need rights there, and would answer in
  the name of another principal. A partition changes its owner only by its lease; balance is no more than a clean stop
  of one partition that names its successor, so that a wrong view of who is there costs a hand-over and nothing else.
  Kafka's way, to let the broker's controller assign partitions, would be a second election.
- SQLite has one partition: its file has one process, and a process has one event loop, so that several owners would be
  the same one.
- ListGroups and DescribeGroups are made from the description that all group types have: a type fills
  ``protocol_type``, ``classic_state`` and, on request, each member's metadata and assignment in classic form. A
  connect group gives Kafka Connect's structures; a group of type ``consumer`` is GROUP_ID_NOT_FOUND there, as in
  Kafka.
"""
