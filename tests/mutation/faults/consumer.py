"""Faults in the consumer for classic Kafka groups: embedded bytes, protocols, rounds, validation."""

from __future__ import annotations

from ..fault import C, Fault, at

# fmt: off
CONSUMER: tuple[Fault, ...] = (
    *at("connectgroup.wire.embedded:encode_subscription.write", "wire/test_embedded.py",
        C("a subscription of version 1 has a generation",
          "A >= 2", "A >= 1")),
    *at("connectgroup.wire.embedded:_EmbeddedReader._count", "wire/test_embedded.py",
        C("an array's length is not checked against the rest of the data",
          "if A: raise E")),
    *at("connectgroup.consumer.rounds:choose_protocol", "consumer/test_choice.py",
        C("the lowest common protocol is chosen",
          "max(A)", "min(A)")),
    *at("connectgroup.consumer.rounds:join_offers", "consumer/test_choice.py consumer/test_classic_group.py",
        C("a member does not send its generation",
          "F(..., generation=A)", "F(...)")),
    *at("connectgroup.consumer.rounds:before_joining", "consumer/test_rounds.py",
        C("a removed member keeps its partitions",
          "F(lost=A)", "F(kept=A)"),
        C("a cooperative member keeps unsubscribed partitions while it joins",
          "A not in B", "False")),
    *at("connectgroup.consumer.rounds:after_sync", "consumer/test_classic_group.py",
        C("a member that revoked partitions does not rejoin",
          "bool(A)", "False")),
    *at("connectgroup.consumer.rounds:validate_result", "consumer/test_rounds.py",
        C("an invalid result of a cooperative assignor is accepted",
          "(A := F(B, C))", "(A := F((), C))"),
        C("an eager assignor's assignment is sent before the revocation",
          "if A not in B: ...")),
    *at("connectgroup.assign.api:withhold", "consumer/test_classic_group.py consumer/test_rounds.py",
        C("withheld partitions are assigned",
          "A.B - C", "A.B")),
    *at("connectgroup.assign.api:assigned_too_early", "consumer/test_validation.py",
        C("a partition that two members claim is assigned to one of them",
          "A.get(B, ())", "A.get(B, ())[:1]")),
    *at("connectgroup.assign.members:claimants", "consumer/test_validation.py",
        C("a stale claim has the same priority as a later one (KIP-792)",
          "A == B", "A <= B")),
)
