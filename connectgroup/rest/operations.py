"""The form in which route files list their operations; the application and the OpenAPI document are built from it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
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
