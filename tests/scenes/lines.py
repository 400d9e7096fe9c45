"""The lines in which something happens, one function each; first those that set the stage.

The form above a function is how its line reads (``forms.py``); what it returns is what came out. A new kind of line
is a new function here. Those that only look are in ``looks.py``.
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
from .stage import REBALANCE_TIMEOUT_MS, Stage
from .words import NamedShare, SceneError, answered, error_name, said

# --------------------------------------------------------------------------------------------------
# The stage, before anything happens


@line("setting {setting} {count}", sets_stage=True)
def setting(stage: Stage, setting: str, count: int) -> Iterable[str]:
    """One of the coordinator's ``GroupSettings``."""
    numbers = sorted(option.name for option in fields(GroupSettings) if option.type == "int")
    if setting not in numbers:
        raise SceneError(f"got {setting!r}; allowed: {', '.join(numbers)}")
    stage.options[setting] = count
    return ()


@line("connector {connector} with {count} task[s]", sets_stage=True)
def connector_from_the_start(stage: Stage, connector: str, count: int) -> Iterable[str]:
    """A connector that is there already."""
    stage.connectors[connector] = count
    return ()


@line("at rest at epoch {epoch}", sets_stage=True)
def at_rest(stage: Stage, epoch: int) -> Iterable[str]:
    """The group, its target and all its members have been at this epoch for a while."""
    stage.epoch = epoch
    return ()


@line("{who} runs {grants}[ as instance {instance}][ with {assignors}]", sets_stage=True)
def runs(
    stage: Stage,
    who: str,
    grants: dict[Unit, int | None],
    instance: str | None = None,
    assignors: tuple[AssignorInfo, ...] = (),
) -> Iterable[str]:
    """A member that is there already; what it runs was given to it at the group's epoch, or at the one named."""
    stage.runs[who] = grants
    stage.enter(who, assignors, instance=instance)
    return ()


@line("the coordinator would give {shares}")
def coordinator_gives(stage: Stage, shares: list[tuple[str, NamedShare]]) -> Iterable[str]:
    """What the assignor that runs on the coordinator answers from now on."""
    stage.assignor.target = {who: frozenset(share.units) for who, share in shares}
    stage.assignor.error = None
    return ()


@line("the coordinator's assignor fails: {words}")
def coordinator_fails(stage: Stage, words: str) -> Iterable[str]:
    """It raises from now on."""
    stage.assignor.error = PluginError(words)
    return ()


# --------------------------------------------------------------------------------------------------
# Workers and their heartbeats


@line("{who} joins[ as instance {instance}][ asking for {server}][ with {assignors}][, {lost=unheard}]")
def joins(
    stage: Stage,
    who: str,
    instance: str | None = None,
    server: str | None = None,
    assignors: tuple[AssignorInfo, ...] | None = None,
    lost: bool = False,
) -> Iterable[str]:
    """The first heartbeat, at epoch 0: "I run nothing". A worker that was fenced joins again as it was."""
    worker = stage.workers.get(who)
    changes: dict[str, Any] = {}
    if worker is None:
        worker = stage.enter(who, assignors or (), instance=instance, server=server)
    if server and assignors:
        changes["server_assignor"] = server
    return stage.beat(worker, lost=lost, **changes)


@line("{who} beats[{full= in full}][ at epoch {epoch}][ as instance {instance}][, owning {units}][, {lost=unheard}]")
def beats(
    stage: Stage,
    who: str,
    full: bool = False,
    epoch: int | None = None,
    instance: str | None = None,
    units: list[Unit] | None = None,
    lost: bool = False,
) -> Iterable[str]:
    """The worker's next heartbeat; with an epoch or units, one that is not what the worker would say."""
    worker = stage.anybody(who)
    changes: dict[str, Any] = {}
    if full:
        changes = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, "owned": grouped(worker.member.owned)}
    if epoch is not None:
        changes |= {"member_epoch": epoch, "owned": None}
    if instance is not None:
        changes["instance_id"] = instance
    if units is not None:
        changes["owned"] = grouped(units)
    return stage.beat(worker, lost=lost, **changes)


