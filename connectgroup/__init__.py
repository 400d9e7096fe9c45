"""Worker groups: processes that share out connectors and tasks under epochs, one owner each, nothing lost or doubled."""
