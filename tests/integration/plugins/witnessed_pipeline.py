"""The pipeline connector with a witness at its sink: every claim and every commit appends a line to a file.

A third-party plug-in, found by its entry point (the folder beside this file stands for an installed distribution). It
changes nothing: the built-in sink's results and exceptions are passed on. Tests read the lines to detect that a worker
is in the middle of a commit, or that a zombie's commit was tried and rejected.

The file is the sink's path with ``.witness`` added; a line is ``<word> <unit> <owner epoch> [<text>]``, words
``CLAIM``, ``TRY`` (before a commit), then ``IN``, ``KNOWN`` (already committed), ``REFUSED`` or ``FAILED``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from connectgroup.connector import Config, Task, TaskContext
from connectgroup.connectors.pipeline import PipelineConnector, parse_config
from connectgroup.dataplane.columns import Columns
from connectgroup.dataplane.errors import TaskFenced
from connectgroup.dataplane.ownership import Owner, Range
from connectgroup.dataplane.sink import Sink
from connectgroup.spark.query import SparkTask

if TYPE_CHECKING:
    import pyarrow as pa


class WitnessedPipeline(PipelineConnector):
    """Entry point ``witnessed-pipeline``; settings as for ``pipeline``."""

    def task(self, config: Config, context: TaskContext) -> Task:
        pipeline = parse_config(config)
        witness = Path(config["sink.path"] + ".witness")
        create = pipeline.sink
        return SparkTask(context, replace(pipeline, sink=lambda columns: WitnessedSink(create(columns), witness)))


class WitnessedSink(Sink):
    """Wraps another sink; logs its calls and results."""

    def __init__(self, sink: Sink, witness: Path) -> None:
        self._sink, self._witness = sink, witness

    @classmethod
    def create(cls, settings: object, columns: Columns) -> Sink:
        raise NotImplementedError("the connector creates it")

    def claim(self, owner: Owner, is_mine: Callable[[str], bool]) -> dict[str, int]:
        positions = self._sink.claim(owner, is_mine)
        self._log("CLAIM", owner)
        return positions

    def commit(self, owner: Owner, ranges: Sequence[Range], rows: pa.Table) -> bool:
        self._log("TRY", owner, f"{rows.num_rows} rows")
        try:
            is_new = self._sink.commit(owner, ranges, rows)
        except Exception as error:
            self._log("REFUSED" if isinstance(error, TaskFenced) else "FAILED", owner, str(error))
            raise
        self._log("IN" if is_new else "KNOWN", owner)
        return is_new

    def close(self) -> None:
        self._sink.close()

    def _log(self, word: str, owner: Owner, text: str = "") -> None:
        line = f"{word} {owner.connector}-{owner.task} {owner.owner_epoch} {text}".strip() + "\n"
        # One short write with O_APPEND: lines of several processes do not mix.
        file = os.open(self._witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
