"""References to secrets in connector configurations: ``${env:NAME}``, ``${file:path:key}``, ``${dir:path:file}``.

A configuration is stored, sent and shown with its references. The worker that runs a connector or a task resolves
them immediately before it creates it, within the allow-lists of that worker; both are empty by default. A value that
was found is never searched for references again.

Source: Kafka's ``ConfigProvider`` (KIP-297), ``DirectoryConfigProvider`` (KIP-421), ``EnvVarConfigProvider``, and its
allow-lists (KIP-993).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..dataplane.real_paths import open_file
from ..errors import ConfigError
from ..properties import parse_properties
from ..protocol.units import printable

MAX_FILE_BYTES: Final = 1 << 20
MAX_REFERENCES: Final = 100
"""Different references in one configuration: each reads a file."""
FORMS: Final = "${env:NAME}, ${file:/path:key}, ${dir:/path:file}"

_REFERENCE: Final = re.compile(r"\$\{(?P<provider>[A-Za-z][\w-]*):(?P<place>[^{}]*)\}")
_BEGIN: Final = re.compile(r"\$\{[A-Za-z][\w-]*:")
_PLACES: Final = {
    "env": re.compile(r"(?P<key>[A-Za-z_]\w*)", re.ASCII),
    "file": re.compile(r"(?P<path>/[^:]*):(?P<key>[^:]+)"),
    "dir": re.compile(r"(?P<path>/[^:]*):(?P<key>[^:/]+)"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The secrets that the connectors of one worker may read.

    Attributes:
        env: names of environment variables; ``PREFIX_*`` allows all that begin with the text before ``*``.
        paths: files, and directories with all that is below them. A symbolic link counts as what it leads to.
    """

    env: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()

    def resolve(self, config: Mapping[str, str], found: MutableMapping[str, str]) -> dict[str, str]:
        """Return the configuration with the secrets instead of the references. Reads files: call it off the loop.

        Args:
            found: receives the secrets, under names that ``masking`` recognizes as credentials.

        Raises:
            ConfigError: a reference has another form, is not allowed, or leads to nothing. It contains no secret, and
                no entry of the lists: it becomes the trace of a failed task, and a user who may write connectors would
                learn which other secrets there are.
        """
        check_references(config)
        known: dict[str, str] = {}
        return {key: self._resolved(key, value, found, known) for key, value in config.items()}

    def check_allowed(self, config: Mapping[str, str]) -> None:
        """Reject references that these lists do not allow. Reads links, and no secret: call it off the loop.

        Raises:
            ConfigError: the first such reference; see ``resolve``.
        """
        check_references(config)
        for key, value in config.items():
            for match in {match[0]: match for match in _REFERENCE.finditer(value)}.values():
                self._allowed(key, match)

    def options(self) -> list[str]:
        """Return the options of ``connectgroup worker`` for these allow-lists."""
        env = [word for name in self.env for word in ("--secret-env", name)]
        return [*env, *(word for path in self.paths for word in ("--secret-path", str(path)))]

    def _resolved(self, key: str, value: str, found: MutableMapping[str, str], known: dict[str, str]) -> str:
        """Replace the references of one setting; ``known`` has the secret of each one that was read before."""

        size = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal size
            if match[0] not in known:
                if len(known) >= MAX_REFERENCES:
                    raise ConfigError(key, match[0], f"at most {MAX_REFERENCES} different references")
                known[match[0]] = secret = self._read(key, match)
                if secret not in found.values():
                    found[f"secret {len(found)}"] = secret
            size += len(known[match[0]])
            if size > MAX_FILE_BYTES:
                raise ConfigError(key, match[0], f"references to at most {MAX_FILE_BYTES} characters in one setting")
            return known[match[0]]

        return _REFERENCE.sub(replace, value)

    def _read(self, setting: str, match: re.Match[str]) -> str:
        key, real = self._allowed(setting, match)
        if real is None:
            if key not in os.environ:
                raise ConfigError(setting, match[0], "a variable that is set for the worker")
            return os.environ[key]
        text = _text(setting, match[0], real)
        if match["provider"] == "dir":
            return text.removesuffix("\n").removesuffix("\r")
        values = parse_properties(text, match["place"].partition(":")[0])
        if key not in values:
            raise ConfigError(setting, match[0], "a key of the file")
        return values[key]

    def _allowed(self, setting: str, match: re.Match[str]) -> tuple[str, Path | None]:
        """The variable or the key that a reference names, and its file without links."""
        place = _PLACES[match["provider"]].fullmatch(match["place"])
        assert place is not None, "check_references"
        key = place["key"]
        if match["provider"] == "env":
            if not any(key == each or (each.endswith("*") and key.startswith(each[:-1])) for each in self.env):
                raise ConfigError(setting, match[0], f"a variable that secret_env allows{_none(self.env)}")
            return key, None
        path = Path(place["path"])
        if match["provider"] == "dir":
            if key in (".", ".."):
                raise ConfigError(setting, match[0], "the name of a file in the directory")
            path /= key
        real = Path(os.path.realpath(path))
        allowed = [Path(os.path.realpath(each)) for each in self.paths]
        if not any(real == each or each in real.parents for each in allowed):
            what = f"a file at or below a path that secret_paths allows{_none(self.paths)}"
            raise ConfigError(setting, match[0], what)
        return key, real


