"""The rules that do not depend on the group type: reconciliation, computation, outcomes and timers.

Decisions:

- A fencing token is issued once: (unit, owner epoch) strictly increases. A member that rejoins while the group still
  has units assigned to it gets them back at a later epoch only, because its former process could still write with the
  old token. The target epoch is raised with it; the target assignment stays, and no assignor is called. The one
  exception is the successor of a static member (``connect.members.replace_static_member``).
- The previous epoch is the one that the member has shown, not the last but one, so lost responses in a row never fence
  a correct worker. The units that the member reports must be within its current assignment, units being revoked
  included: reporting those acknowledges nothing.
- COMPUTE_ASSIGNMENT is the response to each heartbeat of the chosen member until it sends Prepare, so that a lost
  response costs nothing; afterwards heartbeats are ordinary again. It precedes reconciliation: the member's own step
  waits for its next heartbeat, which it sends at once and in full, so that a response is either a request to compute
  or a change of assignment, and an acknowledgement in the same request is not lost.
- An Install is judged by the chosen member and the group epoch it prepared, never by the member epoch. It is
  concurrent with heartbeats, on another connection (a parked heartbeat would delay it), and the member epoch may
  advance several times while an assignor runs: a fenced Install would cost the group its rebalance timeout. Prepare
  rejects only an epoch that the member has not been given yet.
- The target epoch may trail the group epoch. A computation goes on when the group epoch advances; what is still valid
  for the members and units of now is installed for the epoch it was prepared for, and the next computation requested
  at once. Otherwise it is STALE_GROUP_EPOCH, which is no failure. So a group that changes faster than its assignor
  computes still progresses. The count of failures continues across epochs until a target is installed.
- A chosen member that has not sent Prepare when the group epoch advances is replaced, neither fenced nor counted as
  failed: a paused process with a live session must not delay the group. Its Prepare is accepted until another member
  has prepared. At most three members are asked for one computation; then the rebalance timeout of the last one
  decides, and all three count as failed.
- Every target assignment is delivered to every member it has an entry for, in its first response at the target epoch,
  also without a change. The response names the assignor, so that ``on_assignment`` is called on this one only.
- Install errors are responses, not exceptions: which member failed, and how often, is a fact that is recorded, so that
  the next member computes.
- HB-18: a failing server-side assignor does not reject the heartbeat that triggered it. The change is accepted, the
  failure recorded, the old target kept; the next change or a session timeout triggers a retry. A rejection would keep
  a member out for a plug-in's fault.
- A server-side assignor is an effect: a step records only that the coordinator computes. The result is an input,
  judged by the group epoch of its input, as an Install is, so no group waits for plug-in code; a coordinator that
  loads the group requests the computation again.
- A session timer restarts on load, so that no member is removed for time in which the coordinator was down. A timer
  carries its purpose (``TimerKey.belongs_to``): an expiry for a former epoch does nothing.
"""
