"""The audit log: who changed what, when, from where, and the result; one JSON line each."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from connectgroup.client.admin import Admin
from connectgroup.errors import ConfigError, ConnectorNotFound, GroupAuthorizationFailed, GroupIdNotFound
from connectgroup.protocol.messages.classic import LeaveGroupRequest, LeavingMember
from connectgroup.protocol.messages.cluster import FindCoordinatorRequest
from connectgroup.protocol.messages.common import entries
from connectgroup.protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from connectgroup.protocol.messages.describe import DeleteRequest, DescribeGroupsRequest
from connectgroup.protocol.messages.offsets import OffsetCommitRequest, PartitionCommit, TopicCommit
from connectgroup.protocol.records.connect import TargetState
from connectgroup.telemetry.metrics import values_of
from connectgroup.transport.access import Access
from connectgroup.transport.audit import (
    LOGGER,
    MAX_CHANGE_CHARS,
    MAX_QUEUED,
    TOO_LARGE,
    AuditLog,
    masked_json,
    record_request,
)
from connectgroup.transport.credentials import Credentials
from connectgroup.transport.tcp_client import TcpClient
from tests.consumer.inside import eventually

from .authenticating import port_of, serving

RULES = "allow alice all group *\nallow alice all group * connector *\n"
LINE: dict[str, Any] = {"principal": "bob", "host": "h", "request": "r", "resources": [], "result": "OK"}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def lines_until(path: Path, condition: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    await eventually(lambda: path.exists() and condition(lines_of(path)))
    return lines_of(path)


def serving_audited(tmp_path: Path) -> Any:
    (tmp_path / "rules").write_text(RULES)
    users = tmp_path / "users"
    users.write_text("alice=word-alice\nbob=word-bob\n")
    users.chmod(0o600)
    return serving(tmp_path, credentials=users, access_rules=tmp_path / "rules", audit_log=tmp_path / "audit")


def client_of(server: Any, user: str) -> TcpClient:
    access = Access(credentials=Credentials(user, f"word-{user}"))
    return TcpClient("localhost", port_of(server), "tool", access=access)


async def test_line_of_a_denied_group_names_no_other(tmp_path: Path) -> None:
    """A request may ask for 10,000: with all of them in each line, one of 70 kB filled the disk."""
    path, names = tmp_path / "audit", [f"g{number}" for number in range(50)]
    async with serving_audited(tmp_path) as server:
        client = client_of(server, "bob")
        for request in (DescribeGroupsRequest(groups=(*names,)), FindCoordinatorRequest(coordinator_keys=(*names,))):
            await client.call(request, timeout_s=10)
        await client.close()
    lines = lines_of(path)
    assert {line["result"] for line in lines} == {"GROUP_AUTHORIZATION_FAILED"}
    assert [[each["group"] for each in line["resources"]] for line in lines] == [[name] for name in names * 2]


async def test_changes_and_denied_requests_are_lines(tmp_path: Path) -> None:
    began = datetime.now(UTC) - timedelta(seconds=1)
    path = tmp_path / "audit"
    async with serving_audited(tmp_path) as server:
        clients = [client_of(server, user) for user in ("alice", "bob")]
        async with Admin([clients[0]]) as alice, Admin([clients[1]]) as bob:
            config = {"connector.class": "idle", "db.password": "Confidential1", "url": "http://u:Confidential2@host/x"}
            await alice.add_connector("g", "c", config)
            await alice.patch_connector("g", "c", {"api.token": "Confidential3", "color": None})
            await alice.set_state("g", "c", TargetState.PAUSED)
            with pytest.raises(ConnectorNotFound):
                await alice.delete_connector("g", "nowhere")
            await alice.describe("g")  # no change
            for call in (bob.delete_group("g"), bob.describe("g")):
                with pytest.raises(GroupAuthorizationFailed):
                    await call
            partition = PartitionCommit(partition_index=3, committed_offset=7, committed_metadata=None)
            topic = TopicCommit(name="t", partitions=(partition,))
            for member in ("", "m"):  # of an operator, and of a member
                commit = OffsetCommitRequest(group_id="k", member_id=member, topics=(topic,))
                await clients[0].call(commit, timeout_s=10)
            await clients[0].call(DeleteRequest(group_ids=("x", "y")), timeout_s=10)
    assert "Confidential" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = lines_of(path)
    created, patched, paused, missing, denied, described, committed, deleted = lines
    assert began < datetime.fromisoformat(created["time"]) < datetime.now(UTC) + timedelta(seconds=1)
    alter = {"operation": "Alter", "group": "g", "connector": "c"}
    for key, value in (
        ("principal", "alice"),
        ("host", "127.0.0.1"),
        ("client_id", "tool"),
        ("request", "ConnectGroupUpdateConnectors"),
        ("resources", [alter]),
        ("result", "OK"),
    ):
        assert created[key] == value
    [change] = created["change"]
    assert change["create"] is True
    assert change["config"]["connector.class"] == "idle"
    assert change["config"]["db.password"] == "[hidden]"
    assert patched["change"] == [{"connector": "c", "patch": {"api.token": "[hidden]", "color": None}}]
    assert paused["change"] == [{"connector": "c", "state": "PAUSED"}]
    assert missing["result"] == "CONNECTOR_NOT_FOUND"
    assert missing["resources"] == [{"operation": "Delete", "group": "g", "connector": "nowhere"}]
    assert (denied["principal"], denied["request"]) == ("bob", "ConnectGroupDelete")
    assert denied["result"] == "GROUP_AUTHORIZATION_FAILED"
    assert (described["request"], described["result"]) == ("ConnectGroupDescribe", "GROUP_AUTHORIZATION_FAILED")
    assert "not authorized to describe group g" in described["message"]
    assert committed["request"] == "OffsetCommit"
    assert committed["change"] == {"t-3": 7}
    assert [each["group"] for each in deleted["resources"]] == ["x", "y"]
    assert deleted["result"] == "GROUP_ID_NOT_FOUND"


def changes_of(tmp_path: Path, *requests: UpdateConnectorsRequest) -> list[Any]:
    """What the lines of these requests say of the change."""
    audit = AuditLog(tmp_path / "audit")
    audit.start()
    for each in requests:
        record_request(audit, each, "alice", "host", "OK")
    audit.close(timeout_s=60)
    return [line["change"] for line in lines_of(tmp_path / "audit")]


def test_change_is_in_its_line_whole_or_not_at_all(tmp_path: Path) -> None:
    """Wherever its length ends a line: a cut between a key and its value would show the value."""
    secret = json.dumps({"token": "Confidential", "url": "http://u:Confidential@host"})
    requests = []
    for left in range(0, 200, 3):
        config = {"a": "x" * (MAX_CHANGE_CHARS - left), "b": secret, "c.password": "Confidential"}
        change = ConnectorChange(connector="c", config=entries(config))
        requests.append(UpdateConnectorsRequest(group_id="g", changes=(change,)))
    found = changes_of(tmp_path, *requests)
    assert "Confidential" not in (tmp_path / "audit").read_text()
    whole = [each[0]["config"] for each in found if each != TOO_LARGE]
    assert 0 < len(whole) < len(requests)
    assert all(each.keys() == {"a", "b", "c.password"} for each in whole)


def test_long_credential_leaves_the_rest_of_its_change_in_the_line(tmp_path: Path) -> None:
    config = {"color": "red", "ssl.keystore.key": "x" * MAX_CHANGE_CHARS}
    change = ConnectorChange(connector="c", config=entries(config))
    [[shown]] = changes_of(tmp_path, UpdateConnectorsRequest(group_id="g", changes=(change,)))
    assert shown["config"] == {"color": "red", "ssl.keystore.key": "[hidden]"}


def test_credential_is_masked_however_deep_it_is() -> None:
    body: Any = {"sasl.jaas.config": "Confidential", "text": "password=Confidential"}
    for _ in range(50):
        body = {"a": [body]}
    assert "Confidential" not in json.dumps(masked_json(body))
    assert masked_json({"a": ["x" * MAX_CHANGE_CHARS]}) == TOO_LARGE


async def test_members_that_an_administrator_removes_are_a_line_and_one_that_leaves_is_none(tmp_path: Path) -> None:
    """Kafka's ``Admin.removeMembersFromConsumerGroup`` sends LeaveGroup, as consumers do."""
    leaves = LeavingMember(member_id="m", group_instance_id="i", reason="the consumer is being closed")
    of_administrators = (
        (LeavingMember(member_id="m", reason="member was removed by an admin: upgrade"),),
        (LeavingMember(member_id="", group_instance_id="i"),),
        (LeavingMember(member_id="m"), LeavingMember(member_id="n")),
    )
    async with serving_audited(tmp_path) as server:
        client = client_of(server, "alice")
        for members in ((leaves,), *of_administrators):
            await client.call(LeaveGroupRequest(group_id="k", members=members), timeout_s=10)
        await client.close()
    lines = lines_of(tmp_path / "audit")
    assert [line["change"] for line in lines] == [
        [{"member": "m", "reason": "member was removed by an admin: upgrade"}],
        [{"member": "", "instance": "i"}],
        [{"member": "m"}, {"member": "n"}],
    ]
    assert {(line["request"], line["principal"], line["result"]) for line in lines} == {
        ("LeaveGroup", "alice", "UNKNOWN_MEMBER_ID")
    }
    assert lines[0]["resources"] == [{"operation": "Read", "group": "k"}]


