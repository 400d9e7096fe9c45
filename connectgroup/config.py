"""Settings as people write them, checked once at the edge and turned into what the inside uses.

Every model refuses unknown keys and names the nearest known one. ``checked`` turns pydantic's report into one
``ConfigError`` line: field, value, what is allowed.
"""

from __future__ import annotations

import difflib
import json
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from .errors import NO_VALUE, UNKNOWN_SETTING, ConfigError
from .group.settings import GroupSettings, ServerAssign
from .masking import HIDDEN
from .member.machine import MemberSettings
from .names import MAX_NAME_BYTES, printable
from .placement import LARGEST_CAPACITY, MOST_LABELS, WorkerTraits, check_traits, labels_of
from .transport.limits import LOOPBACK, Limits, is_address, is_loopback

Milliseconds = Annotated[int, Field(ge=1, le=3_600_000)]
MaybeMilliseconds = Annotated[int, Field(ge=0, le=3_600_000)]


def _in_bytes(name: str) -> str:
    """A name no longer than the protocol carries."""
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise PydanticCustomError("too_long", "at most {limit} bytes in UTF-8", {"limit": MAX_NAME_BYTES})
    return name


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES), AfterValidator(_in_bytes)]
Port = Annotated[int, Field(ge=0, le=65_535)]

DEFAULT_PORT = 8474
"""Where a coordinator listens unless told otherwise; chosen free of well-known neighbours."""


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    of_others: ClassVar[frozenset[str]] = frozenset()
    """Fields that hold settings of somebody else: errors show no value of them."""


class CoordinatorConfig(Settings):
    """One coordinator.

    Attributes:
        data: the log's file; null keeps everything in memory, which a restart forgets.
        assignor: ``group.remote.assignor``: used where members list none, and after failures.
        scheduled_rebalance_max_delay_ms: how long the work of a lost worker is kept for it; 0 gives it on at once.
            A move costs milliseconds here, so it is much less than Connect's 300 s.
        assignment_interval_ms: the least time between two computations of who runs what; 0 answers each change at once,
            more answers a burst of them (a thousand workers that start together) by one.
        moves_per_round: how many units that run may be moved at a time; 0 moves all at once.
        max_connections: how many connections may be open. A worker needs two, a command one while it runs: 2,000 are
            enough for 999 workers. Each takes a file descriptor.
        max_connections_per_address: how many of them from one address. All workers of one machine share its address:
            1,500 are enough for 749 of them.
    """

    host: str = "127.0.0.1"
    port: Port = DEFAULT_PORT
    data: Path | None = None
    session_timeout_ms: Milliseconds = 10_000
    heartbeat_interval_ms: Milliseconds = 3_000
    assignor: Name = "balanced"
    scheduled_rebalance_max_delay_ms: MaybeMilliseconds = 10_000
    assignment_interval_ms: MaybeMilliseconds = 0
    moves_per_round: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_connections
    max_connections_per_address: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_connections_per_address

    @model_validator(mode="after")
    def _fits_together(self) -> CoordinatorConfig:
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat_interval_ms",
                self.heartbeat_interval_ms,
                f"at most a third of session_timeout_ms ({self.session_timeout_ms})",
            )
        # There is no authentication yet. The addresses that a name stands for are checked when the port is opened.
        if not self.host or (is_address(self.host) and not is_loopback(self.host)):
            raise ConfigError("host", self.host, LOOPBACK)
        return self

    def group_settings(self, server_assignors: Mapping[str, ServerAssign]) -> GroupSettings:
        """What the group rules need of it."""
        return GroupSettings(
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            server_assignor=self.assignor,
            server_assignors=server_assignors,
            scheduled_delay_ms=self.scheduled_rebalance_max_delay_ms,
            assignment_interval_ms=self.assignment_interval_ms,
            most_moves=self.moves_per_round,
        )


