"""The lines that act, one function each; the first ones define the initial group.

The form in the decorator defines the syntax of the line (``forms.py``); the return value is its output. A new kind of
line is a new function here. The lines that only inspect the group are in ``looks.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from connectgroup.errors import PluginError
from connectgroup.group.connect.settings import GroupSettings
from connectgroup.protocol.messages.assignment import (
    InstalledMember,
    InstallRequest,
    InstallResponse,
    PrepareRequest,
    PrepareResponse,
)
from connectgroup.protocol.messages.common import (
    AssignorInfo,
    ConfigEntry,
    ConnectorTasks,
    RestartRequest,
    RestartResponse,
    entries,
    grouped,
    units_of,
)
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest, UpdateConnectorsResponse
from connectgroup.protocol.messages.describe import DeleteRequest, DeleteResponse
from connectgroup.protocol.messages.heartbeat import HeartbeatResponse
from connectgroup.protocol.records.connect import TargetState
from connectgroup.protocol.units import Unit
from tests.group.builders import GROUP, numbered, task_list

from . import looks
from .forms import line
from .harness import REBALANCE_TIMEOUT_MS, SceneHarness
from .words import NamedTarget, SceneError, error_name, response_text, units_text

# --------------------------------------------------------------------------------------------------
# The initial group


@line("setting {setting} {count}", setup=True)
def setting(harness: SceneHarness, setting: str, count: int) -> Iterable[str]:
    """One of the coordinator's ``GroupSettings``."""
    numbers = sorted(option.name for option in fields(GroupSettings) if option.type == "int")
    if setting not in numbers:
        raise SceneError(f"got {setting!r}; allowed: {', '.join(numbers)}")
    harness.options[setting] = count
    return ()


@line("connector {connector} with {count} task[s]", setup=True)
def initial_connector(harness: SceneHarness, connector: str, count: int) -> Iterable[str]:
    """A connector of the initial group."""
    harness.connectors[connector] = count
    return ()


@line("stable at epoch {epoch}", setup=True)
def stable_at(harness: SceneHarness, epoch: int) -> Iterable[str]:
    """The group is stable at this epoch."""
    harness.epoch = epoch
    return ()


@line("{who} owns {grants}[ as instance {instance}][ with {assignors}]", setup=True)
def owns(
    harness: SceneHarness,
    who: str,
    grants: dict[Unit, int | None],
    instance: str | None = None,
    assignors: tuple[AssignorInfo, ...] = (),
) -> Iterable[str]:
    """A member of the initial group; its units were granted at the group's epoch unless another epoch is given."""
    harness.runs[who] = grants
    harness.enter(who, assignors, instance=instance)
    return ()


@line("the server-side assignor returns {targets}")
def assignor_returns(harness: SceneHarness, targets: list[tuple[str, NamedTarget]]) -> Iterable[str]:
    """The result of the server-side assignor from now on."""
    harness.assignor.target = {who: frozenset(target.units) for who, target in targets}
    harness.assignor.error = None
    return ()


@line("the server-side assignor fails: {words}")
def assignor_fails(harness: SceneHarness, words: str) -> Iterable[str]:
    """The server-side assignor raises from now on."""
    harness.assignor.error = PluginError(words)
    return ()


# --------------------------------------------------------------------------------------------------
# Workers and their heartbeats


@line("{who} joins[ as instance {instance}][ requesting {server}][ with {assignors}][, {lost=response lost}]")
def joins(
    harness: SceneHarness,
    who: str,
    instance: str | None = None,
    server: str | None = None,
    assignors: tuple[AssignorInfo, ...] | None = None,
    lost: bool = False,
) -> Iterable[str]:
    """The first heartbeat, at epoch 0, with no owned units. A fenced worker rejoins with its former settings."""
    worker = harness.workers.get(who)
    changes: dict[str, Any] = {}
    if worker is None:
        worker = harness.enter(who, assignors or (), instance=instance, server=server)
    if server and assignors:
        changes["server_assignor"] = server
    return harness.heartbeat(worker, lost=lost, **changes)


