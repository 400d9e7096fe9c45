"""The worker: the loop that sends heartbeats and the runner that starts and stops tasks. Start at ``loop.Worker``.

``serving`` runs a worker for as long as the program lives; ``process`` is the command. ``state`` is what a worker
knows of itself; ``unit_runner`` the base classes for runners of a program; ``hanging`` names calls that do not return.

Decisions:

- Bulk work on the event loop is sliced: starts, stops and results come in slices of 64 for each turn
  (``call_pool.SLICE``); results of threads reach the loop through one ``Inbox``. One wakeup for each result fills the
  loop's wakeup socket, through which asyncio delivers signals as well: a SIGTERM was lost (``signals``).
- The rebalance timeout bounds the shutdown of a worker. It counts from ``stop``, a cancellation or a fatal response:
  revocations get 7/8 of it; after half of it, or as soon as a revocation has failed, all remaining units are stopped
  without callbacks; the rest is for the leave. Runner methods run in tasks of their own, so that one that is
  cancelled, exits or ignores its cancellation cannot end or block the worker.
- Mandatory work waits for a thread (``off_loop_with_retry``): when the system cannot start one, a stop or
  ``on_revoked`` has not begun, and as a failure it would never run. All else fails at once and is retried: a start
  that waited could run when its grant has long passed to another member.
- A failed task is retried by its worker with increasing back-off and keeps its grant; only a fenced task stays down.
- The topics and numbers of tasks are reports, not statuses: the coordinator does not store them.
- A worker process without a supervisor restarts by executing its own command line again, after an orderly exit:
  systemd, a container or a shell keeps track of the process id, so no other process can take its place, and its start
  is downtime. An embedded worker keeps the program's Spark; its restart is the program's (``Worker.restarts``).
  SIGUSR2 restarts, not SIGHUP, which a closed terminal sends too.
- What the classic protocol does not carry: the numbers of tasks, and trace contexts. The coordinator epoch is a tagged
  field of ours in the responses to JoinGroup, SyncGroup and Heartbeat: without it a worker would start units again
  that a replaced coordinator still assigned to it (D5).
"""
