"""The connector ``pipeline`` passes the contract of connectors, with tasks on Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectgroup.connectors.pipeline import PipelineConnector
from connectgroup.testing import ConnectorContract


class TestPipelineOnSpark(ConnectorContract):
    connector = PipelineConnector

    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        """One CSV file, and a new database."""
        (folder := tmp_path / "in").mkdir()
        (folder / "a.csv").write_text("a,b\n1,x\n2,y\n", encoding="utf-8")
        type(self).config = {
            "connector.class": "pipeline",
            "source": "files",
            "source.path": str(folder),
            "source.format": "csv",
            "sink": "sqlite",
            "sink.path": str(tmp_path / "out.db"),
            "sink.table": "t",
        }
