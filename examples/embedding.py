"""A worker group embedded in a program: two workers run four units; one worker leaves, the other takes over its units.

python examples/embedding.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from connectgroup import (
    Admin,
    Coordinator,
    Grant,
    GroupSettings,
    LocalClient,
    MemberSettings,
    MemoryLog,
    Unit,
    Worker,
    load_assignor,
)


class Printer:
    """The runner of the units; here it only prints. A worker requires nothing but ``start`` and ``stop``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: dict[Unit, int] = {}
        self.publish = asyncio.Event()

    async def start(self, grants: Sequence[Grant]) -> None:
        """Start these units."""
        self.running |= {grant.unit: grant.owner_epoch for grant in grants}
        print(f"{self.name} runs {', '.join(sorted(map(str, self.running)))}")
        if any(grant.unit.is_connector for grant in grants):
            self.publish.set()

    async def stop(self, units: frozenset[Unit]) -> None:
        """Stop these units; when this returns, none of them runs."""
        for unit in units:
            self.running.pop(unit, None)
        print(f"{self.name} stopped {', '.join(sorted(map(str, units)))}")


def running(coordinator: Coordinator, printer: Printer) -> AbstractAsyncContextManager[Worker]:
    """A worker for the time of an ``async with`` block: the end of the block, also by an exception, stops it."""
    return Worker.running(
        MemberSettings(group_id="mine", member_id=printer.name),
        lambda: LocalClient(coordinator),
        assignors=[load_assignor("balanced")],
        runner=printer,
    )


async def publish_tasks(workers: dict[Printer, Worker]) -> None:
    """The worker that owns the connector publishes its task configurations."""
    owners = {asyncio.create_task(printer.publish.wait()): printer for printer in workers}
    done, waiting = await asyncio.wait(owners, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    owner = owners[done.pop()]
    await workers[owner].publish_tasks("letters", owner.running[Unit("letters")], [{}] * 3)


async def main() -> None:
    """One coordinator, two workers, one connector with three tasks."""
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    await coordinator.start()
    try:
        admin = Admin.local(coordinator)
        await admin.add_connector("mine", "letters", {})
        ann, bob = Printer("ann"), Printer("bob")
        async with running(coordinator, bob) as bobs_worker:
            async with running(coordinator, ann) as anns_worker:
                await publish_tasks({ann: anns_worker, bob: bobs_worker})
                await admin.wait_stable("mine")
                print("ann leaves")
            await asyncio.sleep(0.5)
    finally:
        await coordinator.close()


if __name__ == "__main__":
    asyncio.run(main())
