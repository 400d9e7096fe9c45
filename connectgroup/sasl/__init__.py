"""SASL: PLAIN and SCRAM-SHA-256, both sides, as bytes in and bytes out. No I/O."""
