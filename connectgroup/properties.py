"""Files in the format of Java properties, which Kafka's tools take: connectors, settings of clients, secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .errors import ConfigError
from .protocol.units import printable


def read_properties(path: Path, setting: str = "file") -> dict[str, str]:
    """Read a file of Java properties: comments, ``=``, ``:`` or a blank after the key, continuation lines, escapes.

    Args:
        setting: the one that names the file, for the error that it cannot be read.

    Raises:
        ConfigError: the file cannot be read, or a line has an invalid escape, no key, or a key of an earlier line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(setting, path, f"a readable file ({error.strerror or error})", is_path=True) from error
    except UnicodeError as error:
        raise ConfigError(str(path), error, "a readable file in UTF-8") from error
    return parse_properties(text, str(path))


def parse_properties(content: str, where: str) -> dict[str, str]:
    """Parse Java properties.

    Args:
        where: the file, for errors.

    Raises:
        ConfigError: as ``read_properties``.
    """
    lines = _LINE_END.split(content)
    found: dict[str, str] = {}
    logical, started = "", 0
    for number, line in enumerate([*lines, ""], 1):
        text = line.lstrip(" \t\f")
        if not logical and (not text or text[0] in "#!"):
            continue
        started = started if logical else number
        if _continues(text) and number <= len(lines):
            logical += text[:-1]
            continue
        logical, complete = "", logical + text
        key, value = (_unescaped(f"{where}:{started}", part) for part in _split(complete))
        if not key or key in found:
            raise ConfigError(f"{where}:{started}", printable(key) or "no key", "key=value on each line, each key once")
        found[key] = value
    return found


def _continues(line: str) -> bool:
    """Whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split a line at its first ``=``, ``:`` or blank that is not escaped."""
    match = _KEY.match(line)
    assert match is not None, "the pattern matches any line"
    return match["key"], line[match.end() :]


def _unescaped(where: str, text: str) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code)
        if len(code) != 5:
            raise ConfigError(where, "an escape", "\\uXXXX with four hexadecimal digits")
        return chr(int(code[1:], 16))

    replaced = _ESCAPE.sub(one, text)
    # Java writes a character beyond 16 bits as two escapes.
    return replaced.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_LINE_END: Final = re.compile(r"\r\n|\n|\r")
"""Java's. Python's ``splitlines`` has more, such as U+2028, which are text in a value."""
_KEY: Final = re.compile(r"(?P<key>(?:[^\\=:\s]|\\.)*)(?:[ \t\f]*[=:]?[ \t\f]*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{0,4}|.)", re.DOTALL)
