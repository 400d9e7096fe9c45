"""``connectgroup connectors``: list, change, restart and delete connectors."""

from __future__ import annotations

import argparse
import json

from ..protocol.messages.common import config_of
from ..protocol.records.connect import TargetState
from ..protocol.units import Unit
from .requests import connected

STATES = {"resume": TargetState.RUNNING, "pause": TargetState.PAUSED, "stop": TargetState.STOPPED}


async def list_connectors(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        for connector in (await admin.describe(options.group)).connectors:
            print(json.dumps({"name": connector.connector, "config": config_of(connector.config)}, indent=2))
    return 0


async def put_connectors(options: argparse.Namespace) -> int:
    from ..config.connector_check import check_connector
    from ..config.connector_file import read_connector

    connector = read_connector(options.file)
    # Checked here, so that the operator sees the error, and not only in the log of the worker that would own it.
    check_connector(connector.name, connector.config)
    async with connected(options) as admin:
        result = await admin.put_connector(options.group, connector.name, connector.config)
    print(f"connector {connector.name}: version {result.version}")
    return 0


async def delete_connectors(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        await admin.delete_connector(options.group, options.name)
    print(f"connector {options.name}: deleted")
    return 0


async def set_target_state(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        version = await admin.set_state(options.group, options.name, STATES[options.action])
    print(f"connector {options.name}: version {version}")
    return 0


async def restart_connector(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        if options.task is not None:
            restarted = await admin.restart_task(options.group, options.name, options.task)
        else:
            restarted = await admin.restart_connector(
                options.group, options.name, include_tasks=options.include_tasks, only_failed=options.only_failed
            )
    units = ", ".join(str(Unit(options.name, task)) for task in restarted)
    print(f"connector {options.name}: restarting {units or 'nothing: no matching connector or task is assigned'}")
    return 0


async def connector_offsets(options: argparse.Namespace) -> int:
    """Print the offsets as JSON, or change them; ``--alter`` reads what a listing prints."""
    from ..client import offsets
    from ..config.connector_file import read_json
    from ..config.connector_offsets import changes_from, offsets_as_json

    async with connected(options) as admin:
        if options.reset:
            await offsets.alter(admin, options.group, options.name, None)
            print(f"connector {options.name}: offsets reset")
        elif options.alter is not None:
            changes = changes_from(read_json(options.alter))
            await offsets.alter(admin, options.group, options.name, changes)
            print(f"connector {options.name}: offsets of {len(changes)} partitions altered")
        else:
            found = await offsets.offsets(admin, options.group, options.name)
            print(json.dumps(offsets_as_json(found), indent=2))
    return 0
