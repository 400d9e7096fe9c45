"""``connectgroup groups`` and ``connectgroup workers``: describe, explain and delete groups; restart workers."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import TYPE_CHECKING

from ..errors import from_code
from ..protocol.messages.common import RestartRequest, RestartResponse, each_unit
from ..protocol.messages.describe import (
    DeleteRequest,
    DeleteResponse,
    DescribedGroup,
    DescribedMember,
)
from ..protocol.units import Unit, show

if TYPE_CHECKING:
    pass
from .requests import describe_group, send_request


async def list_groups(options: argparse.Namespace) -> int:
    for group in await describe_group(options, ()):
        print(f"{group.group_id:<30} {group.state:<12} epoch {group.group_epoch:<6} {len(group.members)} workers")
    return 0


async def describe_groups(options: argparse.Namespace) -> int:
    for group in await describe_group(options, (options.group,)):
        print(f"group {group.group_id}: {group.state}, epoch {group.group_epoch}, target {group.assignment_epoch}")
        print(f"assignor: {group.assignor_name or 'none yet'}", end="")
        print(f", being computed by {group.computing_member}" if group.computing_member else "")
        if group.assignor_error:
            print(f"last assignor error: {group.assignor_error}")
        for member in group.members:
            print(f"worker {member.member_id} ({member.client_host}): {member.state}, epoch {member.member_epoch}")
            print(f"  {_about(member)}")
            print(f"  runs {show(each_unit(member.assigned), most=20)}")
            if member.pending_revocation:
                print(f"  is stopping {show(each_unit(member.pending_revocation), most=20)}")
        for waiting in group.delayed:
            who = f"worker {waiting.instance_id or waiting.member_id}" if waiting.member_id else "the assignor"
            print(f"waiting {waiting.left_ms / 1000:.1f} s more for {who}: {show(each_unit(waiting.units), most=20)}")
        for connector in group.connectors:
            print(f"connector {connector.connector}: {connector.target_state}, version {connector.version}")
            for unit in connector.units:
                where = f"on {unit.member_id} since epoch {unit.owner_epoch}" if unit.member_id else ""
                print(f"  {Unit(connector.connector, unit.task)}: {unit.state} {where}".rstrip())
                if unit.message:
                    print(f"    {unit.message}")
    return 0


def _about(member: DescribedMember) -> str:
    """Format the properties with which a member joined: client id, epoch, and its properties for assignors."""
    labels = ",".join(f"{label.name}={label.value}" for label in member.labels)
    given = {
        "client id": member.client_id,
        "joined at epoch": member.joined_epoch,
        "capacity": member.capacity,
        "labels": labels,
        "rack": member.rack,
        "host": member.host,
    }
    return ", ".join(f"{name} {value}" for name, value in given.items() if value) or "nothing known of how it joined"


async def delete_groups(options: argparse.Namespace) -> int:
    response = await send_request(options, DeleteRequest(group_ids=(options.group,)))
    assert isinstance(response, DeleteResponse)
    for result in response.results:
        if result.error_code:
            raise from_code(result.error_code, result.error_message)
        print(f"group {result.group_id}: deleted")
    return 0


async def explain_groups(options: argparse.Namespace) -> int:
    from ..supervisor import explain

    for group in await describe_group(options, (options.group,)):
        for rebalance in group.rebalances[-options.last :]:
            print(explain(rebalance))
            for move in rebalance.moves if options.moves else ():
                unit = Unit(move.connector, move.task)
                if move.source == move.target:
                    print(f"  {unit}: started again on {move.target}, downtime {move.downtime_ms} ms")
                    continue
                stood = f"stood still {move.downtime_ms} ms" if move.source else "started"
                print(f"  {unit}: {move.source or 'nowhere'} -> {move.target}, {stood}")
    return 0


async def restart_worker(options: argparse.Namespace) -> int:
    response = await send_request(options, RestartRequest(group_id=options.group, member_id=options.name))
    assert isinstance(response, RestartResponse)
    if response.error_code:
        raise from_code(response.error_code, response.error_message)
    if options.no_wait:
        already = "already " if response.already_requested else ""
        print(f"worker {options.name}: restart {already}requested")
        return 0
    give_up_at = time.monotonic() + options.timeout
    while time.monotonic() < give_up_at:
        [group] = await describe_group(options, (options.group,))
        if _is_back(group, options.name):
            print(f"worker {options.name}: restarted")
            return 0
        await asyncio.sleep(0.2)
    print(f"connectgroup: worker {options.name}: not back within {options.timeout} s", file=sys.stderr)
    return 1


def _is_back(group: DescribedGroup, name: str) -> bool:
    """Whether a worker has restarted and runs all units of its latest target assignment, none of them starting."""
    member = next((member for member in group.members if member.member_id == name), None)
    if member is None or member.state in ("RESTARTING", "AWAY") or group.state == "Assigning":
        return False
    starting = any(
        unit.state == "STARTING" for connector in group.connectors for unit in connector.units if unit.member_id == name
    )
    return member.assigned == member.target and not starting
