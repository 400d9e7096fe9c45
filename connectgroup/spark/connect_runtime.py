"""Kafka Connect's Java plug-ins in the Java process of this worker's Spark: class loaders, connectors and tasks.

``ConnectBridge.java`` is the side of Java. Each plug-in has a class loader of its own, and each task a thread of its
own; what a plug-in throws arrives as a text. A plug-in that ends Java (``System.exit``) ends the other tasks of this
worker with it: they start again, on a new Java, and the error of those that ran in it names the code.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from ..dataplane.errors import SinkError, SourceError
from ..dataplane.java_plugins import (
    CONVERTERS_OF_SINKS,
    JavaKind,
    JavaPlugin,
    converter_class,
    converter_plugin,
    require_java_class,
)
from ..errors import ConfigError, ConnectGroupError, PluginError
from ..masking import HIDDEN, is_credential
from ..protocol.units import printable
from ..threads import outcome
from .errors import SparkError
from .java import CONNECT_JARS
from .session import java_alone, java_runs, session_is_alive, spark_session

CONNECTOR_BOUND_S: Final = 60.0
"""How long a call of a plug-in's connector may take: Kafka's clients wait for as long."""
SILENCE_MS: Final = 15_000
"""When the tasks of a worker that sends no heartbeats to its Java are stopped, in milliseconds: the process is
suspended, and another worker needs what they hold, such as a replication slot."""
HEARTBEAT_S: Final = 1.0
KAFKA_TRANSFORMS: Final = "org.apache.kafka.connect.transforms."
"""Package of Kafka Connect's own transformations and predicates: they need no plug-in."""
STOP_BOUND_MS: Final = 10_000
"""How long a plug-in may take to stop, in milliseconds: half of it for its ``stop``, half for its thread."""
THREADS_BOUND_MS: Final = 500
"""How long threads that a plug-in has started may take to end after its ``stop``, in milliseconds, before the log says
that they are left."""
_END_WAIT_S: Final = 5.0
_LOOK_S: Final = 0.2
"""How often a call of a sink is looked at."""
MAX_MESSAGE: Final = 600
"""Characters of a plug-in's error."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaTransform:
    """A transformation of a plug-in.

    Attributes:
        cls: its class.
        setting: the setting that names the class, for errors.
        config: its settings.
        predicate: the class of its predicate; empty: none.
        predicate_setting: the setting that names it.
        predicate_config: the predicate's settings.
        negate: whether it applies to the records for which the predicate is false.
    """

    cls: str
    setting: str
    config: Mapping[str, str] = field(repr=False)
    predicate: str = ""
    predicate_setting: str = ""
    predicate_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    negate: bool = False

    def parts(self) -> list[tuple[str, str, JavaKind, Mapping[str, str]]]:
        """The transformation, and its predicate if it has one: the setting that names the class, the class, its kind,
        its settings."""
        own: tuple[str, str, JavaKind, Mapping[str, str]] = (self.setting, self.cls, "transformation", self.config)
        if not self.predicate:
            return [own]
        return [own, (self.predicate_setting, self.predicate, "predicate", self.predicate_config)]


class _Runtime:
    """What has been loaded into one Java process.

    Attributes:
        gateway: the gateway of that process.
        java: Java's packages.
        plugins: the object of Java.
        exit_note: the file in which Java says what has ended it.
    """

    def __init__(self, gateway: Any) -> None:
        """Compile the side of Java: about a second.

        Raises:
            ConfigError, SparkError: the jars of Kafka Connect cannot be fetched.
        """
        jars = CONNECT_JARS.fetched()
        self.gateway = gateway
        java: Any = gateway.jvm
        self.java = java
        urls = gateway.new_array(java.java.net.URL, len(jars))
        for number, jar in enumerate(jars):
            urls[number] = java.java.io.File(str(jar)).toURI().toURL()
        spark = java.org.apache.spark.util.Utils.getSparkClassLoader()
        base = java.java.net.URLClassLoader(urls, spark)
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(base)
        compiler.cook((Path(__file__).parent / "ConnectBridge.java").read_text())
        cls = compiler.getClassLoader().loadClass("connectgroup.connect.Plugins")
        made = cls.getDeclaredConstructor(gateway.new_array(java.java.lang.Class, 0))
        self.plugins: Any = made.newInstance(gateway.new_array(java.java.lang.Object, 0))
        handle, name = tempfile.mkstemp(prefix="exit-")
        os.close(handle)
        self.exit_note = Path(name)
        self.plugins.noteExits(name)
        self.plugins.watch(SILENCE_MS)
        threading.Thread(target=self._beat, name="heartbeats to plug-ins", daemon=True).start()

    def _beat(self) -> None:
        """Tell Java that this process is alive: while it is suspended, plug-ins must not keep what they hold."""
        with suppress(Exception):
            while self.is_alive():
                self.plugins.heartbeat()
                time.sleep(HEARTBEAT_S)

    def is_alive(self) -> bool:
        """Whether this Java process runs."""
        return java_runs(self.gateway)

    def list_of(self, items: Sequence[Any]) -> Any:
        """Return a list of objects of Java."""
        found = self.java.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    def loader(self, plugin: JavaPlugin) -> Any:
        """Return the class loader of a plug-in."""
        return self.plugins.loader(str(plugin.path), json.dumps([str(jar) for jar in plugin.jars]))


_lock = threading.Lock()
_runtime: _Runtime | None = None
_runtimes: deque[_Runtime] = deque(maxlen=4)
"""The last ones, also those whose Java has ended."""


def _current() -> _Runtime:
    """Return what is loaded into this worker's Java; load it if Java is another one."""
    global _runtime
    # That of this moment: the attributes of pyspark change when another Java starts.
    gateway: Any = spark_session().sparkContext._gateway
    with _lock:
        if _runtime is None or _runtime.gateway is not gateway:
            _runtime = _Runtime(gateway)
            _runtimes.append(_runtime)
        return _runtime


