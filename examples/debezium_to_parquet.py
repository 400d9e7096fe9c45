"""Each change of a PostgreSQL table, read by Debezium, is in Parquet files exactly once, while workers are killed.

Debezium's connector for PostgreSQL runs unchanged in the workers' Java process, and its offsets are committed with the
rows. The program changes a table, kills the worker that runs the task, and again; at the end it compares the files with
the history of the table, change by change and in order.

    python examples/debezium_to_parquet.py [--changes 4000] [--kills 2]

It starts a PostgreSQL server of its own and fetches Debezium with Maven, as the tests of a source checkout do: that
needs Java, Maven and Debian's package postgresql.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pyarrow.parquet

from connectgroup.config.connector_file import ConnectorFile
from connectgroup.config.coordinator import CoordinatorConfig
from connectgroup.dataplane.errors import SinkError
from connectgroup.dataplane.java_plugins import set_plugin_path
from connectgroup.spark.sinks.parquet import read_committed
from connectgroup.supervisor import Supervisor

DEBEZIUM = "io.debezium:debezium-connector-postgres:3.6.1.Final"
ACCOUNTS = 100
PATIENCE_S = 240.0
"""How long the program waits for changes that do not arrive."""

Change = tuple[str, int, int]
"""Debezium's operation (r: read by the snapshot, c, u, d), the account, its balance after the change (before a d)."""


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pipeline; return 0 if the files are the table's history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=4000)
    parser.add_argument("--kills", type=int, default=2)
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="debezium-to-parquet-")))
        url = own_postgres(stack)
        shutil.copytree(debezium_jars(), data / "plugins" / "debezium-postgres")
        set_plugin_path((data / "plugins",))
        return asyncio.run(run(data, url, options.changes, options.kills))


async def run(data: Path, url: str, changes: int, kills: int) -> int:
    """Run two workers and the connector, change the table, kill workers; compare."""
    sink = data / "changes"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
        connection.execute("ALTER TABLE accounts REPLICA IDENTITY FULL")
        connection.execute(f"INSERT INTO accounts SELECT n, 0 FROM generate_series(1, {ACCOUNTS}) n")
    connector = ConnectorFile(name="accounts", config=settings(url, sink))
    log = (data / "workers.log").open("w", encoding="utf-8")
    print("starting two workers, each with a Spark session of its own ...")
    supervisor = Supervisor(
        "example",
        workers=2,
        scratch=data / "scratch",
        coordinator=CoordinatorConfig(port=0, data=data / "groups.sqlite"),
        connectors=[connector],
        allowed_paths=[data],
        worker_log=lambda name, line: print(f"{name} | {line}", file=log, flush=True),
    )
    history: list[Change] = [("r", account, 0) for account in range(1, ACCOUNTS + 1)]
    async with supervisor:
        await arrived(sink, len(history), log.name)
        print(f"the snapshot of {ACCOUNTS} accounts is in the files")
        for part in range(kills + 1):
            share = changes // (kills + 1)
            changing = asyncio.create_task(asyncio.to_thread(change, url, share, part, history))
            await asyncio.sleep(1)
            if part < kills:
                worker = await worker_of_task(supervisor)
                print(f"SIGKILL to {worker}, which runs the task")
                supervisor.signal_worker(worker, signal.SIGKILL)
            await changing
            await arrived(sink, len(history), log.name)
    log.close()
    found = read(sink)
    print(f"{len(history):,} changes of the table, {len(found):,} in the files")
    is_same = found == history
    print("OK: the files are the history of the table, each change once and in order" if is_same else "FAILED")
    return 0 if is_same else 1


def settings(url: str, sink: Path) -> dict[str, str]:
    """The connector, in Kafka Connect's own form, with the settings of the sink beside it."""
    address, _, database = url.partition("@")[2].partition("/")
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": address.partition(":")[0],
        "database.port": address.partition(":")[2],
        "database.user": "test",
        "database.dbname": database,
        "topic.prefix": "bank",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.accounts",
        "tombstones.on.delete": "false",
        "sink": "parquet",
        "sink.path": str(sink),
    }


def change(url: str, changes: int, seed: int, history: list[Change]) -> None:
    """Change random accounts, one transaction for each change, and note what was done."""
    chance = random.Random(seed)
    balances = dict[int, int]()
    for operation, account, balance in history:
        if operation == "d":
            del balances[account]
        else:
            balances[account] = balance
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(changes):
            account, balance = chance.randrange(1, ACCOUNTS + 1), chance.randrange(1_000_000)
            if account not in balances:
                connection.execute("INSERT INTO accounts VALUES (%s, %s)", (account, balance))
                history.append(("c", account, balance))
            elif chance.random() < 0.2:
                connection.execute("DELETE FROM accounts WHERE id = %s", (account,))
                history.append(("d", account, balances.pop(account)))
                continue
            else:
                connection.execute("UPDATE accounts SET balance = %s WHERE id = %s", (balance, account))
                history.append(("u", account, balance))
            balances[account] = balance


def read(sink: Path) -> list[Change]:
    """The changes in the committed files, in their order."""
    try:
        files = read_committed(sink)
    except SinkError:
        return []
    rows = [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
    states = [(row["op"], row["before"] if row["op"] == "d" else row["after"]) for row in rows]
    return [(operation, state["id"], state["balance"]) for operation, state in states]


async def arrived(sink: Path, changes: int, log: str) -> None:
    """Wait until so many changes are in the files.

    Raises:
        SystemExit: they do not arrive; names the log.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while len(await asyncio.to_thread(read, sink)) < changes:
        if time.monotonic() > give_up_s:
            raise SystemExit(f"debezium_to_parquet: changes are missing after {PATIENCE_S:.0f} s; see {log}")
        await asyncio.sleep(0.5)


async def worker_of_task(supervisor: Supervisor) -> str:
    """The worker that runs the task."""
    while True:
        group = await supervisor.describe()
        for connector in group.connectors:
            for unit in connector.units:
                if unit.state == "RUNNING" and unit.task == 0:
                    return unit.member_id
        await asyncio.sleep(0.2)


def own_postgres(servers: contextlib.ExitStack) -> str:
    """Start a PostgreSQL server with logical decoding for this run; return its connection string."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.spark.postgres_server import running_server

    print("starting a PostgreSQL server ...")
    return servers.enter_context(running_server())


def debezium_jars() -> Path:
    """Fetch Debezium; return the directory of its jars."""
    from tests.consumer.broker import fetched_with_dependencies

    return fetched_with_dependencies("debezium-postgres-3.6.1", [DEBEZIUM])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
