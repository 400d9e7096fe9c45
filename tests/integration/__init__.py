"""End-to-end tests with real processes, real Spark and real files."""
