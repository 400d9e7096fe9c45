"""The built-in assignors, one file each, found by the entry point ``connectgroup.assignors``."""
