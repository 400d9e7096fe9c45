"""Contract classes that every implementation of an interface inherits."""
