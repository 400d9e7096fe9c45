"""Validates a connector's configuration with its class, before the configuration is written.

The class is loaded by entry point only (``plugins``), and created; a connector opens nothing when it is created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..assign.placement import check_settings, own_settings
from ..connector import Connector
from ..errors import ConnectGroupError, PluginError, one_line
from ..masking import without_secrets
from ..plugins import load_connector_class
from .paths import AllowedPaths, check_paths
from .secrets import Secrets, check_references, without_references


def check_connector(
    name: str, config: Mapping[str, str], allowed_paths: AllowedPaths = None, secrets: Secrets | None = None
) -> Connector:
    """Reject an invalid configuration; return the connector that it makes.

    Args:
        allowed_paths: the paths that connectors may use; ``None`` if they are not known here: each worker checks them.
        secrets: the secrets that connectors may refer to; ``None`` if they are not known here: each worker checks them.

    Raises:
        ConfigError: names the setting, the value and the allowed values.
        PluginError: the class cannot be loaded, or rejects the configuration with an error of its own.
    """
    check_settings(name, config)
    return create_checked(load_connector_class(config.get("connector.class", "")), name, config, allowed_paths, secrets)


def create_checked(
    cls: type[Connector], name: str, config: Mapping[str, str], allowed_paths: AllowedPaths, secrets: Secrets | None
) -> Connector:
    """Create the connector of a class; the rest of ``check_connector``. Raises the same errors."""
    check_references(config)
    if secrets is not None:
        secrets.check_allowed(config)
    with masked_errors(cls, config):
        connector = cls(name, own_settings(config))
    check_paths(cls, without_references(config), allowed_paths)
    return connector


@contextmanager
def masked_errors(cls: type[Connector], *configs: Mapping[str, str]) -> Iterator[None]:
    """Run code of a connector class; no error contains a credential of the configurations.

    Raises:
        ConnectGroupError: the error of the class itself, if it contains none.
        PluginError: any other error, as one line.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ConnectGroupError) and without_secrets(str(error), *configs) == str(error):
            raise
        raise PluginError(f"connector class {cls.__name__}: {one_line(error, *configs)}") from error
