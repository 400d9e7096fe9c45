"""The worker's half of the protocol, as a pure state machine. Start at ``machine.Member.on_response``."""
