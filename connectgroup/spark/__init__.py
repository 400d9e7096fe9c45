"""The data plane on Spark: tasks that run as Spark queries, and the sources and sinks that ship with the library.

The rest of the package imports this package only when a connector needs it. Importing one of its modules does not
import pyspark: functions import Spark when they are called. ``sources.file_reader`` is the exception; only
``FileSource.stream`` and Spark's own Python workers import it.
"""
