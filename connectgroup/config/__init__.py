"""Settings, validated by pydantic.

Decisions:

- Paths are resolved once, when they are compared with ``--allowed-path``, and never again (``paths``,
  ``dataplane.real_paths``): who may write in an allowed directory can replace a file by a link between the check and
  the use. A link below the directory of a source may lead to another file below it. SQLite and delta-rs open files by
  name: SQLite's open file is compared with the one looked at before, the directory of a Delta table is looked at
  before each commit. A link in ``source.path`` that is given another target is another source at the next start of the
  task.
- The worker decides which files a connector may use: it checks the resolved configuration before it creates a
  connector or a task, so no path around the other checks exists. ``up`` and a REST server with a list check earlier,
  for the message. The coordinator checks none: it loads no connector class. A class marks its paths (``LocalPath``),
  so one rule serves validation, REST and workers; a class that marks none is code that the operator installed.
  ``WorkerConfig`` and ``RunnerSettings`` allow nothing by default, since their connectors come from a coordinator that
  others reach; ``worker_group`` and the groups for tests allow any path, since only the program adds connectors. A
  command that reads offsets runs as the user who typed it.
- A reference to a secret is resolved where it is used (``secrets``): in the thread that creates the connector or
  starts the task. What a connector returns as task configurations gets its references back before it is published, so
  no record has a secret; a task configuration with a secret elsewhere is an error. Unlike in Kafka Connect, an unknown
  provider, a nested or an unclosed reference is an error, an empty list allows nothing, and a link counts as its
  target.
- A credential is recognized by the name of its setting (``masking``), because configurations have no schema that marks
  it. Only the class of a connector may know more (``Connector.credential_names``): its owner publishes these names.
  Grants and records carry it unmasked, so the log's files are 0600; an existing log with another mode is opened with a
  warning: a backup may need it.
"""
