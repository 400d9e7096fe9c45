"""The source ``spark``: what it accepts from the sink and from its settings."""

from __future__ import annotations

import itertools
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


class Texts:
    """Files in a directory, read as text from a path; each call of ``read`` is one batch."""

    def __init__(self, root: Path, path: str) -> None:
        self.source = AnySparkSource(SparkSourceSettings(format="text", options=json.dumps({"path": path})))
        self._checkpoint, self._batch = root / "checkpoint", itertools.count()

    def read(self) -> list[str]:
        """Return the new rows, before they would be committed."""
        from connectgroup.spark.session import spark_session

        rows: list[str] = []
        query = self.source.stream(spark_session(), {}).writeStream.trigger(availableNow=True)
        query = query.option("checkpointLocation", str(self._checkpoint))
        query.foreachBatch(
            lambda frame, _: rows.extend(row.value for row in frame.collect())
        ).start().awaitTermination()
        return sorted(rows)

    def logged(self) -> list[str]:
        """Return the slices to commit."""
        return list(self.source.logged(self._checkpoint, next(self._batch)))


def test_link_out_of_the_directory_is_an_error_before_its_rows_are_committed(spark: None, tmp_path: Path) -> None:
    """Spark follows links; who may write in an allowed directory must not read other files by them."""
    root = tmp_path / "in put"
    root.mkdir()
    (tmp_path / "secret").write_text("canary")
    (root / "a b%.txt").write_text("row")
    (root / "link").symlink_to("a b%.txt")
    texts = Texts(tmp_path, f"file:{root}")
    assert texts.read() == ["row", "row"]
    assert texts.logged() == ["stream"]
    (root / "other").symlink_to(tmp_path / "secret")
    assert texts.read() == ["canary"]
    with pytest.raises(SourceError, match=r"other links to .*secret; allowed: links to files below .*in put$"):
        texts.logged()


def test_file_that_was_committed_may_be_moved_with_a_link_left(spark: None, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "a").write_text("first")
    texts = Texts(tmp_path, str(root))
    assert (texts.read(), texts.logged()) == (["first"], ["stream"])
    (root / "a").rename(tmp_path / "archived")
    (root / "a").symlink_to(tmp_path / "archived")
    (root / "b").write_text("second")
    assert (texts.read(), texts.logged()) == (["second"], ["stream"])


def test_path_with_wildcards_that_the_operator_allows_is_read(
    spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTGROUP_ALLOWED_SETTINGS", "spark.text.path")
    for name in "abc":
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "f").write_text(name)
    (tmp_path / "secret").write_text("canary")
    texts = Texts(tmp_path, f"{tmp_path}/in/../in/{{a,b}}/*")
    assert (texts.read(), texts.logged()) == (["a", "b"], ["stream"])
    (tmp_path / "in" / "a" / "link").symlink_to(tmp_path / "secret")
    assert texts.read() == ["canary"]
    with pytest.raises(SourceError, match=r"link links to .*secret; allowed: links to files below .*in$"):
        texts.logged()
