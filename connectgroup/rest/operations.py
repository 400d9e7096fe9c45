"""The form in which route files list their operations; the application and the OpenAPI document are built from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .access import Needs, serve

Schema = Mapping[str, Any]
"""A JSON schema (OpenAPI 3.1)."""

TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer"}
FLAG: Final[Schema] = {"type": "boolean"}
ANY: Final[Schema] = {"type": "object"}


def shape(**fields: Schema) -> Schema:
    """An object with these fields, all of them required; more are allowed."""
    return {"type": "object", "properties": dict(fields), "required": [*fields]}


def listing(element: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": element}


def mapping(element: Schema) -> Schema:
    """An object with any keys."""
    return {"type": "object", "additionalProperties": element}


class Segment(Convertor[str]):
    """A path parameter. It is decoded after the path is split at slashes: ``%2F`` belongs to a name."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("segment", Segment())


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        method: the HTTP method.
        path: the path, with parameters in braces.
        handler: handles a request; the first line of its docstring describes the operation.
        needs: what the rules of access must allow.
        query: the query parameters, each with its schema.
        body: schema of the body; ``None`` if the operation has none.
        response: schema of the body of a successful response; ``None`` if it has none.
        statuses: the status codes of success.
        media_type: of the body of a successful response.
    """

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    needs: Needs
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    response: Schema | None = None
    statuses: tuple[int, ...] = (200,)
    media_type: str = "application/json"

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().split("\n")[0].replace("``", "`")

    def route(self) -> Route:
        """The route of the application."""

        async def endpoint(request: Request) -> Response:
            return await serve(self.needs, self.handler, request)

        return Route(re.sub(r"{(\w+)}", r"{\1:segment}", self.path), endpoint, methods=[self.method])


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
