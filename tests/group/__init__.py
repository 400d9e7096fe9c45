"""The coordinator rules: tables, rebalances step by step, and seeded runs."""
