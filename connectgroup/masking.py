"""Masking of configuration values that may be secrets.

Kafka marks each setting of type PASSWORD in the class that defines it. Connector configurations are free text here, so
a setting is recognized as a credential by its name; those that a connector's class knows besides
(``Connector.credential_names``) are masked in descriptions. No output for people (an error, a log line, a description
of a group, a ``repr``) shows the value of such a setting; the workers that run the connector receive it unchanged.

Source: Kafka's ``Password.HIDDEN``; KAFKA-5117, KAFKA-15377, CVE-2019-12399 (secrets in logs and responses of Connect).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import lru_cache
from typing import Final

HIDDEN: Final = "[hidden]"
"""Shown instead of a masked value."""

NOT_MASKED: Final = "the real value, which is not shown; or change only the other settings (PATCH, connectors patch)"
"""What is allowed instead of a masked value that someone sends back."""

_LEAST: Final = 4
"""Minimum length of a value to search for in a text, in characters: a shorter value occurs in too many words."""

_CREDENTIAL: Final = re.compile(
    r"passw|passphrase|secret|token|credential|jaas|(?:api|access|account|shared|master|private)key|key(?:file|value)"
    r"|(?:^|[._\-\[])(?!key\.converter)(?:key|keys|pwd|pw|pin|auth|authorization)(?:$|[._\-\]])",
    re.IGNORECASE,
)
_SHORT: Final = 100
_WORDS: Final = (
    *("passw", "passphrase", "secret", "token", "credential", "pwd"),
    *("apikey", "api_key", "api-key", "accesskey", "accountkey", "privatekey", "private_key"),
)
"""Of names of credentials in texts."""
_REFERENCE: Final = re.compile(r"\$\{(?:env|file|dir):[^{}]*\}")
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s'\"]+(?=@)")
_PAIR: Final = re.compile(
    # Atomic, and from the beginning of a word: without either, a long word would take quadratic time.
    rf"(?P<key>(?<![\w.\-])(?>[\w.\-]*?(?:{'|'.join(_WORDS)})[\w.\-]*+))"
    r"(?P<is>\s*=\s*|\\{0,255}['\"]\s*:\s*)"
    # In quotes, which may be escaped themselves, up to eight times over, also where the text was cut before the closing
    # one; or one word.
    r"(?:(?P<quote>\\{0,255}['\"])(?:(?!(?P=quote))(?:\\.|.))*(?:(?P=quote)|\Z)|[^\s;,&'\"]+)",
    re.IGNORECASE | re.DOTALL,
)


def is_credential(key: str) -> bool:
    """Whether the name is that of a credential: ``jdbc.password``, ``sasl.jaas.config``, ``api.key``."""
    # A group has thousands of settings with the same few names, and is described several times a second.
    return _is_known_credential(key) if len(key) <= _SHORT else _CREDENTIAL.search(key) is not None


@lru_cache(maxsize=4_096)
def _is_known_credential(key: str) -> bool:
    return _CREDENTIAL.search(key) is not None


def masked_text(text: str) -> str:
    """The text without user and password in URLs, and without the values that follow ``password=`` and the like."""
    # The expressions take 10 us for a word, and 100 ns for each character: most texts have nothing for them.
    if "://" in text:
        text = _USER_INFO.sub(HIDDEN, text)
    if ("=" in text or ":" in text) and _may_name_credential(text):
        text = _PAIR.sub(rf"\g<key>\g<is>{HIDDEN}", text)
    return text


def _may_name_credential(text: str) -> bool:
    # Outside of ASCII, other letters count as these, too, whatever the case.
    return not text.isascii() or any(map(text.lower().__contains__, _WORDS))


def masked_value(key: str, value: object, credential_names: Container[str] = ()) -> str:
    """The value of a setting, masked if it is a credential: one of these names, or one that ``is_credential``
    recognizes. A reference to a secret is none (``config.secrets``).
    """
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return value
    return HIDDEN if key in credential_names or is_credential(key) else masked_text(str(value))


def without_secrets(text: str, *configs: Mapping[str, str]) -> str:
    """The text without the values of credentials in these configurations, and masked as by ``masked_text``."""
    secrets = {
        value
        for config in configs
        for key, value in config.items()
        if is_credential(key) and not _REFERENCE.fullmatch(value)
    }
    for secret in sorted(secrets, key=len, reverse=True):
        if _LEAST <= len(secret) <= len(text):
            text = text.replace(secret, HIDDEN).replace(repr(secret)[1:-1], HIDDEN)
    return masked_text(text)
