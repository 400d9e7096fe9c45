"""``connectgroup connectors edit``: change the configuration of a connector in the operator's editor."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Final

from ..errors import ConfigError, InvalidRequest
from ..masking import HIDDEN, NOT_MASKED
from ..private import temporary_directory, write_temporary
from ..protocol.messages.common import config_of
from ..protocol.units import counted, printable
from .render import print_json
from .requests import connected
from .waiting import wait_for

COMMENT: Final = "#"
"""Lines that begin with it are left out of the file."""


async def edit_connector(options: argparse.Namespace) -> int:
    """Open the configuration in ``$VISUAL`` or ``$EDITOR``; check what is saved, and open it again with its errors.

    Only the settings that were changed are sent, so a masked credential stays as it is.

    Raises:
        InvalidRequest: the editor failed, or a file with errors was saved unchanged.
    """
    async with connected(options) as admin:
        before = config_of((await admin.describe_connector(options.group, options.name)).config)
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
                    print_json({"name": options.name, "changed": []})
                else:
                    print(f"connector {options.name}: not changed", flush=True)
                return 0
            _check(options, before, patch)
            break
        except (ConfigError, InvalidRequest) as error:
            errors = options.names.in_text(str(error))
            print(errors, file=sys.stderr, flush=True)
    async with connected(options) as admin:
        version = await admin.patch_connector(options.group, options.name, patch)
        if options.json:
            print_json({"name": options.name, "version": version, "changed": sorted(patch)})
        else:
            text = f"updated, version {version}: {counted(len(patch), 'setting')} changed"
            print(f"connector {options.name}: {text}", flush=True)
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


def _check(options: argparse.Namespace, before: Mapping[str, str], patch: Mapping[str, str | None]) -> None:
    """Check a configuration before it is sent.

    Raises:
        InvalidRequest: all of its errors, a line each.
    """
    from ..config.connector_validation import validate

    patched = {**before, **patch, "name": options.name}
    found = validate({name: value for name, value in patched.items() if value is not None})
    if found.errors:
        raise InvalidRequest("\n".join(map(str, found.errors)))


def _comment(text: str) -> str:
    return "".join(f"{COMMENT} {printable(line, limit=500)}\n" for line in text.splitlines())


async def _edited(text: str) -> str:
    """Let the operator edit a text; return it without comments.

    Raises:
        InvalidRequest: there is no editor, or it failed.
        ConfigError: its file cannot be written.
    """
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise InvalidRequest(f"the editor cannot be started: {named}: {error}; allowed: a program in EDITOR") from error
    with temporary_directory("connectgroup-edit-") as directory:
        path = directory / "connector.json"
        write_temporary(path, text)
        try:
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
