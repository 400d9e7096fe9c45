"""The audit log: one JSON line for each change that a client asks for, and for each request that is denied.

A line says when, who, from where, which request, about which resources, what it changes (credentials masked), and the
result. Lines are written by a thread: a slow disk never blocks the event loop. Above ``MAX_QUEUED`` lines, further ones
are counted and left out, which the next line and a metric say.

A change of a worker's own (its task lists, its heartbeats, offsets that a member commits, its LeaveGroup) is no line:
it is not of a person, and there are too many of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from ..errors import ConfigError, GroupIdNotFound, from_code
from ..masking import HIDDEN, is_credential, masked_value, without_secrets
from ..protocol.messages.api import DirectHandler, Handler, Request, Response
from ..protocol.messages.classic import LeaveGroupRequest
from ..protocol.messages.common import RestartRequest, SetLoggerLevelRequest, config_of
from ..protocol.messages.connectors import ConnectorChange, UpdateConnectorsRequest
from ..protocol.messages.describe import DescribeRequest, DescribeResponse
from ..protocol.messages.offsets import OffsetCommitRequest, OffsetDeleteRequest
from ..protocol.records.connect import TargetState
from ..protocol.units import printable
from ..telemetry.metric_table import Scope
from ..telemetry.metrics import MetricSource, Value, register, unregister
from ..wire.table import TABLE
from .access_rules import ANONYMOUS, AccessOperation
from .base import reason
from .group_access import NEEDS, group_of, groups_asked, needed

MAX_QUEUED: Final = 10_000
"""Lines that wait for the disk."""

MAX_CHANGE_CHARS: Final = 64 * 1024
"""Characters of what a request changes; a larger one is left out of its line."""

TOO_LARGE: Final = "too large for a line"
"""In a line instead of what its request changes."""

MAX_TEXT: Final = 1_000
LOOK_S: Final = 2.0
"""How long a line waits for the names of the credentials of the connectors that it is about."""

LOGGER: Final = "connectgroup.audit"
"""The logger that has the lines if there is no file."""

OK: Final = "OK"

BY_ADMINISTRATOR: Final = "member was removed by an admin"
"""The beginning of the reason that Kafka's ``Admin.removeMembersFromConsumerGroup`` gives."""

logger = logging.getLogger(__name__)

Credentials = Mapping[str, Container[str]]
"""By connector, the settings that are credentials whatever their names are."""
NO_OTHERS: Final[Credentials] = {}

_NAMES: Final = {entry.request_class: entry.name for entry in TABLE}


