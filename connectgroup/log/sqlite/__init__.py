"""The log on SQLite."""
