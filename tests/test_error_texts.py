"""Errors name arguments and settings, as a program that embeds the library has them; the command names its options."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import connectgroup
from connectgroup import Access, Admin, Change, GroupSettings, TcpClient, plan, worker_group
from connectgroup.analysis.explain import find_unit
from connectgroup.config.base import checked
from connectgroup.config.paths import check_paths
from connectgroup.config.rest import RestConfig
from connectgroup.config.secrets import Secrets
from connectgroup.connectors.idle import IdleConnector
from connectgroup.consumer.broker_groups import BrokerGroups
from connectgroup.errors import ConnectGroupError
from connectgroup.protocol.messages.describe import DescribeRequest
from connectgroup.transport.credentials import Credentials
from connectgroup.worker.scratch import default_parent

from .cli.live import GROUP, live_group
from .integration.processes import Program, call_command, marked
from .transport.authenticating import serving

OPTION = re.compile(r"(?<![\w-])--[a-z]")


async def without_credentials(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (tmp_path / "elsewhere").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
            await describe(server.address)


async def with_a_wrong_password(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await describe(server.address, Access(credentials=Credentials("connectgroup", "wrong")))


async def with_credentials_for_a_server_without_authentication(tmp_path: Path) -> None:
    async with serving(tmp_path, authentication=False) as server:
        await describe(server.address, Access(credentials=Credentials("connectgroup", "word")))


async def to_another_program(tmp_path: Path) -> None:
    def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        await describe(f"{host}:{port}")


async def about_a_group_of_others(tmp_path: Path) -> None:
    async with serving(tmp_path, group_users={GROUP: ()}) as server, Admin.connect([server.address]) as admin:
        await admin.describe(GROUP)


async def describe(address: str, access: Access | None = None) -> None:
    host, _, port = address.rpartition(":")
    client = TcpClient(host, int(port), access=access)
    try:
        await client.call(DescribeRequest(), timeout_s=10)
    finally:
        await client.close()


async def of_an_unknown_worker(tmp_path: Path) -> None:
    async with worker_group(GROUP, workers=["a"], connectors={}) as group:
        await plan(group.admin, GROUP, Change(drain="b"))


async def of_an_unknown_task(tmp_path: Path) -> None:
    async with worker_group(GROUP, workers=["a"], connectors={"c": {"connector.class": "idle"}}) as group:
        find_unit(await group.admin.describe(GROUP), "c-7")


async def of_another_group(tmp_path: Path) -> None:
    async with live_group(tmp_path, workers={}, connectors={"c": {}}, data=tmp_path / "groups.sqlite"):
        connectgroup.replay(tmp_path / "groups.sqlite", "nosuch")


async def of_no_log(tmp_path: Path) -> None:
    connectgroup.replay(tmp_path / "nosuch")


async def with_a_scratch_directory_of_others(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        os.chmod(default_parent(), 0o777)
        default_parent()


async def with_a_path_outside(tmp_path: Path) -> None:
    check_paths(IdleConnector, {"log": "/etc/passwd"}, [tmp_path])


async def with_a_secret_outside(tmp_path: Path) -> None:
    Secrets(env=("A",), paths=(tmp_path,)).check_allowed({"x": "${file:/etc/passwd:x}"})


async def with_another_variable(tmp_path: Path) -> None:
    Secrets(env=("A",), paths=(tmp_path,)).check_allowed({"x": "${env:B}"})


async def of_an_unreachable_broker(tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("no.such.setting=1\n")
    BrokerGroups("127.0.0.1:1", tmp_path / "settings")


async def of_rest(tmp_path: Path) -> None:
    checked(RestConfig, {"group": GROUP, "port": 0, "allowed_paths": (Path("relative"),)})


WRONG: dict[Callable[[Path], Awaitable[None]], str] = {
    without_credentials: r"access=Access\(credentials=\.\.\.\), or CONNECTGROUP_CREDENTIALS",
    with_a_wrong_password: r"access=Access\(credentials=\.\.\.\)",
    with_credentials_for_a_server_without_authentication: "a coordinator without authentication",
    to_another_program: r"TLS\? access=Access\(tls=\.\.\.\)",
    about_a_group_of_others: r"\(group_users of the coordinator\)",
    of_an_unknown_worker: "drain: got 'b'",
    of_an_unknown_task: "task: got 'c-7'",
    of_another_group: "group: got 'nosuch'",
    of_no_log: "log: got .* or the data directory of a coordinator",
    with_a_scratch_directory_of_others: "scratch: got .* or scratch=DIRECTORY",
    with_a_path_outside: r"one of allowed_paths \(",
    with_a_secret_outside: "a path that secret_paths allows",
    with_another_variable: "a variable that secret_env allows",
    of_an_unreachable_broker: "command_config: got",
    of_rest: "allowed_paths: got 'relative'",
}


@pytest.mark.parametrize("call", WRONG, ids=lambda call: call.__name__)
async def test_an_error_names_arguments_and_no_options(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, call: Callable[[Path], Awaitable[None]]
) -> None:
    if call is of_an_unreachable_broker:
        pytest.importorskip("confluent_kafka")
    with pytest.raises(ConnectGroupError, match=WRONG[call]) as raised:
        await call(tmp_path)
    assert not OPTION.search(str(raised.value)), raised.value
    assert not [each for each in caplog.messages if OPTION.search(each)]


async def test_a_warning_about_a_limit_names_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    async with worker_group(GROUP, workers=["a"], connectors={}, settings=GroupSettings(max_groups=1)) as group:
        with pytest.raises(ConnectGroupError):
            await group.admin.add_connector("other", "c", {"connector.class": "idle"})
    assert [each for each in caplog.messages if "raise max_groups" in each]
    assert not [each for each in caplog.messages if OPTION.search(each)]


# ---------------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, str]]:
    """A coordinator with one group, which is of another user, and its address."""
    root = tmp_path_factory.mktemp("coordinator")
    users = root / "users"
    users.write_text("me=word\nother=word\n")
    users.chmod(0o600)
    arguments = ("--data", root / "data", "--port", 0, "--credentials", users)
    limits = ("--max-groups", 1, "--group-users", "theirs=other")
    with marked(), Program("coordinator", *arguments, *limits) as program:
        yield program, program.line_with("coordinator at ").split()[-1]


def test_the_command_names_options_in_place_of_arguments(
    coordinator: tuple[Program, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, address = coordinator
    at = ("--coordinator", address)
    file = tmp_path / "c.properties"
    file.write_text("name=max_groups\nconnector.class=idle\n")
    lines: dict[tuple[Any, ...], str] = {
        ("groups", "describe", "theirs"): "(--group-users of the coordinator)",
        ("connectors", "create", file, "--group", "mine"): "",
        ("connectors", "create", file, "--group", "more", "--new-group"): "has all of its 1 groups",
        # A name that is also that of a setting stays as it is.
        ("connectors", "delete", "max_units", "--group", "mine"): "connector max_units does not exist",
        ("groups", "explain", "mine", "--task", "group_users-0"): "--task: got 'group_users-0'",
        ("groups", "plan", "mine", "--remove", "tls_ca"): "--remove: got 'tls_ca'",
    }
    for arguments, text in lines.items():
        done = call_command(*arguments, *at)
        assert (done.code != 0) == bool(text), done
        assert text in done.err
    assert program.line_with("or raise --max-groups")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for arguments in (("groups", "list"), ("connectors", "list")):
        done = call_command(*arguments, *at)
        assert done.code
        assert "; allowed: --credentials FILE, or CONNECTGROUP_CREDENTIALS, with a user of" in done.err, done.err


def test_the_log_of_a_command_names_options(
    coordinator: tuple[Program, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Program("worker", "--group", "mine", "--coordinator", coordinator[1], "--scratch", tmp_path) as worker:
        assert worker.line_with("--credentials FILE, or CONNECTGROUP_CREDENTIALS")