class _File(WatchedFileHandler):
    """A file of mode 0600, opened again after it has been moved away (logrotate)."""

    def _open(self) -> TextIOWrapper:
        return cast(TextIOWrapper, open(self.baseFilename, self.mode, encoding="utf-8", opener=_private))

    def handleError(self, record: logging.LogRecord) -> None:
        # Called while the error of ``emit`` is handled: the thread counts it.
        error = sys.exception()
        if error is not None:
            raise error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class AuditLog(MetricSource):
    """Where the lines go, from ``start`` to ``close``.

    Attributes:
        written, lost: lines that were written, and left out. The thread changes the first, both change the second.
    """

    scope: ClassVar[Scope] = "audit"

    def __init__(self, path: Path | None = None, *, source: str = "coordinator") -> None:
        """Write to this file, or, without one, to the logger ``LOGGER`` at level INFO.

        Args:
            source: which server writes the lines: ``coordinator``, ``proxy`` or ``rest``.

        Raises:
            ConfigError: the file cannot be written.
        """
        self.labels: Mapping[str, str] = {"server": source}
        self._source = source
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_QUEUED)
        self.written = self.lost = 0
        self._untold = 0  # lines left out since the last line
        self._thread: threading.Thread | None = None
        self._failing = False
        self._emit: Callable[[logging.LogRecord], None] = logging.getLogger(LOGGER).handle
        self._file: _File | None = None
        if path is not None:
            try:
                self._file = _File(path, delay=False)
            except (OSError, ValueError) as error:  # ValueError: a NUL in the path
                raise ConfigError("audit_log", path, f"a file that can be written ({reason(error)})") from error
            self._emit = self._file.emit

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._write_all, name="audit log", daemon=True)
        self._thread.start()
        register(self)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is queued, at most for so long."""
        thread, self._thread = self._thread, None
        unregister(self)
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout_s)
            thread.join(timeout_s)
        if self._file is not None and not thread.is_alive():
            with contextlib.suppress(OSError):  # a full disk: what is left in the buffer has been counted as lost
                self._file.close()

    def record(
        self,
        *,
        principal: str,
        host: str,
        request: str,
        resources: list[dict[str, str]],
        result: str,
        client_id: str = "",
        message: str = "",
        change: object = None,
    ) -> None:
        """Queue a line. Never blocks.

        Args:
            principal: who; empty without authentication.
            host: the client's address.
            request: the name of the API, or method and path.
            resources: the operation and the names of each resource.
            result: ``OK``, or the name of the error.
            change: what is changed, without credentials; as JSON.
        """
        line: dict[str, object] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "server": self._source,
            "principal": printable(principal or ANONYMOUS, limit=MAX_TEXT),
            "host": printable(host, limit=MAX_TEXT),
            "client_id": printable(client_id, limit=MAX_TEXT),
            "request": printable(request, limit=MAX_TEXT),
            "resources": resources,
            "result": result,
        }
        if message:
            line["message"] = printable(message, limit=MAX_TEXT)
        if change is not None:
            line["change"] = change if len(json.dumps(change)) <= MAX_CHANGE_CHARS else TOO_LARGE
        if self._untold:
            line["lines_lost_before"] = self._untold
        try:
            self._lines.put_nowait(json.dumps(line))
        except queue.Full:
            self.lost += 1
            self._untold += 1
        else:
            self._untold = 0

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._emit(logging.LogRecord(LOGGER, logging.INFO, __file__, 0, line, None, None))
            except Exception as error:
                self.lost += 1
                if not self._failing:
                    logger.error("audit log: lines cannot be written: %s", printable(error, limit=300))
                self._failing = True
            else:
                self.written += 1
                self._failing = False

    def values(self) -> Mapping[str, Value]:
        """See ``MetricSource.values``."""
        return {"line-total": self.written, "lost-line-total": self.lost}


def audit_log(path: Path | None, *, source: str = "coordinator") -> AuditLog | None:
    """The audit log in a file; without one that of the logger, if the logger has a level that lets the lines pass.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None and not 0 < logging.getLogger(LOGGER).level <= logging.INFO:
        return None
    return AuditLog(path, source=source)


class AuditedHandler:
    """The handler of one connection: records the changes that its client asks for.

    Args:
        handler: handles the requests.
        audit: gets the lines.
        principal: returns the principal of the connection.
        describing: describes connectors whatever the principal may do; ``handler`` by default.
    """

    def __init__(
        self, handler: Handler, audit: AuditLog, principal: Callable[[], str], *, describing: Handler | None = None
    ) -> None:
        self._handler, self._audit, self._principal = handler, audit, principal
        self._describing = describing or handler
        self._begin = handler.begin if isinstance(handler, DirectHandler) else None

    def begin(
        self,
        request: Request,
        *,
        client_host: str,
        client_id: str,
        principal: str | None,
        respond: Callable[[Response], None],
    ) -> bool:
        """As ``DirectHandler.begin``; changes are left to ``handle``."""
        if self._begin is None or is_change(request):
            return False
        return self._begin(request, client_host=client_host, client_id=client_id, principal=principal, respond=respond)

    async def handle(
        self, request: Request, *, client_host: str, client_id: str = "", principal: str | None = ""
    ) -> Response:
        """As ``Handler.handle``."""
        if not is_change(request):
            return await self._handler.handle(
                request, client_host=client_host, client_id=client_id, principal=principal
            )
        result, message = "UNKNOWN_OUTCOME", ""
        try:
            response = await self._handler.handle(
                request, client_host=client_host, client_id=client_id, principal=principal
            )
            code, message = _error_in(response)
            result = result_of(code)
            return response
        finally:
            credentials: Credentials | None = None
            try:
                # Afterwards: no later request of the connection is to overtake the change.
                async with asyncio.timeout(LOOK_S):
                    credentials = await self._credentials_in(request, client_host)
            except Exception as error:  # of the description: the change itself is made, or rejected
                logger.warning("audit log: a change is written without its values: %s", printable(error, limit=300))
            finally:
                record_request(
                    self._audit,
                    request,
                    self._principal(),
                    client_host,
                    result,
                    client_id=client_id,
                    message=message,
                    credentials=credentials,
                )

    async def _credentials_in(self, request: Request, client_host: str) -> Credentials | None:
        """The settings that are masked in descriptions of the connectors that a request configures: of some, only the
        class knows it, and has told when a worker ran it (``Connector.credential_names``). ``None``: unknown.
        """
        if not isinstance(request, UpdateConnectorsRequest):
            return {}
        configured = [each for each in request.changes if each.config is not None or each.config_patch is not None]
        if not configured:
            return {}
        names = tuple(each.connector for each in configured)
        describe = DescribeRequest(group_ids=(request.group_id,), connectors=names, connectors_only=True)
        response = await self._describing.handle(describe, client_host=client_host)
        known = 0, GroupIdNotFound.code  # otherwise it may have such connectors
        if not isinstance(response, DescribeResponse) or any(each.error_code not in known for each in response.groups):
            return None
        described = (each for group in response.groups for each in group.connectors)
        return {each.connector: masked_settings(config_of(each.config)) for each in described}


