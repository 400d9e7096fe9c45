"""The coordinator at work: the queue, the log, the timers and the answers. Start at ``runtime.Coordinator``."""
