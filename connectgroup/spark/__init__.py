"""The data plane: tasks that run on Spark, and sinks that refuse a task that is no longer the owner.

Nothing here is imported by the rest of the package before a connector asks for it, and importing a module of
this folder does not import pyspark: Spark is touched inside functions only (``source`` is the exception, and
only ``query`` and Spark's own Python workers import that).
"""
