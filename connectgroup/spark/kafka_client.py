"""Kafka clients of the source and the sink ``kafka``: their settings, and the import of confluent-kafka."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ..dataplane.settings import ALLOWED_SETTINGS, check_setting, is_allowed
from ..errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

_ALLOWED = 'settings of the Kafka client as a JSON object of texts, such as {"security.protocol": "SSL"}'

FILES: Final = frozenset({
    "ssl.ca.location", "ssl.certificate.location", "ssl.crl.location", "ssl.key.location", "ssl.keystore.location",
    "ssl.truststore.location",
})  # fmt: skip
"""Settings that name a file, which must be in ``worker.allowed.paths``."""

SETTINGS: Final = FILES | {
    # Connections and metadata.
    "allow.auto.create.topics", "api.version.fallback.ms", "api.version.request", "api.version.request.timeout.ms",
    "broker.address.family", "broker.address.ttl", "broker.version.fallback", "client.dns.lookup", "client.id",
    "client.rack", "connections.max.idle.ms", "default.api.timeout.ms", "enable.metrics.push", "log.connection.close",
    "max.in.flight", "max.in.flight.requests.per.connection", "message.copy.max.bytes", "message.max.bytes",
    "metadata.max.age.ms", "metadata.max.idle.ms", "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy", "receive.buffer.bytes", "receive.message.max.bytes", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "request.timeout.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
    "send.buffer.bytes", "socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable", "socket.max.fails", "socket.nagle.disable", "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes", "socket.timeout.ms", "statistics.interval.ms",
    "topic.metadata.propagation.max.ms", "topic.metadata.refresh.fast.interval.ms",
    "topic.metadata.refresh.interval.ms", "topic.metadata.refresh.sparse",
    # TLS and logins.
    "enable.ssl.certificate.verification", "sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username",
    "security.protocol", "ssl.ca.pem", "ssl.certificate.pem", "ssl.cipher.suites", "ssl.curves.list",
    "ssl.enabled.protocols", "ssl.endpoint.identification.algorithm", "ssl.key.password", "ssl.key.pem",
    "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.password", "ssl.keystore.type",
    "ssl.protocol", "ssl.sigalgs.list", "ssl.truststore.certificates", "ssl.truststore.password",
    "ssl.truststore.type",
    # Producing.
    "acks", "batch.num.messages", "batch.size", "compression.codec", "compression.level", "compression.type",
    "delivery.timeout.ms", "linger.ms", "message.send.max.retries", "message.timeout.ms", "partitioner",
    "queue.buffering.backpressure.threshold", "queue.buffering.max.kbytes", "queue.buffering.max.messages",
    "queue.buffering.max.ms", "request.required.acks", "sticky.partitioning.linger.ms",
    # Fetching.
    "check.crcs", "exclude.internal.topics", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.max.wait.ms",
    "fetch.message.max.bytes", "fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "isolation.level",
    "max.partition.fetch.bytes", "max.poll.records", "queued.max.messages.kbytes", "queued.min.messages",
}  # fmt: skip
"""Settings of librdkafka and of Kafka's Java client. Not: what starts a program (``kinit``) or loads code, sends
requests of its own (OAUTHBEARER) with the contents of files, switches a check off, or is part of a sink's fence."""

_VALUES: Final = {
    # GSSAPI takes the tickets and keytabs of the worker's user, and starts kinit; OAUTHBEARER: see above.
    "sasl.mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "sasl.mechanisms": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "ssl.endpoint.identification.algorithm": ("https",),
    "enable.ssl.certificate.verification": ("true",),
}
_WHAT: Final = (
    "settings of connections, TLS, logins (PLAIN, SCRAM), batches and time limits that docs/operations.md lists"
)


def client_settings(field: str, text: str) -> dict[str, str]:
    """Parse the settings of the Kafka client; an empty text has none.

    Raises:
        ConfigError: the text is no JSON object of texts, or has a setting that is not allowed.
    """
    found = _parsed(text)
    if found is None:
        raise ConfigError(field, "a text", _ALLOWED)
    for name, value in found.items():
        check_client_setting(field, name, value)
    return found


def client_files(text: str) -> dict[str, str]:
    """Return the files that settings of the Kafka client name, by setting; a text that is not valid has none."""
    return {name: value for name, value in (_parsed(text) or {}).items() if is_file_setting(name, value)}


def is_file_setting(name: str, value: str) -> bool:
    """Whether a setting of the Kafka client names a file, also one that only an operator allows."""
    return (name in FILES and value != "probe") or (name not in SETTINGS and name.endswith((".location", ".file")))


def check_client_setting(field: str, name: str, value: str) -> None:
    """Check a setting of the Kafka client.

    Raises:
        ConfigError: it, or its value, is not allowed.
    """
    check_setting(field, "kafka", name, SETTINGS, _WHAT)
    allowed = _VALUES.get(name)
    if allowed is not None and value not in allowed and not is_allowed("kafka", f"{name}={value}"):
        what = f"{', '.join(allowed)}, and what the worker's {ALLOWED_SETTINGS} adds (kafka.{name}=VALUE)"
        raise ConfigError(field, f"{name}={value}", what)
    if is_file_setting(name, value) and not os.path.isabs(value):
        raise ConfigError(field, f"{name}={value}", "an absolute path", is_path=True)


def _parsed(text: str) -> dict[str, str] | None:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if is_valid else None


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
