"""Logic that is independent of the group type: reconciliation, outcomes and timers."""
