"""Tracing and metrics; begin with ``spans`` and ``metrics``.

Beside this package, only the built-in listeners and the pytest plug-in import OpenTelemetry.

Decisions:

- A heartbeat without actions creates no span and enters no trace. Its processor time (``python -m
  benchmarks.tracing``) grows by less than 1 % without an SDK, and by about 2 % with an SDK and a batch exporter, for
  the trace context.
- The parts of a coordinator and of a worker count in plain attributes (``MetricSource``), whether or not a program
  exports them; instruments are observable and read them in a collection. So a heartbeat never calls OpenTelemetry, and
  the series of a task end with its run. The group rules know nothing of metrics: the shard counts durable records, and
  ``GroupType.measure`` returns the numbers of a group's state.
- The names for Prometheus are those of the JMX exporter's rules for Kafka Connect, because people have dashboards.
"""
