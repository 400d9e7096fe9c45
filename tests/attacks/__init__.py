"""Attacks on a coordinator, with real processes and sockets: see ``test_attacks``."""
