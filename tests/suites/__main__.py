"""Run the tests of Kafka's clients on a broker and on the proxy, and print what differs.

``python -m tests.suites [SUITE ...] [-k WORDS]``; without a suite, all of them. Everything that is fetched is in a
package registry: kafka-python's tests in its source distribution, aiokafka, and Kafka's jars. What is fetched goes to
a temporary directory. The exit code is 0 if no case differs without a known reason (``tests.suites.table.REASONS``).

- ``kafka-python``: the integration tests that its source distribution contains.
- ``aiokafka``: its source distribution has no tests; own ports of scenarios of its consumer, producer and admin tests.
- ``librdkafka``: own ports of scenarios of librdkafka's tests, with confluent-kafka, for both protocols.
- ``java``: Kafka's VerifiableConsumer in scenarios of Kafka's system tests of consumers, for all its assignors.
- ``transactions`` and ``offsets``: this repository's tests that run on both, with franz-go's TestTxnEtl among them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.consumer.broker import KAFKA, Broker, running_broker
from tests.proxy.running import running_proxy

from .table import Outcome, Row, outcomes, rows, split_places, table

REPOSITORY = Path(__file__).parents[2]
OWN = {
    "aiokafka": "tests/suites/scenarios_aiokafka.py",
    "librdkafka": "tests/suites/scenarios_librdkafka.py",
    "java": "tests/suites/scenarios_java.py",
    "transactions": "tests/proxy/test_transactions.py",
    "offsets": "tests/proxy/test_offsets.py",
}
SUITES = ("kafka-python", *OWN)
SUITE_PATIENCE_S = 1_500

KAFKA_PYTHON = (
    "test/integration",
    *(f"--ignore=test/integration/test_{name}_integration.py" for name in ("sasl", "ssl")),  # start brokers themselves
    "--deselect=test/integration/test_producer_integration.py::test_end_to_end[zstd]",  # not among the broker's jars
)

SERVICE = """
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    def __init__(self, *_):
        raise RuntimeError("the suites run with a broker that is there already")
"""
"""What kafka-python's fixtures need to use a broker that they have not started."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run suites; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}")
    parser.add_argument("-k", dest="words", default="", help="only the cases that match, as pytest's -k")
    options = parser.parse_args(arguments)
    if unknown := [each for each in options.suites if each not in SUITES]:
        parser.error(f"got suite {unknown[0]!r}; allowed: {', '.join(SUITES)}")
    chosen = [suite for suite in SUITES if suite in (options.suites or SUITES)]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="connectgroup-suites-") as scratch:
        packages = Path(scratch) / "packages"
        if {"kafka-python", "aiokafka"} & set(chosen):
            fetch_packages(packages)
        found: list[Row] = []
        for suite in chosen:
            print(f"{time.monotonic() - began_s:.0f} s: {suite}", file=sys.stderr, flush=True)
            run = Run(suite, options.words, Path(scratch), packages)
            found += run.kafka_python() if suite == "kafka-python" else run.own()
    print(table(found))
    print(f"{time.monotonic() - began_s:.0f} s in all")
    idle = [suite for suite in chosen if not any(row.suite == suite and row.broker == "passed" for row in found)]
    for suite in idle:
        print(f"suites: {suite}: no case passed on the broker", file=sys.stderr)
    return int(bool(idle) or any(row.differs and not row.reason for row in found))


def fetch_packages(to: Path) -> None:
    """Install the packages that only these suites need."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(to)]
    subprocess.run([*pip, "aiokafka>=0.14"], check=True)
    subprocess.run([*pip, "--no-deps", "pytest-mock>=3.10"], check=True)  # pytest is that of the environment


def fetch_kafka_python(to: Path) -> Path:
    """kafka-python as its source distribution has it; the directory with its tests."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-binary", "kafka-python", "--no-deps", "-d", str(to), "kafka-python>=3"], check=True)
    [archive] = to.glob("kafka*.tar.gz")
    shutil.unpack_archive(archive, to)
    [directory] = (path.parent.parent for path in to.glob("*/test/integration"))
    # Two files that the distribution leaves out: without the first one, Python's own package "test" is found.
    (directory / "test" / "__init__.py").touch()
    (directory / "test" / "service.py").write_text(SERVICE)
    return directory


