"""Base of all settings: unknown fields are rejected, and errors name the field, the value and the allowed values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..protocol.units import MAX_NAME_BYTES

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]


MaybeMilliseconds = Annotated[int, Field(ge=0, le=3_600_000)]


def _in_bytes(name: str) -> str:
    """Check that a name does not exceed the maximum length of the protocol."""
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise PydanticCustomError("too_long", "at most {limit} bytes in UTF-8", {"limit": MAX_NAME_BYTES})
    return name


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), AfterValidator(_in_bytes)]


Port = Annotated[int, Field(ge=0, le=65_535)]


DEFAULT_PORT = 8474
"""Default port of a coordinator; chosen to avoid well-known ports."""


class Settings(BaseModel):
    """Base class of all settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    of_others: ClassVar[frozenset[str]] = frozenset()
    """Fields that contain settings of other software, such as connectors: errors do not show their values."""


def parse_address(field: str, text: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ConfigError: the text does not have this form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65_535:
        raise ConfigError(field, text, "host:port, port 1 to 65535")
    return host.strip("[]"), int(port)


M = TypeVar("M", bound=Settings)


def checked(model: type[M], values: Mapping[str, Any], *, where: str = "") -> M:
    """Return the validated settings, or raise the first error.

    Raises:
        ConfigError: names the field, the value and the allowed values.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = sorted(model.model_fields)
            near = difflib.get_close_matches(field, known, n=1)
            allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(known)
            raise ConfigError(where + field, UNKNOWN_SETTING, allowed) from error
        allowed = first["msg"][0].lower() + first["msg"][1:]
        value = NO_VALUE if first["type"] == "missing" else first["input"]
        if first["loc"][0] in model.of_others:
            # Settings of other software: any of them may contain a secret.
            value = f"a value of type {type(value).__name__}"
        raise ConfigError(where + field, value, allowed) from error
