"""Sinks that ship with connectgroup.

Decisions:

- ``delta`` uses the package deltalake (delta-rs), not ``delta-spark``, which requires ``pyspark<=4.2.0``.
- The state of a connector in a Delta table is a file, and an application transaction says which one is current
  (``delta_offsets``). Metadata of commits are deleted with the log (30 days), a table property conflicts with every
  other writer, domain metadata is a feature that delta-rs cannot write; a transaction's number fits no position with
  metadata. All tasks of a connector share the id and take turns by a file lock, because a conflict costs files of rows
  written in vain; correctness does not depend on the lock, which a suspended writer holds for 2 s at most.
- Altering the offsets of a sink ``delta`` before its table exists is an error: a table needs columns, which only the
  first start of a task knows.
- ``delta`` and the sinks of files keep no dead letters: a second table would be a second commit.
- ``delta`` syncs its commits after delta-rs has made them, which syncs nothing. A machine that loses power in between
  may have a commit without the file of its rows; a killed process cannot.
- ``console`` prints before it commits the positions: rows may be repeated after a crash, as output cannot be undone.
"""
