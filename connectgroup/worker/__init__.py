"""The worker: the loop that sends heartbeats and the runner that starts and stops tasks. Start at ``loop.Worker``."""
