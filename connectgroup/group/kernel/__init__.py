"""Rules that no group type owns: reconciliation and the outcome of a step."""
