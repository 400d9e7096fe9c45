"""Sinks that ship with connectgroup."""
