"""Sources that ship with connectgroup."""
