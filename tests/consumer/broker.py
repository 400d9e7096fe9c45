"""A real Kafka broker on this machine, fetched from Maven Central, and the Java member.

The jars are fetched once, by ``mvn``, to the user's cache; the broker is one process in KRaft mode with its data in a
directory of the test run.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.certificates import create_certificates
from tests.integration.processes import Program, free_ports, started, wait

KAFKA = "4.3.1"
JARS = f"""
com.dynatrace.hash4j:hash4j:0.22.0
com.fasterxml.jackson.core:jackson-annotations:2.21
com.fasterxml.jackson.core:jackson-core:2.21.2
com.fasterxml.jackson.core:jackson-databind:2.21.2
com.google.re2j:re2j:1.8
com.typesafe.scala-logging:scala-logging_2.13:3.9.6
com.yammer.metrics:metrics-core:2.2.0
commons-validator:commons-validator:1.10.1
jakarta.servlet:jakarta.servlet-api:6.0.0
net.sf.jopt-simple:jopt-simple:5.0.4
net.sourceforge.argparse4j:argparse4j:0.7.0
org.apache.kafka:kafka-clients:{KAFKA}
org.apache.kafka:kafka-coordinator-common:{KAFKA}
org.apache.kafka:kafka-group-coordinator:{KAFKA}
org.apache.kafka:kafka-group-coordinator-api:{KAFKA}
org.apache.kafka:kafka-metadata:{KAFKA}
org.apache.kafka:kafka-raft:{KAFKA}
org.apache.kafka:kafka-server:{KAFKA}
org.apache.kafka:kafka-server-common:{KAFKA}
org.apache.kafka:kafka-share-coordinator:{KAFKA}
org.apache.kafka:kafka-storage:{KAFKA}
org.apache.kafka:kafka-tools:{KAFKA}
org.apache.kafka:kafka-tools-api:{KAFKA}
org.apache.kafka:kafka-transaction-coordinator:{KAFKA}
org.apache.kafka:kafka_2.13:{KAFKA}
org.apache.logging.log4j:log4j-api:2.25.4
org.apache.logging.log4j:log4j-core:2.25.4
org.hdrhistogram:HdrHistogram:2.2.2
org.jspecify:jspecify:1.0.0
org.pcollections:pcollections:4.0.2
org.scala-lang:scala-library:2.13.18
org.slf4j:slf4j-api:1.7.36
org.slf4j:slf4j-simple:1.7.36
"""
"""The jars that a broker and a consumer need at run time; other dependencies of Kafka are not used."""

SMALL_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
FETCH_PATIENCE_S = 280

DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>"""
WITH_DEPENDENCIES = """
    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"""
PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>connectgroup.tests</groupId><artifactId>broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""

PROPERTIES = """
process.roles={roles}
node.id={node_id}
controller.quorum.voters={voter}
listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port}{more}{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{sasl_port},TLS://127.0.0.1:{tls_port}{advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,TLS:SSL{protocols}
ssl.keystore.type=PEM
ssl.keystore.location={directory}/server.keystore
ssl.truststore.type=PEM
ssl.truststore.location={directory}/client.pem
listener.name.tls.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config=\\
 org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{password}";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.plain.connections.max.reauth.ms=3000
inter.broker.listener.name=PLAINTEXT
broker.rack=here
log.dirs={data}
num.partitions=1
auto.create.topics.enable=false
log.retention.ms=-1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=200
"""


PASSWORD = "correct horse battery"
"""Of the user ``alice``."""


class Unavailable(Exception):
    """What is missing on this machine; the reason for skipping tests."""


