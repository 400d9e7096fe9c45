"""Settings of a worker process."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from ..assign.placement import MAX_CAPACITY, MAX_LABELS, WorkerTraits, check_traits, labels_of, plugin_labels
from ..dataplane.java_plugins import java_classes
from ..errors import ConfigError
from ..member.settings import GroupProtocol, MemberSettings
from ..protocol import DEFAULT_PORT
from ..transport.following import parse_addresses
from .access import AccessConfig
from .base import Milliseconds, Name, ShortText
from .paths import require_absolute_paths

logger = logging.getLogger(__name__)


class WorkerConfig(AccessConfig):
    """Settings of one worker process; those of its connection to the coordinator included (``AccessConfig``).

    Attributes:
        coordinator: ``host:port``, or several with commas.
        name: the member id; by default generated from host name, process id and random digits.
        instance: ``group.instance.id`` (static membership). A worker that stops leaves temporarily, and its units are
            delayed for the next member that joins with this id.
        assignors: entry-point names in order of preference. If empty, the coordinator computes the target assignment,
            with ``server_assignor`` or its own ``group.remote.assignor``. The default is ``balanced`` if neither this
            nor ``server_assignor`` is set.
        server_assignor: name of an assignor of the coordinator (the heartbeat's ServerAssignor). It cannot be used
            together with ``assignors``.
        listeners: entry-point names.
        capacity: maximum total weight of the worker's units; ``None`` if unknown. For assignors that use weights.
        labels: ``name=value`` labels that connectors may require (``assignment.labels``).
        rack: the rack or zone of the worker.
        host: the machine, which several workers may share; by default this machine's host name.
        scratch: directory on local disk in which the worker creates a private directory (mode 0700) for its tasks.
        secret_env: environment variables that connectors may refer to (``Secrets.env``).
        secret_paths: files and directories that connectors may refer to (``Secrets.paths``), as absolute paths.
        allowed_paths: files, and directories with all that is below them, that sources, sinks and other connector
            classes may use (``worker.allowed.paths``), as absolute paths; by default none. Otherwise a client
            that may add a connector to the group could read and write every file of this worker's user.
        rebalance_timeout_ms: how long the worker may take to stop revoked tasks; after that the coordinator removes it.
            Also how long it may take to compute a target assignment; after that another member is chosen.
        group_protocol: ``connect`` or ``classic`` (``group.protocol``); ``generic`` is another name of the latter.
    """

    coordinator: str = f"127.0.0.1:{DEFAULT_PORT}"
    group: Name
    name: Name = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    instance: Name | None = None
    assignors: tuple[Name, ...] = ("balanced",)
    server_assignor: Name | None = None
    listeners: tuple[Name, ...] = ()
    capacity: Annotated[int, Field(ge=1, le=MAX_CAPACITY)] | None = None
    labels: Annotated[tuple[ShortText, ...], Field(max_length=MAX_LABELS)] = ()
    rack: ShortText | None = None
    host: ShortText = Field(default_factory=socket.gethostname)
    scratch: Path
    secret_env: tuple[ShortText, ...] = ()
    secret_paths: tuple[Path, ...] = ()
    allowed_paths: tuple[Path, ...] = ()
    rebalance_timeout_ms: Milliseconds = 60_000
    group_protocol: GroupProtocol = GroupProtocol.CONNECT
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

    @field_validator("group_protocol", mode="before")
    @classmethod
    def _generic_is_classic(cls, value: Any) -> Any:
        return GroupProtocol.CLASSIC if value == "generic" else value

    @model_validator(mode="after")
    def _absolute(self) -> WorkerConfig:
        require_absolute_paths("secret_paths", self.secret_paths)
        require_absolute_paths("allowed_paths", self.allowed_paths)
        return self

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each coordinator."""
        return parse_addresses("coordinator", self.coordinator)

    def traits(self) -> WorkerTraits:
        """Return the worker's properties for assignors, with a label for each connector class of its plug-ins in Java.

        Raises:
            ConfigError: a label is not of the form ``name=value``, or the properties are too long to be sent.
        """
        traits = WorkerTraits(
            capacity=self.capacity or 0,
            labels=labels_of("labels", self.labels),
            rack=self.rack or "",
            host=self.host,
        )
        check_traits(traits)
        return _with_plugins(traits)

    def member_settings(self) -> MemberSettings:
        """Return the settings of the member state machine."""
        return MemberSettings(
            group_id=self.group,
            member_id=self.name,
            instance_id=self.instance,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            traits=self.traits(),
            server_assignor=self.server_assignor,
            group_protocol=self.group_protocol,
        )


def _with_plugins(traits: WorkerTraits) -> WorkerTraits:
    """Add the labels of the plug-ins in Java, if they fit: a worker without them may be assigned any connector."""
    own = plugin_labels(each.name for each in java_classes() if each.kind in ("source", "sink"))
    found = replace(traits, labels=tuple(sorted(dict((*own, *traits.labels)).items())))
    try:
        check_traits(found)
    except ConfigError as error:
        logger.warning("the worker has no labels of its %d connector classes in Java: %s", len(own), error)
        return traits
    return found
