"""The ready-made listeners, one file each, found by the entry point ``connectgroup.listeners``."""
