"""Tests that others wrote for Kafka's clients, and own ports of them, on a broker and on the proxy: ``make suites``."""
