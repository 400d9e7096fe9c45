"""A real Kafka Connect worker in distributed mode, fetched from Maven Central, on a real broker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.consumer.broker import KAFKA, SMALL_JVM, WITH_ITS_STARTER, fetched_with_dependencies, free_ports
from tests.integration.processes import wait

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
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="connectgroup-connect-") as scratch:
        settings, log = Path(scratch, "worker.properties"), Path(scratch, "log")
        settings.write_text(PROPERTIES.format(bootstrap=bootstrap, group=group, port=port, more=more))
        java = ("java", f"-Xmx{heap}", *jvm, "-cp", f"{jars}/*")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*WITH_ITS_STARTER, *java, "org.apache.kafka.connect.cli.ConnectDistributed", str(settings)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        url = f"http://127.0.0.1:{port}"

        def serves() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(f"{url}/connectors", timeout=5) as response,
            ):
                return bool(response.status == 200)
            return False

        try:
            wait("Kafka Connect", serves, lambda: log.read_text(errors="replace")[-3000:], 180)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
