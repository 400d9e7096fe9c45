"""A consumer's settings, validated on construction: one-line errors with field, value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ..config.base import MaybeMilliseconds, Milliseconds, Settings, ShortText
from ..errors import ConfigError
from ..topics import regex_violation
from .client import addresses
from .security import check_security

TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
OURS = (
    *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol"),
    *("group.remote.assignor", "enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store"),
    *("auto.offset.reset", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"),
    *("partition.assignment.strategy", "client.id", "client.rack", "enable.partition.eof"),
)
"""librdkafka's settings that this consumer sets itself."""


class GroupConsumerSettings(Settings):
    """The settings of one member; documented in ``GroupConsumer``."""

    bootstrap: Annotated[str, Field(min_length=1)]
    group: ShortText
    topics: tuple[str, ...] = ()
    pattern: ShortText | None = None
    group_protocol: Literal["classic", "consumer"] = "classic"
    server_assignor: ShortText | None = None
    coordinator: ShortText | None = None
    instance: ShortText | None = None
    rack: ShortText | None = None
    session_timeout_ms: Milliseconds = 45_000
    heartbeat_interval_ms: Milliseconds = 3_000
    max_poll_interval_ms: Annotated[int, Field(ge=1, le=2**31 - 1)] = 300_000
    auto_offset_reset: Literal["earliest", "latest", "error"] = "latest"
    auto_commit_interval_ms: MaybeMilliseconds | None = 5_000
    metadata_max_age_ms: Milliseconds = 300_000
    client_id: ShortText = "connectgroup"
    fetch: Mapping[str, str | int | float | bool] = Field(default_factory=dict, repr=False)

    of_others: ClassVar[frozenset[str]] = frozenset({"fetch"})

    @field_validator("topics", mode="before")
    @classmethod
    def _several(cls, topics: object) -> object:
        # A string is a sequence of strings: "orders" would be six topics.
        return tuple(topics) if isinstance(topics, list | set | frozenset) else topics

    @field_validator("group_protocol", mode="before")
    @classmethod
    def _generic_is_classic(cls, value: object) -> object:
        return "classic" if value == "generic" else value

    @model_validator(mode="after")
    def _fits_together(self) -> GroupConsumerSettings:
        addresses(self.bootstrap)
        if not self.group.strip():
            # librdkafka strips a name, and without one an assertion of its Python binding ends the process.
            raise ConfigError("group", self.group, "a name with at least one character that is not white space")
        if not self.topics and self.pattern is None:
            raise ConfigError("topics", "()", "at least 1, or a pattern")
        if self.pattern is not None and (allowed := regex_violation(self.pattern)):
            raise ConfigError("pattern", self.pattern, allowed)
        if self.pattern is not None and self.topics:
            raise ConfigError("pattern", self.pattern, "topics or a pattern, not both")
        if self.server_assignor is not None and self.group_protocol == "classic":
            raise ConfigError("server_assignor", self.server_assignor, "nothing: in a classic group, a member assigns")
        for topic in self.topics:
            if not TOPIC.fullmatch(topic) or topic in (".", ".."):
                raise ConfigError("topics", topic, "1 to 249 of a-z A-Z 0-9 . _ -; a pattern is ``pattern``")
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            allowed = f"at most a third of session_timeout_ms ({self.session_timeout_ms})"
            raise ConfigError("heartbeat_interval_ms", self.heartbeat_interval_ms, allowed)
        for name, value in self.fetch.items():
            if name in OURS:
                raise ConfigError(
                    f"fetch.{name}", value, "settings of fetching only; this one the consumer makes itself"
                )
        check_security(self.fetch, self.coordinator)
        return self
