"""The rules of groups of type ``connect``."""