@line(
    "{who} heartbeats[{full= in full}][ at epoch {epoch}][ as instance {instance}][, owning {units}]"
    "[, {lost=response lost}]"
)
def heartbeats(
    harness: SceneHarness,
    who: str,
    full: bool = False,
    epoch: int | None = None,
    instance: str | None = None,
    units: list[Unit] | None = None,
    lost: bool = False,
) -> Iterable[str]:
    """The worker's next heartbeat; an epoch or units replace those that the worker would send."""
    worker = harness.worker_or_new(who)
    changes: dict[str, Any] = {}
    if full:
        changes = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, "owned": grouped(worker.member.owned)}
    if epoch is not None:
        changes |= {"member_epoch": epoch, "owned": None}
    if instance is not None:
        changes["instance_id"] = instance
    if units is not None:
        changes["owned"] = grouped(units)
    return harness.heartbeat(worker, lost=lost, **changes)


@line("{who} acknowledges {units}[, {full=in full}][, {lost=response lost}]")
def acknowledges(
    harness: SceneHarness, who: str, units: list[Unit], full: bool = False, lost: bool = False
) -> Iterable[str]:
    """These units have stopped; the next heartbeat, sent at once, omits them."""
    worker = harness.worker(who)
    if unknown_units := set(units) - worker.member.revoking:
        raise SceneError(f"{who} has no pending revocation of {units_text(unknown_units)}")
    worker.member.mark_revoked(units)
    return harness.heartbeat(worker, lost=lost, **({"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS} if full else {}))


@line("{who} changes its assignors to {assignors}")
def changes_assignors(harness: SceneHarness, who: str, assignors: tuple[AssignorInfo, ...]) -> Iterable[str]:
    """The worker's assignors, or their metadata, have changed."""
    worker = harness.worker(who)
    worker.member.set_assignors(assignors)
    return harness.heartbeat(worker)


@line("{who}'s request is lost")
def request_lost(harness: SceneHarness, who: str) -> Iterable[str]:
    """A heartbeat that never arrives; the worker gets no response, so its next heartbeat is full."""
    member = harness.worker(who).member
    request = member.next_request(harness.scene.now_ms)
    if request is not None:
        member.on_no_answer(request)
    return ()


@line("{who} repeats its request")
def repeats_request(harness: SceneHarness, who: str) -> Iterable[str]:
    """The last request, byte for byte: a duplicate, or a retry of a request that was processed."""
    worker = harness.worker(who)
    if worker.request is None:
        raise SceneError(f"{who} has sent nothing yet")
    response, events = harness.act(worker.request, duplicate=True)
    unchanged = "same response" if response == worker.response else "different response"
    if isinstance(response, HeartbeatResponse) and response != worker.response:
        unchanged = response_text(response)
    return [f"{unchanged}, {'no records' if not harness.scene.records else 'records written'}", *events]


@line("{who} leaves[: {words}]")
def leaves(harness: SceneHarness, who: str, words: str = "") -> Iterable[str]:
    """All units have stopped; the worker leaves with epoch -1."""
    worker = harness.worker(who)
    worker.member.close(words)
    output = harness.heartbeat(worker)
    del harness.workers[who]
    return output


@line("{who} leaves temporarily")
def leaves_temporarily(harness: SceneHarness, who: str) -> Iterable[str]:
    """A static member leaves with epoch -2 after all its units have stopped."""
    worker = harness.worker(who)
    worker.member.retire()
    worker.member.mark_revoked(list(worker.member.owned))
    worker.member.close(temporarily=True)
    harness.scene.may_run[who] = set()
    output = harness.heartbeat(worker)
    del harness.workers[who]
    return output


@line("{who} leaves to restart")
def leaves_to_restart(harness: SceneHarness, who: str) -> Iterable[str]:
    """The worker leaves with epoch -1 after all its units have stopped, and announces its return."""
    worker = harness.worker(who)
    worker.member.retire()
    worker.member.mark_revoked(list(worker.member.owned))
    worker.member.close(returns=True)
    harness.scene.may_run[who] = set()
    output = harness.heartbeat(worker)
    del harness.workers[who]
    return output


@line("{who} drains")
def drains(harness: SceneHarness, who: str) -> Iterable[str]:
    """The worker asks for its units to be moved to other members; it leaves when it owns none."""
    worker = harness.worker(who)
    worker.member.drain()
    return harness.heartbeat(worker)


@line("{who} crashes")
def crashes(harness: SceneHarness, who: str) -> Iterable[str]:
    """The process ends without a leave."""
    harness.worker(who)
    del harness.workers[who]
    return ()


@line("{who} checks its lease")
def checks_lease(harness: SceneHarness, who: str) -> Iterable[str]:
    """A worker without responses stops everything before its session expires."""
    return harness.lease(harness.worker(who))


@line("all heartbeat until idle")
def all_heartbeat(harness: SceneHarness) -> Iterable[str]:
    """In turn; revoked units stop at once. Responses without a change are omitted."""
    return harness.settle()


# --------------------------------------------------------------------------------------------------
# Computing a target


@line("{who} prepares[ at epoch {epoch}]")
def prepares(harness: SceneHarness, who: str, epoch: int | None = None) -> Iterable[str]:
    """The chosen member sends Prepare."""
    worker = harness.worker_or_new(who)
    sent_epoch = worker.member.epoch if epoch is None else epoch
    worker.request = PrepareRequest(group_id=GROUP, member_id=who, member_epoch=sent_epoch)
    response, events = harness.act(worker.request)
    assert isinstance(response, PrepareResponse)
    worker.response = response
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *events]
    worker.prepared = response
    members = [
        f"{member.member_id} has {units_text(target)}{_metadata(member.assignor)}"
        for member, target in zip(response.members, response.shares(), strict=True)
    ]
    waiting = [f"delayed for {work.member_id}: {units_text(units_of(work.units))}" for work in response.delayed]
    connectors = [f"{connector.connector} with {connector.num_tasks} tasks" for connector in response.connectors]
    prepared = "; ".join([*members, *waiting, *connectors])
    return [f"group epoch {response.group_epoch}, assignor {response.assignor_name}: {prepared}", *events]


@line("{who} installs {targets}[, delaying {units} for {time}][ for group epoch {computed}]")
def installs(
    harness: SceneHarness,
    who: str,
    targets: list[tuple[str, NamedTarget]],
    units: Iterable[Unit] = (),
    time: int = 0,
    computed: int | None = None,
) -> Iterable[str]:
    """The chosen member installs an assignment for the group epoch of its Prepare."""
    worker = harness.worker_or_new(who)
    versions = {member.member_id: member.assignor.version for member in worker.prepared.members}
    members = tuple(
        InstalledMember(
            member_id=member_id,
            units=_as_written(target.units),
            version=versions.get(member_id, 0) if target.version is None else target.version,
        )
        for member_id, target in targets
    )
    return _install(harness, who, computed, members=members, delayed=grouped(units), delay_ms=time)


@line("{who} fails to compute: {words}")
def fails_to_compute(harness: SceneHarness, who: str, words: str) -> Iterable[str]:
    """The chosen member reports that its assignor failed."""
    return _install(harness, who, error=1, message=words)


def _install(harness: SceneHarness, who: str, computed: int | None = None, **what: Any) -> list[str]:
    worker = harness.worker_or_new(who)
    worker.request = InstallRequest(
        group_id=GROUP,
        member_id=who,
        member_epoch=worker.member.epoch,
        group_epoch=worker.prepared.group_epoch if computed is None else computed,
        **what,
    )
    response, events = harness.act(worker.request)
    assert isinstance(response, InstallResponse)
    worker.response = response
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *events]
    return events or ["no change"]


def _as_written(units: Iterable[Unit]) -> tuple[ConnectorTasks, ...]:
    """The units as given, repeats included: a faulty assignor may send them."""
    units = list(units)
    if len(set(units)) == len(units):
        return grouped(units)
    return tuple(entry for unit in units for entry in grouped([unit]))


def _metadata(assignor: Any) -> str:
    return f" (metadata {assignor.metadata.decode()})" if assignor.metadata else ""


# --------------------------------------------------------------------------------------------------
# Connectors, time, the coordinator


@line("the operator adds {connector}[ with {config}]")
def operator_adds(harness: SceneHarness, connector: str, config: tuple[ConfigEntry, ...] = ()) -> Iterable[str]:
    """A new connector; its owner publishes its tasks."""
    given = (*entries({"name": connector}), *config)
    return _update(harness, ConnectorChange(connector=connector, expected_version=0, config=given))


@line("the operator changes {connector} to {config}")
def operator_changes(harness: SceneHarness, connector: str, config: tuple[ConfigEntry, ...]) -> Iterable[str]:
    """Another configuration."""
    given = (*entries({"name": connector}), *config)
    return _update(harness, ConnectorChange(connector=connector, config=given))


@line("the operator pauses {connector}")
def operator_pauses(harness: SceneHarness, connector: str) -> Iterable[str]:
    """The connector keeps running, its tasks stop."""
    return _update(harness, ConnectorChange(connector=connector, target_state=TargetState.PAUSED))


@line("the operator resumes {connector}")
def operator_resumes(harness: SceneHarness, connector: str) -> Iterable[str]:
    """The connector and all its tasks run again."""
    return _update(harness, ConnectorChange(connector=connector, target_state=TargetState.RUNNING))


@line("the operator removes {connector}")
def operator_removes(harness: SceneHarness, connector: str) -> Iterable[str]:
    """The connector and its tasks are deleted."""
    return _update(harness, ConnectorChange(connector=connector, delete=True))


@line("{who} publishes {count} task[s] of {connector}")
def publishes_tasks(harness: SceneHarness, who: str, connector: str, count: int) -> Iterable[str]:
    """The owner of a connector publishes its task list under its grant."""
    granted = harness.worker(who).member.owned.get(Unit(connector))
    if granted is None:
        raise SceneError(f"{who} does not own {connector}")
    return _update(harness, task_list(connector, numbered(count), granted), who)


def _update(harness: SceneHarness, change: ConnectorChange, who: str | None = None) -> list[str]:
    response, events = harness.act(UpdateConnectorsRequest(group_id=GROUP, member_id=who, changes=(change,)))
    assert isinstance(response, UpdateConnectorsResponse)
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *events]
    return events


