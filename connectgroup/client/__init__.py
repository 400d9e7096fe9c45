"""Clients of the coordinator for operators and programs; workers have their own (``worker/``)."""
