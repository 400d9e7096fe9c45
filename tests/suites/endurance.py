"""Mass starts, rolling restarts and kills while records are written: what is missing, and what is read twice.

``python -m tests.suites.endurance`` runs the same rounds on a broker and on the proxy; ``--records 2000000`` is the
long run. In each round all members start at once; then each is restarted, one after the other, and some are killed.
The proxy, whose log is a file, is killed in each round and started again at its port. A member that is killed has read
records that it has not committed: these are read twice on the broker, too. The exit code is 0 if nothing is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from connectgroup.log.registry import sqlite_url
from tests.consumer.broker import Broker, running_broker
from tests.consumer.members import SESSION_MS, BrokerGroup, BrokerMember, Cluster, group_on
from tests.integration.processes import Program, started

SETTINGS = f"""
group.consumer.min.session.timeout.ms=1000
group.consumer.session.timeout.ms={SESSION_MS}
group.consumer.heartbeat.interval.ms=500
"""
"""The broker's, which the proxy has as well: a member that is killed is removed as soon on both."""


class KilledProxy:
    """A proxy that is killed and started again: a ``Cluster`` of ``tests.consumer.members``."""

    def __init__(self, broker: Broker, log: Path) -> None:
        self._broker, self._log = broker, log
        self._process, self._ports = started("the proxy", self._launch, self._serves)
        self.bootstrap = f"127.0.0.1:{self._ports[0]}"

    @property
    def java_member(self) -> list[str]:
        return self._broker.java_member

    def start(self) -> None:
        """Start the proxy again, and wait until it serves."""
        self._process, _ = started("the proxy", self._launch, self._serves, self._ports)

    def _launch(self, port: int) -> Program:
        session = "--consumer-session-timeout-ms", SESSION_MS, "--consumer-heartbeat-interval-ms", 500
        log = "--log", sqlite_url(self._log)
        self._process = Program(
            *("proxy", "--broker", self._broker.bootstrap, "--port", port),
            *("--min-session-timeout-ms", 1000, *session, *log),
        )
        return self._process

    def _serves(self, port: int) -> bool:
        return any(line.startswith("proxy at ") for line in self._process.lines)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()


@contextlib.contextmanager
def places(which: list[str]) -> Iterator[dict[str, tuple[Cluster, Callable[[], None]]]]:
    """The places by name; with each, what kills its coordinator and starts it again (nothing on the broker)."""
    with running_broker(SETTINGS) as broker, tempfile.TemporaryDirectory(prefix="connectgroup-endurance-") as scratch:
        found: dict[str, tuple[Cluster, Callable[[], None]]] = {}
        if "broker" in which:
            found["broker"] = (broker, lambda: None)
        proxy = KilledProxy(broker, Path(scratch) / "log.db") if "proxy" in which else None
        if proxy is not None:

            def again() -> None:
                proxy.kill()
                proxy.start()

            found["proxy"] = (proxy, again)
        try:
            yield found
        finally:
            if proxy is not None:
                proxy.kill()


def run_round(group: BrokerGroup, again: Callable[[], None], members: int, records: int, assignor: str) -> None:
    """One round: a mass start, then writes with restarts of all members, a kill of one, and a kill of the proxy."""

    def start(name: str) -> BrokerMember:
        return group.librdkafka(f"{name} {len(group.members)}", *([assignor] if assignor else []))

    alive = [start("mass") for _ in range(members)]
    steps = len(alive) + 2
    for number in range(steps):
        group.wait_until(lambda: all(member.owned for member in alive), "all members to own partitions")
        group.write(records // steps + (records % steps if number == 0 else 0))
        if number < len(alive):
            alive[number].stop()
            alive[number] = start("restarted")
        elif number == len(alive):
            alive[0].kill()
            alive[0] = start("after a kill")
        else:
            again()
    group.wait_until(
        lambda: len({record for member in group.members for record in member.read}) == group.written,
        f"{group.written} records to be read",
    )
    for member in alive:
        member.stop()


def counted(group: BrokerGroup) -> Counter[str]:
    """The records of a round: written, missing, and read twice, with and without the kill of the first reader."""
    killed = {member.name for member in group.members if member.killed_ns is not None}
    twice = [readers[0] in killed for _, _, readers in group.read_more_than_once()]
    missing = group.everything() - {record for member in group.members for record in member.read}
    return Counter(written=group.written, missing=len(missing), killed=sum(twice), alive=len(twice) - sum(twice))


def missing_records(group: BrokerGroup) -> list[str]:
    """For each missing record, who has read the records around it."""
    readers = {record: member for member in group.members for record in member.read}

    def who(partition: int, offset: int) -> str:
        reader = readers.get((partition, offset))
        return "no member" if reader is None else f"{reader.name}{', killed' if reader.killed_ns is not None else ''}"

    return [
        f"missing: partition {partition} at {offset}; the one before: {who(partition, offset - 1)}, "
        f"the one after: {who(partition, offset + 1)}"
        for partition, offset in sorted(group.everything() - readers.keys())
    ]


def described(records: Counter[str]) -> str:
    """One line on a round, or on all of them."""
    return (
        f"{records['written']} records, {records['missing']} missing, "
        f"{records['killed']} read twice after the kill of their reader, {records['alive']} read twice besides"
    )


def main() -> int:
    """Run rounds, and print what they lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000, help="in all rounds of a place")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--assignor", default="", help="of the classic protocol; without one, KIP-848")
    parser.add_argument("--only", choices=("broker", "proxy"))
    options = parser.parse_args()
    failed = False
    with places([options.only] if options.only else ["broker", "proxy"]) as found:
        for place, (cluster, again) in found.items():
            began_s, total = time.monotonic(), Counter[str]()
            for number in range(options.rounds):
                with group_on(cluster, f"endurance {number}", partitions=options.partitions) as group:
                    round_began_s = time.monotonic()
                    try:
                        run_round(group, again, options.members, options.records // options.rounds, options.assignor)
                    except AssertionError as error:
                        failed = True
                        print(f"{place}, round {number}: {str(error).splitlines()[0]}", flush=True)
                    of_round = counted(group)
                    for line in missing_records(group)[:5]:
                        print(f"{place}, round {number}: {line}", flush=True)
                    total += of_round
                    print(
                        f"{place}, round {number}: {described(of_round)}, {time.monotonic() - round_began_s:.0f} s",
                        flush=True,
                    )
            failed |= bool(total["missing"])
            print(f"{place}: {described(total)}, {time.monotonic() - began_s:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
