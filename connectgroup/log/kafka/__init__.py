"""A log in a compacted topic of a Kafka cluster, for coordinators on several machines."""
