"""Built-in connectors, found by their entry points like anybody else's."""
