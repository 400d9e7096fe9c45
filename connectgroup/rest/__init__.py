"""The REST API: Kafka Connect's routes, and those of worker groups under ``/groups``."""
