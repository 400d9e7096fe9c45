"""Connector files for tests of commands."""

from __future__ import annotations

import json
from pathlib import Path


def connector_file(path: Path, **config: str) -> Path:
    """Write the file of a connector ``naps``; return its path."""
    path.write_text(json.dumps({"name": "naps", "config": config}))
    return path


def idle_connector_file(path: Path) -> Path:
    """Write the file of an idle connector ``naps`` with two tasks; return its path."""
    return connector_file(path, **{"connector.class": "idle", "tasks.max": "2"})