@line("{who} has stopped {units}[, {full=in full}][, {lost=unheard}]")
def has_stopped(stage: Stage, who: str, units: list[Unit], full: bool = False, lost: bool = False) -> Iterable[str]:
    """These have stopped, and the next heartbeat, sent at once, no longer names them."""
    worker = stage.worker(who)
    if strangers := set(units) - worker.member.revoking:
        raise SceneError(f"{who} was not told to stop {said(strangers)}")
    worker.member.mark_revoked(units)
    return stage.beat(worker, lost=lost, **({"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS} if full else {}))


@line("{who} now has {assignors}")
def now_has(stage: Stage, who: str, assignors: tuple[AssignorInfo, ...]) -> Iterable[str]:
    """The worker says something else of its assignors."""
    worker = stage.worker(who)
    worker.member.set_assignors(assignors)
    return stage.beat(worker)


@line("{who}'s request is lost")
def request_lost(stage: Stage, who: str) -> Iterable[str]:
    """A heartbeat that never arrives; the worker hears nothing and will say everything next time."""
    member = stage.worker(who).member
    request = member.next_request(stage.scene.now_ms)
    if request is not None:
        member.on_no_answer(request)
    return ()


@line("{who} sends the same again")
def same_again(stage: Stage, who: str) -> Iterable[str]:
    """The last request, byte for byte: a copy the network made, or a retry whose first try was heard after all."""
    worker = stage.worker(who)
    if worker.request is None:
        raise SceneError(f"{who} has sent nothing yet")
    response, news = stage.act(worker.request, duplicate=True)
    same = "the same answer" if response == worker.response else "another answer"
    if isinstance(response, HeartbeatResponse) and response != worker.response:
        same = answered(response)
    return [f"{same}, {'no records' if not stage.scene.records else 'and records'}", *news]


@line("{who} leaves[: {words}]")
def leaves(stage: Stage, who: str, words: str = "") -> Iterable[str]:
    """For good: everything has been stopped, and epoch -1 says so."""
    worker = stage.worker(who)
    worker.member.close(words)
    told = stage.beat(worker)
    del stage.workers[who]
    return told


@line("{who} leaves for a while")
def leaves_for_a_while(stage: Stage, who: str) -> Iterable[str]:
    """A static member that comes back: everything has been stopped, and epoch -2 says so."""
    worker = stage.worker(who)
    worker.member.retire()
    worker.member.mark_revoked(list(worker.member.owned))
    worker.member.close(temporarily=True)
    stage.scene.may_run[who] = set()
    told = stage.beat(worker)
    del stage.workers[who]
    return told


@line("{who} leaves to restart")
def leaves_to_restart(stage: Stage, who: str) -> Iterable[str]:
    """A worker that returns under its member id: everything has been stopped, and epoch -1 says that it returns."""
    worker = stage.worker(who)
    worker.member.retire()
    worker.member.mark_revoked(list(worker.member.owned))
    worker.member.close(returns=True)
    stage.scene.may_run[who] = set()
    told = stage.beat(worker)
    del stage.workers[who]
    return told


@line("{who} drains")
def drains(stage: Stage, who: str) -> Iterable[str]:
    """The worker wants nothing new and its work taken over; it leaves when it has none."""
    worker = stage.worker(who)
    worker.member.drain()
    return stage.beat(worker)


@line("{who} dies")
def dies(stage: Stage, who: str) -> Iterable[str]:
    """The process is gone, and says nothing."""
    stage.worker(who)
    del stage.workers[who]
    return ()


@line("{who} looks at its lease")
def looks_at_its_lease(stage: Stage, who: str) -> Iterable[str]:
    """A worker that is not answered stops everything before the group may give it away."""
    return stage.lease(stage.worker(who))


@line("all beat until it is quiet")
def all_beat(stage: Stage) -> Iterable[str]:
    """In turn; what they are to stop has stopped at once. Answers that say nothing new are left out."""
    return stage.settle()


# --------------------------------------------------------------------------------------------------
# Computing a target


@line("{who} prepares[ at epoch {epoch}]")
def prepares(stage: Stage, who: str, epoch: int | None = None) -> Iterable[str]:
    """The chosen member asks what the group is."""
    worker = stage.anybody(who)
    said_epoch = worker.member.epoch if epoch is None else epoch
    worker.request = PrepareRequest(group_id=GROUP, member_id=who, member_epoch=said_epoch)
    response, news = stage.act(worker.request)
    assert isinstance(response, PrepareResponse)
    worker.response = response
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *news]
    worker.question = response
    members = [
        f"{member.member_id} has {said(share)}{_metadata(member.assignor)}"
        for member, share in zip(response.members, response.shares(), strict=True)
    ]
    waiting = [f"held back for {work.member_id}: {said(units_of(work.units))}" for work in response.delayed]
    connectors = [f"{connector.connector} with {connector.num_tasks} tasks" for connector in response.connectors]
    question = "; ".join([*members, *waiting, *connectors])
    return [f"group epoch {response.group_epoch}, assignor {response.assignor_name}: {question}", *news]


@line("{who} installs {shares}[, holding back {units} for {time}][ for group epoch {asked}]")
def installs(
    stage: Stage,
    who: str,
    shares: list[tuple[str, NamedShare]],
    units: Iterable[Unit] = (),
    time: int = 0,
    asked: int | None = None,
) -> Iterable[str]:
    """The target that the chosen member has computed, for the group epoch that its Prepare named."""
    worker = stage.anybody(who)
    versions = {member.member_id: member.assignor.version for member in worker.question.members}
    members = tuple(
        InstalledMember(
            member_id=member_id,
            units=_as_written(share.units),
            version=versions.get(member_id, 0) if share.version is None else share.version,
        )
        for member_id, share in shares
    )
    return _install(stage, who, asked, members=members, delayed=grouped(units), delay_ms=time)


@line("{who} fails to compute: {words}")
def fails_to_compute(stage: Stage, who: str, words: str) -> Iterable[str]:
    """The assignor of the chosen member failed, and it says so."""
    return _install(stage, who, error=1, message=words)


def _install(stage: Stage, who: str, asked: int | None = None, **what: Any) -> list[str]:
    worker = stage.anybody(who)
    worker.request = InstallRequest(
        group_id=GROUP,
        member_id=who,
        member_epoch=worker.member.epoch,
        group_epoch=worker.question.group_epoch if asked is None else asked,
        **what,
    )
    response, news = stage.act(worker.request)
    assert isinstance(response, InstallResponse)
    worker.response = response
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *news]
    return news or ["nothing changes"]


def _as_written(units: Iterable[Unit]) -> tuple[ConnectorTasks, ...]:
    """The wire's shape, repeats and all: what a faulty assignor may send."""
    units = list(units)
    if len(set(units)) == len(units):
        return grouped(units)
    return tuple(entry for unit in units for entry in grouped([unit]))


def _metadata(assignor: Any) -> str:
    return f" (says {assignor.metadata.decode()})" if assignor.metadata else ""


# --------------------------------------------------------------------------------------------------
# Connectors, time, the coordinator


@line("the operator adds {connector}[ with {config}]")
def operator_adds(stage: Stage, connector: str, config: tuple[ConfigEntry, ...] = ()) -> Iterable[str]:
    """A new connector; its tasks come from the worker that will own it."""
    given = (*entries({"name": connector}), *config)
    return _update(stage, ConnectorChange(connector=connector, expected_version=0, config=given))


@line("the operator changes {connector} to {config}")
def operator_changes(stage: Stage, connector: str, config: tuple[ConfigEntry, ...]) -> Iterable[str]:
    """Another configuration."""
    given = (*entries({"name": connector}), *config)
    return _update(stage, ConnectorChange(connector=connector, config=given))


@line("the operator pauses {connector}")
def operator_pauses(stage: Stage, connector: str) -> Iterable[str]:
    """The connector goes on watching, none of its tasks runs."""
    return _update(stage, ConnectorChange(connector=connector, target_state=TargetState.PAUSED))


@line("the operator resumes {connector}")
def operator_resumes(stage: Stage, connector: str) -> Iterable[str]:
    """All of it shall run again."""
    return _update(stage, ConnectorChange(connector=connector, target_state=TargetState.RUNNING))


@line("the operator removes {connector}")
def operator_removes(stage: Stage, connector: str) -> Iterable[str]:
    """The connector and its tasks are no more."""
    return _update(stage, ConnectorChange(connector=connector, delete=True))


@line("{who} gives {connector} {count} task[s]")
def gives_tasks(stage: Stage, who: str, connector: str, count: int) -> Iterable[str]:
    """The owner of a connector says what its tasks are, under the grant it owns it by."""
    granted = stage.worker(who).member.owned.get(Unit(connector))
    if granted is None:
        raise SceneError(f"{who} does not own {connector}")
    return _update(stage, task_list(connector, numbered(count), granted), who)


def _update(stage: Stage, change: ConnectorChange, who: str | None = None) -> list[str]:
    response, news = stage.act(UpdateConnectorsRequest(group_id=GROUP, member_id=who, changes=(change,)))
    assert isinstance(response, UpdateConnectorsResponse)
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *news]
    return news


