"""Transports carry requests to a handler: one contract (``base``), in one process (``local``) or over TCP."""