class Run:
    """One run of one suite.

    Args:
        suite: its name.
        words: for pytest's ``-k``; empty for all cases.
        scratch: directory for what is fetched, and for reports.
        packages: directory of packages that are not in the environment.
    """

    def __init__(self, suite: str, words: str, scratch: Path, packages: Path) -> None:
        self._suite, self._words, self._scratch, self._packages = suite, words, scratch, packages

    def own(self) -> list[Row]:
        """The rows of a suite of this repository: one run of pytest has both places."""
        # The parameter of a place is the only way to leave out tests that have none.
        found = split_places(self._pytest("both", REPOSITORY, [OWN[self._suite]], {"TEST_VOLUME": "ci"}))
        return rows(self._suite, found)

    def kafka_python(self) -> list[Row]:
        """The rows of kafka-python's own tests: one run of pytest for each place, at the same time."""
        directory = fetch_kafka_python(self._scratch)
        # As kafka-python starts its own: a topic that is written to has two partitions, and the broker's id is 0.
        settings = "auto.create.topics.enable=true\nnum.partitions=2\n"
        with running_broker(settings, node_id=0) as broker, running_proxy(broker) as proxy:
            _prepare(broker)
            places = {"broker": broker.bootstrap, "proxy": proxy.bootstrap}

            def run(place: str, tests: Sequence[str]) -> dict[str, Outcome]:
                version = ".".join(KAFKA.split(".")[:2])
                where = {
                    "KAFKA_URI": f"kafka://{places[place]}",
                    "KAFKA_VERSION": version,
                    "KAFKA_ROOT": str(directory),
                }
                return self._pytest(place, directory, tests, {**where, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})

            with ThreadPoolExecutor(2) as pool:
                found = dict(zip(places, pool.map(run, places, [KAFKA_PYTHON] * 2), strict=True))
            different = [
                name for name in found["broker"] if found["broker"][name][0] != found["proxy"].get(name, "?")[0]
            ]
            if different:  # its timeouts are short: what a second run, alone, has the same on both is no difference
                again = [_test_id(directory, name) for name in different]
                for place in places:
                    found[place] |= run(place, again)
        return rows(self._suite, found)

    def _pytest(
        self, name: str, directory: Path, tests: Sequence[str], environment: dict[str, str]
    ) -> dict[str, Outcome]:
        report = self._scratch / f"{self._suite}-{name}.xml"
        log = report.with_suffix(".log")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *tests,
        ]
        if "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in environment:
            command += ["-p", "pytest_timeout", "-p", "pytest_mock", "--timeout=120", "--timeout-method=signal"]
        if self._words:
            command += ["-k", self._words]
        environment = os.environ | {"PYTHONPATH": str(self._packages)} | environment
        with log.open("w") as output:
            subprocess.run(
                command, cwd=directory, env=environment, stdout=output, stderr=output, timeout=SUITE_PATIENCE_S
            )
        if not report.exists():
            raise SystemExit(f"suites: {self._suite} has not run:\n{log.read_text()[-3000:]}")
        return outcomes(report)


def _prepare(broker: Broker) -> None:
    """Have the broker create the topic of offsets, so that no case waits for it."""
    from tests.proxy.test_offsets import Cluster

    Cluster(broker.bootstrap, broker)


def _test_id(directory: Path, name: str) -> str:
    """pytest's id of a test, of ``module::name`` in a report: the module may end with a class."""
    module, _, test = name.partition("::")
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        path = Path(*parts[:count]).with_suffix(".py")
        if (directory / path).is_file():
            return "::".join([path.as_posix(), *parts[count:], test])
    raise ValueError(f"got module {module!r}; allowed: one of {directory}")


if __name__ == "__main__":
    sys.exit(main())