@line("the operator restarts {who}")
def operator_restarts(stage: Stage, who: str) -> Iterable[str]:
    """``connectgroup workers restart``: the member is notified with its next heartbeat response."""
    response, news = stage.act(RestartRequest(group_id=GROUP, member_id=who))
    assert isinstance(response, RestartResponse)
    if response.error_code:
        return [f"{error_name(response.error_code)}: {response.error_message}", *news]
    return ["already requested" if response.already_requested else "requested", *news]


@line("the operator deletes the group")
def operator_deletes(stage: Stage) -> Iterable[str]:
    """The group with its connectors is no more."""
    if not stage.group.members:
        stage.forget_tokens()
    response, news = stage.act(DeleteRequest(group_ids=(GROUP,)))
    assert isinstance(response, DeleteResponse)
    [result] = response.results
    if result.error_code:
        return [f"{error_name(result.error_code)}: {result.error_message}"]
    return news


@line("{time} pass[ while {whos} beat]")
def time_passes(stage: Stage, time: int, whos: Iterable[str] = ()) -> Iterable[str]:
    """Timers fire when they are due. Answers that say nothing new are left out."""
    return stage.wait(time, whos)


@line("the coordinator restarts")
def coordinator_restarts(stage: Stage) -> Iterable[str]:
    """Another one reads the log and sets the timers that follow from it; workers notice nothing."""
    stage.restart()
    return looks.timers(stage)
