"""``connectgroup workers``: list, restart and drain workers."""

from __future__ import annotations

import argparse
import asyncio

from ..client.admin import POLL_S, find_member, restart_error, runs_all
from ..errors import TimedOut
from ..protocol.messages.common import each_unit
from ..protocol.units import counted
from ..rest.views import group_description
from .errors import NotReached
from .render import print_json, print_table
from .requests import connected
from .status import worker_times
from .waiting import report_progress


async def list_workers(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        group = await admin.describe(options.group, connectors=())
    if options.json:
        print_json(group_description(group)["workers"])
        return 0
    print_table(
        ("NAME", "STATE", "EPOCH", "UNITS", "UPTIME", "MEMORY", "HOST", "ADDRESS"),
        [
            (
                member.member_id,
                member.state,
                member.member_epoch,
                sum(1 for _ in each_unit(member.assigned)),
                *worker_times(member.started_ms, member.memory_bytes),
                member.host,
                member.client_host,
            )
            for member in group.members
        ],
    )
    return 0


async def restart_worker(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        requested = await admin.restart_worker(options.group, options.name)
        if options.no_wait:
            _report(options, f"restart {'' if requested else 'already '}requested")
            return 0
        try:
            group = await admin.wait_until(
                options.group,
                lambda group: bool(restart_error(group, options.name)) or runs_all(group, options.name),
                what=f"running all tasks of worker {options.name}",
                timeout_s=options.timeout,
            )
        except TimedOut as error:
            raise NotReached(f"worker {options.name}: not back within {options.timeout} s") from error
        if reason := restart_error(group, options.name):
            raise NotReached(f"worker {options.name}: not restarted, it goes on: {reason}")
    _report(options, "restarted")
    return 0


async def drain_worker(options: argparse.Namespace) -> int:
    """Request the drain and wait until the worker has left; its remaining units are printed as they move."""
    loop = asyncio.get_running_loop()
    async with connected(options) as admin:
        requested = await admin.drain_worker(options.group, options.name)
        if options.no_wait:
            _report(options, f"drain {'' if requested else 'already '}requested")
            return 0
        give_up_at, last = loop.time() + options.timeout, -1
        while True:
            group = await admin.describe(options.group, connectors=())
            member = find_member(group, options.name)
            if member is None:
                break
            left = sum(1 for _ in each_unit(member.assigned))
            if left != last:
                report_progress(options, f"worker {options.name}: {counted(left, 'unit')} to move")
                last = left
            if loop.time() >= give_up_at:
                others = "" if len(group.members) > 1 else "; there is no other worker that can run them"
                text = f"worker {options.name}: not drained within {options.timeout} s"
                raise NotReached(f"{text}: it still has {counted(left, 'unit')}{others}")
            await asyncio.sleep(POLL_S)
    _report(options, "drained")
    return 0


def _report(options: argparse.Namespace, result: str) -> None:
    """Print the result of a request, as one line or as JSON."""
    if options.json:
        print_json({"name": options.name, "result": result})
    else:
        print(f"worker {options.name}: {result}")
