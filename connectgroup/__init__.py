"""Worker groups: processes that share out connectors and tasks under epochs, each run by exactly one of them."""