def _called(runtime: _Runtime, what: str, secrets: Sequence[str], call: Callable[[], T]) -> T:
    """Call a plug-in.

    Raises:
        SourceError: it has thrown; names the class of the error, its message and its cause.
        SparkError: Java has ended; names the code that has ended it, if it was a plug-in.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        return call()
    except (Py4JJavaError, CapturedException) as error:
        # Pyspark makes its own errors of some, such as an IllegalArgumentException.
        thrown: Any = error.java_exception if isinstance(error, Py4JJavaError) else error._origin
        try:
            text = str(runtime.plugins.describeThrown(thrown))
        except Py4JError:
            text = str(thrown)
        raise SourceError(message_of(what, text, secrets)) from None
    except (Py4JError, OSError, EOFError) as error:
        # A Java that has closed its connections takes a moment to end.
        give_up_s = time.monotonic() + _END_WAIT_S
        while runtime.is_alive() and time.monotonic() < give_up_s:
            time.sleep(0.05)
        if runtime.is_alive():
            raise SparkError(f"{what}: Java does not answer: {type(error).__name__}; allowed: a running Java") from None
        raise SparkError(java_ended(what)) from None


def java_ended(what: str) -> str:
    """The message about a Java that has ended."""
    note = ""
    ended = [runtime for runtime in _runtimes if not runtime.is_alive()]
    with suppress(OSError):
        note = ended[-1].exit_note.read_text() if ended else ""
    if note:
        return f"{what}: Java has ended: {printable(note, limit=200)} called System.exit; allowed: a plug-in without it"
    return f"{what}: Spark's Java process has ended; allowed: the task starts again, on a new one"


def message_of(what: str, text: str, secrets: Sequence[str]) -> str:
    """The message about what a plug-in has thrown, on one line and without its passwords."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return f"{what}: {printable(' '.join(text.split()), limit=MAX_MESSAGE)}"


