"""The fields of a member record besides its assignors: labels, rack, capacity, host, client id, joined epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectgroup.errors import InvalidRequest
from connectgroup.group.connect.describe import describe
from connectgroup.group.connect.group_type import step
from connectgroup.group.kernel.outcome import TimerKind
from connectgroup.group.registry import ClientInfo
from connectgroup.protocol.messages.common import ConfigEntry, entries
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

from .builders import GROUP, FixedAssignor, Scene, foo, info, settings

GPU = entries({"gpu": "true", "zone": "a"})
TRAITS = (GPU, "r1", 8, "h1")
JOIN = HeartbeatRequest(
    group_id=GROUP,
    member_id="m1",
    member_epoch=0,
    rebalance_timeout_ms=10_000,
    client_assignors=(info(),),
    owned=(),
    labels=GPU,
    rack="r1",
    capacity=8,
    host="h1",
)


def test_labels_rack_capacity_and_host_of_a_member_are_stored_prepared_and_described() -> None:
    scene = Scene(settings=settings())
    scene.act(JOIN)
    [prepared] = scene.prepare("m1", 0).members
    assert (prepared.labels, prepared.rack, prepared.capacity, prepared.host) == TRAITS
    [shown] = describe(scene.group).members
    assert (shown.labels, shown.rack, shown.capacity, shown.host) == TRAITS
    scene.reload()
    [shown] = describe(scene.group).members
    assert (shown.labels, shown.rack, shown.capacity, shown.host) == TRAITS


@pytest.mark.parametrize(
    "change", [{"labels": ()}, {"rack": "r2"}, {"capacity": 9}, {"host": ""}], ids=lambda change: str(*change)
)
def test_changed_properties_of_a_member_bump_the_group_epoch(change: dict[str, object]) -> None:
    """Like a change of its assignors' metadata (CN-10); only a full heartbeat carries them."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 1}, members={"m2": foo(-1, 0)})
    scene.act(replace(JOIN, client_assignors=None))
    scene.heartbeat("m2", 10, foo(-1, 0))
    epoch = scene.group.epoch
    scene.heartbeat("m1", scene.current("m1").epoch)
    assert scene.group.epoch == epoch, "a heartbeat without the fields changes nothing"
    full = replace(JOIN, client_assignors=None, member_epoch=scene.current("m1").epoch)
    scene.act(full)
    assert scene.group.epoch == epoch, "nor does one that repeats them"
    scene.act(replace(full, **change))  # type: ignore[arg-type]
    assert scene.group.epoch == epoch + 1
    assert scene.group.latest_rebalance is not None
    assert scene.group.latest_rebalance.causes[-1] == "m1 changed its labels, rack, capacity or host"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": -1}, "capacity: got '-1'; allowed: a whole number from 0 to 1000000000"),
        ({"rack": "r" * 250}, "allowed: printable words of at most 249"),
        ({"host": "a\nb"}, "allowed: printable words of at most 249"),
        ({"labels": (ConfigEntry(name="a", value="1"),) * 2}, "allowed: at most 64 names, each once, sorted"),
        ({"labels": (ConfigEntry(name="", value="1"),)}, "allowed: at most 64 names, each once, sorted"),
        ({"labels": entries({f"n{n:02}": "v" for n in range(65)})}, "allowed: at most 64 names, each once, sorted"),
        ({"labels": entries({f"n{n:02}": "v" * 240 for n in range(60)})}, "bytes'; allowed: at most 4096"),
    ],
)
def test_properties_out_of_range_are_an_invalid_request(change: dict[str, object], message: str) -> None:
    """They are stored and sent to every assignor: 1,000 members must fit into a frame."""
    scene = Scene(settings=settings())
    response = scene.act(replace(JOIN, **change)).response  # type: ignore[arg-type]
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == InvalidRequest.code
    assert message in str(response.error_message)


@pytest.mark.parametrize(("labels", "computations"), [((), 0), (GPU, 1)], ids=["same labels", "other labels"])
def test_lost_worker_that_returns_with_other_labels_needs_a_new_target(
    labels: tuple[ConfigEntry, ...], computations: int
) -> None:
    """With the same labels it gets its units back without a computation (L8)."""
    fixed = FixedAssignor()
    fixed.target = {"m1": foo(0), "m2": foo(-1)}
    scene = Scene.stable(
        settings(fixed, scheduled_delay_ms=60_000), epoch=10, connectors={"foo": 1}, members=fixed.target
    )
    scene.expire(TimerKind.SESSION, "m1")
    scene.heartbeat("m2", 10, foo(-1))
    before = fixed.calls
    scene.act(replace(JOIN, client_assignors=None, labels=labels, rack="", capacity=0, host=""))
    assert scene.group.target("m1").units == foo(0)
    assert fixed.calls == before + computations


def test_member_record_has_client_id_and_joined_epoch() -> None:
    """KIP-848, ConsumerGroupMemberMetadataValue: GroupEpoch, ClientId, ClientHost."""
    scene = Scene.stable(settings(), epoch=10, connectors={"foo": 1}, members={"m2": foo(-1, 0)})
    step(scene.group, replace(JOIN, client_assignors=None), 0, scene.settings, client=ClientInfo("::1", "connect-1"))
    shown = {member.member_id: member for member in describe(scene.group).members}
    assert (shown["m1"].client_id, shown["m1"].client_host, shown["m1"].joined_epoch) == ("connect-1", "::1", 11)
    assert shown["m2"].joined_epoch == 0, "unknown: the record has no joined epoch"
    step(scene.group, replace(JOIN, client_assignors=None, member_id="m3"), 0, scene.settings)
    shown = {member.member_id: member for member in describe(scene.group).members}
    assert shown["m3"].joined_epoch == 12
    # A member that rejoins under its member id is the same member; its client id is that of the new request.
    step(scene.group, replace(JOIN, client_assignors=None), 0, scene.settings, client=ClientInfo(client_id="connect-2"))
    shown = {member.member_id: member for member in describe(scene.group).members}
    assert (shown["m1"].client_id, shown["m1"].joined_epoch) == ("connect-2", 11)


def test_changed_client_id_does_not_bump_the_group_epoch() -> None:
    scene = Scene(settings=settings())
    step(scene.group, replace(JOIN, client_assignors=None), 0, scene.settings, client=ClientInfo(client_id="a"))
    epoch = scene.group.epoch
    step(scene.group, replace(JOIN, client_assignors=None), 0, scene.settings, client=ClientInfo(client_id="b" * 300))
    assert scene.group.epoch == epoch
    [shown] = describe(scene.group).members
    assert shown.client_id == "b" * 246 + "...", "bounded: a header may carry 32 KiB"


def test_assignor_input_has_the_scheduled_rebalance_delay() -> None:
    for delay_ms, max_ms, shown_ms in ((0, 1_000, 0), (7_000, 9_000, 7_000), (9_000, 7_000, 7_000)):
        scene = Scene(settings=settings(scheduled_delay_ms=delay_ms, max_delay_ms=max_ms))
        scene.act(JOIN)
        assert scene.prepare("m1", 0).scheduled_rebalance_max_delay_ms == shown_ms
