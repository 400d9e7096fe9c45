"""The OpenAPI document of the REST API, built from the operations that the application serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from .operations import NUMBER, TEXT, Operation, Schema, shape

ERROR: Final[Schema] = shape(error_code=NUMBER, message=TEXT)
"""The body of every response with a status of 400 or more."""


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the document, OpenAPI 3.1, for JSON.

    Args:
        operations: all operations.
        version: the version of the API.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "connectgroup",
            "summary": "Kafka Connect's REST API for worker groups",
            "version": version,
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        # Servers on a loopback address may have no users.
        "security": [{}, {"basic": []}],
    }


def _described(operation: Operation) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in operation.query.items()
    ]
    described: dict[str, Any] = {
        "operationId": operation.handler.__name__,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {str(status): _response(operation, status) for status in operation.statuses},
    }
    described["responses"]["default"] = {
        "description": "The request was rejected, or could not be processed.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": operation.body}}}
    return described


def _response(operation: Operation, status: int) -> dict[str, Any]:
    response: dict[str, Any] = {"description": operation.summary}
    if operation.response is not None and status != 204:
        response["content"] = {operation.media_type: {"schema": operation.response}}
    return response
