"""``connectgroup connectors``: list, change and delete connectors."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..errors import ConnectGroupError, PluginError, from_code
from ..protocol.messages.common import config_of, entries
from ..protocol.messages.connectors import (
    ChangedConnector,
    ConnectorChange,
    UpdateConnectorsRequest,
    UpdateConnectorsResponse,
)
from ..protocol.records.connect import TargetState

if TYPE_CHECKING:
    pass
from .requests import describe_group, send_request

STATES = {"resume": TargetState.RUNNING, "pause": TargetState.PAUSED, "stop": TargetState.STOPPED}


async def list_connectors(options: argparse.Namespace) -> int:
    for group in await describe_group(options, (options.group,)):
        for connector in group.connectors:
            print(json.dumps({"name": connector.connector, "config": config_of(connector.config)}, indent=2))
    return 0


async def put_connectors(options: argparse.Namespace) -> int:
    from ..assign.placement import own_settings
    from ..config.connector_file import read_connector
    from ..masking import without_secrets
    from ..plugins import load_connector_class
    from ..worker.runner import one_line

    connector = read_connector(options.file)
    # Validate here, so that the operator sees the error, and not only in the log of the worker that would own it.
    cls = load_connector_class(connector.config["connector.class"])
    try:
        cls(connector.name, own_settings(connector.config))
    except Exception as error:
        if isinstance(error, ConnectGroupError) and without_secrets(str(error), connector.config) == str(error):
            raise
        raise PluginError(f"connector class {cls.__name__}: {one_line(error, connector.config)}") from error
    return await _change(options, ConnectorChange(connector=connector.name, config=entries(connector.config)))


async def delete_connectors(options: argparse.Namespace) -> int:
    return await _change(options, ConnectorChange(connector=options.name, delete=True))


async def set_target_state(options: argparse.Namespace) -> int:
    return await _change(options, ConnectorChange(connector=options.name, target_state=STATES[options.action]))


async def _change(options: argparse.Namespace, change: ConnectorChange) -> int:
    response = await send_request(options, UpdateConnectorsRequest(group_id=options.group, changes=(change,)))
    assert isinstance(response, UpdateConnectorsResponse)
    if response.error_code:
        raise from_code(response.error_code, response.error_message)
    changed: ChangedConnector = response.results[0]
    print(f"connector {changed.connector}: " + (f"version {changed.version}" if changed.version else "removed"))
    return 0