def check_offsets(cls: str, kind: JavaKind, config: Mapping[str, str], changes: Sequence[Sequence[Any]]) -> bool:
    """Ask a plug-in's connector whether offsets can be changed: its ``alterOffsets``. If no session runs in this
    process, a Java process is started for the question, unless the plug-in has no such method.

    Returns:
        What the plug-in returns: false if it may have offsets elsewhere, which it has not changed.

    Args:
        cls: the Java class.
        kind: of the connector: source or sink.
        config: its settings.
        changes: partition and offset, or topic, number and offset; an offset that is null is forgotten.

    Raises:
        ConfigError: no plug-in has the class, or this process has no Spark or Java.
        PluginError: the plug-in objects, or does not answer; carries its message.
    """
    plugin = require_java_class("connector.class", cls, kind)
    if not plugin.may_call("alterOffsets"):
        return False
    with contextlib.ExitStack() as stack:
        runtime = _current() if session_is_alive() else _Runtime(stack.enter_context(java_alone()))

        def ask() -> bool:
            connector = runtime.plugins.connector(cls, runtime.loader(plugin), json.dumps(dict(config)), "[]")
            with suppress(Exception):
                secrets.extend(_secrets(config, json.loads(connector.passwords())))
            return bool(connector.alterOffsets(json.dumps(changes)))

        secrets = [value for key, value in config.items() if is_credential(key) and len(value) >= 4]
        try:
            return _bounded(cls, lambda: _called(runtime, cls, secrets, ask), "alterOffsets")
        except (SourceError, SparkError) as error:
            raise PluginError(str(error)) from None


def _bounded(what: str, call: Callable[[], T], methods: str) -> T:
    """Call a plug-in in a thread; one that does not return within ``CONNECTOR_BOUND_S`` is left behind there.

    Raises:
        SourceError: it has not returned in time, or has thrown.
    """
    try:
        return _in_thread(what, call, lambda thread: thread.join(CONNECTOR_BOUND_S))
    except _LeftBehind:
        raise SourceError(
            f"{what}: a call of the connector has not returned within {CONNECTOR_BOUND_S:g} s; allowed: a plug-in that"
            f" returns from {methods}"
        ) from None


class _LeftBehind(Exception):
    """A call of a plug-in has not returned; its thread goes on."""