async def test_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    """As logrotate does."""
    path = tmp_path / "audit"
    async with serving_audited(tmp_path) as server, Admin([client_of(server, "alice")]) as alice:
        await alice.add_connector("g", "a", {"connector.class": "idle"})
        await lines_until(path, lambda lines: len(lines) == 1)
        os.replace(path, tmp_path / "audit.1")
        await alice.add_connector("g", "b", {"connector.class": "idle"})
        assert [line["change"][0]["connector"] for line in await lines_until(path, len)] == ["b"]
        assert [line["change"][0]["connector"] for line in lines_of(tmp_path / "audit.1")] == ["a"]


async def test_disk_that_takes_nothing_blocks_no_request() -> None:
    """The thread that writes hangs; lines that find no room are lost and counted."""
    blocked, release = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            blocked.set()
            release.wait()

    audit = AuditLog()
    stuck = Stuck()
    logging.getLogger(LOGGER).addHandler(stuck)
    try:
        audit.start()
        audit.record(**LINE)
        await eventually(blocked.is_set)
        for _ in range(MAX_QUEUED + 5):
            audit.record(**LINE)
        assert audit.lost == 5
        assert values_of("audit") == [({"server": "coordinator"}, {"line-total": 0, "lost-line-total": 5})]
    finally:
        release.set()
        audit.close(timeout_s=60)
        logging.getLogger(LOGGER).removeHandler(stuck)
    assert audit.written == MAX_QUEUED + 1


