"""The rebalance benchmark: its analysis on logs written by hand, and itself in a tiny size."""
