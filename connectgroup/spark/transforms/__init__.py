"""Transforms and predicates that ship with connectgroup, with the names and settings of Kafka Connect's."""
