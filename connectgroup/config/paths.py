"""Which files connectors may use: ``worker.allowed.paths``.

A connector class marks the settings that name a local file or directory (``connector.LocalPath``). The worker compares
their values with its list before it creates the connector or a task; a REST server with a list rejects them earlier,
when a client writes the configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..connector import Connector, LocalPath
from ..errors import ConfigError

AllowedPaths = Sequence[Path] | None
"""Files, and directories with all that is below them; ``None``: any path."""


def check_paths(cls: type[Connector], config: Mapping[str, str], allowed: AllowedPaths) -> dict[str, str]:
    """Reject a configuration that names a path outside the list. Reads links: call it off the loop.

    ``..`` and symbolic links are resolved, in the list too. A hidden file below a listed directory is outside: a list
    with a home directory does not allow a shell's start-up file.

    Returns:
        The configuration with the real paths that were compared, for the code that opens the files. It follows no link
        any more (``dataplane.real_paths``), so a link that is made after this check leads nowhere.

    Raises:
        ConfigError: the first such setting, its value, and the list.
    """
    roots = None if allowed is None else [Path(os.path.realpath(each)) for each in allowed]
    found = dict(config)
    for setting, mark in _marked(cls, config).items():
        value = config.get(setting, "")
        # The class itself rejects a value with a NUL, which is no path, and a relative one.
        if not value or "\0" in value:
            continue
        if mark.within is not None:
            for name, path in mark.within(value).items():
                if "\0" not in path:
                    _check(setting, path, roots, allowed, shown=f"{name}={path}")
            continue
        real = _check(setting, value, roots, allowed)
        if os.path.isabs(value):
            found[setting] = real
    return found


def _check(setting: str, path: str, roots: Sequence[Path] | None, allowed: AllowedPaths, shown: str = "") -> str:
    """Return the real path."""
    real = os.path.realpath(path)
    if roots is not None and not _is_below(Path(real), roots):
        listed = ", ".join(map(str, allowed or ())) or "none"
        what = f"a path at or below one of allowed_paths ({listed}), not hidden"
        raise ConfigError(setting, shown or path, what, is_path=True)
    return real


def path_settings(cls: type[Connector], config: Mapping[str, str]) -> list[str]:
    """The settings of a connector class that are local paths (``LocalPath``)."""
    return [setting for setting, mark in _marked(cls, config).items() if mark.within is None]


def _marked(cls: type[Connector], config: Mapping[str, str]) -> dict[str, LocalPath]:
    return {
        prefix + (field.alias or name): mark
        for prefix, model in cls.settings_models(config).items()
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, LocalPath)
    }


def require_absolute_paths(field: str, paths: Sequence[Path]) -> None:
    """Reject relative paths in a list: each process has its own working directory.

    Raises:
        ConfigError: a path is relative.
    """
    for path in paths:
        if not path.is_absolute():
            raise ConfigError(field, path, "an absolute path", is_path=True)


def within(path: str, directory: str) -> tuple[str, ...] | None:
    """Return the components of a path below a directory, whether they exist or not; None if it is not in there.

    Links are resolved, and directories that are mounted in two places are one. Reads links: call it off the loop.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(directory))
    try:
        found = root.stat()
    except OSError:
        found = None
    for above in (real, *real.parents):
        with suppress(OSError):
            if above == root or (found is not None and os.path.samestat(above.stat(), found)):
                return real.relative_to(above).parts
    return None


def _is_below(path: Path, roots: Sequence[Path]) -> bool:
    for root in roots:
        if path == root:
            return True
        if root in path.parents:
            below = path.relative_to(root).parts
            if not any(part.startswith(".") for part in below):
                return True
    return False
