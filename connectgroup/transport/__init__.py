"""How a request reaches a handler: one contract (``base``), in the same process (``local``) or over TCP."""