class WorkerConfig(Settings):
    """One worker process.

    Attributes:
        coordinator: ``host:port``.
        name: the member id; made from host, process and chance where it is not given.
        instance: ``group.instance.id``: a name that outlives the process. Stopped, the worker leaves for a while and
            its work waits for whoever joins next under this name.
        assignors: entry-point names in order of preference; empty: the coordinator computes the target assignment, with
            ``server_assignor`` or its own ``group.remote.assignor``. ``balanced`` where neither this nor
            ``server_assignor`` is set.
        server_assignor: an assignor of the coordinator's, by name (the heartbeat's ServerAssignor). Not together with
            ``assignors``.
        listeners: entry-point names.
        capacity: weight of work it can carry at most; null where that is not known. For assignors that go by weights.
        labels: ``name=value`` words that connectors may ask for (``assignment.labels``).
        rack: where it stands, a rack or a zone.
        host: the machine, which workers may share; this one's name by default.
        scratch: where the worker creates a private directory (mode 0700) for its tasks, on local disk.
        rebalance_timeout_ms: how long the worker may take to stop revoked tasks; then the coordinator removes it. Also
            how long it may take to compute a target assignment; then another member is chosen.
    """

    coordinator: str = f"127.0.0.1:{DEFAULT_PORT}"
    group: Name
    name: Name = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    instance: Name | None = None
    assignors: tuple[Name, ...] = ("balanced",)
    server_assignor: Name | None = None
    listeners: tuple[Name, ...] = ()
    capacity: Annotated[int, Field(ge=1, le=LARGEST_CAPACITY)] | None = None
    labels: Annotated[tuple[Name, ...], Field(max_length=MOST_LABELS)] = ()
    rack: Name | None = None
    host: Name = Field(default_factory=socket.gethostname)
    scratch: Path
    rebalance_timeout_ms: Milliseconds = 60_000
    refresh_s: Annotated[float, Field(gt=0, le=3600)] = 5.0

    @model_validator(mode="before")
    @classmethod
    def _one_side_assigns(cls, values: dict[str, Any]) -> dict[str, Any]:
        server_assignor = values.get("server_assignor")
        if server_assignor is None:
            return values
        if values.get("assignors"):
            raise ConfigError("server_assignor", server_assignor, "server_assignor or assignors, not both")
        return {**values, "assignors": ()}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the coordinator."""
        return parse_address("coordinator", self.coordinator)

    def traits(self) -> WorkerTraits:
        """What its assignors are told of it.

        Raises:
            ConfigError: a label is not of the form ``name=value``, or all of it is too long to be sent.
        """
        traits = WorkerTraits(
            capacity=self.capacity or 0,
            labels=labels_of("labels", self.labels),
            rack=self.rack or "",
            host=self.host,
        )
        check_traits(traits)
        return traits

    def member_settings(self) -> MemberSettings:
        """What the member machine needs of it."""
        return MemberSettings(
            group_id=self.group,
            member_id=self.name,
            instance_id=self.instance,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            traits=self.traits(),
            server_assignor=self.server_assignor,
        )


class ConnectorFile(Settings):
    """A connector in Kafka Connect's own form: ``{"name": ..., "config": {...}}``."""

    of_others: ClassVar[frozenset[str]] = frozenset({"config"})

    name: Name
    config: dict[str, str] = Field(repr=False)


def parse_address(field: str, text: str) -> tuple[str, int]:
    """``host:port`` taken apart.

    Raises:
        ConfigError: it is not one.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= 65_535:
        raise ConfigError(field, text, "host:port, port 1 to 65535")
    return host.strip("[]"), int(port)


def read_connector(path: Path) -> ConnectorFile:
    """A connector out of its JSON file.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or says something that is not allowed. Names the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError(str(path), error.strerror or error, "a readable file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), error, 'JSON: {"name": ..., "config": {...}}') from error
    if not isinstance(content, dict):
        raise ConfigError(str(path), type(content).__name__, 'an object: {"name": ..., "config": {...}}')
    connector = checked(ConnectorFile, content, where=f"{path}: ")
    for key, value in connector.config.items():
        if HIDDEN in value:
            raise ConfigError(f"{path}: config.{printable(key)}", HIDDEN, "the value that a listing has masked")
    if not connector.config.get("connector.class"):
        raise ConfigError(f"{path}: config.connector.class", "nothing", "the name of a connector class")
    return connector


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON objects with every key once: the last of two would win without a word otherwise."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


M = TypeVar("M", bound=Settings)


def checked(model: type[M], values: Mapping[str, Any], *, where: str = "") -> M:
    """The settings, or the first thing wrong with them.

    Raises:
        ConfigError: field, value, what is allowed.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = sorted(model.model_fields)
            near = difflib.get_close_matches(field, known, n=1)
            allowed = f"{near[0]} (did you mean that?)" if near else ", ".join(known)
            raise ConfigError(where + field, UNKNOWN_SETTING, allowed) from error
        allowed = first["msg"][0].lower() + first["msg"][1:]
        value = NO_VALUE if first["type"] == "missing" else first["input"]
        if first["loc"][0] in model.of_others:
            # Settings that are not ours: any of them may hold a secret.
            value = f"a value of type {type(value).__name__}"
        raise ConfigError(where + field, value, allowed) from error
