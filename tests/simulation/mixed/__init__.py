"""Every tenth seed: a group of consumers of the classic and of the consumer protocol, converted both ways under faults.

The clients are shipped ``GroupConsumer``s; only their connections and their reading of records are simulated.
"""
