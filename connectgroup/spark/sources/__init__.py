"""Sources that ship with connectgroup.

Decisions:

- A file has a fingerprint of the first KiB and the last 4 KiB of what was read, committed with its position, so that
  appending keeps it valid (``identity``). A slice has the name under which its file was first read, and its task
  follows from that name (``catalog``): the task that has read a file also reads it under its next name. Sizes have no
  part in it: tasks see a directory at different times, so only the name is the same for all of them, and a file cannot
  change its task without its fence. Before a task reads a new file, it looks at the committed positions of the other
  tasks (``CommittedPositions``). A file that is renamed to a name of another task while its first batch is not
  committed yet may be read twice.
- In ``source.identity=content``, a file of another name needs its inode, or its time of change, not only the same
  beginning: an export with yesterday's rows and more is new. A copy whose original was truncated, and a compressed
  file that begins with what was read (``Catalog.packed``), are the same file.
- ``postgres`` waits for the locks of writers, not for a horizon of transaction ids (``postgres_table``). Where locks
  show nothing (CACHE, foreign tables, subscriptions), it needs a settle window or is refused; with a function in a
  view, each writer of the database counts.
- A table that begins again is an error, not read from its start (``table_keys``): the same signs come from rows that
  were deleted on purpose. The operator resets the offsets, or alters them to go on. A position has a mark of its
  table: oid, storage, next key of the sequence, digest of the last row.
"""
