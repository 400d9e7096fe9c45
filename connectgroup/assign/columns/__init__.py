"""The input of an assignor as integer arrays."""
