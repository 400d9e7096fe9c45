"""Kafka clients of the source and the sink ``kafka``: their settings, and the import of confluent-kafka."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ALLOWED = 'settings of the Kafka client as a JSON object of texts, such as {"security.protocol": "SSL"}'
_REFUSED = (
    "plugin.library.paths",
    "ssl.engine.location",
    "ssl.engine.id",
    "ssl.providers",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "enable.ssl.certificate.verification",
)


def client_settings(field: str, text: str) -> dict[str, str]:
    """Parse the settings of the Kafka client; an empty text has none.

    Raises:
        ConfigError: the text is no JSON object of texts, or has a setting that loads code or disables a check.
    """
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise ConfigError(field, "a text", _ALLOWED) from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ConfigError(field, "a text", _ALLOWED)
    for name in found:
        check_client_setting(field, name)
    return found


def check_client_setting(field: str, name: str) -> None:
    """Check the name of a setting of the Kafka client.

    Raises:
        ConfigError: it would load code or disable a check.
    """
    if name in _REFUSED or name.endswith(".class") or name.startswith("sasl.login."):
        raise ConfigError(field, name, "settings that load no code and disable no check")


def admin(servers: str, client: Mapping[str, str]) -> AdminClient:
    """Return an admin client.

    Raises:
        ConfigError: confluent-kafka is not installed.
    """
    try:
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise ConfigError(
            "kafka", f"no package {error.name}", "pip install 'connectgroup[kafka]' on each worker"
        ) from error
    return AdminClient({"bootstrap.servers": servers, **client}, logger=logging.getLogger(__name__))


@lru_cache(maxsize=8)
def kept_admin(servers: str, client: str) -> AdminClient:
    """Return the admin client that the tasks of this process share for measurements: each has threads and connections.

    Args:
        client: the settings of the Kafka client, as ``client_settings`` parses them.

    Raises:
        ConfigError: see ``client_settings`` and ``admin``.
    """
    return admin(servers, client_settings("source.client", client))
