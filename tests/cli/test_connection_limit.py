"""A coordinator at its connection limit reports it to commands and workers."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from ..integration.processes import Program, call_command, wait

LIMITS = {
    "--max-connections": "the coordinator is at its limit of 2 connections (max_connections)",
    "--max-connections-per-address": (
        "the coordinator is at its limit of 2 connections from one address (max_connections_per_address)"
    ),
}


@pytest.mark.parametrize("option", LIMITS)
def test_commands_and_workers_report_the_limit_that_is_reached(tmp_path: Path, option: str) -> None:
    options = ("--port", 0, "--data", tmp_path / "data", "--no-authentication", option, 2)
    with Program("coordinator", *options) as coordinator:
        address = coordinator.line_with("coordinator at ").removeprefix("coordinator at ")
        host, _, port = address.rpartition(":")
        with contextlib.ExitStack() as opened:
            for _ in range(2):
                opened.enter_context(socket.create_connection((host, int(port))))
            listed = call_command("groups", "list", "--coordinator", address)
            assert (listed.code, listed.err) == (2, f"connectgroup: {LIMITS[option]}\n")
            arguments = ("--name", "w", "--group", "g", "--coordinator", address, "--scratch", tmp_path)
            with Program("worker", *arguments) as worker:
                worker.line_with(f"heartbeat failed (attempt 1): {LIMITS[option]}")
        wait("room", lambda: call_command("groups", "list", "--coordinator", address).code == 0, coordinator.output)
