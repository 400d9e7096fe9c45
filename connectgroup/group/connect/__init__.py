"""Coordinator logic of groups of type ``connect``."""
