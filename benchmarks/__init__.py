"""Benchmarks of rebalances. Start with ``rebalance.py``."""
