"""Tests: one folder per package of the library."""
