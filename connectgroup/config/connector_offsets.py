"""Offsets and access of a connector, by its class (KIP-875). The functions block: call them off the loop.

The class is loaded by entry point and created with the connector's configuration, as on a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ..assign.placement import own_settings
from ..checks import json_kind
from ..connector import Config, Connector, PartitionOffset
from ..errors import ConfigError, ConnectGroupError, InvalidRequest
from ..masking import without_secrets
from ..plugins import load_connector_class
from ..protocol.units import printable
from .connector_check import masked_errors
from .paths import AllowedPaths, check_paths
from .secrets import NO_SECRETS, Secrets

T = TypeVar("T")

MAX_PARTITIONS: Final = 10_000
"""Partitions in one change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """What a connector class may read in the process of an operator's tool.

    Attributes:
        secrets: the secrets that the configuration may refer to.
        paths: the files that the class may open; ``None`` for any.
    """

    secrets: Secrets = NO_SECRETS
    paths: AllowedPaths = None


def read_offsets(name: str, config: Mapping[str, str], permissions: Permissions) -> list[PartitionOffset]:
    """Return the committed offsets of a connector.

    Args:
        name: the connector's name.
        config: its configuration, with credentials.

    Raises:
        ConnectGroupError: the offsets cannot be read; the message contains no credential.
    """
    cls = load_connector_class(config.get("connector.class", ""))
    return list(_called(cls, name, config, permissions, lambda connector: connector.offsets()))


def alter_offsets(
    name: str,
    config: Mapping[str, str],
    fencing_token: int,
    changes: Sequence[PartitionOffset] | None,
    permissions: Permissions,
) -> bool:
    """Change the committed offsets of a connector, all or none; ``None`` resets them. See ``Connector.alter_offsets``.

    Returns:
        False if the system that the connector uses may have further offsets, which were not changed.

    Raises:
        ConnectGroupError: the offsets were not changed; the message contains no credential.
    """
    cls = load_connector_class(config.get("connector.class", ""))
    done = _called(cls, name, config, permissions, lambda connector: connector.alter_offsets(fencing_token, changes))
    return done is not False


def access_errors(
    connector: Connector, name: str, config: Mapping[str, str], max_tasks: int, permissions: Permissions
) -> dict[str, str]:
    """Return the errors of ``Connector.check_access``, by setting; they contain no credential.

    Args:
        connector: what the configuration makes. Another one is created if it refers to secrets or links.

    Raises:
        ConfigError: this process may not resolve a reference to a secret, or use a path.
        ConnectGroupError: the class failed.
    """
    resolved: list[Config] = []

    def check(connector: Connector) -> Mapping[str, ConnectGroupError]:
        resolved.append(connector.config)
        return connector.check_access(max_tasks)

    found = _called(type(connector), name, config, permissions, check, connector)
    return {key: without_secrets(str(error), config, *resolved) for key, error in found.items()}


def _called(
    cls: type[Connector],
    name: str,
    config: Mapping[str, str],
    permissions: Permissions,
    method: Callable[[Connector], T],
    created: Connector | None = None,
) -> T:
    """Call a method of a connector whose configuration is resolved: ``created``, if it has that one."""
    found: dict[str, str] = {}
    with masked_errors(cls, config, found):
        resolved = permissions.secrets.resolve(config, found)
        own = own_settings(check_paths(cls, resolved, permissions.paths))
        return method(created if created is not None and created.config == own else cls(name, own))


def offsets_as_json(offsets: Sequence[PartitionOffset]) -> dict[str, Any]:
    """Return Kafka Connect's body: ``{"offsets": [{"partition": {}, "offset": {}}]}``."""
    return {"offsets": [{"partition": dict(each.partition), "offset": each.offset} for each in offsets]}


def changes_from(body: Any) -> list[PartitionOffset]:
    """Return the changes in a body of that form; a null offset forgets the partition.

    Raises:
        InvalidRequest: the body names no partition.
        ConfigError: the body has another form.
    """
    if not isinstance(body, dict):
        raise ConfigError("body", json_kind(body), 'an object: {"offsets": [...]}')
    unknown = sorted(body.keys() - {"offsets"})
    if unknown:
        raise ConfigError("body", printable(unknown[0]), "offsets")
    listed = body.get("offsets")
    if listed is None or listed == []:
        raise InvalidRequest("Partitions / offsets need to be provided for an alter offsets request")
    if not isinstance(listed, list) or len(listed) > MAX_PARTITIONS:
        got = f"{len(listed)} partitions" if isinstance(listed, list) else json_kind(listed)
        raise ConfigError("offsets", got, f"a list of at most {MAX_PARTITIONS} partitions")
    return [_change(f"offsets[{number}]", entry) for number, entry in enumerate(listed)]


def _change(where: str, entry: Any) -> PartitionOffset:
    fields = {"partition", "offset"}
    if not isinstance(entry, dict) or entry.keys() != fields:
        got = ", ".join(map(printable, sorted(entry))) if isinstance(entry, dict) else json_kind(entry)
        raise ConfigError(where, got or "an empty object", 'an object: {"partition": {...}, "offset": {...}}')
    partition, offset = entry["partition"], entry["offset"]
    if not isinstance(partition, dict) or not partition:
        raise ConfigError(f"{where}.partition", json_kind(partition), "an object that names a partition")
    if offset is not None and (not isinstance(offset, dict) or not offset):
        raise ConfigError(f"{where}.offset", json_kind(offset), "an object with a position, or null")
    return PartitionOffset(partition=partition, offset=offset)
