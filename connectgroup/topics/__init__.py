"""Where a coordinator learns the topics of a cluster, and how subscriptions select them."""
