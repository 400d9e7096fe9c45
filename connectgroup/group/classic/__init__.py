"""PURE: the rules of classic groups, whose members compute the assignment themselves (JoinGroup and SyncGroup).

Decisions:

- Every change of members and state is a record, also during a rebalance; Kafka writes a group only when a rebalance is
  complete. So records stay the only way a group changes, and a restart knows the members of a rebalance. In memory
  only: parked requests, member ids sent with MEMBER_ID_REQUIRED, the initial rebalance delay. Clients send again.
- A member id is chosen by the step, with a unique part from the coordinator, because the rules are pure. A JoinGroup
  without one is parked under the id that the step chose (``Outcome.sender``).
- Members that leave in one LeaveGroup leave before the rebalance is looked at, as in Kafka: otherwise it is completed
  with a member that the same request removes.
- A member id that was sent belongs to a dynamic member: with an instance id it is UNKNOWN_MEMBER_ID or
  FENCED_INSTANCE_ID. When it expires, a group without a generation is deleted, unless it has committed offsets.
- Only JoinGroup and SyncGroup have a sender in ``RequestTraits``: a heartbeat of a member that waits in JoinGroup is
  valid in Kafka, and must not complete it.
- The leader is the member with the highest assignor version (KIP-429), a tagged field of ours in JoinGroup; of several
  the present leader, else the first to join. Kafka's clients send no version, so among them Kafka's rule applies.
- Kafka Connect's own workers stay in a classic group; those of this library form one of type ``connect``.
"""
