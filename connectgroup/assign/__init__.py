"""The API for assignor authors, and the code that runs an assignor.

Decisions:

- Assignor user data (``assignor_state``) are passed only to the assignor that wrote them, and only while its result is
  the target in force.
- A connector's placement constraints are part of its configuration (``assignment.*``), rejected on write if
  unreadable, and passed to assignors unchanged; a change of them stops no task.
- A worker's labels, rack, capacity and host are fields of its heartbeat, of the member record and of Prepare: every
  assignor reads them, and a change advances the group epoch as a change of metadata does. The record also has client
  id and joining epoch (KIP-848's ClientId and GroupEpoch); a change of the client id advances nothing.
- Capacity is both a limit and a proportion: a worker without a declared capacity has no limit and counts as the
  average. Labels, limits, host resources and anti-affinity are constraints; affinity and spreading are preferences.
- Partition assignors have entry points of their own (``connectgroup.partition_assignors``): an operator is never
  offered one that cannot serve the group, and one name may stand for the same idea in both kinds.
"""
