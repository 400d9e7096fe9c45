"""A proxy in front of Kafka brokers: unmodified clients use this package's groups and the broker's data.

Decisions:

- The proxy decodes only the heads of what it forwards: the brokers of Metadata and DescribeCluster, the acks of
  Produce (0 has no response), and the addresses of new leaders in responses of Produce and Fetch (KIP-951): with the
  broker's own address librdkafka went past the proxy after NOT_LEADER_OR_FOLLOWER, and wrote records twice. Everything
  behind stays byte for byte, also in newer versions than the definitions here; ApiVersions limits only the APIs whose
  responses are rewritten.
- Clients keep connections by node id and send each broker what it is to do, so each broker of a cluster has a port of
  its own here. Routing requests by their partitions on one port would mean to decode and to split Produce and Fetch.
  Names for TLS (SNI) instead of ports would need certificates and DNS for all of them.
- Each client connection has one connection to its broker, opened with its first request: order and back-pressure need
  no multiplexing, and SASL passes through. With users of its own (``--credentials``) the proxy authenticates clients
  instead, and the brokers know the proxy's user only: a client cannot send two sets of credentials. What is forwarded
  is not authorized here; topics are the brokers'.
- The offsets of a transaction go to the broker that is the coordinator of a group of the same name, wherever the
  client has sent them, over a further connection for this client.
- FindCoordinator names the proxy with the node id of a broker that Metadata lists, at the port of this broker: clients
  keep connections by node id. A proxy that stands by on a shared log names the one that serves with an id that no
  broker has: the address of a broker must not change with each response (librdkafka connects anew then).
- The topics are polled every 0.5 s, and every 50 ms while a change is expected (``TopicSource.expect_change``): for 2
  s after a client has changed topics through the proxy, for 30 s after a member has subscribed to one that does not
  exist. Kafka shows clients no epoch of its metadata. A poll takes a tenth of the time at most.
"""
