"""A proxy as a separate process, in front of a real broker."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from tests.consumer.broker import Broker
from tests.integration.processes import Program, wait


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        bootstrap: ``host:port``.
        broker: the broker behind it.
        log: the lines it has written.
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
    quick = "--initial-rebalance-delay-ms", "0", "--min-session-timeout-ms", "1000"
    command = "proxy", "--broker", broker.bootstrap, "--port", "0", "--log", "memory:", *quick, *options
    with Program(*command) as program:
        yield Proxy(bootstrap=program.line_with("proxy at ").split()[2], broker=broker, log=program.lines)
        program.signal(signal.SIGTERM)
        assert program.ended() == 0, program.output()
