"""The committed positions of all tasks of a connector, readable in Spark's processes as well."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from .settings import parse_settings
from .sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedPositions:
    """Where the positions of a connector are: its sink's class and settings, as plain values for Spark.

    Attributes:
        connector: the connector's name.
        module, cls: module and name of the sink's class.
        settings: the settings of the sink, without the prefix; may contain a password.
    """

    connector: str
    module: str
    cls: str
    settings: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, connector: str, sink: type[Sink], settings: Mapping[str, str]) -> CommittedPositions:
        """Return the positions that a connector commits to a sink."""
        return cls(connector=connector, module=sink.__module__, cls=sink.__qualname__, settings=dict(settings))

    def read(self) -> dict[str, int]:
        """Return the position of each slice of the connector; none if the sink does not offer them.

        Raises:
            SinkError: the positions cannot be read.
        """
        sink: Any = getattr(importlib.import_module(self.module), self.cls)
        store = sink.open_positions(parse_settings(sink.Settings, self.settings, prefix="sink."))
        if store is None:
            return {}
        with closing(store):
            return dict(store.positions(self.connector))