class Broker:
    """A broker in a separate process, and the Java member, which is compiled when it is first used.

    Attributes:
        bootstrap: ``host:port``.
        sasl: ``host:port`` of a listener for SASL_SSL: user ``alice`` with ``PASSWORD``, by PLAIN for 3 s at a time
            and by SCRAM. ``certificates / "server.pem"`` is its authority.
        tls: ``host:port`` of a listener for SSL that requires the client's certificate ``certificates / "client.pem"``.
        certificates: the directory of certificates and keys.
    """

    def __init__(
        self,
        directory: Path,
        jars: Path,
        more: str = "",
        *,
        node_id: int = 1,
        first: Broker | None = None,
        proxied: Mapping[int, int] | None = None,
    ) -> None:
        """``first``: the broker whose cluster it joins, and which is the controller; null: it has its own."""
        self._first, self._proxied = first, proxied or {}
        self._directory, self._jars, self.certificates = directory, jars, directory
        create_certificates(directory, "server", "client", "other")
        pem = [(directory / f"server.{ending}").read_text() for ending in ("key", "pem")]
        (directory / "server.keystore").write_text("".join(pem))
        self._java = ("java", "-Xmx256m", *SMALL_JVM, "-cp", f"{jars}/*")
        self._settings, self._more, self._node_id = directory / "server.properties", more, node_id
        self._configure(*free_ports(4))
        self._cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        users = [f"--add-scram=SCRAM-SHA-{bits}=[name=alice,password={PASSWORD}]" for bits in (256, 512)]
        if first is not None:
            self._cluster_id, users = first._cluster_id, []
        _run(*self._java, "kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", self._settings, *users)
        self._process: Program | None = None
        self._has_served = False

    def _configure(self, port: int, sasl_port: int, tls_port: int, controller_port: int) -> None:
        """Write the properties of a broker at these ports."""
        self._ports = port, sasl_port, tls_port, controller_port
        self.bootstrap, self.sasl, self.tls = (f"127.0.0.1:{each}" for each in (port, sasl_port, tls_port))
        voter = self._first or self
        self._settings.write_text(
            PROPERTIES.format(
                roles="broker,controller" if self._first is None else "broker",
                voter=f"{voter._node_id}@127.0.0.1:{voter._ports[3]}",
                controller=f",CONTROLLER://127.0.0.1:{controller_port}" if self._first is None else "",
                node_id=self._node_id,
                port=port,
                sasl_port=sasl_port,
                tls_port=tls_port,
                directory=self._directory,
                password=PASSWORD,
                data=self._directory / "data",
                more="".join(f",PROXIED{each}://127.0.0.1:{each}" for each in self._proxied),
                advertised="".join(f",PROXIED{each}://127.0.0.1:{at}" for each, at in self._proxied.items()),
                protocols="".join(f",PROXIED{each}:PLAINTEXT" for each in self._proxied),
            )
            + self._more
        )

    @cached_property
    def java_member(self) -> list[str]:
        """The beginning of the command line of the Java member."""
        compiled = self._directory / "java"
        member = Path(__file__).with_name("JavaMember.java")
        _run("javac", "-nowarn", "-cp", f"{self._jars}/*", "-d", compiled, member)
        path = f"{compiled}{os.pathsep}{self._jars}/*"
        return ["java", "-Xmx64m", *SMALL_JVM, "-cp", path, "JavaMember"]

    def tool(self, main: str, *arguments: str) -> str:
        """Run one of Kafka's command-line tools by its Java class; return what it prints."""
        command = [
            "java",
            "-Xmx128m",
            *SMALL_JVM,
            "-cp",
            f"{self._jars}/*",
            f"org.apache.kafka.tools.{main}",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
        return done.stdout + done.stderr

    def start(self) -> None:
        """Start the broker, and wait until it serves: again at the same ports if it has served before."""
        ports = self._ports if self._has_served else len(self._ports)
        self._process, _ = started("the broker", self._launch, lambda *_: self._serves(), ports)
        self._has_served = True

    def _launch(self, *ports: int) -> Program:
        self._configure(*ports)
        return Program(self._settings, command=(*self._java, "kafka.Kafka"), tied=True)

    def _serves(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        with contextlib.suppress(KafkaException):
            return bool(admin.list_topics(timeout=2).brokers)
        return False

    def kill(self) -> None:
        """kill -9; acknowledged data is in the page cache, and survives."""
        if self._process is not None:
            self._process.kill()
            self._process = None
            wait("the broker to be gone", self._is_gone)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """SIGSTOP until the end of the block: connections stay open, and nothing is answered."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            while _runs(self._process.pid):  # on a busy machine threads go on until one of them has got the signal
                time.sleep(0.01)
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def _is_gone(self) -> bool:
        host, _, port = self.bootstrap.partition(":")
        with socket.socket() as asking:
            return asking.connect_ex((host, int(port))) != 0


def _runs(process_group: int) -> bool:
    """Whether a thread of the process group is not stopped."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if os.getpgid(int(process.name)) == process_group:
                for thread in process.glob("task/*/stat"):
                    state = thread.read_text().rpartition(")")[2].split()[0]
                    if state not in "TZX":
                        return True
    return False


@contextlib.contextmanager
def running_broker(
    more: str = "", *, node_id: int = 1, first: Broker | None = None, proxied: Mapping[int, int] | None = None
) -> Iterator[Broker]:
    """A broker until the end of the block.

    Args:
        more: lines of its properties; they take precedence.
        node_id: the broker's id.
        first: the broker whose cluster it joins; null: one of its own.
        proxied: more ports that it listens at, and for each the port of a proxy, which it names to its clients.

    Raises:
        Unavailable: Java is missing, or the jars cannot be fetched.
    """
    jars = fetched_jars()
    with tempfile.TemporaryDirectory(prefix="connectgroup-broker-") as scratch:
        broker = Broker(Path(scratch), jars, more, node_id=node_id, first=first, proxied=proxied)
        try:
            broker.start()
            yield broker
        finally:
            broker.kill()


def fetched_jars() -> Path:
    """The directory with the jars; they are fetched if the cache lacks them.

    Raises:
        Unavailable: no ``java``, ``javac``, ``mvn`` or ``openssl``, or Maven Central does not respond.
    """
    _check_commands()
    wanted = [line.split(":") for line in JARS.split()]
    return _cached(f"kafka-{KAFKA}", "".join(DEPENDENCY.format(*each) for each in wanted), len(wanted))


def fetched_transforms() -> Path:
    """The directory with Kafka Connect's own transforms, and what they need.

    Raises:
        Unavailable: see ``fetched_jars``.
    """
    _check_commands()
    wanted = [
        line.split(":") for line in JARS.split() if "jackson" in line or "kafka-clients" in line or "slf4j" in line
    ]
    wanted += [["org.apache.kafka", name, KAFKA] for name in ("connect-api", "connect-transforms")]
    return _cached(f"connect-transforms-{KAFKA}", "".join(DEPENDENCY.format(*each) for each in wanted), len(wanted))


def fetched_jars_of(name: str, jars: Sequence[str]) -> Path:
    """The directory with these jars alone; see ``fetched_with_dependencies``."""
    _check_commands()
    return _cached(name, "".join(DEPENDENCY.format(*each.split(":")) for each in jars), len(jars))


def fetched_with_dependencies(name: str, jars: Sequence[str]) -> Path:
    """The directory with these jars and all their dependencies; they are fetched if the cache lacks them.

    Args:
        name: of the directory in the cache.
        jars: ``group:artifact:version`` of each.

    Raises:
        Unavailable: no ``java``, ``javac`` or ``mvn``, or Maven Central does not respond.
    """
    _check_commands()
    return _cached(name, "".join(WITH_DEPENDENCIES.format(*each.split(":")) for each in jars), len(jars))


def _check_commands() -> None:
    for command in ("java", "javac", "mvn", "openssl"):
        if shutil.which(command) is None:
            raise Unavailable(
                f"a Kafka broker needs {command!r}, which is not installed (a JDK 17 or later, Maven, OpenSSL)"
            )


def _cached(name: str, dependencies: str, least: int) -> Path:
    """The directory of the user's cache with these jars; fetched if it has fewer than ``least``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "connectgroup"
    jars = cache / name
    if len(list(jars.glob("*.jar"))) >= least:
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        project = Path(scratch) / "pom.xml"
        project.write_text(PROJECT.format(dependencies))
        fresh = Path(scratch) / "jars"
        _run("mvn", "-q", "-B", "-f", project, "dependency:copy-dependencies", f"-DoutputDirectory={fresh}")
        shutil.rmtree(jars, ignore_errors=True)
        fresh.rename(jars)  # atomic: another run may read it at the same time
    return jars


def _run(*arguments: str | Path) -> None:
    command = [str(word) for word in arguments]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=FETCH_PATIENCE_S, stdin=subprocess.DEVNULL
        )
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{command[0]} failed: {(error.stdout + error.stderr).strip()[-500:]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} has not ended within {FETCH_PATIENCE_S} s") from None
