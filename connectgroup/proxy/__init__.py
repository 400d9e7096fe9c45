"""A proxy in front of a Kafka broker: unmodified clients use this package's groups and the broker's data.

Decisions:

- The proxy decodes only the heads of what it forwards: the brokers of Metadata and DescribeCluster, the acks of
  Produce (0 has no response), and the addresses of new leaders in responses of Produce and Fetch (KIP-951): with the
  broker's own address librdkafka went past the proxy after NOT_LEADER_OR_FOLLOWER, and wrote records twice. Everything
  behind stays byte for byte, also in newer versions than the definitions here; ApiVersions limits only the APIs whose
  responses are rewritten.
- Each client connection has one connection to the broker, opened with its first request: order and back-pressure need
  no multiplexing, and SASL passes through. The proxy does not authenticate clients itself: they have accounts at the
  broker, and a second set could not be sent by the same client.
- FindCoordinator names the proxy with the broker's node id, the one in Metadata: clients keep connections by node id.
- The topics are polled every 0.5 s, and every 50 ms while a change is expected (``TopicSource.expect_change``): for 2
  s after a client has changed topics through the proxy, for 30 s after a member has subscribed to one that does not
  exist. Kafka shows clients no epoch of its metadata. A poll takes a tenth of the time at most.
"""
