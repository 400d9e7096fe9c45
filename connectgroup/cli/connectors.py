"""``connectgroup connectors`` and ``connectgroup plugins``: create, show, edit, restart and delete connectors."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import socket
import sys
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import NO_VALUE, ConfigError, ConnectGroupError, ConnectorAlreadyExists, ConnectorNotFound, InvalidRequest
from ..masking import HIDDEN, NOT_MASKED, is_credential
from ..private import temporary_directory, write_temporary
from ..protocol.messages.common import config_of
from ..protocol.messages.describe import DescribedConnector
from ..protocol.records.connect import TargetState
from ..protocol.units import CONNECTOR, Unit, counted, printable, shown
from .arguments import allowed_paths_of, secrets_of
from .render import print_json, print_line, print_table
from .requests import admin_of, at_interrupt, check_group, connected
from .status import state_of
from .waiting import report_progress, started, wait_for, wait_until_ended

if TYPE_CHECKING:
    from pathlib import Path

    from ..client.admin import Admin
    from ..config.connector_file import ConnectorFile
    from ..config.connector_validation import Validation
    from ..config.paths import AllowedPaths
    from ..config.secrets import Secrets
    from ..connector import Connector

NOTE_TIMEOUT_S = 2.0
"""How long commands that change a connector wait for a note on it."""
_AT_LEAST_ONCE: Final = "its sink fences no former owner of a task, so it is at least once: rows may be written twice"

UNCHANGED: Final = "not changed"

STATES = {"resume": TargetState.RUNNING, "pause": TargetState.PAUSED, "stop": TargetState.STOPPED}


async def list_connectors(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        connectors = (await admin.describe(options.group)).connectors
    if options.json:
        print_json([_as_written(each) for each in connectors])
        return 0
    print_table(
        ("NAME", "CLASS", "STATE", "TASKS", "RUNNING", "FAILED"),
        [
            (
                each.connector,
                config_of(each.config).get("connector.class", ""),
                state_of(each),
                sum(unit.task != CONNECTOR for unit in each.units),
                _count(each, "RUNNING"),
                _count(each, "FAILED") + _count(each, "STALLED"),
            )
            for each in connectors
        ],
    )
    return 0


def _as_written(connector: DescribedConnector) -> dict[str, object]:
    """A connector in the form that ``put`` reads."""
    state = {} if connector.target_state == "RUNNING" else {"initial_state": connector.target_state}
    return {"name": connector.connector, "config": config_of(connector.config), **state}


def _count(connector: DescribedConnector, state: str) -> int:
    return sum(unit.state == state for unit in connector.units if unit.task != CONNECTOR)


def checked_connector(file: Path, allowed_paths: AllowedPaths = None, secrets: Secrets | None = None) -> ConnectorFile:
    """Read a connector from its file and validate it: see ``_check_written``.

    Raises:
        ConfigError: the file cannot be read, or its one error.
        ConnectGroupError: all errors of the configuration, a line each.
    """
    from ..config.connector_file import read_unchecked

    with at_interrupt():
        connector = read_unchecked(file)
    _check_written(str(file), connector, allowed_paths, secrets)
    return connector


async def put_connectors(options: argparse.Namespace) -> int:
    """Create connectors (``create``), replace their configurations (``update``), or either (``put``)."""
    from ..config.connector_file import read_several

    with at_interrupt():
        connectors = read_several(options.file)
    for number, connector in enumerate(connectors):
        _check_written(f"{options.file}[{number}]" if len(connectors) > 1 else str(options.file), connector)
    done: list[dict[str, object]] = []
    async with connected(options) as admin:
        if options.action != "update":
            await check_group(admin, options)
        try:
            for connector in connectors:
                text, version = await _put(admin, options, connector)
                done.append({"name": connector.name, "version": version, "changed": text != UNCHANGED})
                if notes := await _json_notes(admin, options, connector.name):
                    done[-1]["notes"] = notes
                text = f"{text}, version {version}"
                if not options.json:
                    _report(options, connector.name, text)
                elif connector is connectors[-1]:
                    print_json(done[0] if len(done) == 1 else done)
                await _note_rejection(admin, options, connector.name, connector.config, version)
                await _note_no_worker(admin, options, connector.name)
                await wait_for(admin, options, connector.name, version=version)
        finally:
            if options.json and 0 < len(done) < len(connectors):
                print_json(done)  # what is there in spite of the error, or of Ctrl-C
    return 0


def _check_written(
    where: str, connector: ConnectorFile, allowed_paths: AllowedPaths = None, secrets: Secrets | None = None
) -> None:
    """Validate a connector before it is sent, so that the operator sees the errors of a configuration, and not only the
    log of the worker that would own it.

    Args:
        where: its file, for errors.
        allowed_paths, secrets: see ``connector_check.check_connector``.

    Raises:
        ConfigError: its one error.
        ConnectGroupError: all errors of the configuration, a line each.
    """
    from ..config.connector_validation import validate

    found = validate({**connector.config, "name": connector.name}, allowed_paths, secrets=secrets)
    if len(found.errors) > 1:
        lines = "".join(f"\n{where}: {error}" for error in found.errors)
        raise InvalidRequest(f"{where}: {len(found.errors)} errors{lines}")
    if isinstance(error := found.error, ConfigError):
        is_path = str(error.value).startswith("/") and not is_credential(error.field)  # shown whole
        raise ConfigError(f"{where}: config.{error.field}", error.value, error.allowed, is_path=is_path) from error
    if found.error is not None:
        raise found.error
    if found.errors:
        raise InvalidRequest(f"{where}: {found.errors[0]}")


async def _put(admin: Admin, options: argparse.Namespace, connector: ConnectorFile) -> tuple[str, int]:
    """Write one connector; return what was done, and its version."""
    if options.action != "update":
        state = TargetState[connector.initial_state]
        try:
            return "created", await admin.add_connector(options.group, connector.name, connector.config, state=state)
        except ConnectorAlreadyExists:
            if options.action == "create":
                raise
    try:
        before = await admin.describe_connector(options.group, connector.name)
    except ConnectorNotFound:
        if options.action == "update":
            raise
        before = None  # it was deleted meanwhile
    done = await admin.put_connector(options.group, connector.name, connector.config)
    if done.created or before is None:
        return "created", done.version
    return _updated(before, done.version), done.version


def _updated(before: DescribedConnector, version: int) -> str:
    """What a change has done: the version of a connector stays if its new configuration is the one that it has."""
    return UNCHANGED if version == before.version else "updated"


async def translate_connector(options: argparse.Namespace) -> int:
    """Print pipelines for a connector of Kafka Connect as ``put`` reads them, and on the standard error what is
    different; with ``--json`` all of it is one object.

    Exit code 1: a pipeline lacks a setting that the file does not say.
    """
    from ..config.connector_file import read_unchecked
    from ..config.translation import translate

    with at_interrupt():
        connector = read_unchecked(options.file)
    config = {**connector.config, "name": connector.name}
    try:
        pipelines, notes = translate(config, bootstrap_servers=options.bootstrap_servers)
    except ConfigError as error:
        raise ConfigError(f"{options.file}: config.{error.field}", error.value, error.allowed) from error
    found = [{"name": each.config["name"], "config": dict(each.config)} for each in pipelines]
    missing = dict.fromkeys(text for each in pipelines for text in each.missing)
    if options.json:
        print_json({"connectors": found, "notes": list(notes), "missing": list(missing)})
        return 1 if missing else 0
    print_json(found[0] if len(found) == 1 else found)
    for text in (*notes, *missing):
        print(f"connectgroup: {text}", file=sys.stderr)
    return 1 if missing else 0


async def patch_connector(options: argparse.Namespace) -> int:
    """Change some settings (KIP-477); the coordinator applies the patch."""
    from ..config.connector_check import check_connector

    patch: dict[str, str | None] = dict.fromkeys(options.remove)
    for setting in options.settings:
        name, equals, value = setting.partition("=")
        if not equals or not name or name in patch:
            raise ConfigError("SETTING=VALUE", setting, "a name, =, and a value; each name once")
        patch[name] = value
    if not patch:
        raise ConfigError("SETTING=VALUE", "nothing", "settings to change, or --remove SETTING")
    async with connected(options) as admin:
        before = await admin.describe_connector(options.group, options.name)
        current: dict[str, str | None] = {**config_of(before.config)}
        patched = {**current, **patch}
        checked = {name: value for name, value in patched.items() if value is not None}
        check_connector(options.name, checked)
        version = await admin.patch_connector(options.group, options.name, patch)
        text = _updated(before, version)
        changed = text != UNCHANGED
        notes = await _json_notes(admin, options, options.name)
        _report(options, options.name, f"{text}, version {version}", notes=notes, version=version, changed=changed)
        await _note_rejection(admin, options, options.name, checked, version, changed=patch)
        await _note_no_worker(admin, options, options.name)
        await wait_for(admin, options, options.name, version=version)
    return 0


async def connector_config(options: argparse.Namespace) -> int:
    """Print the configuration of a connector as JSON, in the form that ``put`` reads."""
    async with connected(options) as admin:
        connector = await admin.describe_connector(options.group, options.name)
    print_json({**config_of(connector.config), "name": connector.connector})
    return 0


async def validate_connector(options: argparse.Namespace) -> int:
    """Print all errors of a file, which may have several connectors; exit code 1 if there are any.

    Without a list, paths are compared with those that the workers allow, if their coordinator responds. They are errors
    if all workers run on this machine, else notes: links and mounts of other machines are not known here.
    """
    from ..config.connector_file import read_several
    from ..config.connector_offsets import Permissions
    from ..config.connector_validation import validate
    from ..connectors.pipeline import PipelineConnector
    from ..threads import off_loop

    paths = given = allowed_paths_of(options)
    elsewhere: AllowedPaths = None
    if paths is None and not options.offline:
        with suppress(ConnectGroupError):  # a file may be validated before there is a coordinator
            async with admin_of(options, timeout_s=NOTE_TIMEOUT_S, retry_for_s=0) as admin:
                lists = await admin.allowed_paths(options.group)
            listed = tuple(sorted(set().union(*lists.values())))
            if lists.keys() == {socket.gethostname()}:
                paths = listed
            elif lists:
                elsewhere = listed
    access = None if options.offline else Permissions(secrets=secrets_of(options), paths=given)
    with at_interrupt():
        connectors = read_several(options.file)
    results, code = [], 0
    for number, connector in enumerate(connectors):
        where = f"{options.file}[{number}]" if len(connectors) > 1 else str(options.file)
        config = {**connector.config, "name": connector.name}
        found = await off_loop("validate", partial(validate, config, paths, access=access))
        code = 1 if found.errors else code
        notes = []
        if elsewhere is not None and found.connector is not None:
            noted = await off_loop("paths", partial(_outside, type(found.connector), config, elsewhere))
            if noted:
                notes.append(f"no worker lists a path: {options.names.in_text(noted)}")
                report_progress(options, f"note: {where}: {notes[0]}")
        if found.access and not found.errors:
            notes.append(f"its source and sink were not tried: {options.names.in_text(found.access)}")
        # None if there are errors. Other classes have no sink that could fence.
        is_unfenced = isinstance(found.connector, PipelineConnector) and not found.connector.fenced
        notes += [_AT_LEAST_ONCE] * is_unfenced
        results.append({**found.as_json(), "notes": notes})
        if not options.json:
            _print_validation(options, where, connector.name, found)
            if is_unfenced:
                print(f"{where}: {_AT_LEAST_ONCE}")
    if options.json:
        print_json(results[0] if len(results) == 1 else results)
    return code


def _outside(cls: type[Connector], config: Mapping[str, str], allowed: AllowedPaths) -> str:
    """Why a path is not in a list; empty if all are."""
    from ..config.paths import check_paths
    from ..config.secrets import without_references

    try:
        check_paths(cls, without_references(config), allowed)
    except ConfigError as error:
        return str(error)
    return ""


def _print_validation(options: argparse.Namespace, where: str, name: str, found: Validation) -> None:
    for error in found.errors:
        print_line(f"{where}: {options.names.in_text(str(error))}")
    if not found.errors:
        print(f"{where}: connector {name} is valid")
        if found.access:
            why = options.names.in_text(found.access)
            print_line(f"{where}: its source and sink were not tried: {why}")
            if "--secret-" in why:
                print(f"{where}: allow here what its workers may use, with that option, to try them")


async def connector_topics(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        # An unknown name: the error lists those that exist.
        topics = (await admin.describe_connector(options.group, options.name)).topics
        if options.reset:
            await admin.reset_topics(options.group, options.name)
            _report(options, options.name, "topics reset", reset=True)
            return 0
    if options.json:
        print_json({options.name: {"topics": list(topics)}})
    else:
        for topic in topics:
            print_line(topic)
        if not topics:
            print("no topics: its tasks have used none since the last reset", file=sys.stderr)
    return 0


async def delete_connectors(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        await admin.delete_connector(options.group, options.name)
        _report(options, options.name, "deleted", deleted=True)
        await wait_until_ended(admin, options, options.name)
    return 0


async def set_target_state(options: argparse.Namespace) -> int:
    async with connected(options) as admin:
        version = await admin.set_state(options.group, options.name, STATES[options.action])
        done = {"resume": "resumed", "pause": "paused", "stop": "stopped"}[options.action]
        notes = await _json_notes(admin, options, options.name) if options.action == "resume" else None
        _report(options, options.name, f"{done}, version {version}", notes=notes, version=version)
        if options.action == "resume":
            await _note_no_worker(admin, options, options.name)
        await wait_for(admin, options, options.name, version=version, state=STATES[options.action].name)
    return 0


async def restart_connector(options: argparse.Namespace) -> int:
    if options.task is not None and (options.include_tasks or options.only_failed):
        other = "--include-tasks" if options.include_tasks else "--only-failed"
        options.parser.error(f"argument --task: not allowed with argument {other}")
    async with connected(options) as admin:
        try:
            before = await admin.describe_connector(options.group, options.name)
        except ConnectorNotFound as error:
            name, _, task = options.name.rpartition("-")
            if not name or not task.isdecimal():
                raise
            hint = f"for task {int(task)} of connector {printable(name)}: connectors restart {printable(name)}"
            raise ConnectorNotFound(f"{error}; {hint} --task {int(task)}") from error
        if options.task is not None:
            restarted = await admin.restart_task(options.group, options.name, options.task)
        else:
            restarted = await admin.restart_connector(
                options.group, options.name, include_tasks=options.include_tasks, only_failed=options.only_failed
            )
        units = [str(Unit(options.name, task)) for task in restarted]
        text = f"restarting {', '.join(units)}" if units else f"nothing restarted: {_not_restarted(options, before)}"
        _report(options, options.name, text, restarted=units)
        epochs = {unit.task: unit.owner_epoch for unit in before.units if unit.task in restarted}
        await wait_for(admin, options, options.name, later_than=epochs)
    return 0


def _not_restarted(options: argparse.Namespace, connector: DescribedConnector) -> str:
    """Why a restart concerned nothing of a connector."""
    if options.only_failed:
        failed = [str(Unit(options.name, unit.task)) for unit in connector.units if unit.has_failed]
        if not failed:
            return "nothing has failed"
        if not options.include_tasks:
            return f"the connector itself has not failed; --include-tasks restarts {shown(failed)} as well"
    task = CONNECTOR if options.task is None else options.task
    state = next((unit.state for unit in connector.units if unit.task == task), "new")
    return f"{Unit(options.name, task)} is {state}, and no worker has it"


async def connector_offsets(options: argparse.Namespace) -> int:
    """Print the offsets, or change them; ``--alter`` reads what ``--json`` prints."""
    from ..client import offsets
    from ..config.connector_file import read_json
    from ..config.connector_offsets import changes_from, offsets_as_json

    permissions = offsets.Permissions(secrets=secrets_of(options))
    async with connected(options) as admin:
        connector = await admin.describe_connector(options.group, options.name)
        if (options.reset or options.alter is not None) and connector.target_state != "STOPPED":
            stop = f"connectgroup connectors stop {printable(options.name)}"
            raise InvalidRequest(f"{offsets.NOT_STOPPED.format(name=printable(options.name))}, or: {stop}")
        if options.reset:
            done = await offsets.alter(admin, options.group, options.name, None, permissions=permissions)
            notes = [] if done else [_ELSEWHERE]
            if _appends(connector):
                notes.append("the rows that its sink has stay there: those that are read again will be there twice")
            _report(options, options.name, "offsets reset", notes=notes, reset=True)
        elif options.alter is not None:
            try:
                with at_interrupt():
                    content = read_json(options.alter)
                changes = changes_from(content)
            except ConfigError as error:
                if error.field.startswith(str(options.alter)):
                    raise
                raise ConfigError(f"{options.alter}: {error.field}", error.value, error.allowed) from error
            done = await offsets.alter(admin, options.group, options.name, changes, permissions=permissions)
            notes = [] if done else [_ELSEWHERE]
            text = f"offsets of {counted(len(changes), 'partition')} altered"
            _report(options, options.name, text, notes=notes, altered=len(changes))
        else:
            found = await offsets.offsets(admin, options.group, options.name, permissions=permissions)
            _print_offsets(options, offsets_as_json(found))
    return 0


_ELSEWHERE: Final = "offsets that the plug-in keeps in the system it uses are not changed; change them there"


def _appends(connector: DescribedConnector) -> bool:
    """Whether a pipeline, or a source connector in Java, adds a row that is read again to its sink, and does not
    replace the earlier one."""
    from ..dataplane.java_plugins import is_java_name, java_class_name
    from ..plugins import connector_class_name
    from ..rest.views import connector_type

    config = config_of(connector.config)
    cls = java_class_name(connector_class_name(config.get("connector.class", "")))
    is_pipeline = cls == "pipeline" or (is_java_name(cls) and connector_type(connector) == "source")
    return is_pipeline and config.get("sink.insert.mode", "insert") == "insert"


def _print_offsets(options: argparse.Namespace, listing: dict[str, Any]) -> None:
    """Print offsets as JSON, or as a table: a column for each field of the partitions, then of the offsets."""
    if options.json:
        print_json(listing)
        return
    rows = [(each["partition"], each["offset"]) for each in listing["offsets"]]
    if not rows:
        print("no offsets: the connector has committed none", file=sys.stderr)
        return
    fields = [dict.fromkeys(field for row in rows for field in row[part] or ()) for part in (0, 1)]
    print_table(
        [field.upper().replace("_", " ") for part in fields for field in part],
        [[(row[part] or {}).get(field, "-") for part in (0, 1) for field in fields[part]] for row in rows],
    )


async def _note_rejection(
    admin: Admin,
    options: argparse.Namespace,
    name: str,
    config: Mapping[str, str],
    version: int,
    *,
    changed: Container[str] | None = None,
) -> None:
    """Say what only a worker can tell: whether it may use the files and resolve the references of a configuration.

    The worker that starts the connector tells within milliseconds. ``--wait`` shows it by itself.

    Args:
        changed: the settings that a change names; ``None``: all.
    """
    from ..config.paths import path_settings
    from ..config.secrets import without_references
    from ..plugins import load_connector_class

    named = config.keys() if changed is None else {each for each in config if each in changed}
    references = sorted(named - without_references(config).keys())
    files = [each for each in path_settings(load_connector_class(config["connector.class"]), config) if each in named]
    if options.wait or not (references or files):
        return
    unit = await started(admin, options.group, name, version, NOTE_TIMEOUT_S)
    if unit is not None and unit.state == "FAILED":
        why = options.names.in_text(unit.message)
        report_progress(options, f"note: worker {printable(unit.member_id)} does not run {printable(name)}: {why}")
    elif unit is None and references:
        text = (
            f"note: {printable(', '.join(references))}: only a worker can tell whether it may resolve the references;"
        )
        report_progress(options, f"{text} --wait or connectgroup connectors status {printable(name)} shows it")


async def _note_no_worker(admin: Admin, options: argparse.Namespace, name: str) -> None:
    """Say that a connector which should run waits for the first worker of its group; JSON has said it."""
    for note in () if options.json else await _no_worker(admin, options, name):
        report_progress(options, f"note: {note}")


async def _json_notes(admin: Admin, options: argparse.Namespace, name: str) -> Sequence[str] | None:
    """What ``_note_no_worker`` says, as ``notes`` in the JSON of a change; ``None``: nothing."""
    return (await _no_worker(admin, options, name) or None) if options.json else None


async def _no_worker(admin: Admin, options: argparse.Namespace, name: str) -> Sequence[str]:
    with suppress(ConnectGroupError):  # the change itself is made
        group = await admin.describe(options.group, connectors=(name,), connectors_only=True)
        if group.state == "Empty" and any(each.target_state == "RUNNING" for each in group.connectors):
            return [f"group {printable(group.group_id)} has no worker: {printable(name)} runs when one joins"]
    return []


def _report(
    options: argparse.Namespace, name: str, text: str, *, notes: Sequence[str] | None = None, **fields: object
) -> None:
    """Print the result of a change, as one line and its notes, or as JSON."""
    if options.json:
        print_json({"name": name, **fields, **({} if notes is None else {"notes": notes})})
    else:
        print(f"connector {name}: {text}", flush=True)
        for note in notes or ():
            report_progress(options, f"note: {note}")


# ---------------------------------------------------------------------------------------------- plug-ins


async def list_plugins(options: argparse.Namespace) -> int:
    """Print the installed plug-ins; those of Java with the directory or the jar that they are in."""
    from ..config.connector_validation import list_plugins as listed
    from ..dataplane.java_plugins import java_classes
    from ..plugins import Kind, available, installed_versions, unusable

    kinds: tuple[Kind, ...] = ("connectors", "sources", "sinks", "transforms", "predicates", "assignors")
    for problem in (each for kind in kinds for each in unusable(kind)):
        print_line(f"connectgroup: {problem}", is_error=True)
    java = java_classes()
    first: dict[tuple[str, str], Path] = {}
    for each in java:
        path = first.setdefault((each.name, each.kind), each.plugin.path)
        if path != each.plugin.path:
            also = f"{each.name} is in {path}, which runs, and in {each.plugin.path}"
            print_line(f"connectgroup: {also}", is_error=True)
    if options.json:
        shown = [
            {"class": each.name, "type": each.kind, "version": each.version, "location": str(each.plugin.path)}
            for each in java
        ]
        installed = {"connectors": listed("connectors"), **{kind: available(kind) for kind in kinds[1:]}}
        print_json({**installed, "java": shown})
        return 0
    rows = [
        (kind.removesuffix("s"), name, version, "-")
        for kind in kinds
        for name, version in installed_versions(kind).items()
    ]
    rows += [(f"Java {each.kind}", each.name, each.version or "-", str(each.plugin.path)) for each in java]
    print_table(("KIND", "NAME", "VERSION", "LOCATION"), rows, limit=150)
    return 0


async def install_plugin(options: argparse.Namespace) -> int:
    """Install a Java plug-in, and print what was fetched, with licences."""
    import asyncio

    from ..dataplane.java_install import check_coordinates, fetch, install
    from ..dataplane.java_plugins import PLUGIN_PATH, plugin_path

    check_coordinates(options.coordinates)
    paths = plugin_path()
    if not paths:
        raise ConfigError("--plugin-path", NO_VALUE, f"a directory for plug-ins, here or in {PLUGIN_PATH}")
    jars = await asyncio.to_thread(fetch, options.coordinates)
    if not options.json:
        print_table(
            ("FETCHED", "KB", "LICENCE"),
            [(each.coordinates, -(-each.size // 1024), each.licence or "not stated") for each in jars],
            limit=150,
        )
    done = await asyncio.to_thread(install, jars, options.coordinates, paths[0], replace=options.replace)
    if options.json:
        shown = [
            {"coordinates": each.coordinates, "bytes": each.size, "sha256": each.sha256, "licence": each.licence}
            for each in done.jars
        ]
        classes = [{"class": each.name, "type": each.kind, "version": each.version} for each in done.classes]
        print_json({"location": str(done.path), "installed": done.is_new, "jars": shown, "classes": classes})
        return 0
    print(f"{options.coordinates}: {'installed in' if done.is_new else 'is installed in'} {done.path}")
    for each in done.classes:
        print_line(f"  {each.kind} {each.name} {each.version}")
    return 0


async def describe_plugin(options: argparse.Namespace) -> int:
    """Print the settings of a connector class, a source, a sink, a transform or a predicate.

    ``--with`` selects what further settings of a connector class depend on.
    """
    from ..config.connector_validation import definitions, plugin_definitions, validate
    from ..dataplane.settings import unknown_setting
    from ..plugins import available

    kinds = [kind for kind in ("source", "sink") if options.name in available(f"{kind}s")]  # type: ignore[arg-type]
    if options.settings and kinds and options.name not in available("connectors"):
        hints = " or ".join(f"connectgroup plugins describe pipeline --with {kind}={options.name}" for kind in kinds)
        raise ConfigError("plugin", options.name, f"a connector class with --with; see {hints}")
    config: dict[str, str] = {"connector.class": options.name}
    for setting in options.settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError("--with", setting, "SETTING=VALUE, such as source=files")
        config[name] = value
    if options.settings:
        found = definitions(config)
        known = [each.name for each in found]
        errors_of = validate({"name": options.name, **config}).errors_of
        for name in config:
            if name not in known:
                raise unknown_setting(name, known)
            if name in errors_of:
                raise ConnectGroupError(errors_of[name][0])
    else:
        found = plugin_definitions(options.name)
    if options.json:
        print_json([each.as_json(order) for order, each in enumerate(found, 1)])
        return 0
    print_table(
        ("SETTING", "TYPE", "DEFAULT", "ALLOWED"),
        [(each.name, each.type, "required" if each.required else each.default or "", each.documentation)
         for each in found],
    )  # fmt: skip
    return 0


COMMENT: Final = "#"
"""Lines that begin with it are left out of the file."""


async def edit_connector(options: argparse.Namespace) -> int:
    """Open the configuration in ``$VISUAL`` or ``$EDITOR``; check what is saved, and open it again with its errors.

    Only the settings that were changed are sent, so a masked credential stays as it is.

    Raises:
        InvalidRequest: the editor failed, or a file with errors was saved unchanged.
    """
    async with connected(options) as admin:
        described = await admin.describe_connector(options.group, options.name)
    before = config_of(described.config)
    before.pop("name", None)
    head = f"connector {printable(options.name)}: a JSON object of its settings. Without a change, nothing happens."
    text = json.dumps(before, indent=2, ensure_ascii=False)
    # What is invisible, or reverses the text around it, is escaped as JSON does.
    body = "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
    errors = ""
    while True:
        edited = await _edited(f"{_comment(head)}{_comment(errors)}{body}\n")
        if errors and edited == body:
            raise InvalidRequest(f"connector {printable(options.name)}: nothing was changed: {errors}")
        body = edited
        try:
            patch = patch_of(options.name, before, body)
            if not patch:
                if options.json:
                    print_json({"name": options.name, "version": described.version, "changed": False})
                else:
                    print(f"connector {options.name}: not changed", flush=True)
                return 0
            config = _check(options, before, patch)
            break
        except (ConfigError, InvalidRequest) as error:
            errors = options.names.in_text(str(error))
            if not options.json:  # the next file begins with them
                print(errors, file=sys.stderr, flush=True)
    async with connected(options) as admin:
        version = await admin.patch_connector(options.group, options.name, patch)
        if options.json:
            notes = await _json_notes(admin, options, options.name)
            _report(options, options.name, "", notes=notes, version=version, changed=True, settings=sorted(patch))
        else:
            text = f"updated, version {version}: {counted(len(patch), 'setting')} changed"
            print(f"connector {options.name}: {text}", flush=True)
        await _note_rejection(admin, options, options.name, config, version, changed=patch)
        await _note_no_worker(admin, options, options.name)
        await wait_for(admin, options, options.name, version=version)
    return 0


def patch_of(connector: str, before: Mapping[str, str], text: str) -> dict[str, str | None]:
    """What turns a configuration without its name into the one of a text; null removes a setting.

    Raises:
        ConfigError: it is not a JSON object of settings, a masked value was changed in part, or there is another name.
    """
    from ..config.connector_file import settings_from

    after = settings_from(text)
    if (name := after.pop("name", connector)) != connector:
        raise ConfigError("name", name, f"{printable(connector)}; a connector keeps its name")
    for name, value in after.items():
        if HIDDEN in value and before.get(name) != value:
            raise ConfigError(printable(name), HIDDEN, NOT_MASKED)
    patch: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    return patch | dict.fromkeys(before.keys() - after.keys())


def _check(
    options: argparse.Namespace, before: Mapping[str, str], patch: Mapping[str, str | None]
) -> Mapping[str, str]:
    """Check a configuration before it is sent; return it.

    Raises:
        InvalidRequest: all of its errors, a line each.
    """
    from ..config.connector_validation import validate

    patched = {**before, **patch, "name": options.name}
    config = {name: value for name, value in patched.items() if value is not None}
    found = validate(config)
    if found.errors:
        raise InvalidRequest("\n".join(map(str, found.errors)))
    return config


def _comment(text: str) -> str:
    return "".join(f"{COMMENT} {printable(line, limit=500)}\n" for line in text.splitlines())


async def _edited(text: str) -> str:
    """Let the operator edit a text; return it without comments.

    Raises:
        InvalidRequest: there is no editor, or it failed.
        ConfigError: its file cannot be written.
    """
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not named:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise InvalidRequest(
                "there is no terminal for an editor; allowed: a program in EDITOR that needs none, or connectors patch "
                "NAME SETTING=VALUE, or connectors config NAME and connectors put FILE"
            )
        named = "vi"
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise InvalidRequest(f"the editor cannot be started: {named}: {error}; allowed: a program in EDITOR") from error
    with temporary_directory("connectgroup-edit-") as directory:
        path = directory / "connector.json"
        write_temporary(path, text)
        try:
            # Ctrl-C is a key of the editor, which has the terminal: in Emacs, for one, C-g sends it.
            with at_interrupt(lambda *_: None):
                editor = await asyncio.create_subprocess_exec(*words, str(path))
                code = await editor.wait()
        except (OSError, ValueError) as error:
            why = f"{words[0] if words else 'nothing'}: {getattr(error, 'strerror', None) or error}"
            raise InvalidRequest(f"the editor cannot be started: {why}; allowed: a program in EDITOR") from error
        if code:
            raise InvalidRequest(f"the editor {words[0]} ended with code {code}; nothing was changed")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"the edited file cannot be read: {error}") from error
    return "\n".join(line for line in lines if not line.startswith(COMMENT)).strip()
