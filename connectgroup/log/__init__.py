"""Where a group's records are kept: one contract (``base``), one module a back end."""
