"""The worker's side of the protocol, as a pure state machine. Start at ``state_machine.Member.on_response``."""