def _text(setting: str, reference: str, real: Path) -> str:
    try:
        # The path has no links; one that appears meanwhile, in place of a directory too, is not followed.
        with open_file(real) as file:
            if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
                raise ConfigError(setting, reference, f"a regular file of at most {MAX_FILE_BYTES} bytes")
            return file.read(MAX_FILE_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(setting, reference, f"a readable file ({error.strerror})") from error
    except UnicodeError:
        # The original error contains the bytes of the file.
        raise ConfigError(setting, reference, "a file in UTF-8") from None


def _none(allowed: Sequence[object]) -> str:
    """Say that a list is empty, which is the default."""
    return "" if allowed else ": none"


def has_references(config: Mapping[str, str]) -> bool:
    """Whether a configuration refers to secrets."""
    return any(_BEGIN.search(value) for value in config.values())


def without_references(config: Mapping[str, str]) -> dict[str, str]:
    """The settings that do not refer to secrets: what a reference leads to is known on the workers only."""
    return {key: value for key, value in config.items() if not has_references({key: value})}


def check_references(config: Mapping[str, str]) -> None:
    """Check the form of all references; nothing is read.

    Raises:
        ConfigError: a reference is nested or not closed, or its provider or place is not one of ``FORMS``.
    """
    for key, value in config.items():
        if "${" not in value:
            continue
        for match in _REFERENCE.finditer(value):
            form = _PLACES.get(match["provider"])
            if form is None or form.fullmatch(match["place"]) is None:
                raise ConfigError(key, match[0], FORMS)
        if rest := _BEGIN.search(_REFERENCE.sub("", value)):
            raise ConfigError(key, f"{rest[0]} without an end, or with a reference inside", FORMS)


def restored(
    task_configs: Sequence[Mapping[str, str]], config: Mapping[str, str], found: Mapping[str, str]
) -> list[dict[str, str]]:
    """Put the references back into configurations of tasks, which are stored, sent and compared.

    Args:
        task_configs: what the connector returned; it knows the secrets.
        config: the connector's configuration with its references.
        found: the secrets (``Secrets.resolve``).

    Raises:
        ConfigError: a secret is in a setting in which the connector's configuration has no reference.
    """
    secrets = [secret for secret in found.values() if secret]
    restored_configs = []
    for number, task_config in enumerate(task_configs):
        copy = dict(task_config)
        for key, value in task_config.items():
            if not isinstance(value, str) or not any(secret in value for secret in secrets):
                continue
            if has_references({key: config.get(key, "")}):
                copy[key] = config[key]
            # A secret of a few characters is in many values by chance.
            elif value != config.get(key) and any(len(secret) >= 4 and secret in value for secret in secrets):
                field = f"task_configs[{number}].{printable(key)}"
                raise ConfigError(field, "a value with a secret", "secrets in the connector's own settings only")
        restored_configs.append(copy)
    return restored_configs


NO_SECRETS: Final = Secrets()
