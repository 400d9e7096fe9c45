"""Traces: the only importer of OpenTelemetry."""
