"""A worker group embedded in a program: two workers run four units; one worker leaves, the other takes over its units.

python examples/embedding.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from connectgroup import (
    Admin,
    Connections,
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


async def main() -> None:
    """One coordinator, two workers, one connector with three tasks."""
    coordinator = Coordinator(MemoryLog(), GroupSettings())
    await coordinator.start()
    admin = Admin.local(coordinator)
    await admin.add_connector("mine", "letters", {})

    printers = {name: Printer(name) for name in ("ann", "bob")}
    workers = {
        name: Worker(
            MemberSettings(group_id="mine", member_id=name),
            Connections(heartbeats=LocalClient(coordinator), control=LocalClient(coordinator)),
            assignors=[load_assignor("balanced")],
            runner=printer,
        )
        for name, printer in printers.items()
    }
    lives = {name: asyncio.create_task(worker.run()) for name, worker in workers.items()}

    # The worker that owns the connector publishes its task configurations.
    owners = {asyncio.create_task(printer.publish.wait()): name for name, printer in printers.items()}
    done, waiting = await asyncio.wait(owners, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    owner = owners[done.pop()]
    epoch = printers[owner].running[Unit("letters")]
    await workers[owner].publish_tasks("letters", epoch, [{}] * 3)
    await admin.wait_stable("mine")

    print("ann leaves")
    workers["ann"].stop()
    await lives["ann"]
    await asyncio.sleep(0.5)
    workers["bob"].stop()
    await lives["bob"]
    await coordinator.close()


if __name__ == "__main__":
    asyncio.run(main())
