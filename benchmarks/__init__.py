"""What rebalances cost, measured. Start at ``rebalance.py``."""
