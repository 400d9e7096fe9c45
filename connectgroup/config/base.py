"""Base of all settings: unknown fields are rejected, and errors name the field, the value and the allowed values."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from ..checks import UNICODE, json_kind, not_unicode
from ..errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from ..protocol.units import MAX_NAME_BYTES, name_violation, printable

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]


MaybeMilliseconds = Annotated[int, Field(ge=0, le=3_600_000)]


def _valid_name(name: str) -> str:
    """Reject what the coordinator would reject (``name_violation``)."""
    allowed = name_violation(name)
    if allowed is not None:
        raise PydanticCustomError("name", "{allowed}", {"allowed": allowed})
    return name


Name = Annotated[str, AfterValidator(_valid_name)]
"""An identifier that the coordinator accepts: a group, a member, a group instance id, a connector, an assignor."""


def _at_most_249_bytes(text: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise PydanticCustomError("too_long", "at most {limit} bytes in UTF-8", {"limit": MAX_NAME_BYTES})
    return text


ShortText = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), AfterValidator(_at_most_249_bytes)]
"""Text of 1 to 249 bytes that is not an identifier of the coordinator's."""


PrincipalQuota = Annotated[int, Field(ge=0, le=10_000_000)]
"""Requests per second of one principal; 0: no quota."""

Port = Annotated[int, Field(ge=0, le=65_535)]


class Settings(BaseModel):
    """Base class of all settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    of_others: ClassVar[frozenset[str]] = frozenset()
    """Fields that contain settings of other software, such as connectors: errors do not show their values."""


class ProgramSettings(Settings):
    """Settings that programs make too: their errors are those of ``checked``."""

    if not TYPE_CHECKING:  # a type checker keeps the names and types of the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise first_error(type(self), error) from error


M = TypeVar("M", bound=Settings)


def checked(model: type[M], values: Mapping[str, Any], *, where: str = "") -> M:
    """Return the validated settings, or raise the first error; an unknown setting precedes a missing one.

    Raises:
        ConfigError: names the field, the value and the allowed values.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise first_error(model, error, where=where) from error


def first_error(model: type[Settings], error: ValidationError, *, where: str = "") -> ConfigError:
    """The first error in plain words; an unknown setting precedes a missing one."""
    # A misspelt setting is also a missing one, and the misspelling is what must be corrected.
    errors = sorted(error.errors(include_url=False), key=lambda found: found["type"] != "extra_forbidden")
    first = errors[0]
    if not first["loc"]:  # pydantic names no field if a key of the settings is not Unicode
        return not_unicode(where, str(first["input"]))
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        missing = [str(found["loc"][0]) for found in errors if found["type"] == "missing"]
        known = sorted(model.model_fields)
        near = difflib.get_close_matches(field, missing, n=1) or difflib.get_close_matches(field, known, n=1)
        allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(known)
        return ConfigError(where + printable(field), UNKNOWN_SETTING, allowed)
    value = NO_VALUE if first["type"] == "missing" else first["input"]
    if first["type"] != "missing" and first["loc"][0] in model.of_others:
        # Settings of other software: any of them may contain a secret.
        value = json_kind(value)
    return ConfigError(where + field, value, _allowed(model, first))


_KINDS: Final = {
    "string_type": "text",
    "string_too_short": "a non-empty text",
    "string_unicode": UNICODE,
    "dict_type": "an object with texts as values",
    "tuple_type": "a list",
    "path_type": "a path",
}


def _allowed(model: type[Settings], error: ErrorDetails) -> str:
    """Say in plain words what a setting allows; a number with its range. Empty for a missing setting."""
    kind = error["type"]
    if kind == "missing":
        return ""
    if kind in _KINDS:
        return _KINDS[kind]
    if kind == "too_short":
        return f"at least {error['ctx']['min_length']}"
    if number := _number(model, error["loc"]):
        return number
    text = error["msg"].removeprefix("Input should be ")
    return text[0].lower() + text[1:]


def _number(model: type[Settings], location: Sequence[int | str]) -> str:
    """The numbers that a setting allows: ``a whole number from 1 to 10``; empty if it is no number."""
    schema = model.model_json_schema()["properties"].get(location[0], {})
    for option in (schema, *schema.get("anyOf", ())):
        if option.get("type") not in ("integer", "number"):
            continue
        kind = "a whole number" if option["type"] == "integer" else "a number"
        if "exclusiveMinimum" in option:
            return f"{kind} above {option['exclusiveMinimum']}, at most {option['maximum']}"
        return f"{kind} from {option['minimum']} to {option['maximum']}"
    return ""
