"""Settings of a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, field_validator, model_validator

from ..checks import parse_address
from ..errors import NO_VALUE, ConfigError
from ..group.classic.state import ClassicSettings
from ..group.connect.settings import GroupSettings, ServerAssignorCall
from ..group.consumer.settings import ConsumerSettings, MigrationPolicy
from ..group.offsets import OffsetSettings
from ..log.registry import SHARED, log_from_url, sqlite_url
from ..protocol import DEFAULT_PORT
from ..transport.access_rules import AccessRules
from ..transport.audit import AuditLog, audit_log
from ..transport.group_access import Authorization, GroupAccess
from ..transport.limits import LOOPBACK, Limits, is_address, is_loopback
from ..transport.quotas import RequestQuotas, quotas_of
from .base import MaybeMilliseconds, Milliseconds, Name, Port, PrincipalQuota, ProgramSettings, ShortText

MAX_FORWARDED_BYTES: Final = 100 << 20
"""Kafka's ``socket.request.max.bytes``: a Produce that a proxy forwards may be large."""

MaybeMembers = Annotated[int | None, Field(ge=1, le=10_000)]

KAFKA_NAMES: Final = {
    "group.consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "group.consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "group.consumer.assignment.interval.ms": "consumer_assignment_interval_ms",
    "group.consumer.assignors": "group_assignors",
    "group.consumer.max.size": "consumer_max_members",
    "group.consumer.migration.policy": "consumer_migration_policy",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "group.min.session.timeout.ms": "min_session_timeout_ms",
    "group.max.session.timeout.ms": "max_session_timeout_ms",
    "group.max.size": "classic_max_members",
    "offsets.retention.minutes": "offsets_retention_minutes",
    "offsets.retention.check.interval.ms": "offsets_retention_check_interval_ms",
    "offset.metadata.max.bytes": "offset_metadata_max_bytes",
}
"""Kafka's names of settings of a broker that a coordinator has, and our names of them."""

_GROUP: Final = GroupSettings()
"""The defaults of the group rules."""


_EVERYWHERE: Final = ("", "0.0.0.0", "::")
"""Hosts that say to listen at all addresses, and name none."""