async def test_lines_that_cannot_be_written_are_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    audit = AuditLog(directory / "audit")
    audit.start()
    try:
        (directory / "audit").unlink()
        directory.rmdir()
        audit.record(**LINE)
        await eventually(lambda: audit.lost == 1)
        assert "audit log: lines cannot be written" in caplog.text
        directory.mkdir()
        audit.record(**LINE)
        assert len(await lines_until(directory / "audit", len)) == 1
    finally:
        audit.close()


async def test_server_stops_in_order_though_the_disk_of_its_audit_log_is_full(tmp_path: Path) -> None:
    """Its lines are still in a buffer, and cannot be written at the end either."""
    async with serving(tmp_path, audit_log=Path("/dev/full")) as server, Admin.connect([server.address]) as admin:
        await admin.add_connector("g", "c", {"connector.class": "idle"})
        await eventually(lambda: [numbers["lost-line-total"] for _, numbers in values_of("audit")] == [1])
    async with serving(tmp_path) as server, Admin.connect([server.address]) as admin:
        assert [each.connector for each in (await admin.describe("g")).connectors] == ["c"]


def test_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"audit_log: got .*; allowed: a file that can be written"):
        AuditLog(tmp_path / "nowhere" / "audit")


async def test_lines_go_to_the_logger_without_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        async with serving(tmp_path) as server, Admin.connect([server.address]) as admin:
            with pytest.raises(GroupIdNotFound):
                await admin.delete_group("g")
            await eventually(lambda: any('"request": "ConnectGroupDelete"' in each for each in caplog.messages))
