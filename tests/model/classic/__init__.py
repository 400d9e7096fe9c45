"""Differential test of the rules of classic groups against a reference model.

The model was written from Kafka's documented behaviour (protocol guide, KIP-134, KIP-345, KIP-394, KIP-429, KIP-814),
the tables OC-06, OC-07 and MG-* of the scenarios, and the decisions in ``connectgroup.group.classic``.
It imports the shared data types and no rule.

``replay`` gives every input to both and compares responses, state and timers; a parked request is compared when its
response is sent. ``driver`` makes the inputs (``python -m tests.model --type classic``). Mixed groups
(``tests.model.consumer.mixed_replay``) use it while the group is a classic one.
"""
