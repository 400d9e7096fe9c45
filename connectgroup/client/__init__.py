"""Clients of the coordinator for operators and programs; workers have their own (``worker/``).

Decisions:

- Offsets of a connector are read and altered in the operator's process (the REST server, the command line), by the
  connector's class, in a thread, as configurations are validated. Not by the coordinator, which runs no connector
  code; not by a worker: a stopped connector has none, and a request to one would need a route of its own. The price:
  this process needs the sink's driver and access to its store. It reads the configuration with its credentials
  (``Describe``, ``IncludeCredentials``), as any worker that joins does.
- An alteration of offsets is a claim of a layout without tasks, in the transaction that changes the positions. Its
  fencing token is the connector's version, above the token of every task granted before the stop and below that of
  every task granted after a resume. So tasks that run on unnoticed are fenced; an alteration that arrives after a
  resume is ``Fenced`` (409). It does not wait until the tasks have stopped.
- A change of offsets of a connector that is not STOPPED is 400, with Kafka Connect's text.
- The topics of a connector are those that its tasks have used, in the memory of the coordinator (KIP-558); Kafka
  Connect stores them.
"""
