"""Transports carry requests to a handler: one contract (``base``), in one process (``local``) or over TCP.

Decisions:

- The transport authenticates; the group rules never see a secret. ``sasl`` has the mechanisms, ``tcp_connection`` what
  a client may send before, ``credentials`` the client's side. Our own clients use SCRAM only: the password is not sent,
  and the server proves that it knows its verifier, so a program that takes the port of a stopped coordinator gets no
  request. For the same reason a client with credentials rejects a server that asks for none.
- Who may do what is decided at the port (``group_access``), in a handler around the coordinator's, and only if there
  are rules: a request that is refused costs no record. The refusal has no coordinator epoch, so the member rule for
  replaced coordinators excepts its error code. One pure function decides (``access_rules.allows``), for REST too.
- Connectors are resources of their own beside their group: a worker needs no more than Read of the group, and an
  operator of some connectors nothing of the group. Create is Alter: a connector is put, whether it exists or not.
- A rule denies only what it names (``deny``, as in Kafka), and the file is our own: Kafka's lists are records that its
  tools write. Kafka's quota is a share of time; a number of requests can be told from outside.
- A quota mutes a connection but refuses nothing, and at most for a second (``quotas``): leases are 8 s.
- The audit log is written by a thread from a bounded queue (``audit``): no disk holds up a heartbeat.
- A note for each port leads clients to the coordinator's secret (``credentials``): a command is given an address, not
  a data directory. It stays when the coordinator ends: otherwise workers that reconnect would trust another user's
  program at that port. A note whose file cannot be used is an error, and a client that has authenticated once sends no
  request to a server at that address that does not authenticate its clients.
- A connection counts as a client's once it has authenticated. Until then a limit of its own applies, and the oldest
  such connection makes room: a flood of strangers does not lock out other clients.
- The server starts TLS itself (``acceptor``): asyncio reports a connection after its handshake only, and each
  handshake takes some 80 kB.
- The server accepts one connection for each turn of the loop, itself (``acceptor``). When no file descriptor is left,
  asyncio retries (and writes a traceback) once for each entry of the backlog; with a backlog of 1,024 the connected
  members got no responses. uvloop closes the waiting connections then, or its port for good.
- Frames up to 8 MiB, as much as one batch of the log: an assignment for 1,000 workers and 100,000 tasks takes 2 MiB.
"""
