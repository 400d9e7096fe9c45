"""The data plane on Spark: tasks that run as Spark queries, and the sources and sinks that ship with the library.

The rest of the package imports this package only when a connector needs it. Importing one of its modules does not
import pyspark: functions import Spark when they are called. ``sources.sliced_reader`` is the exception; only
``driving.open_stream`` and Spark's own Python workers import it.

Decisions:

- A Spark task is RUNNING after its first completed trigger, with or without rows (``Task.reports_polls``). Python gets
  no event for a trigger without data, so a thread of the task reads ``lastProgress`` until there is one.
- An iterator source has no streaming query. Without transforms its rows go to the sink as they are: they are Arrow
  tables in the worker already, Spark would compute nothing, and the way through Java and back would only cost time.
- Spark's workers write the files of a sink themselves if nothing but Java is in between (``writing``): of 2.0 s of
  processor time for a million lines of text to Parquet, 0.25 were reading and 0.05 writing; it takes 0.4 s without
  Java, bare Spark 0.55. Batches grow fourfold, since each costs 0.1 s. An RDD of the ranges: a DataFrame would be
  analyzed and compiled for each batch, a streaming query would plan to read the rows, too. Only in local mode: the
  machines of a cluster may not have the directory. Rows of other batches come row by row: passing them through Java as
  bytes saved the conversion and cost Java's garbage collector as much. What counted: a larger young generation,
  results that do not go through the block manager, larger polls of Kafka.
- While Spark starts, the worker reads and commits what Python code reads and nothing transforms (``ReadingHere``);
  Spark's query follows at a boundary of batches, under the same claim. Three workers on two cores had the first rows
  after 11 s without it, and after 2 s with it.
- Spark's Python workers are forked from a process of this package (``python_daemon``): of 60 ms of processor time of a
  small batch in Python, 50 were garbage collection; the first query of a session took 1.7 s of it and takes 0.9. Only
  in local mode: a cluster's machines may have another environment.
- The archive of Spark's classes is made by a command (``connectgroup prepare``), not by the first worker: recording
  costs a start of Spark and some 20 s at its end, and a worker that is stopped must not wait for it. An incomplete
  file, which would crash Java, is not used.
- Over Spark Connect the worker drives the batches (``driving``); no streaming query runs on the server.
  ``foreachBatch`` would run in a Python process of the server: sink, fencing token and credentials would have to
  travel there, and the query would go on without its worker, which no lease stops. A source whose offsets only Spark
  understands is rejected.
- A task's session on the server is registered in a global temporary view there, under the group's incarnation and the
  unit: Connect cannot list sessions, and an id from the owner epoch would need that of the predecessor. A grant with a
  lower fencing token releases nothing. The fence in the sink does not depend on it.
- One session for each start of a task: views (``batch`` of an ``sql`` step) belong to a session, and a zombie in that
  of its successor would replace the view between two requests.
- Ranges are read by ``mapInArrow`` over a DataFrame of the ranges, not by a Python data source: Spark starts Python to
  analyze each DataFrame of a data source, once for each step of a chain and for each batch.
- The workers of ``up`` share one Java (``server``): its start costs 5 to 10 s of processor time and 400 MB, for each
  worker. Not by a Spark Connect server, which cannot run the source ``spark`` and starts Python processes for each
  task, but by a gateway for each worker: all works as on a Java of its own, and a worker that dies ends no query of
  another. A Java that dies stops the tasks of all workers of the machine; ``--isolated-spark`` avoids that.
"""
