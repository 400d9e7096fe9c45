"""Faults in the rules of classic groups and in the proxy."""

from __future__ import annotations

from ..fault import Fault
from .at import C, at

RULES = "group/classic/test_classic.py"
STATIC_MEMBERS = "group/classic/test_static_members.py"

# fmt: off
CLASSIC: tuple[Fault, ...] = (
    *at("connectgroup.group.classic.rebalance:_complete_if_all_joined", RULES,
        C("a generation begins before all members have joined",
          "A and B and not C", "A and not C"),
        C("a rebalance does not wait for a member id that was sent",
          "A and B and not C", "A and B")),
    *at("connectgroup.group.classic.rebalance:choose_leader", RULES,
        C("the leader is chosen without the assignor versions (KIP-429)",
          "max(A)", "min(A)"),
        C("every rebalance changes the leader",
          "A if B in C else D", "D")),
    *at("connectgroup.group.classic.rebalance:_complete_join", STATIC_MEMBERS,
        C("a static member that does not join in time is removed (KIP-345)",
          "A not in B and C is None", "A not in B")),
    *at("connectgroup.group.classic.join:_join_existing", RULES,
        C("a follower that repeats its request begins a rebalance",
          "if A and B: ...")),
    *at("connectgroup.group.classic.join:member_error", STATIC_MEMBERS,
        C("a replaced static member is not fenced",
          "0 if A == B else C.code", "0")),
    *at("connectgroup.group.classic.join:_refused", RULES,
        C("a member without a common assignor joins",
          "if not A.supports(B, C): ...")),
    *at("connectgroup.group.classic.sync:_install", RULES,
        C("a parked SyncGroup gets no response",
          "A.replies[B] = C")),
    *at("connectgroup.group.classic.group_type:_expire_session", RULES,
        C("a member that waits for others loses its session",
          "if not A or B: ...", "remove_and_rebalance(step, member_id)")),
    *at("connectgroup.group.classic.group_type:ClassicGroupType.traits", "coordinator/test_classic.py",
        C("a heartbeat completes the parked JoinGroup of its sender",
          "F(group_id=A.group_id)", "F(group_id=A.group_id, sender=A.member_id)", nth=1)),
    *at("connectgroup.coordinator.decisions:Decisions.decide", "coordinator/test_classic.py",
        C("a member that joins without a member id is parked without a name",
          "if A.sender: ...")),
    *at("connectgroup.proxy.relay:BrokerRelay.pause", "proxy/test_relay.py",
        C("the proxy reads the broker for a client that does not read",
          "if A is not None: ...")),
    *at("connectgroup.proxy.relay:BrokerRelay._on_response", "proxy/test_relay.py",
        C("a response to another request is forwarded",
          "if A != B.correlation_id: ..."),
        C("a new leader in a response has the address of the broker (KIP-951)",
          "A.version >= B and C", "False")),
)
# fmt: on
