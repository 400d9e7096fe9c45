"""A proxy in front of a Kafka broker: unmodified clients use this package's groups and the broker's data."""
