"""The records of the log: kinds, keys, and one class per record kind."""
