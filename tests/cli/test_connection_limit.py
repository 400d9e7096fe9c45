"""A coordinator at its connection limit reports it to commands and workers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectgroup.protocol.messages.cluster import ApiVersionsRequest
from connectgroup.wire.apis import encode_request
from connectgroup.wire.framing import frame

from ..integration.processes import Program, call_command, wait

LIMITS = {
    "--max-connections": "the coordinator is at its limit of 2 connections (--max-connections)",
    "--max-connections-per-address": (
        "the coordinator is at its limit of 2 connections from one address (--max-connections-per-address)"
    ),
}


@contextlib.contextmanager
def busy_connections(host: str, port: int, count: int) -> Iterator[None]:
    """Connections with a request fifty times a second: the server closes idle ones for new ones."""
    request = frame(encode_request(ApiVersionsRequest(), version=0, correlation_id=1, client_id=None))
    ended = threading.Event()

    def keep_busy() -> None:
        while not ended.wait(0.02):
            for peer in peers:
                peer.sendall(request)

    with contextlib.ExitStack() as opened:
        peers = [opened.enter_context(socket.create_connection((host, port))) for _ in range(count)]
        thread = threading.Thread(target=keep_busy)
        thread.start()
        opened.callback(thread.join)
        opened.callback(ended.set)
        yield


@pytest.mark.parametrize("option", LIMITS)
def test_commands_and_workers_report_the_limit_that_is_reached(tmp_path: Path, option: str) -> None:
    options = ("--port", 0, "--data", tmp_path / "data", "--no-authentication", option, 2)
    with Program("coordinator", *options) as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        host, _, port = address.rpartition(":")
        with busy_connections(host, int(port), 2):
            listed = call_command("groups", "list", "--coordinator", address)
            assert (listed.code, listed.err) == (5, f"connectgroup: {LIMITS[option]}\n")
            arguments = ("--name", "w", "--group", "g", "--coordinator", address, "--scratch", tmp_path)
            with Program("worker", *arguments) as worker:
                worker.line_with(f"heartbeat failed (attempt 1): {LIMITS[option]}")
        wait("room", lambda: call_command("groups", "list", "--coordinator", address).code == 0, coordinator.output)
