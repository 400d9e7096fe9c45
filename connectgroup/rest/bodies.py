"""Reads request bodies: JSON within limits, and connector configurations in them. Makes large bodies of responses.

Python's parser accepts more than JSON (``NaN``), lets the last of two equal keys win, and fails on deep nesting with an
error of its own. Each of these is rejected with status 400.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import Any, Final, ParamSpec

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ..checks import json_kind, setting_text
from ..masking import HIDDEN, NOT_MASKED
from ..protocol.units import printable
from ..threads import NoThread, off_loop
from .errors import RestError

P = ParamSpec("P")

MAX_BODY_BYTES: Final = 1 << 20
SMALL_BYTES: Final = 64 << 10
"""A body of this size is parsed in a millisecond."""
MAX_DEPTH: Final = 64
MAX_SETTINGS: Final = 1_000
"""Settings of one connector; the same limit as on the wire."""
BODY_TIMEOUT_S: Final = 30.0

NULL_VALUE: Final = "Null value can not be supplied as the configuration value."
"""Kafka Connect's message."""

FEW_PARTS: Final = 200
"""The body of a response about so many units takes some milliseconds."""

_PARSER: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parse a body")

_NOT_BRACKETS: Final = bytes({*range(256)} - {*b'[{]}"'})
_STEP: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


async def read_body(request: Request) -> bytes:
    """Return the body.

    Raises:
        RestError: 413 if the body is too long, 408 if it does not arrive in time.
    """
    too_long = RestError(413, f"body: got more than {MAX_BODY_BYTES} bytes; allowed: at most {MAX_BODY_BYTES}")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:12]) > MAX_BODY_BYTES:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_long
    except TimeoutError:
        raise RestError(408, f"body: not received within {BODY_TIMEOUT_S:g} s") from None
    except ClientDisconnect as error:
        raise RestError(400, "body: the connection was closed before its end") from error
    return _decompressed(bytes(body), request.headers.get("content-encoding", "identity").strip().lower())


def _decompressed(body: bytes, encoding: str) -> bytes:
    """The body without its ``Content-Encoding``; its size is limited as that of one without.

    Raises:
        RestError: 415 for another encoding than gzip, 400 if it is damaged, 413 if it is too long.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise RestError(415, f"Content-Encoding: got {printable(encoding)!r}; allowed: gzip, identity")
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = stream.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise RestError(400, f"body: is not valid gzip: {error}") from error
    if len(plain) > MAX_BODY_BYTES:
        raise RestError(413, f"body: got more than {MAX_BODY_BYTES} bytes; allowed: at most {MAX_BODY_BYTES}")
    if not stream.eof or stream.unused_data:
        raise RestError(400, "body: got gzip that is not whole, or more than one stream; allowed: one whole stream")
    return plain


async def read_object(request: Request) -> dict[str, Any]:
    """Return the body as a JSON object.

    Raises:
        RestError: 415 if the content type is not JSON, 413 if the body is too long, 400 if it is not a JSON object.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RestError(415, f"Content-Type: got {printable(content_type)!r}; allowed: application/json")
    body = await read_body(request)
    if len(body) <= SMALL_BYTES:
        value = parse_json(body)
    else:
        # In a thread, as heartbeats are served by the same event loop; in one, as each would keep memory of its own.
        value = await asyncio.get_running_loop().run_in_executor(_PARSER, parse_json, body)
    if not isinstance(value, dict):
        raise RestError(400, f"body: got {json_kind(value)}; allowed: a JSON object")
    request.state.body = value  # for the audit log
    return value


def parse_json(body: bytes) -> Any:
    """Parse a body as strict JSON.

    Raises:
        RestError: 400, with the position or the value that is not allowed.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    if not body.strip():
        raise RestError(400, "body: got nothing; allowed: a JSON object")
    without_escapes = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # A string without brackets, and the border of two strings, is two quotes now. Of the rest, every second part is a
    # string. No regular expression: a match for each string would take a hundred times the memory of the body.
    parts = without_escapes.translate(None, _NOT_BRACKETS).replace(b'""', b"").split(b'"')
    brackets = b"".join(parts[::2])
    deepest = max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
    if deepest > MAX_DEPTH:
        raise RestError(400, f"body: got {deepest} levels of nesting; allowed: at most {MAX_DEPTH}")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
        # A lone surrogate is valid in a JSON escape, but no text in UTF-8.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RestError:
        raise
    except UnicodeError as error:
        raise RestError(400, "body: got text that is not valid Unicode; allowed: JSON in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RestError(400, f"body: is not valid JSON: {printable(error, limit=200)}") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RestError(400, f"body: got the key {printable(key)!r} twice; allowed: each key once")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise RestError(400, f"body: got {name}; allowed: a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise RestError(400, f"body: got the number {printable(text)}; allowed: a number that fits 64 bits")
    return value


def config_from(value: Any, where: str) -> dict[str, str]:
    """A connector configuration: numbers and booleans become strings, and null is no value, as in Kafka Connect.

    Args:
        where: the field in the body, for errors: ``config``.

    Raises:
        RestError: 400: not an object, null or a nested value, or a masked value.
    """
    settings = patch_from(value, where)
    for name, text in settings.items():
        if text is None:
            raise RestError(400, f"{where}.{printable(name)}: got null; allowed: a string. {NULL_VALUE}")
    return {name: text for name, text in settings.items() if text is not None}


def patch_from(value: Any, where: str) -> dict[str, str | None]:
    """A patch of a connector configuration: as ``config_from``, but null settings are kept; they remove a setting."""
    if not isinstance(value, dict):
        raise RestError(400, f"{where}: got {json_kind(value)}; allowed: an object of settings")
    if len(value) > MAX_SETTINGS:
        raise RestError(400, f"{where}: got {len(value)} settings; allowed: at most {MAX_SETTINGS}")
    if isinstance(value.get("config"), dict):
        allowed = "the settings themselves, without name and config around them"
        raise RestError(400, f"{where}.config: got an object; allowed: a string: {where} has {allowed}")
    return {name: _setting(f"{where}.{printable(name)}", setting) for name, setting in value.items()}


def _setting(field: str, value: Any) -> str | None:
    if value is None:
        return None
    text = setting_text(value)
    if text is None:
        raise RestError(400, f"{field}: got {json_kind(value)}; allowed: a string")
    if HIDDEN in text:
        raise RestError(400, f"{field}: got {HIDDEN}; allowed: {NOT_MASKED}")
    return text


def flag(request: Request, name: str, default: bool = False) -> bool:
    """A boolean query parameter, in any case (``true``, ``True``).

    Raises:
        RestError: 400: another value.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise RestError(400, f"{name}: got {printable(text)!r}; allowed: true, false")
    return text.lower() == "true"


async def encoded(parts: int, make: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> bytes:
    """The JSON of what a function returns. One of many parts is made in a thread: the event loop serves heartbeats too.

    Args:
        parts: how many units, or other objects of their size, it is about.
        make: called with the other arguments, in that thread.
    """

    def body() -> bytes:
        return bytes(JSONResponse(make(*args, **kwargs)).body)

    if parts > FEW_PARTS:
        with suppress(NoThread):
            return await off_loop("encode a response", body)
    return body()


async def json_response(parts: int, make: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Response:
    """A response with the body that ``encoded`` makes."""
    return Response(await encoded(parts, make, *args, **kwargs), media_type="application/json")
