"""Checks of the settings that a program passes as arguments. The texts are those of the command line's settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Final

from .errors import ConfigError
from .masking import HIDDEN, NOT_MASKED
from .protocol.units import name_violation, printable

MAX_MS = 3_600_000
"""Upper bound of times in milliseconds: one hour."""

MAX_INT32 = 2**31 - 1


def json_kind(value: object) -> str:
    """What a value from a JSON document is, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def check_whole(field: str, value: object, low: int, high: int) -> None:
    """Check that a value is a whole number within bounds, both included.

    Raises:
        ConfigError: it is not; ``True`` and ``2.0`` are no whole numbers.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field, _not_text(value), f"a whole number from {low} to {high}")


def check_number(field: str, value: object, low: float, high: float) -> None:
    """Check that a value is a number within bounds, both included.

    Raises:
        ConfigError: it is not, or is not a number at all (NaN).
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field, _not_text(value), f"a number from {low:g} to {high:g}")


def _not_text(value: object) -> object:
    """What a value is in the message about a number: text that looks like one is named as text."""
    is_number = isinstance(value, str) and value.strip().replace(".", "", 1).removeprefix("-").isdigit()
    return f"{value} (text)" if is_number else value


def check_text(field: str, value: object) -> None:
    """Check that a value is text, which may be empty.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, str):
        raise ConfigError(field, value, "text")


def check_name(field: str, value: object) -> None:
    """Check that a value is an identifier that the coordinator accepts (``name_violation``).

    Raises:
        ConfigError: it is not.
    """
    allowed = name_violation(value) if isinstance(value, str) else "text"
    if allowed is not None:
        raise ConfigError(field, value, allowed)


def setting_text(value: object) -> str | None:
    """The text of a connector's setting: numbers and booleans become text, as in Kafka Connect; ``None`` for others."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return value if isinstance(value, str) else None


def setting_texts(connector: str, config: Mapping[str, object]) -> dict[str, str]:
    """The configuration of a connector as text (``setting_text``).

    Raises:
        ConfigError: the configuration is no mapping, a setting is neither text, a number nor a boolean, or it is the
            mask of a credential. Names the connector and the setting.
    """
    where = f"connector {printable(connector)}: "
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}config", f"an object of {type(config).__name__}", "a dict of settings")
    texts: dict[str, str] = {}
    for name, value in config.items():
        if not isinstance(name, str):
            raise ConfigError(f"{where}setting", name, "a name as text")
        text = setting_text(value)
        if text is None:
            allowed = "text, a number, true or false"
            raise ConfigError(f"{where}{printable(name)}", f"{value} ({type(value).__name__})", allowed)
        if HIDDEN in text:
            raise ConfigError(f"{where}{printable(name)}", HIDDEN, NOT_MASKED)
        texts[name] = text
    return texts


def kind_of(value: object) -> str:
    """What an argument is, for messages: text and numbers as they are, of other objects only the class."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    is_plain = value is None or isinstance(value, str | int | float)
    return str(value) if is_plain else f"an object of {type(value).__name__}"


def check_object(field: str, value: object, kind: type, allowed: str) -> None:
    """Check that a value is an object of a class, and not the class itself.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, kind):
        raise ConfigError(field, kind_of(value), allowed)


def check_methods(field: str, value: object, methods: Sequence[str], allowed: str) -> None:
    """Check that a value is an object, and not a class, that has these methods.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        raise ConfigError(field, kind_of(value), allowed)


def check_call(field: str, function: object, arguments: Sequence[str], allowed: str) -> None:
    """Check that a value can be called with these positional arguments.

    Raises:
        ConfigError: it cannot; the message has its parameters.
    """
    if not callable(function):
        raise ConfigError(field, kind_of(function), allowed)
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a function of C
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(field, f"{name}({', '.join(signature.parameters)}): {error}", allowed) from None


def parse_address(field: str, text: str) -> tuple[str, int]:
    """Split ``host:port``.

    Raises:
        ConfigError: the text does not have this form.
    """
    host, colon, port = text.rpartition(":")
    if "/" in text:
        raise ConfigError(field, text, "host:port, without a scheme and a path")
    is_one_host = bool(host) and not any(each.isspace() or each == "," for each in host)
    if not colon or not is_one_host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65_535:
        raise ConfigError(field, text, "host:port, port 1 to 65535")
    return host.strip("[]"), int(port)


UNICODE: Final = "text without half of a surrogate pair"
"""What is allowed of a text that cannot be encoded."""


def not_unicode(where: str, name: str) -> ConfigError:
    """The error of a setting whose name cannot be encoded; ``where`` is the prefix of the settings."""
    return ConfigError(f"{where}name of a setting", printable(name), UNICODE)
