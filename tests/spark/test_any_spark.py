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


def test_link_out_of_the_directory_is_an_error_before_its_rows_are_committed(spark: None, tmp_path: Path) -> None:
    """Spark follows links; who may write in an allowed directory must not read other files by them."""
    from connectgroup.spark.session import spark_session

    root = tmp_path / "in put"
    root.mkdir()
    (tmp_path / "secret").write_text("canary")
    (root / "a b%.txt").write_text("row")
    (root / "link").symlink_to("a b%.txt")
    source = AnySparkSource(SparkSourceSettings(format="text", options=json.dumps({"path": f"file:{root}"})))

    def read() -> list[str]:
        rows: list[str] = []
        query = source.stream(spark_session(), {}).writeStream.trigger(availableNow=True)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.foreachBatch(
            lambda frame, _: rows.extend(row.value for row in frame.collect())
        ).start().awaitTermination()
        return rows

    assert read() == ["row", "row"]
    assert list(source.logged(tmp_path / "checkpoint", 0)) == ["stream"]
    (root / "other").symlink_to(tmp_path / "secret")
    assert read() == ["canary"]
    with pytest.raises(SourceError, match=r"other links to .*secret; allowed: links to files below .*in put$"):
        source.logged(tmp_path / "checkpoint", 1)
