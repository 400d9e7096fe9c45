"""Committed offsets of a group; the rules are those of all group types with members that read topics."""
