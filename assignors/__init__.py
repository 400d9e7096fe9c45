"""The built-in assignors, one file each, found by the entry points ``connectgroup.assignors`` (connectors and tasks)
and ``connectgroup.partition_assignors`` (topic partitions)."""