class Every(Container[str]):
    """All settings: whether one is a credential is not known."""

    def __contains__(self, name: object) -> bool:
        return True


def _names_of(connector: str, credentials: Credentials | None) -> Container[str]:
    return Every() if credentials is None else credentials.get(connector, ())


def masked_settings(config: Mapping[str, str]) -> frozenset[str]:
    """The settings whose values a description hides."""
    return frozenset(name for name, value in config.items() if value == HIDDEN)


def record_request(
    audit: AuditLog,
    request: Request,
    principal: str,
    host: str,
    result: str,
    *,
    client_id: str = "",
    message: str = "",
    credentials: Credentials | None = NO_OTHERS,
) -> None:
    """Record a request of the protocol.

    Args:
        credentials: which settings are, whatever their names are; ``None``: unknown, so that no value is recorded.
    """
    configs = _configs_in(request, credentials)
    audit.record(
        principal=principal,
        host=host,
        request=_NAMES.get(type(request), type(request).__name__),
        resources=_resources(request),
        result=result,
        client_id=client_id,
        message=without_secrets(message, *configs),
        change=_change(request, credentials),
    )


def is_change(request: Any) -> bool:
    """Whether a request is a line: a change, but none of a member's own."""
    if isinstance(request, OffsetCommitRequest):
        return not request.member_id
    if isinstance(request, UpdateConnectorsRequest):
        return any(access.operation is not AccessOperation.READ for access in needed(request))
    if isinstance(request, LeaveGroupRequest):  # a member that leaves names itself alone, by its member id
        return len(request.members) > 1 or any(
            not each.member_id or (each.reason or "").startswith(BY_ADMINISTRATOR) for each in request.members
        )
    return NEEDS.get(type(request), AccessOperation.ALTER) in (AccessOperation.ALTER, AccessOperation.DELETE)


def result_of(code: int) -> str:
    """The name of an error code as Kafka writes it; ``OK`` for none."""
    if not code:
        return OK
    name = type(from_code(code, "")).__name__
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()


class _TooLarge(Exception):
    """What a request changes has too many characters."""


