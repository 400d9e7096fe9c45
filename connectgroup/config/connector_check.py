"""Validates a connector's configuration with its class, before the configuration is written.

The class is loaded by entry point only (``plugins``), and created; a connector opens nothing when it is created.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..assign.placement import check_settings, own_settings
from ..errors import ConfigError, ConnectGroupError, PluginError
from ..masking import without_secrets
from ..plugins import load_connector_class
from ..protocol.units import printable

MAX_TEXT = 10_000
"""Characters of a plug-in's error message that are processed; its first line is shown, truncated to 400."""


def check_connector(name: str, config: Mapping[str, str]) -> None:
    """Reject an invalid configuration.

    Raises:
        ConfigError: names the setting, the value and the allowed values.
        PluginError: the class cannot be loaded, or rejects the configuration with an error of its own.
    """
    check_settings(name, config)
    cls = load_connector_class(config.get("connector.class", ""))
    try:
        cls(name, own_settings(config))
    except Exception as error:
        masked = without_secrets(str(error)[:MAX_TEXT].strip(), config)
        if isinstance(error, ConnectGroupError) and masked == str(error):
            raise
        text = printable(masked.split("\n")[0], limit=400)
        kind = "" if isinstance(error, ConfigError) else f" ({type(error).__name__})"
        raise PluginError(f"connector class {cls.__name__}: {text}{kind}") from error
