"""Consumers in a classic group: what they say to each other, and what they do in a rebalance."""
