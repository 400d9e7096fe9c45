"""Logs store the records of groups: one contract (``base``), one module per back end."""
