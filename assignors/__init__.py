"""The built-in assignors, one file each, found by the entry points ``connectgroup.assignors`` (connectors and tasks)
and ``connectgroup.partition_assignors`` (topic partitions).

The package is ``connectgroup.assignors``; this folder only holds its files.
"""

if __name__ != "connectgroup.assignors":
    raise ImportError(f"the package is connectgroup.assignors, not {__name__}")
