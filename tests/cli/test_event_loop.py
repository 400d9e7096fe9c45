"""The event loop of a command that serves groups: uvloop where it is installed, and the options to choose."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from connectgroup.cli.command import main
from connectgroup.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from connectgroup.transport.tcp_client import TcpClient
from tests.integration.processes import PATIENCE_S, Program


def test_missing_uvloop_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["coordinator", "--uvloop", "--log", "memory:", "--port", "0"]) == 2
    assert capsys.readouterr().err == (
        "connectgroup: event loop: got 'uvloop, not installed'; allowed: pip install 'connectgroup[uvloop]'\n"
    )


def test_without_uvloop_asyncio_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert main(["coordinator", "--log", "memory:", "--host", "192.0.2.1", "--port", "0"]) != 0  # as on asyncio
    assert "uvloop" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["", "--uvloop", "--no-uvloop"])
def test_coordinator_serves_on_uvloop_unless_asyncio_is_chosen(option: str) -> None:
    pytest.importorskip("uvloop", reason="the extra 'uvloop' is not installed")
    with Program("coordinator", "--log", "memory:", "--port", 0, *filter(None, [option])) as coordinator:
        address = coordinator.line_with("coordinator at ").split()[2]

        async def join() -> HeartbeatResponse:
            host, _, port = address.rpartition(":")
            client = TcpClient(host, int(port))
            request = HeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=1_000,
                server_assignor="balanced",
                owned=(),
            )
            response = await client.call(request, timeout_s=PATIENCE_S)
            await client.close()
            assert isinstance(response, HeartbeatResponse)
            return response

        assert asyncio.run(join()).error_code == 0
        loaded = Path(f"/proc/{coordinator.pid}/maps").read_text()
        assert ("uvloop" in loaded) == (option != "--no-uvloop")
        coordinator.signal(signal.SIGTERM)
        assert coordinator.ended() == 0
