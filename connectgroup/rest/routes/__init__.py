"""Handlers of the REST API, one file per resource; each ends with its table of routes."""
