"""The source ``spark``: what it accepts from the sink and from its settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connectgroup.dataplane.errors import SourceError
from connectgroup.dataplane.ownership import Position
from connectgroup.spark.sources.any_spark import AnySparkSource, SparkSourceSettings


@pytest.mark.parametrize(
    "logs",
    [
        {"offset": "v1", "../../../outside": "evil"},
        {"offset": "v1", "/outside": "evil"},
        {"offset": "v1", "..": "evil"},
        {"offset": "v1", "": "evil"},
        {"offset": "v1", "0": 5},
        {"0": "v1"},
        ["offset"],
        "offset",
    ],
)
def test_metadata_from_a_sink_never_lead_out_of_the_checkpoint(tmp_path: Path, logs: object) -> None:
    """Their keys are names of files, and a client that can write to the sink chooses them."""
    source = AnySparkSource(SparkSourceSettings(format="rate"))
    checkpoint = tmp_path / "scratch" / "checkpoint"
    checkpoint.mkdir(parents=True)
    with pytest.raises(SourceError, match="offset 1 has no log of Spark; allowed: offsets of this source, or a reset"):
        source.restore(checkpoint, {"stream": Position(1, json.dumps(logs))})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
