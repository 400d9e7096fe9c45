"""A program that embeds connectgroup, with plug-ins of its own, written against ``import connectgroup`` alone.

``test_stranger.py`` checks its types as the author of such a program would, and runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import connectgroup as cg


class First(cg.ConnectAssignor):
    """Assigns everything to the first worker."""

    name = "first"

    def assign(self, group: cg.ConnectAssignorInput) -> cg.ConnectAssignment:
        members = sorted(group.members, key=lambda member: member.member_id)
        units: cg.Units = frozenset(group.units)
        shares = [
            cg.ConnectMemberAssignment(member_id=member.member_id, units=units if member is members[0] else frozenset())
            for member in members
        ]
        return cg.ConnectAssignment(members=shares)

    def metadata(self) -> cg.Metadata:
        return cg.Metadata(version=0, metadata=b"")


class Printer(cg.WorkerRebalanceListener):
    """Prints what is assigned and revoked."""

    def on_assigned(self, units: cg.Units, epoch: int) -> None:
        print("assigned", *sorted(map(str, units)), epoch)

    def on_revoked(self, units: cg.Units, epoch: int) -> None:
        print("revoked", *sorted(map(str, units)), epoch)


class Work(cg.Task):
    """A task without work."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Works(cg.Connector):
    """A connector of such tasks."""

    def task_configs(self, max_tasks: int) -> Sequence[cg.Config]:
        return [{"number": str(number)} for number in range(max_tasks)]

    def task(self, config: cg.Config, context: cg.TaskContext) -> cg.Task:
        return Work()


class MyRunner:
    """A runner."""

    async def start(self, grants: Sequence[cg.Grant]) -> None:
        print("start", *[f"{grant.unit} at {grant.owner_epoch}" for grant in grants])

    async def stop(self, units: frozenset[cg.Unit]) -> None:
        print("stop", *sorted(map(str, units)))


async def whole_group() -> cg.DescribedGroup:
    """A group, the common requests, and a plan."""
    async with cg.worker_group("mine", workers=["a", "b"], settings=cg.GroupSettings(max_moves=1)) as group:
        await group.admin.add_connector("mine", "letters", {"connector.class": "idle", "tasks.max": "2"})
        change = cg.ConnectorChange(connector="letters", target_state=cg.TargetState.RUNNING)
        version: int = await group.admin.change("mine", change)
        described = await group.wait_stable()
        planned: cg.Plan = await cg.plan(group.admin, "mine", cg.Change(add_workers=1))
        print(version, planned.rounds, [move.unit for move in planned.moves])
        try:
            await group.admin.add_connector("mine", "letters", {})
        except cg.GroupError as error:
            print("rejected:", error)
        return described


async def one_member(coordinator: cg.Coordinator, traits: cg.WorkerTraits) -> None:
    """A member of a group, and the requests by hand."""
    settings = cg.MemberSettings(group_id="mine", member_id="c", traits=traits)
    assignors: list[cg.ConnectAssignor] = [First(), cg.load_assignor("balanced")]
    client: cg.Client = cg.LocalClient(coordinator)
    update = cg.UpdateConnectorsRequest(group_id="mine", changes=(cg.ConnectorChange(connector="x", config=()),))
    print(await client.call(update, timeout_s=10))
    print(await client.call(cg.DescribeRequest(group_ids=("mine",)), timeout_s=10))

    def connect() -> cg.Client:
        return cg.LocalClient(coordinator)

    async with (
        cg.Worker.running(settings, connect, assignors=assignors, listeners=[Printer()], runner=MyRunner()),
        cg.Admin.local(coordinator) as admin,
    ):
        await admin.wait_until("mine", lambda group: bool(group.members), what="joined")


def without_asyncio() -> int:
    """The same from a program without asyncio."""
    letters = {"connector.class": "idle", "tasks.max": "4"}
    with cg.sync.worker_group("mine", workers=2, connectors={"letters": letters}) as group:
        described: cg.DescribedGroup = group.wait_stable()
        group.admin.set_state("mine", "letters", cg.TargetState.PAUSED)
        return len(described.members)


def history(log: Path) -> list[str]:
    """The history of a log, for a bug report."""
    found: cg.GroupHistory = cg.replay(log, assignor=First())
    return list(found.lines())


async def main() -> None:
    """Run all of it."""
    print(await whole_group())
    coordinator = cg.Coordinator(cg.MemoryLog(), cg.GroupSettings())
    await coordinator.start()
    await one_member(coordinator, cg.WorkerTraits(capacity=2, labels=(("gpu", "true"),)))
    await coordinator.close()


if __name__ == "__main__":
    asyncio.run(main())
    print(without_asyncio(), "workers")
