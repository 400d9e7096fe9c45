"""``--wait``: waits until a connector and its tasks are in the wanted state, with progress on standard error."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from ..client.admin import POLL_S, POLLS_WITHOUT_TASKS, Admin
from ..errors import ConnectorNotFound
from ..protocol.messages.common import each_unit
from ..protocol.messages.describe import DescribedConnector, DescribedGroup, DescribedUnit
from ..protocol.units import CONNECTOR, Unit, counted
from .errors import NotReached
from .render import print_line


def report_progress(options: argparse.Namespace, line: str) -> None:
    """Print a line while a command waits; not with ``--json``: standard error then has at most one error, as JSON."""
    if not options.json:
        print_line(line, is_error=True, flush=True)


async def wait_for(
    admin: Admin,
    options: argparse.Namespace,
    name: str,
    *,
    version: int = 0,
    state: str | None = None,
    later_than: Mapping[int, int] | None = None,
) -> None:
    """Wait until a connector is in a state, if ``--wait`` was given.

    Args:
        version: the version of the change: a target assignment of this group epoch or a later one is waited for.
        state: RUNNING: the connector and its tasks run; PAUSED: no task has an owner; STOPPED: no unit has one. By
            default the connector's target state, which a change of its configuration leaves as it is.
        later_than: owner epoch by task: these units are waited for at a later owner epoch.

    Raises:
        NotReached: the state was not reached within ``--timeout``, or a unit has failed.
        ConnectorNotFound: the connector was deleted meanwhile.
    """
    if not options.wait:
        return
    loop = asyncio.get_running_loop()
    give_up_at, last, without_tasks = loop.time() + options.timeout, "", 0
    while True:
        group = await admin.describe(options.group, connectors=(name,), connectors_only=True)
        if not group.connectors:
            raise ConnectorNotFound(f"connector {name}: was deleted")
        (connector,) = group.connectors
        wanted = state or connector.target_state
        line = _progress(connector, wanted)
        if line != last:
            report_progress(options, f"connector {name}: {line}")
            last = line
        if _reached(group, connector, version, wanted, later_than or {}):
            without_tasks += 1
            has_tasks = any(unit.task != CONNECTOR for unit in connector.units)
            has_no_tasks = without_tasks >= POLLS_WITHOUT_TASKS or loop.time() >= give_up_at
            if wanted != "RUNNING" or has_tasks or has_no_tasks:
                return
        else:
            without_tasks = 0
        failed = [unit for unit in connector.units if unit.state == "FAILED"] if wanted == "RUNNING" else []
        current = [unit for unit in failed if unit.owner_epoch > (later_than or {}).get(unit.task, -1)]
        if current and group.assignment_epoch >= version:
            unit = current[0]
            raise NotReached(f"{Unit(name, unit.task)} failed: {unit.message}")
        if loop.time() >= give_up_at:
            explain = f"connectgroup groups explain {options.group} --task {name}"
            raise NotReached(f"connector {name}: not {wanted} within {options.timeout} s; see {explain}")
        await asyncio.sleep(POLL_S)


async def started(admin: Admin, group_id: str, name: str, version: int, timeout_s: float) -> DescribedUnit | None:
    """The unit of a connector itself once it runs or has failed with this version; ``None`` if not within the time.

    Does not wait for a connector that is stopped, nor for a group without workers.
    """
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    while True:
        group = await admin.describe(group_id, connectors=(name,), connectors_only=True)
        starting = [each for each in group.connectors if each.target_state != "STOPPED" and group.state != "Empty"]
        if not starting:
            return None
        unit = starting[0].units[0]
        # Until the worker has stopped it, the unit is described as it was before the change.
        current = group.assignment_epoch >= version and (unit.owner_epoch >= version or group.state == "Stable")
        if current and unit.state in ("RUNNING", "FAILED"):
            return unit
        if loop.time() >= give_up_at:
            return None
        await asyncio.sleep(POLL_S)


async def wait_until_ended(admin: Admin, options: argparse.Namespace, name: str) -> None:
    """Wait until no worker runs a unit of a deleted connector, if ``--wait`` was given.

    Raises:
        NotReached: some run on at the end of ``--timeout``.
    """
    if not options.wait:
        return
    loop = asyncio.get_running_loop()
    give_up_at, last = loop.time() + options.timeout, 0
    while True:
        group = await admin.describe(options.group, connectors=())
        held = [unit for each in group.members for unit in each_unit((*each.assigned, *each.pending_revocation))]
        left = len({unit for unit in held if unit.connector == name})
        if not left:
            return
        if left != last:
            report_progress(options, f"connector {name}: {counted(left, 'unit')} to stop")
            last = left
        if loop.time() >= give_up_at:
            have = f"{counted(left, 'unit')} {'has' if left == 1 else 'have'}"
            raise NotReached(f"connector {name}: {have} not stopped within {options.timeout} s")
        await asyncio.sleep(POLL_S)


def _progress(connector: DescribedConnector, state: str) -> str:
    """How many units are in the wanted state; the connector itself keeps running when its tasks are paused."""
    if state == "RUNNING":
        return f"{sum(unit.state == state for unit in connector.units)} of {len(connector.units)} RUNNING"
    units = [unit for unit in connector.units if state != "PAUSED" or unit.task != CONNECTOR]
    noun = "tasks " if state == "PAUSED" else ""
    return f"{sum(not unit.member_id for unit in units)} of {len(units)} {noun}{state}"


def _reached(
    group: DescribedGroup, connector: DescribedConnector, version: int, state: str, later_than: Mapping[int, int]
) -> bool:
    if state == "STOPPED":
        return not any(unit.member_id for unit in connector.units)
    if state == "PAUSED":
        return not any(unit.member_id for unit in connector.units if unit.task != CONNECTOR)
    epochs = {unit.task: unit.owner_epoch for unit in connector.units}
    return (
        group.assignment_epoch >= version
        and group.state == "Stable"
        and all(unit.state == "RUNNING" for unit in connector.units)
        and all(epochs.get(task, -1) > epoch for task, epoch in later_than.items())
    )
