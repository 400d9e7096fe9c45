"""Connector files, and a plug-in of Kafka Connect, for tests of commands."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from connectgroup.dataplane.java_plugins import PLUGIN_PATH


def connector_file(path: Path, **config: str) -> Path:
    """Write the file of a connector ``naps``; return its path."""
    path.write_text(json.dumps({"name": "naps", "config": config}))
    return path


def idle_connector_file(path: Path) -> Path:
    """Write the file of an idle connector ``naps`` with two tasks; return its path."""
    return connector_file(path, **{"connector.class": "idle", "tasks.max": "2"})


def with_plugin(path: Path, monkeypatch: pytest.MonkeyPatch, interface: str, class_name: str) -> None:
    """Have a jar with one connector class on the plug-in path."""
    with zipfile.ZipFile(path / "acme-1.0.jar", "w") as jar:
        jar.writestr(f"META-INF/services/org.apache.kafka.connect.{interface}", class_name)
        jar.writestr(f"{class_name.replace('.', '/')}.class", b"")
    monkeypatch.setenv(PLUGIN_PATH, str(path))
