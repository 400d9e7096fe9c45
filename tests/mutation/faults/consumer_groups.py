"""Faults in the rules of consumer groups (KIP-848) and in committed offsets."""

from __future__ import annotations

from ..fault import Fault
from .at import C, at

GROUP = "connectgroup.group.consumer"
FENCING = "group/consumer/test_fencing.py"
OFFSETS = "group/consumer/test_offsets.py"
SUBSCRIPTIONS = "group/consumer/test_subscriptions.py"

# fmt: off
CONSUMER_GROUPS: tuple[Fault, ...] = (
    *at(f"{GROUP}.heartbeat:_admit", FENCING,
        C("a consumer at its previous epoch may report partitions that are not its own (HB-04)",
          "if A: ...", nth=-1),
        C("a lost response fences a consumer (HB-04)",
          "A != B or C is None", "True")),
    *at(f"{GROUP}.heartbeat:_step", FENCING,
        C("a lost request to revoke is never repeated",
          "A or B or C or D or E", "A or B or D or E"),
        C("a full heartbeat of a consumer gets no assignment (HB-11)",
          "A or B or C or D or E", "B or C or D or E"),
        C("a late copy of a consumer's report acknowledges a revocation",
          "A if B or C else D", "D", tests="group/consumer/test_fencing.py group/consumer/test_random_walks.py"),
        C("a consumer that joins gets its partitions one heartbeat interval later",
          "A or B", "B", nth=-1, tests="coordinator/test_consumer_groups.py")),
    *at(f"{GROUP}.heartbeat:_reconciled", SUBSCRIPTIONS,
        C("a dropped subscription revokes nothing until the next target assignment (CA-18)",
          "{A: 0 for B in C if D}", "dict.fromkeys((*before.assigned, *wanted), 0)")),
    *at(f"{GROUP}.heartbeat:_store", FENCING,
        C("a group of consumers may have any number of partitions",
          "A > B", "False", tests="group/consumer/test_validation.py")),
    *at(f"{GROUP}.subscription:refresh", "group/consumer/test_rebalance.py",
        C("an added partition is never assigned",
          "A != B", "False")),
    *at(f"{GROUP}.subscription:resolve", SUBSCRIPTIONS,
        C("a topic that matches a regular expression now is not assigned",
          "A is not None and B", "False")),
    *at(f"{GROUP}.computation:ensure_computation", SUBSCRIPTIONS,
        C("a target assignment is computed before the regular expressions are resolved",
          "() if A else B", "B")),
    *at(f"{GROUP}.target:violation_of", FENCING,
        C("a partition is assigned to a consumer that is not subscribed to it",
          "A and B not in C", "False", tests="group/consumer/test_client_assignors.py")),
    *at(f"{GROUP}.target:_release_for_others", "group/consumer/test_static_and_timers.py",
        C("the partitions of a consumer that left temporarily never move",
          "if A.temporarily_left: ...")),
    *at(f"{GROUP}.install:_is_repeat", "group/consumer/test_client_assignors.py",
        C("a consumer's repeated Install is an error",
          "...", "return False")),
    *at(f"{GROUP}.offsets:commit", OFFSETS,
        C("a consumer commits at an epoch that it does not have (OC-01)",
          "A > B", "False"),
        C("a consumer commits a partition that it has lost (OC-05)",
          "A is not None and B", "True"),
        C("a sender that is not a member commits while the group has members (OC-07)",
          "A and B and not C", "A and B")),
    *at(f"{GROUP}.delete:delete", OFFSETS,
        C("the offsets of a deleted group remain",
          "(*A.offsets.tombstones(), *B, C)", "(*B, C)")),
    *at("connectgroup.coordinator.decisions:Decisions._replacement", "coordinator/test_consumer_groups.py",
        C("a group that changes its type loses its offsets",
          "for A in B: ...")),
    *at("connectgroup.group.offsets.rules:_violation", OFFSETS,
        C("metadata of any size is committed with an offset",
          "A > B", "False")),
)
