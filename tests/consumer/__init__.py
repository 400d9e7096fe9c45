"""Consumers in a classic group: the embedded protocol, and the steps of a rebalance."""
