"""Consumer groups: topic partitions, assigned by the protocol of KIP-848."""
