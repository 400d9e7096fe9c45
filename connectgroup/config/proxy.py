"""Settings of a proxy in front of a Kafka broker."""

from __future__ import annotations

from pydantic import model_validator

from ..errors import ConfigError
from ..group.classic.settings import ClassicSettings
from .base import MaybeMilliseconds, Milliseconds, Port, ShortText, parse_address
from .coordinator import CoordinatorConfig


class ProxyConfig(CoordinatorConfig):
    """Settings of one proxy; those of its coordinator included.

    Attributes:
        broker: ``host:port`` of the broker's PLAINTEXT listener.
        advertised_host: the host that clients are sent to; ``host`` if null.
        advertised_port: the port that clients are sent to; ``port`` if null.
        initial_rebalance_delay_ms: how long the first rebalance of an empty classic group waits for more members
            (``group.initial.rebalance.delay.ms``).
        min_session_timeout_ms: the lowest session timeout of a member of a classic group
            (``group.min.session.timeout.ms``).
        max_session_timeout_ms: the highest one (``group.max.session.timeout.ms``).
    """

    broker: ShortText
    advertised_host: ShortText | None = None
    advertised_port: Port | None = None
    initial_rebalance_delay_ms: MaybeMilliseconds = 3_000
    min_session_timeout_ms: Milliseconds = 6_000
    max_session_timeout_ms: Milliseconds = 1_800_000

    @model_validator(mode="after")
    def _session_timeouts(self) -> ProxyConfig:
        if self.tls_cert is not None or self.credentials is not None:
            raise ConfigError("tls_cert", self.tls_cert or self.credentials, "a proxy without TLS and credentials")
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ConfigError(
                "min_session_timeout_ms",
                self.min_session_timeout_ms,
                f"at most max_session_timeout_ms ({self.max_session_timeout_ms})",
            )
        parse_address("broker", self.broker)
        return self

    @property
    def broker_address(self) -> tuple[str, int]:
        """Host and port of the broker."""
        return parse_address("broker", self.broker)

    def classic_settings(self) -> ClassicSettings:
        """Return the settings of classic groups."""
        return ClassicSettings(
            initial_rebalance_delay_ms=self.initial_rebalance_delay_ms,
            min_session_timeout_ms=self.min_session_timeout_ms,
            max_session_timeout_ms=self.max_session_timeout_ms,
            max_members=self.max_members,
        )