@line("the operator restarts {who}")
def operator_restarts(harness: SceneHarness, who: str) -> Iterable[str]:
    """``connectgroup workers restart``: the member is notified with its next heartbeat response."""
    response, events = harness.act(RestartRequest(group_id=GROUP, member_id=who))
    assert isinstance(response, RestartResponse)
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *events]
    return ["already requested" if response.already_requested else "requested", *events]


@line("the operator deletes the group")
def operator_deletes(harness: SceneHarness) -> Iterable[str]:
    """Deletes the group and its connectors."""
    if not harness.group.members:
        harness.reset_ledger()
    response, events = harness.act(DeleteRequest(group_ids=(GROUP,)))
    assert isinstance(response, DeleteResponse)
    [result] = response.results
    if result.error_code:
        return [f"{error_name(result.error_code)}: {result.error_message}"]
    return events


@line("{time} pass[ while {members} heartbeat]")
def time_passes(harness: SceneHarness, time: int, members: Iterable[str] = ()) -> Iterable[str]:
    """Timers fire when they are due. Responses without a change are omitted."""
    return harness.wait(time, members)


@line("the coordinator fails over")
def coordinator_fails_over(harness: SceneHarness) -> Iterable[str]:
    """Another coordinator replays the log and arms its timers; the workers continue."""
    harness.restart()
    return looks.timers(harness)
