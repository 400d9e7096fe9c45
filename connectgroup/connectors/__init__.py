"""Built-in connectors, found by entry point like any other connector."""