def _in_thread(what: str, call: Callable[[], T], wait: Callable[[threading.Thread], None]) -> T:
    """Call a plug-in in a thread of its own.

    Args:
        wait: waits for the thread; if that has not ended then, the call is left behind.

    Raises:
        _LeftBehind: see ``wait``.
        Exception: that of the call.
    """
    outcomes: list[tuple[Any, BaseException | None]] = []
    thread = threading.Thread(target=lambda: outcomes.append(outcome(call)), name=f"call {what}", daemon=True)
    thread.start()
    wait(thread)
    if not outcomes:
        raise _LeftBehind
    value, error = outcomes[0]
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def _secrets(config: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [config[name] for name in names if len(config.get(name, "")) >= 4]


class JavaConnector:
    """A plug-in's connector: it divides the work into the configurations of tasks. Used by one thread at a time."""

    def __init__(
        self,
        cls: str,
        config: Mapping[str, str],
        offsets: Callable[[], Sequence[Any]],
        kind: JavaKind = "source",
        *,
        transforms: Sequence[JavaTransform] = (),
        on_passwords: Callable[[Sequence[str], Sequence[str]], None] = lambda own, others: None,
    ) -> None:
        """Create, check and start it.

        Args:
            cls: the Java class.
            config: its settings.
            offsets: reads the committed offsets: pairs of partition and offset.
            kind: of the connector: source or sink.
            transforms: the transformations of its tasks, of which only the passwords matter here.
            on_passwords: gets the names of the settings of type PASSWORD, also if the settings are not allowed: those
                of the connector and of its converters, and those of the transformations with their prefixes.

        Raises:
            ConfigError: no plug-in has the class, it is of another kind, or a setting is not allowed.
            SourceError: the plug-in has thrown.
        """
        plugin = require_java_class("connector.class", cls, kind)
        self.cls = cls
        self._secrets = [value for key, value in config.items() if is_credential(key) and len(value) >= 4]
        self._runtime = runtime = _current()
        text = json.dumps(dict(config))

        def make() -> Any:
            return runtime.plugins.connector(cls, runtime.loader(plugin), text, json.dumps(offsets()))

        try:
            self._connector = self._call(make)
        except SourceError as error:
            if f"{cls} is no Connector" in str(error):
                raise ConfigError("connector.class", cls, f"a {kind} connector; this class is no connector") from None
            raise
        found = self._call(self._connector.kind)
        if found != kind:
            shown = f"a {found}" if found else "no connector"
            raise ConfigError("connector.class", cls, f"a {kind} connector; this class is {shown}")
        self._passwords = json.loads(self._call(self._connector.passwords))
        for setting in CONVERTERS_OF_SINKS if kind == "sink" else ():
            if name := converter_class(config.get(setting, "")):
                find = partial(_converters_plugin, setting, name, plugin)
                self._passwords += self._passwords_of(f"{setting}.", name, find)
        others: list[str] = []
        for setting, name, part, _ in (each for step in transforms for each in step.parts()):
            others += self._passwords_of(
                setting.removesuffix("type"), name, partial(_plugin_of, setting, name, part, plugin)
            )
        on_passwords(self._passwords, others)
        self._secrets += _secrets(config, (*self._passwords, *others))
        for name, messages in json.loads(self._call(self._connector.validate)):
            raise ConfigError(name, self._shown(config, name), message_of(cls, "; ".join(messages), self._secrets))
        try:
            self._call(self._connector.start)
        except BaseException:
            # It is started again and again: it must release what it has opened.
            self.stop()
            raise

    def _passwords_of(self, prefix: str, cls: str, find: Callable[[], JavaPlugin]) -> list[str]:
        """Return the settings of type PASSWORD of a class that the configuration names, such as a transformation, with
        the prefix of its settings. None if it cannot tell: the error is that of the task.
        """
        try:
            text = self._call(lambda: self._runtime.plugins.passwords(self._runtime.loader(find()), cls))
        except ConnectGroupError:
            return []
        return [prefix + name for name in json.loads(text)]

    def is_alive(self) -> bool:
        """Whether the Java in which it runs is still the worker's."""
        return self._runtime.is_alive()

    def wants_tasks(self) -> bool:
        """Whether it has asked for new configurations of its tasks since the last ones.

        Raises:
            SourceError: it has reported an error (``raiseError``), and must be started again.
        """
        error = self._call(self._connector.error)
        if error is not None:
            raise SourceError(message_of(self.cls, str(error), self._secrets))
        return bool(self._call(self._connector.wantsTasks))

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the configurations of its tasks. The values are texts; one that is null is left out."""
        found = json.loads(self._call(lambda: self._connector.taskConfigs(max_tasks)))
        return [{key: str(value) for key, value in each.items() if value is not None} for each in found]

    def stop(self) -> None:
        """Stop it, without an error: it has no tasks to wait for."""
        connector = self._connector
        thread = threading.Thread(target=lambda: _quietly(connector.stop), name=f"stop {self.cls}", daemon=True)
        thread.start()
        thread.join(STOP_BOUND_MS / 1000)

    def _call(self, call: Callable[[], T]) -> T:
        """Call the plug-in, as ``_bounded``."""
        inner = lambda: _called(self._runtime, self.cls, self._secrets, call)  # noqa: E731
        return _bounded(self.cls, inner, "validate, start and taskConfigs")

    def _shown(self, config: Mapping[str, str], name: str) -> str:
        value = config.get(name, "")
        return HIDDEN if name in self._passwords or value in self._secrets else value


def _quietly(call: Callable[[], object]) -> None:
    with suppress(Exception):
        call()


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What a task has polled.

    Attributes:
        records: the number of records, those included of which no row was made.
        rows: the number of rows in the file.
        columns: name and Spark's type of each column that any record of the task has had.
        offsets: for each source partition, as JSON: itself, the number of its records, its last offset.
    """

    records: int
    rows: int
    columns: Sequence[tuple[str, str]]
    offsets: Sequence[tuple[str, int, Any]]


def _transform(runtime: _Runtime, step: JavaTransform, plugin: JavaPlugin, secrets: list[str]) -> Any:
    """Create a transformation, and add its passwords, and those of its predicate, to ``secrets``.

    ``plugin`` is that of the task.
    """
    loaders = []
    for setting, cls, kind, config in step.parts():
        loader = runtime.loader(_plugin_of(setting, cls, kind, plugin))
        loaders.append(loader)
        secrets += [value for key, value in config.items() if is_credential(key) and len(value) >= 4]
        # Only the class knows which of its settings are passwords.
        with suppress(Exception):
            secrets += _secrets(config, json.loads(runtime.plugins.passwords(loader, cls)))
    texts = json.dumps(dict(step.config)), json.dumps(dict(step.predicate_config))
    return runtime.plugins.transform(
        loaders[0], step.cls, texts[0], loaders[-1], step.predicate or None, texts[1], step.negate
    )


def _converters_plugin(setting: str, name: str, own: JavaPlugin) -> JavaPlugin:
    """Return the plug-in of a converter; ``own``, the task's, also finds Kafka's own."""
    return converter_plugin(setting, name, own) or own


def _plugin_of(setting: str, cls: str, kind: JavaKind, own: JavaPlugin) -> JavaPlugin:
    """Return the plug-in of a transformation or predicate; ``own``, the task's, also finds Kafka's own."""
    return own if cls.startswith(KAFKA_TRANSFORMS) else require_java_class(setting, cls, kind)


class JavaTask:
    """A plug-in's source task, polled in a thread of Java."""

    def __init__(
        self,
        name: str,
        config: Mapping[str, str],
        offsets: Sequence[Any],
        transforms: Sequence[JavaTransform],
        options: Mapping[str, Any],
    ) -> None:
        """Create it; ``start`` starts.

        Args:
            name: of the task, for threads.
            config: its settings; ``connector.class`` and ``task.class`` among them.
            offsets: the committed offsets of the connector: pairs of partition and offset.
            transforms: what is applied to each record, in order.
            options: of ``Rows`` in ``ConnectBridge.java``, and ``records``: the number of records that are read ahead.

        Raises:
            ConfigError: no plug-in has a class.
            SourceError: the plug-in has thrown.
        """
        cls = config["connector.class"]
        plugin = require_java_class("connector.class", cls, "source")
        self._what, self._runtime = cls, _current()
        runtime, self._secrets = self._runtime, list[str]()

        def make() -> Any:
            loader = runtime.loader(plugin)
            steps = runtime.list_of([_transform(runtime, each, plugin, self._secrets) for each in transforms])
            texts = json.dumps(dict(config)), json.dumps(list(offsets)), json.dumps(dict(options))
            # Only the connector knows which settings are passwords.
            with suppress(Exception):
                connector = runtime.plugins.connector(cls, loader, texts[0], "[]")
                self._secrets += _secrets(config, json.loads(connector.passwords()))
            return runtime.plugins.task(name, loader, texts[0], texts[1], steps, texts[2])

        self._secrets = [value for key, value in config.items() if is_credential(key) and len(value) >= 4]
        # Not in this thread, which runs queries of Spark: it would keep the plug-in's class loader, and with it classes
        # that Spark has, too.
        self._task = _in_thread(cls, partial(self._call, make), threading.Thread.join)

    def start(self) -> None:
        """Start its thread."""
        self._call(self._task.start)

    def take(self, wait_ms: int, path: Path) -> Polled | None:
        """Return what has been polled since the last call, whose rows are in a file; ``None``: nothing.

        Args:
            wait_ms: how long to wait for the first record, in milliseconds.
            path: the file, in Arrow's format of streams; not written without rows.

        Raises:
            SourceError: the task has failed, and everything that it polled before has been taken.
        """
        text = self._call(lambda: self._task.take(wait_ms, str(path)))
        if not text:
            return None
        found = json.loads(text)
        if "error" in found:
            raise SourceError(message_of(self._what, found["error"], self._secrets))
        return Polled(
            records=found["records"],
            rows=found["rows"],
            columns=[(name, kind) for name, kind in found["columns"]],
            offsets=[(name, count, offset) for name, count, offset in found["offsets"]],
        )

    def masked(self, letter: str) -> str:
        """Return a dead letter, which is JSON, without passwords in its reason."""
        found = json.loads(letter)
        found["reason"] = message_of(self._what, found["reason"], self._secrets)
        return json.dumps(found, ensure_ascii=False)

    def is_started(self) -> bool:
        """Whether the plug-in's ``start`` has returned; it polls from then on."""
        return bool(self._call(self._task.isStarted))

    def committed(self) -> str:
        """Tell the plug-in that what was taken is durable; return its error, which Kafka Connect ignores, too."""
        text = self._call(self._task.committed)
        return message_of(self._what, text, self._secrets) if text else ""

    def hold(self) -> None:
        """Let the plug-in go on without a commit of what was taken: it learns of the last record alone, later."""
        self._call(self._task.hold)

    def retried_after(self) -> str:
        """Return the error after which the last poll is repeated, once; empty without one."""
        text = self._call(self._task.retriedAfter)
        return message_of(self._what, text, self._secrets) if text else ""

    def stop(self) -> str:
        """End it, within ``STOP_BOUND_MS``; return where its thread hangs if it has not ended, else an empty text."""
        if not self._runtime.is_alive():
            return ""
        if self._call(lambda: self._task.stop(STOP_BOUND_MS)):
            return ""
        return str(self._call(self._task.place))

    def left_threads(self) -> list[str]:
        """Return the names of the threads that the plug-in has started and not ended; after ``stop``."""
        if not self._runtime.is_alive():
            return []
        return list(json.loads(self._call(lambda: self._task.left(THREADS_BOUND_MS))))

    def _call(self, call: Callable[[], T]) -> T:
        return _called(self._runtime, self._what, self._secrets, call)


class JavaSinkTask:
    """A plug-in's sink task. One thread calls it at a time, except for ``stop``.

    Attributes:
        is_called: whether a call of the plug-in is under way.
    """

    def __init__(
        self,
        config: Mapping[str, str],
        transforms: Sequence[JavaTransform],
        *,
        is_tolerant: bool = False,
        interrupted: threading.Event,
    ) -> None:
        """Create it; ``open`` starts it.

        Args:
            config: its settings; ``connector.class`` and ``task.class`` among them, and the converters.
            transforms: what is applied to each record, in order.
            is_tolerant: whether a record that cannot be converted or transformed, or that the plug-in reports
                (``errantRecordReporter``), is a dead letter.
            interrupted: set when the task is to stop, as by ``interrupt``, also before this has returned: then a
                constructor or a ``configure`` that does not return is left behind.

        Raises:
            ConfigError: no plug-in has a class.
            SinkError: the plug-in has thrown, or the task is to stop and a call does not return.
        """
        self._what = cls = config["connector.class"]
        plugin = require_java_class("connector.class", cls, "sink")
        converters = {name: converter_class(config[name]) for name in CONVERTERS_OF_SINKS if config.get(name)}
        self._runtime = runtime = _current()
        self._secrets = [value for key, value in config.items() if is_credential(key) and len(value) >= 4]
        self._interrupted = interrupted
        self._stop_bound_ms = STOP_BOUND_MS
        self.is_called = False

        def make() -> Any:
            loader = runtime.loader(plugin)
            with suppress(Exception):
                connector = runtime.plugins.connector(cls, loader, json.dumps(dict(config)), "[]")
                self._secrets.extend(_secrets(config, json.loads(connector.passwords())))
            steps = runtime.list_of([_transform(runtime, each, plugin, self._secrets) for each in transforms])
            loaders = runtime.list_of([])
            for setting, name in converters.items():
                at = runtime.loader(_converters_plugin(setting, name, plugin))
                loaders.add(at)
                with suppress(Exception):
                    found = json.loads(runtime.plugins.passwords(at, name))
                    self._secrets.extend(_secrets(config, [f"{setting}.{each}" for each in found]))
            names = runtime.list_of(list(converters))
            return runtime.plugins.sink(
                loader, names, loaders, json.dumps({**config, **converters}), steps, is_tolerant
            )

        self._task = self._in_plugin(make)

    def open(self, positions: Mapping[str, int | None]) -> dict[str, int]:
        """Add partitions, with the offsets at which they begin; return those at which the plug-in wants to begin."""
        text = _offsets_text(positions)
        return _offsets(self._in_plugin(lambda: self._task.open(text)))

    def put(self, path: Path, waits: Callable[[str], None]) -> None:
        """Hand over the records of a file.

        Args:
            waits: called now and then while the plug-in wants to get them again, with its error, or has paused their
                partitions, with an empty text.
        """
        self._in_plugin(lambda: self._task.put(str(path)), partial(self._look, waits))

    def _look(self, waits: Callable[[str], None]) -> None:
        text: str | None = None
        with suppress(ConnectGroupError):  # of a Java that has ended: the next call has it, too
            text = self._call(self._task.waiting)
        if text is not None:
            waits(message_of(self._what, text, self._secrets) if text else "")

    def rewound(self) -> dict[str, int]:
        """Return the offsets at which the plug-in has wanted to go on since ``open`` or the last call, if it is not
        there already."""
        return _offsets(self._call(self._task.rewound))

    def reach(self, ends: Mapping[str, int]) -> None:
        """Say up to which offsets all records have been handed over."""
        text = _offsets_text(ends)
        self._call(lambda: self._task.reach(text))

    def commit(self, waits: Callable[[str], None], *, is_idle: bool) -> dict[str, int]:
        """Return the offsets up to which records are durable; while there are no records, let the plug-in work.

        Args:
            waits: as that of ``put``.
        """
        found = _offsets(self._in_plugin(lambda: self._task.commit(is_idle)))
        if is_idle:
            self._look(waits)
        return found

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters since the last call, without connector and task. Those of the records up to the
        offsets that ``commit`` has returned are among them, so they are written before these offsets."""
        found: list[dict[str, Any]] = json.loads(self._call(self._task.letters))
        return [each | {"reason": message_of(self._what, each["reason"], self._secrets)} for each in found]

    def interrupt(self) -> None:
        """Put no batch again, end a call that lasts for half of ``STOP_BOUND_MS``, and leave it behind after all of it.
        From any thread."""
        self._interrupted.set()
        if self._runtime.is_alive():
            self._call(lambda: self._task.interrupt(STOP_BOUND_MS // 2))

    def stop(self) -> bool:
        """Close and stop it, within ``STOP_BOUND_MS``; return whether it has ended."""
        self._interrupted.set()  # a call that does not return is waited for no longer
        return not self._runtime.is_alive() or bool(self._call(lambda: self._task.stop(self._stop_bound_ms)))

    def _in_plugin(self, call: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
        """Call the plug-in in a thread of its own. Some calls cannot be interrupted in Java, such as one that waits for
        the other end of a connection; the task stops nevertheless.

        Args:
            look: called every ``_LOOK_S`` until the call returns or the task is to stop.

        Raises:
            SinkError: the plug-in has thrown, or the task is to stop and the call does not return.
        """

        def wait(thread: threading.Thread) -> None:
            while thread.is_alive() and not self._interrupted.is_set():
                thread.join(_LOOK_S)
                if thread.is_alive():
                    look()
            thread.join(STOP_BOUND_MS / 1000)

        self.is_called = True
        try:
            return _in_thread(self._what, partial(self._call, call), wait)
        except _LeftBehind:
            # What hangs may hold a lock that its close wants, too: both bounds together are those of a stalled task.
            self._stop_bound_ms = STOP_BOUND_MS // 2
            text = f"{self._what}: a call of the plug-in does not return; its thread is left behind"
            raise SinkError(text) from None
        finally:
            self.is_called = False

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return _called(self._runtime, self._what, self._secrets, call)
        except SourceError as error:
            raise SinkError(str(error)) from None


def _offsets_text(positions: Mapping[str, int | None]) -> str:
    parts = [(*name.rpartition("-")[::2], at) for name, at in positions.items()]
    return json.dumps([[topic, int(number), at] for topic, number, at in parts])


def _offsets(text: str) -> dict[str, int]:
    return {f"{topic}-{number}": at for topic, number, at in json.loads(text)}
