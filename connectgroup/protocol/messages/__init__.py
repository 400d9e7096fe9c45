"""Requests and responses of the protocol, one module per API or group of APIs."""