class _Masking:
    """Masks what one request changes, until there are more than ``MAX_CHANGE_CHARS`` characters of it.

    Masking takes 100 ns for a character, on the event loop, and a request may have 8 MB. What is larger is left out,
    not cut: the rest of a text may have a credential that is recognized only by what comes before it.

    Attributes:
        names: settings that are credentials whatever their names are; changed with each connector.
    """

    def __init__(self, names: Container[str] = ()) -> None:
        self.names = names
        self._left = MAX_CHANGE_CHARS

    def count(self, *texts: str) -> None:
        """Count a part before it is masked.

        Raises:
            _TooLarge: it and those before it have too many characters.
        """
        self._left -= 4 + sum(map(len, texts))  # of JSON: quotes, a comma and a blank
        if self._left < 0:
            raise _TooLarge

    def partition(self, topic: str, index: int) -> str:
        """The name of a partition."""
        self.count(topic)
        return f"{topic}-{index}"

    def config(self, config: Mapping[str, str | None]) -> dict[str, str | None]:
        """Settings without credentials."""
        return {key: None if value is None else self._setting(key, value) for key, value in config.items()}

    def _setting(self, key: str, value: str) -> str:
        self.count(key)
        if not (key in self.names or is_credential(key)):  # the value of one is not shown, whatever its length
            self.count(value)
        return masked_value(key, value, self.names)

    def json(self, value: object) -> object:
        """A JSON value without credentials, at any depth (``rest.bodies`` limits it)."""
        if isinstance(value, dict):
            return {printable(key, limit=MAX_TEXT): self._member(key, each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.json(each) for each in value]
        self.count(str(value))
        return masked_value("", value) if isinstance(value, str) else value

    def _member(self, key: str, value: object) -> object:
        self.count(key)
        return HIDDEN if key in self.names or is_credential(key) else self.json(value)


def masked_json(value: object, names: Container[str] = ()) -> object:
    """A JSON value without credentials; ``TOO_LARGE`` for one that is left out of its line.

    Args:
        names: keys that are those of credentials whatever they are.
    """
    try:
        return _Masking(names).json(value)
    except _TooLarge:
        return TOO_LARGE


def _resources(request: Any) -> list[dict[str, str]]:
    found = [
        {
            "operation": operation.value,
            "group": printable(resource.group, limit=MAX_TEXT),
            **({} if resource.connector is None else {"connector": printable(resource.connector, limit=MAX_TEXT)}),
        }
        for operation, resource in needed(request)
    ]
    if found:
        return found
    operation = NEEDS.get(type(request)) or AccessOperation.ALTER
    return [
        {"operation": operation.value, "group": printable(group_of(each), limit=MAX_TEXT)}
        for each in groups_asked(request)
    ]


def _change(request: Any, credentials: Credentials | None) -> object:
    """What a request changes, without credentials; ``TOO_LARGE`` for one that is left out of its line."""
    try:
        return _masked_change(request, _Masking(), credentials)
    except _TooLarge:
        return TOO_LARGE


def _masked_change(request: Any, masking: _Masking, credentials: Credentials | None) -> object:
    match request:
        case UpdateConnectorsRequest():
            found = []
            for each in request.changes:
                masking.names = _names_of(each.connector, credentials)
                found.append(_of_connector(each, masking))
            return found
        case RestartRequest():
            return {"worker": request.member_id, "action": "drain" if request.drain else "restart"}
        case SetLoggerLevelRequest():
            return {"logger": request.logger, "level": request.level}
        case OffsetCommitRequest():
            return {
                masking.partition(topic.name or topic.topic_id, each.partition_index): each.committed_offset
                for topic in request.topics
                for each in topic.partitions
            }
        case LeaveGroupRequest():
            named = [
                {"member": each.member_id, "instance": each.group_instance_id, "reason": each.reason}
                for each in request.members
            ]
            return [masking.config({name: text for name, text in each.items() if text is not None}) for each in named]
        case OffsetDeleteRequest():
            return [
                masking.partition(topic.name, each.partition_index)
                for topic in request.topics
                for each in topic.partitions
            ]
    return None


def _of_connector(change: ConnectorChange, masking: _Masking) -> dict[str, object]:
    """One change of a connector."""
    masking.count(change.connector)
    found: dict[str, object] = {"connector": change.connector}
    if change.expected_version == 0:
        found["create"] = True
    if change.delete:
        found["delete"] = True
    if change.config is not None:
        found["config"] = masking.config(config_of(change.config))
    if change.config_patch is not None:
        found["patch"] = masking.config({each.name: each.value for each in change.config_patch})
    if change.target_state:
        states = {state.value: state.name for state in TargetState}
        found["state"] = states.get(change.target_state, change.target_state)
    if change.restart:
        found["restart"] = [each.task for each in change.restart]
    if change.task_configs is not None:
        found["tasks"] = len(change.task_configs)
    if change.credential_names is not None:
        found["credentials"] = sorted(change.credential_names)
    return found


def _configs_in(request: Any, credentials: Credentials | None) -> list[dict[str, str]]:
    """The configurations in a request, whose credentials no message may show."""
    if not isinstance(request, UpdateConnectorsRequest):
        return []
    found = []
    for change in request.changes:
        patch = {each.name: each.value for each in change.config_patch or () if each.value is not None}
        names = _names_of(change.connector, credentials)
        # ``without_secrets`` knows them by their names.
        found.append(
            {
                f"{key}.secret" if key in names else key: value
                for key, value in {**config_of(change.config or ()), **patch}.items()
            }
        )
    return found


def _error_in(response: Any) -> tuple[int, str]:
    """The first error in a response and its message, at any depth; 0 and an empty text if there is none."""
    return next(_errors_in(response), (0, ""))


def _errors_in(value: Any) -> Iterator[tuple[int, str]]:
    if isinstance(value, tuple):
        for each in value:
            yield from _errors_in(each)
    elif is_dataclass(value):
        if code := getattr(value, "error_code", 0):
            yield code, getattr(value, "error_message", None) or ""
        for field in fields(value):
            yield from _errors_in(getattr(value, field.name))
