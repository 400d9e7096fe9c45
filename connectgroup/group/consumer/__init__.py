"""Consumer groups: topic partitions, assigned by the protocol of KIP-848.

Decisions:

- A fenced member stays in the group until its session expires, as Kafka shipped it; KIP-848 removes it at once.
  Clients send no sequence number, so a late copy of a request would remove a healthy member.
- The heartbeat of a member that waits for a target or for the revocations of others is parked, for half a heartbeat
  interval at most, though clients request no long polls: they would get their partitions an interval later. The
  interval in a response is always the configured one: librdkafka takes it as the timeout of its heartbeats, and
  repeats one whose response is late as it was, which then is fenced if the response had a new epoch. Java's consumer
  sends no other heartbeat meanwhile. A commit or a fetch of offsets of the member ends the wait
  (``RequestTraits.follows``), because its response would wait behind the heartbeat's on the same connection.
  A client whose join is parked is no member to itself, and sends no leave when it is closed: the coordinator removes
  the member when it sees the connection lost (``coordinator.runtime``).
- Target assignments of a group are computed at least 1 s apart (``group.consumer.assignment.interval.ms``, KIP-1263):
  the members of a mass start get their partitions together, in one callback each. While no partition is assigned, no
  interval applies.
- A report at the previous member epoch acknowledges nothing: the response is repeated (HB-04). Kafka reconciles with
  it.
- The topics are a snapshot outside the group's state, which a ``TopicSource`` replaces. The subscribed ones are a
  record (``ConsumerTopicsRecord``), so each epoch has the topics that its assignment was computed for. A change of the
  snapshot is an input of each group; a group that is loaded queues it for itself.
- Partitions are assigned by topic id: a topic that is deleted and created again has other partitions.
- Regular expressions are checked in the step and searched for in an effect (``Match``). The topics that match are a
  record, so that a new coordinator does not revoke everything until it has searched again. A computation waits until
  all expressions are resolved; a match during one advances the group epoch. Library: google-re2, RE2's own wrapper for
  Python; Kafka uses a port of RE2.
- Client-side assignors are used if all members list one; if a client of another implementation joins, the coordinator
  assigns. An assignment must be complete: cooperative-sticky, which withholds partitions, is rejected when it does.
- A group without members is replaced when a member of the other protocol joins (``registry.Replaceable``): one batch
  removes the records of the old type and creates the new group; committed offsets are records that both types apply.
- A group with members is converted by the type that it becomes (``registry.Converting``), in the batch of the join
  that causes it; back, by the step that removes the last member of the consumer protocol (``Outcome.converted``). If a
  step rejects the join, the group stays as it was.
- A converted cooperative member still owns what it reported in JoinGroup, beyond its last assignment, as pending
  revocations until it joins again; so do partitions of a topic that it is not subscribed to any more. Kafka converts
  the assignment alone, and another member may read such a partition at the same time.
- A classic group whose members own partitions of unknown topics is converted after another read of the topics: its
  leader may know a topic earlier than the source. Until then the join gets COORDINATOR_LOAD_IN_PROGRESS, which clients
  retry; a topic that the read does not find is deleted, and its partitions are dropped, as in Kafka.
- User data in the assignments of Kafka's own assignors does not prevent a conversion; Kafka rejects any. librdkafka
  sends the user data of each member's subscription back to it.
- When a group becomes classic, its epoch does not advance: it is the generation that the members already send. A
  member behind it may send its former epoch until it joins again (``ClassicMemberRecord.former_epoch``), also after
  another conversion; Kafka rejects it with ILLEGAL_GENERATION, and the client loses its partitions without committing.
  The stored assignment is what the member may still run, not its target as in Kafka.
- A classic member that joins waits up to 1 s for the target, as a member of the consumer protocol does. A JoinGroup
  without a member id does not: deciding it again would add another member.
"""