class CoordinatorConfig(ProgramSettings):
    """Settings of one coordinator.

    Attributes:
        authentication: whether clients must authenticate (SASL). False: any process that reaches the port may do
            everything, which includes running code as the user of the workers.
        credentials: file of the users, ``name=password`` on each line; ``None``: ``credentials`` beside ``data``,
            created with a random password if it does not exist. Without ``data``, a temporary one.
        tls_cert: PEM file with the certificate chain of the server; ``None``: plain text.
        tls_key: PEM file with its private key.
        tls_ca: PEM file with the authorities of client certificates, which are required then (mutual TLS).
        group_users: names of the users that may use a group, by group, or by a beginning of groups and ``*``. A group
            without them is open to every user. The REST API has users of its own.
        access_rules: file of rules that say which principal may read, describe, alter or delete which groups and
            connectors (``transport.access_rules``); what no rule allows is denied. Null: everything is allowed. The
            file is read again when it has changed.
        audit_log: file with a JSON line for each change that a client asks for and each denied request. Null: no file;
            the logger ``connectgroup.audit`` has the lines if it has a level of its own that lets INFO pass.
        requests_per_second_per_principal: quota of each principal; above it, connections are muted for at most a second
            (KIP-219), and REST responds 429. 0: none. Lines ``quota`` of ``access_rules`` take precedence.
        data: the log's file: short for ``log: sqlite:///file``.
        log: the log's URL (``log.registry``). If both are null, all state is in memory, and a restart loses it.
            Coordinators with the same log in PostgreSQL or Kafka share its groups: one serves, the others stand by.
        partitions: over how many partitions of a log in PostgreSQL or Kafka the groups are spread: each has an owner,
            so that several coordinators serve at once. Fixed at the first start of the log, which has 1 by default;
            ``None``: as many as the log has.
        advertised: the ``host:port`` at which clients and the other coordinators of the log are told to reach this
            one; ``host`` and ``port`` if null.
        assignor: ``group.remote.assignor``: used if members list no assignor, and after failures.
        group_assignors: names of the server-side assignors that members may request, beside ``assignor``
            (``group.consumer.assignors``; text: with commas). Each is an entry point for consumer groups, for connect
            groups, or for both. The first one for consumer groups is their default; if there is none, they have
            ``uniform`` and ``range``, as in Kafka.
        scheduled_rebalance_max_delay_ms: how long the units of a lost worker are delayed for it; 0 reassigns them
            immediately. A move costs milliseconds here, so the default is much lower than Connect's 300 s.
        assignment_interval_ms: minimum interval between two computations of a target assignment. With 0, each change
            is computed immediately; a larger value computes a burst of changes (a thousand workers that start
            together) once.
        moves_per_round: maximum number of running units that are moved at a time; 0 moves all at once.
        connection_loss_grace_ms: ``connection.loss.grace.ms``: how long after the loss of a worker's connection the
            coordinator looks whether the worker's process, on the same machine, has ended; if so, it does not wait for
            the session timeout. 0: it does not look.
        topics_from: ``host:port`` of a Kafka broker's PLAINTEXT listener: the topics that consumer groups subscribe to.
            If null, consumers of the new protocol (KIP-848) cannot join.
        consumer_session_timeout_ms: session timeout of consumer groups (``group.consumer.session.timeout.ms``).
        consumer_heartbeat_interval_ms: heartbeat interval of consumer groups
            (``group.consumer.heartbeat.interval.ms``): at most a third of their session timeout.
        consumer_assignment_interval_ms: minimum interval between two computations of the assignment of a consumer group
            (``group.consumer.assignment.interval.ms``): members that join within it are assigned together.
        consumer_migration_policy: which groups of consumers are converted between the classic protocol and KIP-848
            while they have members: ``bidirectional``, ``upgrade``, ``downgrade`` or ``disabled``
            (``group.consumer.migration.policy``).
        initial_rebalance_delay_ms: how long the first rebalance of an empty classic group waits for more members
            (``group.initial.rebalance.delay.ms``).
        min_session_timeout_ms: the lowest session timeout of a member of a classic group
            (``group.min.session.timeout.ms``).
        max_session_timeout_ms: the highest one (``group.max.session.timeout.ms``).
        classic_max_members: maximum number of members of a classic group (``group.max.size``); ``max_members`` if null.
        consumer_max_members: maximum number of members of a consumer group (``group.consumer.max.size``);
            ``max_members`` if null.
        offsets_retention_minutes: how long offsets are kept that no member uses (``offsets.retention.minutes``).
        offsets_retention_check_interval_ms: interval between two searches for them
            (``offsets.retention.check.interval.ms``).
        offset_metadata_max_bytes: limit on the metadata of an offset (``offset.metadata.max.bytes``).
        max_connections: maximum number of open connections. A worker needs two, a command one while it runs: 2,000 are
            enough for 999 workers. Each takes a file descriptor.
        max_connections_per_address: maximum number of connections from one address. All workers of one machine share
            its address: 1,500 are enough for 749 workers.
        max_connections_per_principal: maximum number of connections of one authenticated user.
        max_unauthenticated: maximum number of connections that have not authenticated yet; above it, the oldest of them
            is closed. They do not count as ``max_connections``.
        idle_timeout_s: a connection without a request for this long is closed.
        max_frame_bytes: maximum size of a request to the coordinator. The log takes batches of up to the default.
        max_groups: maximum number of groups, of each partition of the log if there are several.
        max_members: maximum number of members of one group, of any type.
        max_units: maximum number of connectors and tasks of one group.
    """

    host: str = "127.0.0.1"
    port: Port = DEFAULT_PORT
    authentication: bool = True
    credentials: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    group_users: dict[ShortText, tuple[ShortText, ...]] = Field(default_factory=dict)
    access_rules: Path | None = None
    audit_log: Path | None = None
    requests_per_second_per_principal: PrincipalQuota = 0
    data: Path | None = None
    log: str | None = None
    partitions: Annotated[int | None, Field(ge=1, le=64)] = None
    advertised: ShortText | None = None
    session_timeout_ms: Milliseconds = 10_000
    heartbeat_interval_ms: Milliseconds = 3_000
    assignor: Name = "balanced"
    group_assignors: tuple[Name, ...] = ()
    scheduled_rebalance_max_delay_ms: MaybeMilliseconds = 10_000
    assignment_interval_ms: MaybeMilliseconds = 0
    moves_per_round: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    connection_loss_grace_ms: MaybeMilliseconds = _GROUP.connection_loss_grace_ms
    topics_from: ShortText | None = None
    consumer_session_timeout_ms: Milliseconds = 45_000
    consumer_heartbeat_interval_ms: Milliseconds = 5_000
    consumer_assignment_interval_ms: MaybeMilliseconds = 1_000
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    initial_rebalance_delay_ms: MaybeMilliseconds = 3_000
    min_session_timeout_ms: Milliseconds = 6_000
    max_session_timeout_ms: Milliseconds = 1_800_000
    classic_max_members: MaybeMembers = None
    consumer_max_members: MaybeMembers = None
    offsets_retention_minutes: Annotated[int, Field(ge=1, le=2**31 - 1)] = 10_080
    offsets_retention_check_interval_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 600_000
    offset_metadata_max_bytes: Annotated[int, Field(ge=0, le=32_767)] = 4_096
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_connections
    max_connections_per_address: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_connections_per_address
    max_connections_per_principal: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_connections_per_principal
    max_unauthenticated: Annotated[int, Field(ge=1, le=100_000)] = Limits().max_unauthenticated
    idle_timeout_s: Annotated[int, Field(ge=1, le=86_400)] = int(Limits().idle_deadline_s)
    max_frame_bytes: Annotated[int, Field(ge=65_536, le=Limits().max_frame_bytes)] = Limits().max_frame_bytes
    max_groups: Annotated[int, Field(ge=1, le=1_000_000)] = _GROUP.max_groups
    max_members: Annotated[int, Field(ge=1, le=10_000)] = _GROUP.max_members
    max_units: Annotated[int, Field(ge=1, le=200_000)] = _GROUP.max_units

    @field_validator("group_assignors", mode="before")
    @classmethod
    def _with_commas(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits_together(self) -> CoordinatorConfig:
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise ConfigError(
                "heartbeat_interval_ms",
                self.heartbeat_interval_ms,
                f"at most a third of session_timeout_ms ({self.session_timeout_ms})",
            )
        if self.consumer_heartbeat_interval_ms * 3 > self.consumer_session_timeout_ms:
            raise ConfigError(
                "consumer_heartbeat_interval_ms",
                self.consumer_heartbeat_interval_ms,
                f"at most a third of consumer_session_timeout_ms ({self.consumer_session_timeout_ms})",
            )
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ConfigError(
                "min_session_timeout_ms",
                self.min_session_timeout_ms,
                f"at most max_session_timeout_ms ({self.max_session_timeout_ms})",
            )
        if self.topics_from is not None:
            parse_address("topics_from", self.topics_from)
        if self.advertised is not None:
            if parse_address("advertised", self.advertised)[0] in _EVERYWHERE:
                raise ConfigError(
                    "advertised", self.advertised, "host:port that other machines reach, not all addresses"
                )
        elif self._listens_everywhere and self.log_url.partition(":")[0] in SHARED:
            allowed = f"host:port at which clients and the other coordinators reach this one; not {self.host or 'all'}"
            raise ConfigError("advertised", NO_VALUE, allowed)
        if self.log is not None and self.data is not None:
            raise ConfigError("log", self.log, "a URL without data, or data without a URL")
        log_from_url(self.log_url)
        if (self.partitions or 1) > 1 and self.log_url.partition(":")[0] not in SHARED:
            allowed = (
                "1 for a log that one process owns; several in a log that coordinators share: postgresql://, kafka://"
            )
            raise ConfigError("partitions", self.partitions, allowed)
        if self.credentials is not None and not self.authentication:
            allowed = "credentials, or no authentication; not both"
            raise ConfigError("credentials", self.credentials, allowed, is_path=True)
        if self.group_users and not self.authentication:
            raise ConfigError("group_users", ", ".join(self.group_users), "no group without authentication")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(missing, NO_VALUE, "tls_cert and tls_key together")
        if self.tls_ca is not None and self.tls_cert is None:
            raise ConfigError("tls_cert", NO_VALUE, "the server's certificate, with tls_ca for those of its clients")
        # The addresses that a name resolves to are checked when the port is opened.
        reachable = not self.host or (is_address(self.host) and not is_loopback(self.host))
        if reachable and not self.may_be_reachable:
            raise ConfigError("host", self.host, f"{LOOPBACK}; any other requires tls_cert, tls_key and authentication")
        return self

    @property
    def _listens_everywhere(self) -> bool:
        """Whether ``host`` says no address at which others reach this process, and no other setting does."""
        return self.host in _EVERYWHERE

    @property
    def may_be_reachable(self) -> bool:
        """Whether the address may be one that other machines reach: with TLS, and users or client certificates."""
        return self.tls_cert is not None and (self.authentication or self.tls_ca is not None)

    @property
    def authenticates(self) -> bool:
        """Whether clients must authenticate to this server."""
        return self.authentication

    @property
    def log_url(self) -> str:
        """The URL of the log."""
        if self.data is not None:
            return sqlite_url(self.data)
        return self.log or "memory:"

    def access(self, *, source: str = "coordinator") -> tuple[Authorization, RequestQuotas, AuditLog | None]:
        """Read the rules of access, and open the audit log.

        Args:
            source: the server, as lines of the audit log and metrics of principals name it.

        Raises:
            ConfigError: a file cannot be used.
        """
        rules = AccessRules(self.access_rules) if self.access_rules is not None else None
        access = Authorization(GroupAccess(self.group_users), rules)
        quotas = quotas_of(rules, self.requests_per_second_per_principal, server=source)
        return access, quotas, audit_log(self.audit_log, source=source)

    def limits(self) -> Limits:
        """Return the limits for the peers of the server."""
        return Limits(
            max_connections=self.max_connections,
            max_connections_per_address=self.max_connections_per_address,
            max_connections_per_principal=self.max_connections_per_principal,
            max_unauthenticated=self.max_unauthenticated,
            idle_deadline_s=self.idle_timeout_s,
            max_frame_bytes=self.max_frame_bytes,
        )

    def consumer_settings(self) -> ConsumerSettings:
        """Return the settings of consumer groups."""
        return ConsumerSettings(
            session_timeout_ms=self.consumer_session_timeout_ms,
            heartbeat_interval_ms=self.consumer_heartbeat_interval_ms,
            assignment_interval_ms=self.consumer_assignment_interval_ms,
            max_members=self.consumer_max_members or self.max_members,
            migration_policy=self.consumer_migration_policy,
            offsets=self.offset_settings(),
        )

    def classic_settings(self) -> ClassicSettings:
        """Return the settings of classic groups."""
        return ClassicSettings(
            initial_rebalance_delay_ms=self.initial_rebalance_delay_ms,
            min_session_timeout_ms=self.min_session_timeout_ms,
            max_session_timeout_ms=self.max_session_timeout_ms,
            max_members=self.classic_max_members or self.max_members,
            offsets=self.offset_settings(),
        )

    def offset_settings(self) -> OffsetSettings:
        """Return the settings of committed offsets."""
        return OffsetSettings(
            retention_ms=self.offsets_retention_minutes * 60_000,
            check_interval_ms=self.offsets_retention_check_interval_ms,
            max_metadata=self.offset_metadata_max_bytes,
        )

    def group_settings(self, server_assignors: Mapping[str, ServerAssignorCall]) -> GroupSettings:
        """Return the settings of the group rules."""
        return GroupSettings(
            session_timeout_ms=self.session_timeout_ms,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            server_assignor=self.assignor,
            server_assignors=server_assignors,
            scheduled_delay_ms=self.scheduled_rebalance_max_delay_ms,
            assignment_interval_ms=self.assignment_interval_ms,
            max_moves=self.moves_per_round,
            connection_loss_grace_ms=self.connection_loss_grace_ms,
            max_groups=self.max_groups,
            max_members=self.max_members,
            max_units=self.max_units,
        )


# --------------------------------------------------------------------------------------------------
# Settings of a proxy in front of a Kafka broker.


class ProxyConfig(CoordinatorConfig):
    """Settings of one proxy; those of its coordinator included.

    Attributes:
        credentials: file of the users, ``name=password`` on each line; ``None``: the proxy does not authenticate its
            clients, and forwards SASL to the broker.
        broker: ``host:port`` of a broker of the cluster; several with commas: the first that can be reached lists the
            others.
        broker_config: properties file with librdkafka's settings of TLS and SASL to the brokers: ``security.protocol``,
            ``ssl.ca.location``, ``sasl.mechanism``, ``sasl.username``, ``sasl.password`` and the like
            (``consumer.security``). Null: their PLAINTEXT listeners.
        advertised_host: the host that clients are sent to; ``host`` if null.
        advertised_port: the port that clients are sent to; ``port`` if null. Those of the brokers of a cluster are the
            next ones.
    """

    broker: ShortText
    broker_config: Path | None = None
    advertised_host: ShortText | None = None
    advertised_port: Port | None = None

    @model_validator(mode="after")
    def _has_a_broker(self) -> ProxyConfig:
        if self.advertised is not None:
            raise ConfigError("advertised", self.advertised, "advertised_host and advertised_port")
        if self.advertised_host in _EVERYWHERE:
            raise ConfigError("advertised_host", self.advertised_host, "a host that other machines reach")
        if self.partitions not in (None, 1):
            raise ConfigError("partitions", self.partitions, "1 for the log of a proxy")
        if self.group_users and self.credentials is None:
            raise ConfigError("group_users", ", ".join(self.group_users), "no group without credentials")
        for each in self.broker.split(","):
            parse_address("broker", each.strip())
        return self

    @property
    def authenticates(self) -> bool:
        """Whether the proxy authenticates its clients itself."""
        return self.credentials is not None

    @property
    def _listens_everywhere(self) -> bool:
        return super()._listens_everywhere and self.advertised_host is None

    @property
    def may_be_reachable(self) -> bool:
        """With TLS, and users or client certificates of the proxy."""
        return self.tls_cert is not None and (self.authenticates or self.tls_ca is not None)

    def limits(self) -> Limits:
        """Those of a coordinator, but a request to a broker may be as large as a broker allows."""
        return replace(super().limits(), max_frame_bytes=MAX_FORWARDED_BYTES)

    @property
    def broker_addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each configured broker."""
        return tuple(parse_address("broker", each.strip()) for each in self.broker.split(","))
