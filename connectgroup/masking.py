"""Configuration values that may be secrets, and what is shown in place of them.

Kafka marks each setting of type PASSWORD in the class that defines it. Connector configurations are free text here, so
a setting is taken for a credential by its name. Nothing that is meant for people (an error, a log line, a description
of a group, a ``repr``) shows the value of such a setting; the workers that run the connector are sent it as it is.

Source: Kafka's ``Password.HIDDEN``; KAFKA-5117, KAFKA-15377, CVE-2019-12399 (secrets in logs and answers of Connect).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

HIDDEN: Final = "[hidden]"
"""Shown in place of a value."""

_LEAST: Final = 4
"""Characters of the shortest value that is looked for in a text: a shorter one stands in too many words."""

_CREDENTIAL: Final = re.compile(
    r"passw|passphrase|secret|token|credential|jaas|apikey|accesskey|privatekey"
    r"|(?:^|[._\-\[])(?:key|keys|pwd|pw|pin|auth|authorization)(?:$|[._\-\]])",
    re.IGNORECASE,
)
_USER_INFO: Final = re.compile(r"(?<=://)[^/\s'\"]+(?=@)")
_PAIR: Final = re.compile(
    r"(?P<key>[\w.\-]*(?:passw|passphrase|secret|token|credential|apikey|pwd)[\w.\-]*)(?P<is>\s*=\s*|['\"]\s*:\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;,&'\"]+)",
    re.IGNORECASE,
)


def is_credential(key: str) -> bool:
    """Whether the name is a credential's: ``jdbc.password``, ``sasl.jaas.config``, ``api.key``."""
    return _CREDENTIAL.search(key) is not None


def masked_text(text: str) -> str:
    """A text without the user and password of URLs, and without what follows ``password=`` and the like."""
    return _PAIR.sub(rf"\g<key>\g<is>{HIDDEN}", _USER_INFO.sub(HIDDEN, text))


def masked_value(key: str, value: object) -> str:
    """The value of a setting as it may be shown."""
    return HIDDEN if is_credential(key) else masked_text(str(value))


def without_secrets(text: str, *configs: Mapping[str, str]) -> str:
    """A text without the values that credentials have in these configurations, and masked as ``masked_text`` does."""
    secrets = {value for config in configs for key, value in config.items() if is_credential(key)}
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST:
            text = text.replace(secret, HIDDEN).replace(repr(secret)[1:-1], HIDDEN)
    return masked_text(text)
