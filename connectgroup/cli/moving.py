"""``connectgroup connectors import`` and ``export``: move connectors with their offsets from Kafka Connect, and back.

A connector runs on one side only. It is created stopped; its offsets are those that the other side has committed when
it was stopped; and it is resumed only if the other side says that it is stopped. What was moved stays on the other
side, stopped, so that it can go back.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ..errors import ConfigError, ConnectGroupError, ConnectorNotFound, InvalidRequest, TransportError
from ..protocol.messages.common import config_of
from ..protocol.records.connect import TargetState
from ..protocol.units import counted, printable
from ..threads import off_loop
from .arguments import secrets_of
from .render import print_json, print_line, print_table
from .requests import OtherServerAway, check_group, connected

if TYPE_CHECKING:
    from ..client.admin import Admin
    from ..config.moving import Original, Relocation
    from ..connector import PartitionOffset
    from ..protocol.messages.describe import DescribedConnector

REQUEST_S: Final = 95.0
"""Kafka Connect itself gives up after 90 s."""
STOP_S: Final = 120.0
"""How long a connector may take to stop."""
POLL_S: Final = 0.5
MAX_BYTES: Final = 256 << 20
_NEVER_BOTH: Final = "a connector must not run on both sides"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Kafka Connect forwards requests itself; a redirect would take the login to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class KafkaConnect:
    """The REST API of a worker of Kafka Connect. The methods return what it returns."""

    def __init__(self, url: str) -> None:
        """Store the address; ``http://user:password@host`` logs in.

        Raises:
            ConfigError: it is no address.
        """
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:  # brackets that do not match
            is_address = False
        if not is_address:
            shown = url.rpartition("@")[2]  # no password
            raise ConfigError("URL", shown, "the address of Kafka Connect's REST API, such as http://connect:8083")
        user, at, host = parts.netloc.rpartition("@")
        self.url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if at:
            login = base64.b64encode(unquote(user).encode()).decode()
            self._headers["Authorization"] = f"Basic {login}"

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request; while the workers rebalance, again.

        Raises:
            ConnectorNotFound: 404.
            OtherServerAway: no response.
            ConnectGroupError: any other error.
        """
        give_up_s = asyncio.get_running_loop().time() + REQUEST_S
        while True:
            status, text = await off_loop("Kafka Connect", lambda: self._send(method, path, body))
            # While a configuration is being read, too. Other conflicts, such as a name that exists, stay. A
            # request that no worker forwards to the leader gets a 500 where the others get a 409.
            busy = {409: ("rebalanc", "momentarily"), 500: ("a rebalance is expected",)}.get(status, ())
            is_busy = any(each in text for each in busy)
            if not is_busy or asyncio.get_running_loop().time() > give_up_s:
                break
            await asyncio.sleep(POLL_S)
        if status in (401, 403):
            allowed = f"{urlsplit(self.url).scheme}://USER:PASSWORD@HOST of a user who may"
            raise ConnectGroupError(f"Kafka Connect at {self.url}: {method} {path}: {status}; allowed: {allowed}")
        try:
            found = json.loads(text) if text else None
        except (ValueError, RecursionError):
            raise ConnectGroupError(f"{self.url}{path}: {status}, no JSON; allowed: Kafka Connect's REST API") from None
        if status >= 300:
            message = found.get("message", "") if isinstance(found, dict) else ""
            error = ConnectorNotFound if status == 404 else ConnectGroupError
            raise error(f"Kafka Connect at {self.url}: {method} {path}: {status}: {printable(str(message), limit=300)}")
        return found

    def _send(self, method: str, path: str, body: Any) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self._headers, method=method)
        try:
            try:
                with self._opener.open(request, timeout=REQUEST_S) as response:
                    return response.status, response.read(MAX_BYTES).decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read(MAX_BYTES).decode(errors="replace")
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = printable(str(getattr(error, "reason", error)).strip() or type(error).__name__, limit=300)
            allowed = "a worker that answers"
            if isinstance(getattr(error, "reason", error), ssl.SSLCertVerificationError):
                allowed = "a certificate for this host, of an authority that the system or a file in SSL_CERT_FILE has"
            raise OtherServerAway(f"Kafka Connect at {self.url}: {reason}; allowed: {allowed}") from error

    async def originals(self, only: Sequence[str]) -> list[Original]:
        """The connectors with their configurations, states and offsets, by name.

        Raises:
            ConfigError: there is none of a wanted name.
        """
        listed = await self("GET", "/connectors?expand=info&expand=status")
        if not isinstance(listed, dict):
            raise ConnectGroupError(f"{self.url}/connectors: got no object; allowed: Kafka Connect 2.3 or later")
        for name in only:
            if name not in listed:
                raise ConfigError("--only", name, ", ".join(sorted(listed)) or "nothing: there is no connector")
        return [await self._original(name, listed[name]) for name in sorted(listed) if not only or name in only]

    async def original(self, name: str) -> Original:
        """One connector. Raises ``ConnectorNotFound`` if there is none."""
        info, status = await self("GET", _path(name)), await self("GET", _path(name, "status"))
        return await self._original(name, {"info": info, "status": status})

    async def _original(self, name: str, found: Mapping[str, Any]) -> Original:
        from ..config.connector_offsets import changes_from
        from ..config.moving import Original

        offsets: Sequence[PartitionOffset] = ()
        why = ""
        try:
            body = await self("GET", _path(name, "offsets"))
            offsets = changes_from(body) if body != {"offsets": []} else ()
        except TransportError:
            raise
        except ConnectorNotFound:
            why = "its offsets cannot be read: Kafka Connect before 3.6, or it was deleted"
        except ConnectGroupError as error:
            why = f"its offsets cannot be read: {error}"
        try:
            return Original(
                name=name,
                config={str(key): str(value) for key, value in found["info"]["config"].items() if value is not None},
                kind="sink" if found["info"]["type"] == "sink" else "source",
                state=str(found["status"]["connector"]["state"]),
                failed=sum(task["state"] == "FAILED" for task in found["status"]["tasks"]),
                offsets=offsets,
                offsets_error=why,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise self._is_other(name) from error

    async def is_stopped(self, name: str) -> bool:
        """Whether a connector and all its tasks are stopped."""
        status = await self("GET", _path(name, "status"))
        try:
            return status["connector"]["state"] == "STOPPED" and not status["tasks"]
        except (KeyError, TypeError) as error:
            raise self._is_other(name) from error

    def _is_other(self, name: str) -> ConnectGroupError:
        return ConnectGroupError(
            f"{self.url}: the description of connector {printable(name)} is not Kafka Connect's; allowed: the address"
            " of its REST API"
        )

    async def stop(self, name: str) -> None:
        """Stop a connector, and wait until it has stopped and its offsets do not change any more.

        Raises:
            ConnectGroupError: it has not stopped in time.
        """
        await self("PUT", _path(name, "stop"))
        await self.wait_for_stop(name)

    async def wait_for_stop(self, name: str) -> None:
        """Wait until a stopped connector has committed its last offsets: two readings are equal."""
        give_up_s = asyncio.get_running_loop().time() + STOP_S
        last: Any = None
        while True:
            found = await self("GET", _path(name, "offsets")) if await self.is_stopped(name) else None
            if found is not None and found == last:
                return
            last = found
            if asyncio.get_running_loop().time() > give_up_s:
                raise ConnectGroupError(
                    f"Kafka Connect at {self.url}: {printable(name)} has not stopped in {STOP_S:g} s"
                )
            await asyncio.sleep(2 * POLL_S)


def _path(name: str, *more: str) -> str:
    return "/".join(("/connectors", quote(name, safe=""), *more))


# ---------------------------------------------------------------------------------------------- import


async def import_connectors(options: argparse.Namespace) -> int:
    """Relocation connectors of Kafka Connect here. Exit code 1: one cannot be moved, or was not."""
    from ..config.moving import decide

    connect = KafkaConnect(options.url)
    originals = await connect.originals(options.only)
    more = dict(_setting(text) for text in options.settings)
    choices = partial(decide, bootstrap_servers=options.bootstrap_servers, native=options.native, more=more)
    moves = [await off_loop("import", partial(choices, each)) for each in originals]
    rows = [_row(move) for move in moves]
    if not options.json:
        print_table(
            ("NAME", "TYPE", "STATE", "OFFSETS", "RESULT", "DETAIL"),
            [[row[key] for key in ("name", "type", "state", "offsets", "result", "detail")] for row in rows],
        )
        for move in moves:
            for note in move.notes:
                print_line(f"connectgroup: {printable(move.original.name)}: {note}", is_error=True)
    done = True
    if not options.dry_run and any(move.is_possible for move in moves):
        async with connected(options) as admin:
            await check_group(admin, options)
            for move, row in zip(moves, rows, strict=True):
                if not move.is_possible:
                    continue
                try:
                    row["here"] = await _import(admin, options, connect, move, choices)
                except ConnectGroupError as error:
                    if isinstance(error, TransportError):
                        raise
                    done, row["here"] = False, f"not imported: {error}"
                if not options.json:
                    print_line(f"connector {printable(move.original.name)}: {row['here']}", flush=True)
    if options.json:
        print_json(rows)
    return 0 if done and all(move.is_possible for move in moves) else 1


def _row(move: Relocation) -> dict[str, object]:
    original = move.original
    state = original.state + (f", {counted(original.failed, 'task')} FAILED" if original.failed else "")
    results = {"as it is": "runs as it is", "native": "maps to", "needs plug-in": "needs plug-in", "cannot": "cannot"}
    return {
        "name": original.name,
        "type": original.kind,
        "state": state,
        "offsets": len(original.offsets),
        "result": results[move.result],
        "detail": move.why,
        "notes": list(move.notes),
    }


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError("--set", text, "SETTING=VALUE")
    return name, value


async def _import(
    admin: Admin,
    options: argparse.Namespace,
    connect: KafkaConnect,
    move: Relocation,
    choices: Callable[[Original], Relocation],
) -> str:
    """Create the connectors of one original, stopped; resume them if it is stopped and ran before.

    Returns:
        What was done.

    Raises:
        ConnectGroupError: it was not done.
    """
    name, before = move.original.name, move.original
    states = [await _check_ours(admin, options, each, move.configs[each], before.state) for each in move.configs]
    if all(states):
        return f"is {', '.join(dict.fromkeys(states))} here already, and the original is STOPPED"
    if not options.stop_originals or before.state == "STOPPED":
        return await _take_over(admin, options, connect, move, choices, [])
    made: list[str] = []
    may_be_stopped = False
    try:
        # Created first: what is refused here is known before the original stops.
        for each, config in move.configs.items():
            if await _described(admin, options, each) is None:
                await admin.add_connector(options.group, each, dict(config), state=TargetState.STOPPED)
                made.append(each)
        may_be_stopped = True
        await connect.stop(name)
        return await _take_over(admin, options, connect, move, choices, made)
    except ConnectGroupError as error:
        with suppress(ConnectGroupError):
            for each in made:
                ours = await _described(admin, options, each)
                if ours is not None and _is_stopped(ours):
                    # Without its offsets it would read everything again when it is resumed.
                    await admin.delete_connector(options.group, each)
        if not may_be_stopped:
            raise
        back = f"curl -X PUT {connect.url}{_path(name, 'resume')}"
        raise InvalidRequest(f"{error}; the original was stopped and runs again with: {back}") from error


async def _take_over(
    admin: Admin,
    options: argparse.Namespace,
    connect: KafkaConnect,
    move: Relocation,
    choices: Callable[[Original], Relocation],
    without_offsets: list[str],
) -> str:
    """The part of ``_import`` after the original was stopped, if that was asked for.

    Args:
        without_offsets: connectors that have been created without offsets; empty once they have them.
    """
    name, before = move.original.name, move.original
    is_stopped = await connect.is_stopped(name)
    if is_stopped:
        # Now its offsets are final; they may have moved on since the table was made.
        await connect.wait_for_stop(name)
        move = await off_loop("import", partial(choices, await connect.original(name)))
        if not move.is_possible:
            raise InvalidRequest(f"with its last offsets: {move.why}")
    for each, config in move.configs.items():
        await _create(admin, options, move, each, config)
    without_offsets.clear()
    ours = ", ".join(map(printable, move.configs))
    text = "created STOPPED" if len(move.configs) == 1 else f"created STOPPED as {ours}"
    if not is_stopped:
        again = f"connectgroup connectors import {connect.url} --only {name} --stop-originals"
        return f"{text}, with the offsets of now: {_NEVER_BOTH}, and the original is {before.state}; next: {again}"
    wanted = {"RUNNING": TargetState.RUNNING, "UNASSIGNED": TargetState.RUNNING, "PAUSED": TargetState.PAUSED}
    state = wanted.get(before.state) if options.stop_originals else None
    if options.resume:
        state = TargetState.RUNNING
    elif before.failed:
        state = None
    if state is None:
        why = f"the original was {before.state}" + (f", {counted(before.failed, 'task')} FAILED" * bool(before.failed))
        return f"{text}, with its last offsets; {why}; next: connectgroup connectors resume {ours}"
    if not await connect.is_stopped(name):
        raise InvalidRequest(f"the original is not STOPPED any more: {_NEVER_BOTH}; it is STOPPED here")
    for each in move.configs:
        await admin.set_state(options.group, each, state)
    return f"{state.name} here, from the offsets of the original, which is STOPPED"


async def _check_ours(
    admin: Admin, options: argparse.Namespace, name: str, config: Mapping[str, str], original: str
) -> str:
    """Check that a connector does not exist here, or was imported with this configuration, and one side is stopped.

    Args:
        original: the state in Kafka Connect.

    Returns:
        Its wanted state, if it is not stopped; else an empty text.

    Raises:
        InvalidRequest: it is another one, or both sides run.
    """
    ours = await _described(admin, options, name)
    if ours is None:
        return ""
    if {**config_of(ours.config), "name": name} != {**config, "name": name}:
        delete = f"connectgroup connectors delete {printable(name)}"
        raise InvalidRequest(f"connector {printable(name)} is here with another configuration; allowed: {delete}")
    if _is_stopped(ours):
        return ""
    if original != "STOPPED":
        stop = f"connectgroup connectors stop {printable(name)}"
        raise InvalidRequest(f"connector {printable(name)} is here, and not STOPPED: {_NEVER_BOTH}; allowed: {stop}")
    return ours.target_state


async def _create(
    admin: Admin, options: argparse.Namespace, move: Relocation, name: str, config: Mapping[str, str]
) -> None:
    """Create a stopped connector, or take the one that an earlier import has made, and set its offsets."""
    from ..client import offsets
    from ..config.moving import changes_between, offsets_here

    changes = await off_loop("import", lambda: offsets_here(move.original, move.configs, name))
    permissions = offsets.Permissions(secrets=secrets_of(options))
    is_new = await _described(admin, options, name) is None
    if is_new:
        await admin.add_connector(options.group, name, dict(config), state=TargetState.STOPPED)
    try:
        # One change, or none: of a connector that keeps the offsets where Kafka Connect does, they are there already.
        found = await offsets.offsets(admin, options.group, name, permissions=permissions)
        if changes := changes_between(found, changes):
            await offsets.alter(admin, options.group, name, changes, permissions=permissions)
    except ConnectGroupError:
        if is_new:
            # Without its offsets it would read everything again when it is resumed.
            await admin.delete_connector(options.group, name)
        raise


async def _described(admin: Admin, options: argparse.Namespace, name: str) -> DescribedConnector | None:
    """A connector here, with credentials in its configuration; ``None`` if there is none."""
    from ..errors import GroupIdNotFound

    try:
        group = await admin.describe(options.group, connectors=(name,), connectors_only=True, credentials=True)
    except GroupIdNotFound:
        return None
    return group.connectors[0] if group.connectors else None


def _is_stopped(connector: DescribedConnector) -> bool:
    return connector.target_state == "STOPPED" and not any(unit.member_id for unit in connector.units)


# ---------------------------------------------------------------------------------------------- export


async def export_connectors(options: argparse.Namespace) -> int:
    """Move connectors back to Kafka Connect, or a Java connector for the first time. Exit code 1: one was not moved."""
    connect = KafkaConnect(options.url)
    rows: list[dict[str, object]] = []
    async with connected(options) as admin:
        for name in options.only:
            try:
                text, is_done = await _export(admin, options, connect, name), True
            except ConnectGroupError as error:
                if isinstance(error, TransportError):
                    raise
                text, is_done = f"not exported: {error}", False
            rows.append({"name": name, "there": text, "exported": is_done})
            if not options.json:
                print_line(f"connector {printable(name)}: {text}", flush=True)
    if options.json:
        print_json(rows)
    return 0 if all(row["exported"] for row in rows) else 1


async def _export(admin: Admin, options: argparse.Namespace, connect: KafkaConnect, name: str) -> str:
    from ..client import offsets
    from ..config.connector_offsets import offsets_as_json
    from ..config.moving import offsets_there

    ours = await _described(admin, options, name)
    if ours is None:
        raise ConnectorNotFound(f"connector {printable(name)} does not exist here")
    config = config_of(ours.config)
    ran = ours.target_state == "RUNNING"
    there = await _there(connect, name, config)
    if not await connect.is_stopped(name):
        raise InvalidRequest(f"it is not STOPPED in Kafka Connect: {_NEVER_BOTH}")
    if not _is_stopped(ours):
        if not options.stop_originals:
            raise InvalidRequest(
                f"it is {ours.target_state} here: {_NEVER_BOTH}; allowed: --stop-originals, or connectgroup connectors "
                f"stop {printable(name)}"
            )
        await _stop_here(admin, options, name)
    permissions = offsets.Permissions(secrets=secrets_of(options))
    found = await offsets.offsets(admin, options.group, name, permissions=permissions)
    changes = await off_loop("export", lambda: offsets_there(there, config, found))
    if changes:
        await connect("PATCH", _path(name, "offsets"), offsets_as_json(changes))
    if not (options.resume or (options.stop_originals and ran)):
        resume = f"curl -X PUT {connect.url}{_path(name, 'resume')}"
        return f"STOPPED in Kafka Connect, with the offsets from here; next: {resume}"
    now = await _described(admin, options, name)
    if now is not None and not _is_stopped(now):
        raise InvalidRequest(f"it is not STOPPED here any more: {_NEVER_BOTH}; it is STOPPED in Kafka Connect")
    await connect("PUT", _path(name, "resume"))
    return "RUNNING in Kafka Connect, from the offsets here, where it is STOPPED"


async def _there(connect: KafkaConnect, name: str, config: Mapping[str, str]) -> Mapping[str, str]:
    """The configuration of a connector in Kafka Connect; a Java connector is created, stopped, if it is not there."""
    from ..dataplane.java_plugins import is_java_name

    try:
        return (await connect.original(name)).config
    except ConnectorNotFound:
        pass
    if not is_java_name(config.get("connector.class", "")):
        raise InvalidRequest(
            "it is a pipeline, which Kafka Connect cannot run, and its original is not there; allowed: connectors with"
            " a Java class, and those whose original is STOPPED there"
        )
    theirs = {key: value for key, value in config.items() if not key.startswith(("sink.", "source.")) and key != "sink"}
    await connect("POST", "/connectors", {"name": name, "config": theirs, "initial_state": "STOPPED"})
    give_up_s = asyncio.get_running_loop().time() + STOP_S
    while asyncio.get_running_loop().time() < give_up_s:
        try:
            if await connect.is_stopped(name):
                break
        except ConnectorNotFound:
            pass  # it has no status yet
        await asyncio.sleep(POLL_S)
    return theirs


async def _stop_here(admin: Admin, options: argparse.Namespace, name: str) -> None:
    await admin.set_state(options.group, name, TargetState.STOPPED)
    give_up_s = asyncio.get_running_loop().time() + STOP_S
    while (ours := await _described(admin, options, name)) is not None and not _is_stopped(ours):
        if asyncio.get_running_loop().time() > give_up_s:
            raise ConnectGroupError(f"connector {printable(name)} has not stopped within {STOP_S:g} s")
        await asyncio.sleep(POLL_S)
