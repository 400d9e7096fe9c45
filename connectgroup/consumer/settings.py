"""A consumer's settings, validated on construction: one-line errors with field, value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ..config.base import Milliseconds, Settings, ShortText
from ..errors import ConfigError
from .client import addresses

TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
OURS = (
    *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol"),
    *("group.remote.assignor", "enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store"),
    *("auto.offset.reset", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"),
    *("partition.assignment.strategy", "client.id", "client.rack", "enable.partition.eof"),
)
"""librdkafka's settings that this consumer sets itself."""


class ConsumerSettings(Settings):
    """The settings of one member; documented in ``GroupConsumer``."""

    bootstrap: Annotated[str, Field(min_length=1)]
    group: ShortText
    topics: Annotated[tuple[str, ...], Field(min_length=1)]
    instance: ShortText | None = None
    rack: ShortText | None = None
    session_timeout_ms: Milliseconds = 45_000
    heartbeat_interval_ms: Milliseconds = 3_000
    max_poll_interval_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 300_000
    auto_offset_reset: Literal["earliest", "latest", "error"] = "latest"
    auto_commit_interval_ms: Milliseconds | None = 5_000
    metadata_max_age_ms: Milliseconds = 300_000
    client_id: ShortText = "connectgroup"
    fetch: Mapping[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    of_others: ClassVar[frozenset[str]] = frozenset({"fetch"})

    @field_validator("topics", mode="before")
    @classmethod
    def _several(cls, topics: object) -> object:
        # A string is a sequence of strings: "orders" would be six topics.
        return tuple(topics) if isinstance(topics, list | set | frozenset) else topics

    @model_validator(mode="after")
    def _fits_together(self) -> ConsumerSettings:
        addresses(self.bootstrap)
        for topic in self.topics:
            if not TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise ConfigError("topics", topic, "1 to 249 of a-z A-Z 0-9 . _ -; names, no patterns")
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            allowed = f"at most a third of session_timeout_ms ({self.session_timeout_ms})"
            raise ConfigError("heartbeat_interval_ms", self.heartbeat_interval_ms, allowed)
        for name, value in self.fetch.items():
            if name.startswith(("sasl.", "ssl.")) or (
                name == "security.protocol" and str(value).lower() != "plaintext"
            ):
                raise ConfigError(f"fetch.{name}", "a value", "nothing: only PLAINTEXT is spoken, no TLS and no SASL")
            if name in OURS:
                raise ConfigError(
                    f"fetch.{name}", value, "settings of fetching only; this one the consumer makes itself"
                )
        return self
