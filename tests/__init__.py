"""Tests: one folder a package of the library."""
