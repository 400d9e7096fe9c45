"""A worker at work: the loop that heartbeats and the runner that starts and stops tasks. Start at ``loop.Worker``."""
