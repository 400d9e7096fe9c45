"""A source of your own in one file: the readings of sensors, from a service with pages.

A distribution registers it; a connector names it as ``source``:

    [project.entry-points."connectgroup.sources"]
    sensors = "own_source:SensorSource"

``own_pipeline.py`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from connectgroup import IteratorSource
from connectgroup.dataplane.columns import from_ddl
from connectgroup.dataplane.settings import PluginSettings

PAGE = 100


class SensorSettings(PluginSettings):
    """Settings, each with the prefix ``source.``; each description states the allowed values."""

    sensors: Annotated[int, Field(ge=1, le=1000, description="1 to 1000")] = 4
    readings: Annotated[int, Field(ge=0, description="readings of each sensor, from 0")] = 1_000


class SensorSource(IteratorSource):
    """A slice is a sensor, a position the number of a reading. Sensors are divided among the tasks."""

    Settings = SensorSettings
    settings: SensorSettings
    columns = from_ddl("sensor STRING, number BIGINT, celsius DOUBLE")

    @property
    def description(self) -> str:
        return f"readings of {self.settings.sensors} sensors"

    def slices(self) -> list[str]:
        return [f"sensor-{number}" for number in range(self.settings.sensors)]

    def rows(self, slice_name: str, position: int) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yield one page after the other, each with the position that follows it."""
        while page := fetch(slice_name, position, self.settings.readings):
            position += len(page)
            yield page, position


def fetch(sensor: str, begin: int, end: int) -> list[dict[str, Any]]:
    """A page of readings from a number on; stands for a request to the service."""
    return [reading(sensor, number) for number in range(begin, min(end, begin + PAGE))]


def reading(sensor: str, number: int) -> dict[str, Any]:
    """One reading."""
    return {"sensor": sensor, "number": number, "celsius": 20 + number % 50 / 10}
