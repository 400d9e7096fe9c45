"""The coordinator process: request queue, log, timers and responses. Start at ``runtime.Coordinator``."""
