"""Settings of a proxy in front of a Kafka broker."""

from __future__ import annotations

from pydantic import model_validator

from ..checks import parse_address
from ..errors import ConfigError
from .base import Port, ShortText
from .coordinator import CoordinatorConfig


class ProxyConfig(CoordinatorConfig):
    """Settings of one proxy; those of its coordinator included.

    Attributes:
        broker: ``host:port`` of the broker's PLAINTEXT listener.
        advertised_host: the host that clients are sent to; ``host`` if null.
        advertised_port: the port that clients are sent to; ``port`` if null.
    """

    broker: ShortText
    advertised_host: ShortText | None = None
    advertised_port: Port | None = None

    @model_validator(mode="after")
    def _has_a_broker(self) -> ProxyConfig:
        if self.tls_cert is not None or self.credentials is not None:
            raise ConfigError("tls_cert", self.tls_cert or self.credentials, "a proxy without TLS and credentials")
        parse_address("broker", self.broker)
        return self

    @property
    def broker_address(self) -> tuple[str, int]:
        """Host and port of the broker."""
        return parse_address("broker", self.broker)
