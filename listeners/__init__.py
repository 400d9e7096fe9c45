"""The built-in listeners, one file each, found by the entry point ``connectgroup.listeners``.

The package is ``connectgroup.listeners``; this folder only holds its files.
"""

if __name__ != "connectgroup.listeners":
    raise ImportError(f"the package is connectgroup.listeners, not {__name__}")
