"""The data plane without Spark: sources, sinks, fencing tokens and offsets. A plug-in author starts here.

A *source* reads, a *sink* writes; the pipeline connector combines one of each. Both are found by entry point
(``connectgroup.sources``, ``connectgroup.sinks``), and a pydantic model describes their settings.

Decisions:

- The fencing token is the owner epoch with the group's incarnation (its creation time) above it: a group whose log was
  lost starts again at epoch 1, and without the incarnation every sink would reject its tasks for ever.
- The task of a slice follows from its name alone (of files: ``spark.sources.catalog.is_slice_of``), not from a balance
  by size or count. Tasks list the source at different moments and do not talk to each other, so a balance would let
  two tasks, or none, take a new file; and the sink ``kafka`` fences by task, so it would not reject the second one.
  The digits of a name decide, so numbered and dated files are spread evenly.
- Reading and committing overlap (``CommitQueue``): at most one batch is committed and one is read. A batch that was
  read and not committed when a task stops is read again by the next owner. A batch counts as polled when it is
  committed, so that a commit that hangs is found.
- A paused process keeps its file locks: a worker that is suspended inside a SQLite transaction blocks every other
  writer of that database until it resumes or dies. Rows arrive late, none is lost; a supervisor kills such a worker.
- Settings of other systems' clients are allowed by list (``settings``): a list of refused ones was incomplete
  with each new version of a client. One environment variable adds to all lists; no option, because a connector's
  settings are checked in processes that have no options, too: Spark's Python workers, commands.
- Types that the closed list lacks are text (decimals and nested values of Parquet, numeric of PostgreSQL): exact, and
  the same in every sink.
"""
