"""A proxy as a separate process, in front of a real broker."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tests.consumer.broker import Broker
from tests.integration.processes import PATIENCE_S, wait


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        bootstrap: ``host:port``.
        broker: the broker behind it.
        log: the lines it has written to its standard error.
    """

    bootstrap: str
    broker: Broker
    log: list[str]

    @property
    def java_member(self) -> list[str]:
        return self.broker.java_member

    def start(self) -> None:
        """Start the broker again."""
        self.broker.start()

    def kill(self) -> None:
        """Kill the broker; the proxy keeps running."""
        self.broker.kill()

    def wait_for_log(self, text: str) -> None:
        """Wait until the proxy has logged a line that contains this text."""
        wait(f"the proxy to log {text!r}", lambda: any(text in line for line in self.log), lambda: "\n".join(self.log))


@contextlib.contextmanager
def running_proxy(broker: Broker, *options: str) -> Iterator[Proxy]:
    """A proxy until the end of the block."""
    command = [sys.executable, "-m", "connectgroup", "proxy", "--broker", broker.bootstrap, "--port", "0"]
    command += ["--log", "memory:", "--initial-rebalance-delay-ms", "0", "--min-session-timeout-ms", "1000", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = process.stderr
        reader = threading.Thread(target=lambda: log.extend(iter(errors.readline, "")), daemon=True)
        reader.start()
        line = process.stdout.readline()
        assert line.startswith("proxy at "), f"{line}{''.join(log)}"
        yield Proxy(bootstrap=line.split()[2], broker=broker, log=log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        assert process.returncode == 0, "".join(log)[-3000:]
