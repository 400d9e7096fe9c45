"""Tracing: the only package that imports OpenTelemetry."""
