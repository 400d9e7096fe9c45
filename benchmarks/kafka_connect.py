"""A real Kafka Connect worker in distributed mode, fetched from Maven Central, on a real broker."""

from __future__ import annotations

import contextlib
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.consumer.broker import KAFKA, SMALL_JVM, fetched_with_dependencies
from tests.integration.processes import Program, started

JARS = (f"org.apache.kafka:connect-runtime:{KAFKA}", f"org.apache.kafka:connect-file:{KAFKA}")
PROPERTIES = """
bootstrap.servers={bootstrap}
group.id={group}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
config.storage.topic={group}-configs
offset.storage.topic={group}-offsets
status.storage.topic={group}-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
offset.storage.partitions=1
status.storage.replication.factor=1
status.storage.partitions=1
listeners=http://127.0.0.1:{port}
rest.advertised.host.name=127.0.0.1
plugin.discovery=only_scan
offset.flush.interval.ms=1000
{more}
"""


@contextlib.contextmanager
def running_connect(
    bootstrap: str,
    *,
    group: str = "connect",
    more: str = "",
    heap: str = "512m",
    jvm: Sequence[str] = SMALL_JVM,
) -> Iterator[str]:
    """A worker until the end of the block; yields the address of its REST API.

    Args:
        bootstrap: a broker.
        group: id of the group, and the prefix of its topics.
        more: more lines of the worker's properties.
        heap: maximum size of Java's heap.
        jvm: options of Java, by default those that start it fast.

    Raises:
        Unavailable: Java or Maven is missing, or the jars cannot be fetched.
    """
    jars = fetched_with_dependencies(f"kafka-connect-{KAFKA}", JARS)
    with tempfile.TemporaryDirectory(prefix="connectgroup-connect-") as scratch:
        settings = Path(scratch, "worker.properties")
        java = ("java", f"-Xmx{heap}", *jvm, "-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed")

        def launch(port: int) -> Program:
            settings.write_text(PROPERTIES.format(bootstrap=bootstrap, group=group, port=port, more=more))
            return Program(settings, command=java, tied=True)

        def serves(port: int) -> bool:
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors", timeout=5) as response,
            ):
                return bool(response.status == 200)
            return False

        connect, (port,) = started("Kafka Connect", launch, serves, patience_s=180)
        with connect:
            yield f"http://127.0.0.1:{port}"
